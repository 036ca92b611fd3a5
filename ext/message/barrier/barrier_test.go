package barrier_test

import (
	"testing"

	"margay/ext/message/barrier"
	"margay/ext/message/messagetest"
	"margay/nimble"
	"margay/nimble/engine/portable"
)

// No rank is released before all have entered, and then each one is, once.
func TestBarrier(t *testing.T) {
	for name, place := range map[string][]int{
		"one rank": {0}, "one node": messagetest.Ranks(5, 5), "two levels": messagetest.Ranks(12, 1), "three levels": messagetest.Ranks(80, 1),
		"wide": messagetest.Ranks(120, 60), "scattered": {0, 2, 1, 0, 2, 2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			j := messagetest.NewJob(t, portable.New(), barrier.Object, nimble.Options{Variables: map[string]any{barrier.Handler: uint32(5)}}, 1, place...)
			for number := range uint64(3) {
				last := int(number) % len(place)
				for rank := range place {
					if rank != last {
						j.Send(rank, rank, 5, [2]uint64{number}, nil)
					}
				}
				j.Run()
				if len(j.Delivered) != 0 {
					t.Fatalf("barrier %d: released without rank %d: %+v", number, last, j.Delivered)
				}
				j.Send(last, last, 5, [2]uint64{number}, nil)
				j.Run()
				for rank := range place {
					if got := j.Took(rank); len(got) != 1 || got[0].Handler != 7 || got[0].Args[0] != number || !got[0].Extension {
						t.Fatalf("barrier %d, rank %d: %+v", number, rank, got)
					}
				}
			}
			if len(j.Dropped)+j.Refused != 0 {
				t.Errorf("%+v, %d refused", j.Dropped, j.Refused)
			}
		})
	}
}

// A rank cannot enter for another one or for a node, release others, or enter another barrier than
// they: such messages are dropped.
func TestImitation(t *testing.T) {
	j := messagetest.NewJob(t, portable.New(), barrier.Object, nimble.Options{}, 1, messagetest.Ranks(4, 2)...)
	j.Send(1, 1, 0, [2]uint64{7}, nil)
	j.Run()
	for _, m := range []messagetest.Message{
		{Source: 0, Target: 1, Handler: 0, Args: [2]uint64{7}}, {Source: 2, Target: 0, Handler: 1, Args: [2]uint64{7}},
		{Source: 2, Target: 2, Handler: 2, Args: [2]uint64{7}}, {Source: 0, Target: 0, Handler: 0, Args: [2]uint64{8}},
	} {
		j.Send(m.Source, m.Target, m.Handler, m.Args, nil)
		j.Run()
	}
	if len(j.Dropped) != 4 || len(j.Delivered) != 0 {
		t.Errorf("dropped %+v, delivered %+v", j.Dropped, j.Delivered)
	}
}

// A message that is lost releases no rank.
func TestLoss(t *testing.T) {
	j := messagetest.NewJob(t, portable.New(), barrier.Object, nimble.Options{}, 1, messagetest.Ranks(4, 1)...)
	j.Lose = func(m *messagetest.Message) bool { return m.Handler == 1 && m.Source == 3 }
	for rank := range 4 {
		j.Send(rank, rank, 0, [2]uint64{}, nil)
	}
	j.Run()
	if len(j.Delivered) != 0 {
		t.Errorf("%+v", j.Delivered)
	}
}
