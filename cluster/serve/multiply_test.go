package serve

import (
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// A frame of a user goes to each rank, or to each node. However large it is, serve holds little of
// it for them, and no node loses its connection.
func TestFramesDoNotMultiply(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMachine(t, 1, letsIn(t))
		n := m.played[0]
		n.cores = []uint32{1, 2, 3}
		n.connect()
		c := m.as(7001)
		s := spec(24)
		s.PerCore, s.Stdin = 8, control.StdinMode_STDIN_ALL
		job := c.run(s)
		take[proto.Message](&n.recorder)
		c.tell(&control.Stdin{Job: job, Data: make([]byte, control.MaxFrame-100)})
		if n.conn.Err() != nil {
			t.Fatalf("the node has lost its connection: %v", n.conn.Err())
		}
		none[*control.Stdin](t, &n.recorder, "no client sends as much at a time")
		c.tell(&control.Stdin{Job: job, Data: make([]byte, control.StdinPiece), Only: []uint32{0, 1}})
		none[*control.Stdin](t, &n.recorder, "no client names more nodes than the job has")
		c.tell(&control.Stdin{Job: job, Data: make([]byte, control.StdinPiece), Only: []uint32{0}})
		if got := take[*control.Stdin](&n.recorder); len(got) != 24 {
			t.Errorf("%d ranks get input", len(got))
		}
	})
}

// What serve does not know of a user's requests is not passed on: it could be as large as a frame.
func TestUnknownIsNotPassedOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2, letsIn(t))
		c := m.as(7001)
		job := c.run(spec(3))
		fat := func(r proto.Message) proto.Message {
			r.ProtoReflect().SetUnknown([]byte{0xfa, 0x3f, 1, 'x'}) // field 1023
			return r
		}
		size := fat(new(control.Terminal)).(*control.Terminal)
		c.tell(fat(&control.Resize{Job: job, Size: size}))
		m.played[1].conn.Close()
		synctest.Wait()
		c.begin(fat(&control.Signal{Job: job, Rank: control.None, Signal: 10}))
		m.played[1].hosts(job, control.JobPhase_JOB_RUNNING)
		m.played[1].connect()
		for _, r := range []proto.Message{&control.TakeSamples{Node: control.None}, &control.ListExtensions{Node: control.None}} {
			c.begin(fat(r))
		}
		c.begin(&control.ExtensionLog{Node: control.None, After: map[uint32]uint64{0: 1, 1: 2, 2: 3, 1 << 30: 4}})
		synctest.Wait()
		passed := 0
		for _, n := range m.played {
			for _, r := range take[proto.Message](&n.recorder) {
				switch r := r.(type) {
				case *control.Resize, *control.Signal, *control.TakeSamples, *control.ListExtensions:
					passed++
				case *control.ExtensionLog:
					if passed++; len(r.After) != 2 || r.After[1] != 2 {
						t.Errorf("a node gets %v", r)
					}
				}
				known := proto.CloneOf(r)
				control.DropUnknown(known)
				if !proto.Equal(r, known) {
					t.Errorf("a node gets %v", r)
				}
			}
		}
		if passed != 9 {
			t.Errorf("%d messages came", passed)
		}
	})
}
