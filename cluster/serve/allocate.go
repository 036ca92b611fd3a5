package serve

import (
	"margay/cluster/control"
)

// offer is what a node has to give: its number and its free application cores, in ascending order.
type offer struct {
	node  uint32
	cores []uint32
}

// allocate places n ranks on the lowest free cores of the lowest nodes. It returns nil when there are too few.
func allocate(offers []offer, n int) []*control.Place {
	var places []*control.Place
	for _, o := range offers {
		for _, core := range o.cores {
			if len(places) == n {
				return places
			}
			places = append(places, &control.Place{Rank: uint32(len(places)), Node: o.node, Core: core})
		}
	}
	if len(places) < n {
		return nil
	}
	return places
}
