package serve

import (
	"errors"
	"testing"
	"time"

	"margay/cluster/control"
)

func TestAllocate(t *testing.T) {
	offers := []offer{{node: 0, cores: []uint32{2}}, {node: 1}, {node: 3, cores: []uint32{1, 2, 4}}}
	all := []*control.Place{{Rank: 0, Node: 0, Core: 2}, {Rank: 1, Node: 3, Core: 1}, {Rank: 2, Node: 3, Core: 2}, {Rank: 3, Node: 3, Core: 4}}
	for n := 1; n <= 4; n++ {
		if places := allocate(offers, n); !samePlaces(places, all[:n]) {
			t.Errorf("%d ranks are placed at %v", n, places)
		}
	}
	if places := allocate(offers, 5); places != nil {
		t.Errorf("5 ranks are placed on 4 cores: %v", places)
	}
	if places := allocate(nil, 1); places != nil {
		t.Errorf("a rank is placed on nothing: %v", places)
	}
}

// Cores of nodes that are not up, that are taken, or that are of another kind are not given away.
func TestPlacement(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMachine(t, 5)
		m.played[1].arch = "pdp11"
		for _, i := range []int{0, 1, 2, 3} {
			m.played[i].connect()
		}
		c := m.client()
		first := c.run(spec(1))
		m.played[2].silence()
		time.Sleep(3 * time.Second)
		reply := must[*control.RunReply](c, &control.RunRequest{Spec: spec(3)})
		if want := []*control.Place{{Rank: 0, Node: 0, Core: 2}, {Rank: 1, Node: 3, Core: 1}, {Rank: 2, Node: 3, Core: 2}}; !samePlaces(reply.Places, want) {
			t.Errorf("placed at %v", reply.Places)
		}
		_, err := c.ask(&control.RunRequest{Spec: spec(1)})
		want := "1 ranks need 1 application cores, but 0 of 4 are free (3 of 5 nodes are up; see margay nodes)"
		if !errors.Is(err, &control.Failure{Code: control.Code_CODE_NO_ROOM}) || err.Error() != want {
			t.Errorf("a full machine says %v", err)
		}
		must[*control.Done](c, &control.Kill{Job: first, Force: true})
		take[*control.JobState](&c.recorder)
		if reply := must[*control.RunReply](c, &control.RunRequest{Spec: spec(1)}); !samePlaces(reply.Places, []*control.Place{{Core: 1}}) {
			t.Errorf("the core of a job that has ended is not used again: %v", reply.Places)
		}
		other := spec(1)
		other.Arch = "pdp11"
		if reply := must[*control.RunReply](c, &control.RunRequest{Spec: other}); !samePlaces(reply.Places, []*control.Place{{Node: 1, Core: 1}}) {
			t.Errorf("placed at %v", reply.Places)
		}
		if _, err := c.ask(&control.RunRequest{Spec: spec(0)}); !errors.Is(err, &control.Failure{Code: control.Code_CODE_BAD_REQUEST}) {
			t.Errorf("a job without ranks: %v", err)
		}
		if _, err := c.ask(&control.RunRequest{}); !errors.Is(err, &control.Failure{Code: control.Code_CODE_BAD_REQUEST}) {
			t.Errorf("a request without a job: %v", err)
		}
	})
}

func TestWrongArchitecture(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		other := spec(1)
		other.Arch = "pdp11"
		_, err := c.ask(&control.RunRequest{Spec: other})
		want := "/bin/true is for pdp11, but the nodes of machine m are " + m.played[0].arch
		if !errors.Is(err, &control.Failure{Code: control.Code_CODE_NOT_EXECUTABLE}) || err.Error() != want {
			t.Errorf("error %v", err)
		}
	})
}
