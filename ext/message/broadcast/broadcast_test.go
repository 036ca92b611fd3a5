package broadcast_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"margay/ext/message/broadcast"
	"margay/ext/message/messagetest"
	"margay/nimble"
	"margay/nimble/engine/portable"
)

// Whatever the shape of the job, each rank gets each broadcast once.
func TestBroadcast(t *testing.T) {
	scattered := []int{0, 2, 1, 0, 2, 2, 1}
	for name, place := range map[string][]int{
		"one rank": {0}, "one node": messagetest.Ranks(5, 5), "two levels": messagetest.Ranks(12, 1), "three levels": messagetest.Ranks(80, 1),
		"wide": messagetest.Ranks(120, 60), "scattered": scattered,
	} {
		t.Run(name, func(t *testing.T) {
			j := messagetest.NewJob(t, portable.New(), broadcast.Object, nimble.Options{Variables: map[string]any{broadcast.Handler: uint32(5)}}, 1, place...)
			for _, root := range []int{0, len(place) / 2, len(place) - 1} {
				text := fmt.Sprint("from rank ", root)
				j.Send(root, root, 5, [2]uint64{77}, []byte(text))
				j.Run()
				for rank := range place {
					got := j.Took(rank)
					if len(got) != 1 || got[0].Handler != 6 || got[0].Args != [2]uint64{77, uint64(root)} || string(got[0].Payload) != text || !got[0].Extension {
						t.Fatalf("root %d, rank %d: %+v", root, rank, got)
					}
				}
			}
			if len(j.Delivered)+len(j.Dropped)+j.Refused != 0 {
				t.Errorf("and %+v, %+v, %d refused", j.Delivered, j.Dropped, j.Refused)
			}
		})
	}
}

// A rank that imitates the extensions reaches the rank that it sends to, and no other.
func TestImitation(t *testing.T) {
	j := messagetest.NewJob(t, portable.New(), broadcast.Object, nimble.Options{}, 1, messagetest.Ranks(4, 2)...)
	j.Send(0, 2, 1, [2]uint64{77, 1}, []byte("not a broadcast"))
	j.Run()
	if len(j.Delivered) != 1 || j.Delivered[0].Target != 2 || j.Delivered[0].Extension {
		t.Errorf("%+v", j.Delivered)
	}
}

// Where there is no room, the others get it, and that is counted.
func TestFull(t *testing.T) {
	j := messagetest.NewJob(t, portable.New(), broadcast.Object, nimble.Options{}, 1, messagetest.Ranks(4, 1)...)
	j.Full = func(rank uint32) bool { return rank == 2 }
	j.Send(0, 0, 0, [2]uint64{}, nil)
	j.Run()
	if len(j.Delivered) != 3 || j.Refused != 1 {
		t.Errorf("%+v, %d refused", j.Delivered, j.Refused)
	}
	if n := binary.LittleEndian.Uint64(j.Nodes[0].Map(broadcast.Lost).Memory().Bytes()); n != 1 {
		t.Errorf("it counts %d", n)
	}
}
