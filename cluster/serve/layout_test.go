package serve

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// What each node gets to prepare a job does not grow with the job's nodes, so what serve sends does
// not grow with their square.
func TestPrepareSize(t *testing.T) {
	size := func(nodes int) int {
		var offers []offer
		j := newJob(1, spec(uint32(2*nodes-1)), nil)
		for n := range nodes {
			offers = append(offers, offer{node: uint32(n), total: 2, cores: []uint32{1, 2}})
			j.members = append(j.members, &control.Member{Node: uint32(n), Address: fmt.Sprintf("10.66.%d.%d:7118", 1+n/256, n%256)})
		}
		j.places = allocate(offers, shapeOf(j.spec))
		l, err := j.layout()
		if err != nil || !samePlaces(placesOf(l), j.places) {
			t.Fatalf("%d nodes: %v, %v", nodes, l, err)
		}
		return proto.Size(l)
	}
	if few, many := size(8), size(4096); many > few+8 { // numbers take a few bytes more
		t.Errorf("a layout takes %d bytes for 8 nodes, and %d for 4096", few, many)
	}
}
