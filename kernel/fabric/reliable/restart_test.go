package reliable

import (
	"math/rand/v2"
	"testing"
	"time"

	"margay/internal/check"
	"margay/kernel/abi/datagram"
	"margay/kernel/abi/id"
)

// kill replaces an end by one that knows nothing of the other, which does not notice.
func (w *world) kill(at int) {
	w.numbers++
	w.ends[at] = &end{
		incarnation: w.ends[at].incarnation + 1, delivered: w.ends[1-at].sent,
		conn: New(Config{Self: id.Node(at), Peer: id.Node(1 - at), Local: w.numbers, Window: w.window, Datagram: w.size}),
	}
	w.ends[1-at].delivered = [datagram.Classes]uint64{}
	w.retired++
}

// meet makes the ends agree on new incarnations, as a transport does when one of them is not bound
// to the other: the survivor sends again what it has never sent as a whole.
func (w *world) meet(survivor int) {
	old := w.ends[survivor].conn
	w.numbers++
	c := New(Config{Self: id.Node(survivor), Peer: id.Node(1 - survivor), Local: w.numbers, Window: w.window, Datagram: w.size})
	for class := range datagram.Class(datagram.Classes) {
		for _, message := range old.Unsent(class) {
			if err := c.Send(class, message, w.now); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	w.ends[survivor].conn = c
	for i, e := range w.ends {
		e.conn.Bind(w.ends[1-i].conn.config.Local, w.now)
	}
}

// restarted kills an end between two jobs. The survivor sends the messages of the next job, and
// learns of the restart some time later: it is silent long enough, or the other end has messages
// and asks.
func (w *world) restarted(victim int) {
	survivor := 1 - victim
	held := w.flying[survivor]
	if len(held) > 0 { // a datagram of the incarnation that is killed arrives late
		held = held[len(held)-1:]
		w.flying[survivor] = w.flying[survivor][:len(w.flying[survivor])-1]
	}
	w.heal()
	if w.random.IntN(2) == 0 { // the last message has arrived, and its acknowledgement has not
		w.send(survivor, datagram.System)
		w.flush(survivor)
		for len(w.flying[victim]) > 0 {
			w.arrive(victim, 0, false)
		}
		if w.ends[victim].delivered != w.ends[survivor].sent { // it has many units
			w.heal()
		}
	}
	w.kill(victim)
	w.now = w.now.Add(certainty + 1 + time.Duration(w.random.IntN(int(time.Second))))
	w.flying[survivor] = append(w.flying[survivor], held...)
	for w.random.IntN(2) == 0 && len(w.flying[survivor]) > 0 {
		w.arrive(survivor, 0, false)
	}
	for range 1 + w.random.IntN(6) {
		w.send(survivor, datagram.Class(w.random.IntN(datagram.Classes)))
		for range w.random.IntN(30) {
			w.stepWithout(victim)
		}
	}
	if w.random.IntN(2) == 0 {
		w.send(victim, datagram.User)
	}
	w.meet(survivor)
}

// stepWithout does something at random while one end is not bound yet.
func (w *world) stepWithout(victim int) {
	survivor := 1 - victim
	at := w.random.IntN(2)
	if flying := len(w.flying[at]); flying > 0 && w.random.IntN(2) == 0 {
		w.arrive(at, w.random.IntN(flying), w.random.IntN(5) == 0)
	} else {
		w.advance(time.Duration(w.random.IntN(300)) * time.Millisecond)
	}
	w.flush(at)
	w.bounded(survivor)
}

// An end that is killed between two jobs, while all messages have arrived, costs the next job
// nothing, although the other end does not know of it: not even if a late datagram of the killed
// end arrives.
func TestRestartsBetweenJobs(t *testing.T) {
	seed := check.Seed(t)
	runs := 100
	if testing.Short() {
		runs = 20
	}
	restarts := 0
	for run := range runs {
		random := rand.New(rand.NewPCG(seed, uint64(run)))
		w := newWorld(t, random)
		for range 1 + random.IntN(5) {
			for range random.IntN(200) {
				w.step()
			}
			w.restarted(random.IntN(2))
			w.heal()
			if t.Failed() {
				t.Fatalf("run %d", run)
			}
		}
		restarts += w.retired
	}
	t.Logf("%d restarts", restarts)
}
