package message

import (
	"errors"
	"slices"
	"testing"

	"margay/kernel/abi/id"
)

// A rank has the place of its node. A node that is not a member is refused.
func TestPlacesOf(t *testing.T) {
	members := []id.Node{2, 3, 7}
	for _, c := range []struct {
		nodes []id.Node
		want  []int
	}{
		{nil, []int{}},
		{[]id.Node{2, 3, 7}, []int{0, 1, 2}},
		{[]id.Node{2, 2, 7, 7, 7}, []int{0, 0, 2, 2, 2}},
		{[]id.Node{2, 4}, nil},
		{[]id.Node{8}, nil},
	} {
		got, err := placesOf(c.nodes, members)
		if !slices.Equal(got, c.want) || (c.want == nil) != errors.Is(err, errNoMember) {
			t.Errorf("%v: %v, %v", c.nodes, got, err)
		}
	}
}
