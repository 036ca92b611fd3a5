package serve

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// A client learns which contents the nodes of its job lack, whatever a node answers.
func TestContents(t *testing.T) {
	all := []uint32{0, 1, 2}
	for name, c := range map[string]struct {
		answers [2]*control.Prepared // one per node; nil: another answer
		want    []uint32
	}{
		"both have all":          {[2]*control.Prepared{{}, {}}, nil},
		"each lacks another":     {[2]*control.Prepared{{Lacking: []uint32{2}}, {Lacking: []uint32{0, 2}}}, []uint32{0, 2}},
		"one lacks all":          {[2]*control.Prepared{{Lacking: all}, {}}, all},
		"one does not say":       {[2]*control.Prepared{nil, {}}, all},
		"one lacks what is not":  {[2]*control.Prepared{{Lacking: []uint32{1, 3, 1 << 31}}, {}}, []uint32{1}},
		"one says a thing twice": {[2]*control.Prepared{{Lacking: []uint32{1, 1}}, {}}, []uint32{1}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := up(t, 2)
				for i, answer := range c.answers {
					if answer != nil {
						m.played[i].answers = map[string]proto.Message{"Prepare": answer}
					}
				}
				client := m.client()
				exec := &control.Exec{Contents: [][]byte{[]byte("a"), []byte("b"), []byte("c")}}
				reply := must[*control.RunReply](client, &control.RunRequest{Spec: spec(4), Exec: exec})
				if !slices.Equal(reply.Lacking, c.want) {
					t.Errorf("contents %v are lacking, not %v", reply.Lacking, c.want)
				}
			})
		})
	}
}
