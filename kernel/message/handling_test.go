package message

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/ext/message/allreduce"
	"margay/ext/message/barrier"
	"margay/ext/message/broadcast"
	"margay/ext/message/echo"
	"margay/ext/message/fetchadd"
	"margay/ext/message/filter"
	"margay/ext/message/get"
	"margay/ext/message/put"
	"margay/internal/check"
	"margay/kernel/abi/slot"
	"margay/kernel/abi/wire"
	"margay/kernel/extension"
)

// equip inserts an object on all nodes.
func (j *testJob) equip(object []byte, settings ...extension.Setting) {
	j.t.Helper()
	for _, n := range j.nodes {
		if _, err := n.job.config.Set.Insert(extension.Request{Object: object, Settings: settings}); err != nil {
			j.t.Fatal(err)
		}
	}
}

// joinAll joins all ranks.
func (j *testJob) joinAll() (apps []*app) {
	for rank := range j.config.Nodes {
		apps = append(apps, j.join(rank))
	}
	return apps
}

// send posts a message with two arguments as soon as there is room.
func (a *app) sendTo(target int, handler uint16, args [2]uint64, payload []byte) {
	a.t.Helper()
	check.Await(a.t, "room in the ring", func() bool {
		ok, wake, err := a.send.Push(wire.Record{Handler: handler, Peer: uint32(target), Args: args, Payload: payload})
		if err != nil {
			a.t.Fatal(err)
		}
		if wake {
			a.ring()
		}
		return ok
	})
}

// take returns the next message of a rank, which an extension has sent for one to another rank.
func (j *testJob) take(a *app, source int, handler uint16) wire.Record {
	j.t.Helper()
	r, ok := a.next(20 * time.Second)
	node := uint32(j.config.Nodes[source])
	if !ok || int(r.Peer) != source || r.Node != node|wire.NodeExtension || r.Handler != handler {
		j.t.Fatalf("rank %d: %v, it came as %+v; want one for handler %d of the extension for rank %d", a.header.Rank, ok, r, handler, source)
	}
	return r
}

// An extension answers reads and additions of its own node and of another one. The answers say who has sent them, and
// no rank of the target is woken.
func TestRemoteAccessByExtension(t *testing.T) {
	j := open(t, 2, 2)
	j.equip(get.Object, extension.Setting{Name: "handler", Value: 10})
	j.equip(fetchadd.Object, extension.Setting{Name: "handler", Value: 20}, extension.Setting{Name: "entries", Value: 4}, extension.Setting{Name: "words", Value: 4, Entries: true})
	j.equip(put.Object, extension.Setting{Name: "handler", Value: 30})
	apps := j.joinAll()
	for _, target := range []int{1, 0, 2, 3} {
		apps[0].sendTo(target, 30, [2]uint64{100, 1 << 62}, []byte("forty-two"))
		if r := j.take(apps[0], target, 31); r.Args != [2]uint64{100, 9} {
			t.Errorf("put: %v", r.Args)
		}
		for i := range uint64(3) {
			apps[0].sendTo(target, 20, [2]uint64{2, 5}, []byte("token"))
			if r := j.take(apps[0], target, 21); r.Args[0] != 2 || r.Args[1]%5 != 0 || string(r.Payload) != "token" {
				t.Errorf("addition %d: %v %q", i, r.Args, r.Payload)
			}
		}
		apps[0].sendTo(target, 20, [2]uint64{4, 5}, nil)
		if r := j.take(apps[0], target, 21); r.Args != [2]uint64{1<<63 | 4, 0} {
			t.Errorf("addition to no word: %v", r.Args)
		}
		apps[0].sendTo(target, 10, [2]uint64{1020, 5}, nil)
		if r := j.take(apps[0], target, 11); r.Args != [2]uint64{1020, 0} || len(r.Payload) != 0 {
			t.Errorf("get beyond the end: %v %q", r.Args, r.Payload)
		}
	}
	j.nothingHeld()
	j.noFault()
}

// values encodes numbers.
func values(numbers ...uint64) (b []byte) {
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return b
}

// The extensions of all nodes combine numbers of all ranks. Each rank gets each result once, and none before all have
// contributed.
func TestAllReduceByExtension(t *testing.T) {
	seed := check.Seed(t)
	for name, c := range map[string]struct{ nodes, perNode int }{"one rank": {1, 1}, "one node": {1, 3}, "a tree": {10, 1}, "wide nodes": {3, 4}} {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			j := open(t, c.nodes, c.perNode)
			j.equip(allreduce.Object, extension.Setting{Name: "handler", Value: 40})
			apps := j.joinAll()
			const calls, ahead = 30, 3
			want := make([][2]uint64, calls)
			got := make([][calls]bool, len(apps)) // results of calls under way come in any order
			contribute := func(call int) {
				for _, rank := range random.Perm(len(apps)) {
					v := [2]uint64{random.Uint64N(1000), random.Uint64()}
					want[call] = [2]uint64{want[call][0] + v[0], want[call][1] + v[1]}
					apps[rank].sendTo(rank, 40, [2]uint64{uint64(call), allreduce.Sum}, values(v[:]...))
				}
			}
			for call := range calls + ahead {
				if call < calls {
					contribute(call)
				}
				if call -= ahead; call < 0 {
					continue
				}
				for rank, a := range apps {
					r, ok := a.next(20 * time.Second)
					if !ok || r.Handler != 42 || r.Node&wire.NodeExtension == 0 || r.Args[0] >= calls || r.Args[1] != allreduce.Sum {
						t.Fatalf("rank %d: %v, it came as %+v", rank, ok, r)
					}
					if n := r.Args[0]; got[rank][n] || string(r.Payload) != string(values(want[n][:]...)) {
						t.Fatalf("rank %d: again: %v, the result of call %d is %x", rank, got[rank][n], n, r.Payload)
					}
					got[rank][r.Args[0]] = true
				}
			}
			for rank, a := range apps {
				if a.receive.Ready() {
					t.Errorf("rank %d has another message", rank)
				}
			}
			j.nothingHeld()
			j.noFault()
		})
	}
}

// Ranks that do not agree learn that, and nobody hangs.
func TestAllReduceDisagrees(t *testing.T) {
	j := open(t, 2, 1)
	j.equip(allreduce.Object, extension.Setting{Name: "handler", Value: 40})
	apps := j.joinAll()
	for call, c := range [][2]struct {
		operation uint64
		values    []byte
	}{{{1, values(1)}, {2, values(1)}}, {{1, values(1)}, {1, values(1, 2)}}, {{1, values(1)}, {1, nil}}} {
		for rank, a := range apps {
			a.sendTo(rank, 40, [2]uint64{uint64(call), c[rank].operation}, c[rank].values)
		}
		for _, a := range apps {
			if r := j.take(a, 0, 42); r.Args[1]&allreduce.Failed == 0 {
				t.Errorf("call %d: %v", call, r.Args)
			}
		}
	}
	j.noFault()
}

// No rank leaves the barrier of the extensions before all have entered it.
func TestBarrierByExtension(t *testing.T) {
	j := open(t, 10, 2)
	j.equip(barrier.Object, extension.Setting{Name: "handler", Value: 50})
	apps := j.joinAll()
	for number := range uint64(5) {
		for rank, a := range apps {
			a.sendTo(rank, 50, [2]uint64{number}, nil)
		}
		for rank, a := range apps {
			if r, ok := a.next(20 * time.Second); !ok || r.Handler != 52 || r.Args[0] != number || r.Node&wire.NodeExtension == 0 {
				t.Fatalf("rank %d, barrier %d: %v %+v", rank, number, ok, r)
			}
		}
	}
	for rank, a := range apps[1:] {
		a.sendTo(rank+1, 50, [2]uint64{5}, nil)
	}
	apps[0].sendTo(1, 51, [2]uint64{5}, nil) // a rank cannot enter for a node,
	apps[1].sendTo(1, 52, [2]uint64{5}, nil) // nor release anybody,
	apps[1].sendTo(0, 50, [2]uint64{5}, nil) // nor enter for another rank
	if !apps[0].barrier(0) {                 // all that was sent is handled when this is complete
		for rank := range apps[1:] {
			apps[rank+1].enter()
		}
	}
	check.Await(t, "the barrier of the node kernels", func() bool { return apps[0].area.Released().Load() == 1 })
	for rank, a := range apps {
		if a.receive.Ready() {
			t.Errorf("rank %d was released without rank 0", rank)
		}
	}
	apps[0].sendTo(0, 50, [2]uint64{5}, nil)
	for rank, a := range apps {
		if r, ok := a.next(20 * time.Second); !ok || r.Args[0] != 5 {
			t.Fatalf("rank %d: %v %+v", rank, ok, r)
		}
	}
	j.nothingHeld()
	j.noFault()
}

// A broadcast comes to every rank once, whichever is the root.
func TestBroadcastByExtension(t *testing.T) {
	j := open(t, 10, 2)
	j.equip(broadcast.Object, extension.Setting{Name: "handler", Value: 60})
	apps := j.joinAll()
	for i, root := range []int{0, 1, 7, 19} {
		apps[root].sendTo(root, 60, [2]uint64{uint64(i)}, []byte("news"))
		for rank, a := range apps {
			if r, ok := a.next(20 * time.Second); !ok || r.Handler != 61 || r.Args != [2]uint64{uint64(i), uint64(root)} || string(r.Payload) != "news" {
				t.Fatalf("root %d: rank %d: %v %+v", root, rank, ok, r)
			}
		}
	}
	j.nothingHeld()
	for rank, a := range apps {
		if a.receive.Ready() {
			t.Errorf("rank %d has another message", rank)
		}
	}
	j.noFault()
}

// What an extension leaves of a message is what comes.
func TestChangedMessage(t *testing.T) {
	j := open(t, 2, 1)
	j.equip(filter.Object, extension.Setting{Name: "handler", Value: 3}, extension.Setting{Name: "keep", Value: 4})
	apps := j.joinAll()
	for _, target := range []int{0, 1} {
		for _, n := range []uint64{5, 5, 4, 7} {
			apps[0].sendTo(target, 3, [2]uint64{1, n}, []byte("longer than that"))
		}
		apps[0].sendTo(target, 3, [2]uint64{1, 8}, []byte("xy"))
		for _, want := range []struct {
			n    uint64
			text string
		}{{5, "long"}, {7, "long"}, {8, "xy"}} {
			r, ok := apps[target].next(20 * time.Second)
			if !ok || r.Args[1] != want.n || string(r.Payload) != want.text || r.Node != 0 {
				t.Errorf("to rank %d: %v %+v, want %+v", target, ok, r, want)
			}
		}
	}
	j.noFault()
}

// refusals returns how many answers the extension echo of a node could not send, and the last error.
func (j *testJob) refusals(node int) (number uint64, last unix.Errno) {
	j.t.Helper()
	s := j.nodes[node].job.config.Set
	x, err := s.Find(1)
	if err != nil {
		j.t.Fatal(err)
	}
	var b [16]byte
	if _, err := x.ReadMap("refused", 0, b[:]); err != nil {
		j.t.Fatal(err)
	}
	return binary.LittleEndian.Uint64(b[:]), unix.Errno(-binary.LittleEndian.Uint64(b[8:]))
}

// Two extensions that answer each other's answers end after slot.MaxHops hops.
func TestEndlessAnswers(t *testing.T) {
	j := open(t, 2, 1)
	j.equip(echo.Object, extension.Setting{Name: "answer", Value: 0})
	apps := j.joinAll()
	apps[0].sendTo(1, 0, [2]uint64{}, nil)
	check.Await(t, "an answer too many", func() bool { n, _ := j.refusals(1); return n == 1 })
	if _, err := j.refusals(1); err != unix.ELOOP {
		t.Errorf("refused by %v", err)
	}
	for node, want := range []uint64{slot.MaxHops / 2, slot.MaxHops/2 + 1} {
		if runs := j.nodes[node].manager.List()[0].Stats.Runs; runs != want {
			t.Errorf("node %d has handled %d messages, not %d", node, runs, want)
		}
	}
	j.nothingHeld()
	j.noFault()
}

// However many answers extensions send for a message, and for those, there is a last one.
func TestManyAnswers(t *testing.T) {
	j := open(t, 2, 1)
	j.equip(echo.Object, extension.Setting{Name: "answer", Value: 0}, extension.Setting{Name: "copies", Value: 100})
	apps := j.joinAll()
	apps[0].sendTo(1, 0, [2]uint64{}, nil)
	var runs uint64
	check.Await(t, "the end of the answers", func() bool {
		before := runs
		runs = 0
		for _, n := range j.nodes {
			runs += n.manager.List()[0].Stats.Runs
		}
		time.Sleep(50 * time.Millisecond)
		j.nothingHeld()
		return runs > 0 && runs == before
	})
	if runs < 1000 || runs > 1+slot.MaxCaused {
		t.Errorf("one message has caused %d", runs-1)
	}
	j.noFault()
}
