package firewall_test

import (
	"testing"

	"margay/ext/message/messagetest"
	"margay/ext/packet/firewall"
	"margay/kernel/abi/slot"
	"margay/nimble"
	"margay/nimble/engine/portable"
)

// A message is dropped if it fits all constants that are set. Messages of the libraries, and all
// without constants, pass and are counted.
func TestFirewall(t *testing.T) {
	handlers, ranks := []uint32{0, 3, 255, 256, 1<<32 - 1}, 6 // two ranks on each node
	for name, set := range map[string]map[string]uint32{
		"none":    {},
		"handler": {firewall.Handler: 3},
		"zero":    {firewall.Handler: 0},
		"source":  {firewall.Source: 4},
		"node":    {firewall.Node: 1},
		"all":     {firewall.Handler: 255, firewall.Source: 3, firewall.Node: 1},
		"never":   {firewall.Source: 3, firewall.Node: 0},
	} {
		t.Run(name, func(t *testing.T) {
			variables := make(map[string]any)
			for name, value := range set {
				variables[name] = value
			}
			x := messagetest.Insert(t, portable.New(), firewall.Object, nimble.Options{Variables: variables})
			fits := func(constant string, value uint32) bool {
				wanted, ok := set[constant]
				return !ok || wanted == value
			}
			var want [3]firewall.Count
			for _, handler := range handlers {
				for rank := range uint32(ranks) {
					m := slot.MessageContext{SourceNode: rank / 2, SourceRank: rank, TargetRank: 9, Handler: handler, Length: 5, Total: 5000}
					verdict := slot.Pass
					if handler < 256 && len(set) > 0 && fits(firewall.Handler, handler) && fits(firewall.Source, rank) && fits(firewall.Node, rank/2) {
						verdict = slot.Drop
						want[rank/2].Dropped++
					}
					want[rank/2].Messages++
					want[rank/2].Bytes += 5000
					if v := x.Inspect(&slot.PacketContext{Message: m}); v != verdict {
						t.Errorf("verdict %d about a message for handler %d from rank %d", v, handler, rank)
					}
				}
			}
			counts, err := firewall.Read(x.Map(firewall.Counts).Memory().Bytes())
			if err != nil || [3]firewall.Count(counts) != want {
				t.Errorf("it counts %+v, not %+v, %v", counts[:4], want, err)
			}
			x.Inspect(&slot.PacketContext{Message: slot.MessageContext{SourceNode: 1 << 20}}) // has no count
		})
	}
}
