package serve

import (
	"net/netip"

	"margay/cluster/control"
	"margay/kernel/abi/id"
	"margay/kernel/abi/layout"
)

// layout returns where the ranks of the job are, as its nodes get it.
func (j *job) layout() (*control.Layout, error) {
	addresses := make(map[id.Node]netip.AddrPort, len(j.members))
	for _, m := range j.members {
		addresses[id.Node(m.Node)], _ = netip.ParseAddrPort(m.Address) // register has tried it
	}
	return layoutOf(j.places, addresses)
}

// layoutOf condenses places on nodes with these addresses.
func layoutOf(all []*control.Place, addresses map[id.Node]netip.AddrPort) (*control.Layout, error) {
	places := make([]layout.Place, 0, len(all))
	for _, p := range all {
		place := layout.Place{Rank: id.Rank(p.Rank), Node: id.Node(p.Node), Core: id.Core(p.Core)}
		for _, core := range p.More {
			place.More = append(place.More, id.Core(core))
		}
		places = append(places, place)
	}
	l, err := layout.Condense(places, func(node id.Node) netip.AddrPort { return addresses[node] })
	if err != nil {
		return nil, err
	}
	m := new(control.Layout)
	for _, r := range l.Condensed().Runs {
		m.Runs = append(m.Runs, &control.LayoutRun{Node: uint32(r.Node), Count: uint32(r.Count), Share: uint32(r.Share), Address: r.Address.String()})
	}
	for _, s := range l.Condensed().Shares {
		share := new(control.LayoutShare)
		for _, cores := range s {
			rank := new(control.LayoutRank)
			for _, core := range cores {
				rank.Cores = append(rank.Cores, uint32(core))
			}
			share.Ranks = append(share.Ranks, rank)
		}
		m.Shares = append(m.Shares, share)
	}
	return m, nil
}
