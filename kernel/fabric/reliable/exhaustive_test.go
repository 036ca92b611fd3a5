package reliable

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"testing"

	"margay/kernel/abi/datagram"
	"margay/kernel/abi/id"
)

// fault is something that the network or a clock does.
type fault int

const (
	arrival   fault = iota // a datagram arrives
	loss                   // a datagram is lost
	repeat                 // a datagram arrives, and stays in flight
	elapse                 // time passes until the next deadline, although datagrams are in flight
	faults                 // how many there are
	consuming              // an end consumes a message
)

// choice is one step of an exploration: a fault, and the end and datagram that it concerns.
type choice struct {
	fault     fault
	to, which int
}

// scenario is a small world to be explored.
type scenario struct {
	name     string
	messages [2][]datagram.Class // what each end sends at the beginning
	long     int                 // this message of end 0 has two units; -1: none has
	allowed  [faults]int         // how many of each there may be; arrivals are not bounded
}

// play makes the world that a series of choices leads to.
func (s *scenario) play(t *testing.T, path []choice) (w *world, left [faults]int) {
	w = &world{t: t, window: 2, largest: 1, ends: [2]*end{{}, {}}}
	w.begin()
	for from, classes := range s.messages {
		for i, class := range classes {
			e := w.ends[from]
			message := w.message(from, class, e.sent[class])
			if from == 0 && i == s.long {
				message = append(make([]byte, datagram.Fragment), message...)
			}
			if err := e.conn.Send(class, message, w.now); err != nil {
				t.Fatal(err)
			}
			e.sent[class]++
		}
	}
	w.flush(0)
	w.flush(1)
	left = s.allowed
	for _, c := range path {
		if c.fault < faults && c.fault != arrival {
			left[c.fault]--
		}
		w.choose(c)
	}
	return w, left
}

func (w *world) choose(c choice) {
	switch c.fault {
	case arrival, repeat:
		b := w.flying[c.to][c.which]
		if c.fault == arrival {
			w.flying[c.to] = slices.Delete(w.flying[c.to], c.which, c.which+1)
		}
		var d datagram.Datagram
		if err := d.Parse(b); err != nil {
			w.t.Fatal(err)
		}
		if err := w.ends[c.to].conn.Arrive(&d, w.now); err != nil {
			w.t.Fatal(err)
		}
		w.count(c.to)
	case loss:
		w.flying[c.to] = slices.Delete(w.flying[c.to], c.which, c.which+1)
	case consuming:
		w.consume(c.to)
	case elapse:
		w.now = max(w.now, min(w.ends[0].conn.Deadline(), w.ends[1].conn.Deadline()))
	}
	w.flush(0)
	w.flush(1)
}

// count checks the order of delivery: a message ends with its number and its incarnation.
func (w *world) count(at int) {
	e := w.ends[at]
	for m, ok := e.conn.Deliver(); ok; m, ok = e.conn.Deliver() {
		want := w.message(1-at, m.Class, e.delivered[m.Class])
		if got := m.Data[len(m.Data)-len(want):]; !slices.Equal(got, want) {
			w.t.Fatalf("end %d delivered %x in class %d, want %x", at, got, m.Class, want)
		}
		e.delivered[m.Class]++
		e.unconsumed = append(e.unconsumed, m)
	}
}

// choices lists the possible next steps.
func (w *world) choices(left [faults]int) (all []choice) {
	for to := range w.ends {
		for which := range w.flying[to] {
			for f := arrival; f <= repeat; f++ {
				if f == arrival || left[f] > 0 {
					all = append(all, choice{f, to, which})
				}
			}
		}
		if len(w.ends[to].unconsumed) > 0 {
			all = append(all, choice{consuming, to, 0})
		}
	}
	timed := w.ends[0].conn.Deadline() != Never || w.ends[1].conn.Deadline() != Never
	if timed && (len(all) == 0 || left[elapse] > 0) {
		all = append(all, choice{fault: elapse})
	}
	return all
}

// key identifies the state of a world: what happens next depends on nothing else.
func (w *world) key(left [faults]int) [sha256.Size]byte {
	h := sha256.New()
	fmt.Fprint(h, left)
	for i, e := range w.ends {
		fmt.Fprint(h, e.delivered, len(e.unconsumed), e.conn.describe(w.now))
		slices.SortFunc(w.flying[i], bytes.Compare)
		for _, b := range w.flying[i] {
			h.Write(b)
		}
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// describe returns everything that decides what an endpoint does next, with times relative to now.
// Contents are left out: they follow from the numbers of units.
func (n *Conn) describe(now id.Time) string {
	relative := func(at id.Time) int64 {
		if at == Never {
			return -1 << 62
		}
		return int64(at - now)
	}
	text := fmt.Sprint(n.number, n.rtt, n.congestion, n.answered, relative(n.lossAt), relative(n.asked), n.backoff, n.probes, n.askAgain,
		n.waiting, relative(n.probed), relative(n.alive), n.replay.largest, n.replay.seen[0], relative(n.heard), n.echo, relative(n.echoAt), n.unacked, relative(n.ackAt), n.err)
	for class := range n.out {
		o, i := &n.out[class], &n.in[class]
		text += fmt.Sprint(" out ", o.next, o.limit, len(o.queue), o.cut)
		for _, u := range o.units {
			text += fmt.Sprint(" ", u.number, relative(u.at), u.acked, u.lost)
		}
		text += fmt.Sprint(" in ", i.ack(), i.limit, i.advertised, i.built, i.held)
	}
	for number := n.number; number > 0 && number+uint64(len(n.times)) > n.number; number-- {
		if at, ok := n.times.find(number); ok {
			text += fmt.Sprint(" ", relative(at))
		}
	}
	return text
}

// explore visits every state that the choices lead to, and heals the network from each.
func (s *scenario) explore(t *testing.T, most int) (states int) {
	seen := make(map[[sha256.Size]byte]bool)
	paths := [][]choice{nil}
	for len(paths) > 0 {
		path := paths[0]
		paths = paths[1:]
		w, left := s.play(t, path)
		w.bounded(0)
		w.bounded(1)
		if key := w.key(left); seen[key] {
			continue
		} else if seen[key] = true; len(seen) > most {
			t.Fatalf("more than %d states", most)
		}
		for _, c := range w.choices(left) {
			paths = append(paths, append(slices.Clip(path), c))
		}
		if t.Failed() {
			t.Fatalf("after %v", path)
		}
		w.settle(path)
	}
	return len(seen)
}

// settle runs the network without faults until nothing is left to do, and checks that everything
// has arrived once.
func (w *world) settle(path []choice) {
	for range 500 {
		all := w.choices([faults]int{})
		if len(all) == 0 {
			for at, e := range w.ends {
				if e.delivered != w.ends[1-at].sent || e.conn.Outstanding() || e.conn.congestion.inFlight != 0 {
					w.t.Fatalf("end %d delivered %v of %v, after %v", at, e.delivered, w.ends[1-at].sent, path)
				}
			}
			return
		}
		w.choose(slices.MinFunc(all, func(a, b choice) int { return cmp.Compare(b.fault, a.fault) }))
	}
	w.t.Fatalf("no end after %v", path)
}

// Every interleaving of arrivals, losses, duplicates and time-outs of a few messages, with a window
// of two units, delivers each message once and in order, and from every state on everything arrives
// once the faults end.
func TestAllInterleavings(t *testing.T) {
	const u, s = datagram.User, datagram.System
	scenarios := []scenario{
		{"three in a row, one loss", [2][]datagram.Class{{u, u, u}}, -1, [faults]int{loss: 1}},
		{"three in a row, one duplicate", [2][]datagram.Class{{u, u, u}}, -1, [faults]int{repeat: 1}},
		{"a long one, loss and duplicate", [2][]datagram.Class{{u, u}}, 0, [faults]int{loss: 1, repeat: 1}},
		{"two classes, two losses", [2][]datagram.Class{{u, s}}, -1, [faults]int{loss: 2}},
		{"both directions", [2][]datagram.Class{{u, u}, {u}}, -1, [faults]int{loss: 1, repeat: 1}},
		{"an early time-out and a loss", [2][]datagram.Class{{u, u}}, -1, [faults]int{loss: 1, elapse: 1}},
		{"four, three losses", [2][]datagram.Class{{u, u, s, u}}, -1, [faults]int{loss: 3}},
	}
	for _, c := range scenarios {
		t.Run(c.name, func(t *testing.T) { t.Logf("%d states", c.explore(t, 200_000)) })
	}
}
