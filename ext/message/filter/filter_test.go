package filter_test

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"margay/ext/message/filter"
	"margay/ext/message/messagetest"
	"margay/nimble"
	"margay/nimble/engine/portable"
)

// Of each key, the messages come whose number is larger than all before, cut short.
func TestNews(t *testing.T) {
	j := messagetest.NewJob(t, portable.New(), filter.Object, nimble.Options{
		Variables: map[string]any{filter.Handler: uint32(5), filter.Keys: uint32(4), filter.Keep: uint32(3)},
	}, 1, 0)
	latest := make(map[uint64]uint64)
	random := rand.New(rand.NewPCG(1, 2))
	dropped := uint64(0)
	for range 500 {
		key, number, payload := random.Uint64N(4), random.Uint64N(1000), []byte("payload")[:random.IntN(8)]
		j.Send(0, 0, 5, [2]uint64{key, number}, payload)
		j.Run()
		got := j.Took(0)
		if number <= latest[key] {
			dropped++
			if len(got) != 0 {
				t.Fatalf("%d after %d: %+v", number, latest[key], got)
			}
			continue
		}
		latest[key] = number
		if want := payload[:min(3, len(payload))]; len(got) != 1 || string(got[0].Payload) != string(want) || got[0].Args != [2]uint64{key, number} || got[0].Extension {
			t.Fatalf("%d with %q: %+v", number, payload, got)
		}
	}
	if n := binary.LittleEndian.Uint64(j.Nodes[0].Map(filter.Dropped).Memory().Bytes()); n != dropped || int(n) != len(j.Dropped) {
		t.Errorf("%d dropped, it counts %d", dropped, n)
	}
	j.Send(0, 0, 6, [2]uint64{}, []byte("for another handler"))
	j.Run()
	if got := j.Took(0); len(got) != 1 || string(got[0].Payload) != "for another handler" {
		t.Errorf("%+v", got)
	}
}
