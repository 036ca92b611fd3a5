package reliable

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"margay/internal/check"
	"margay/kernel/abi/datagram"
	"margay/kernel/abi/id"
)

// end is an endpoint beside the reference: what it has sent to the other end, and how much of what
// the other end has sent it has delivered.
type end struct {
	conn        *Conn
	sent        [datagram.Classes]uint64
	delivered   [datagram.Classes]uint64
	unconsumed  []Message
	incarnation uint64
}

// world is two ends and the datagrams between them.
type world struct {
	t       *testing.T
	random  *rand.Rand
	now     id.Time
	window  int
	ends    [2]*end
	flying  [2][][]byte // datagrams to each end
	numbers uint32      // of connections
	largest int         // message, bytes
	size    int         // of datagrams, bytes
	cut     bool        // a partition: everything that is sent is lost
	retired int         // incarnations that have ended
}

func newWorld(t *testing.T, random *rand.Rand) *world {
	w := &world{t: t, random: random, window: 1 + random.IntN(6), largest: 1 + random.IntN(4*datagram.Fragment)}
	if random.IntN(4) == 0 {
		w.window = datagram.Window
	}
	w.size = datagram.MinDatagram + random.IntN(2)*random.IntN(8000)
	w.ends = [2]*end{{}, {}}
	w.begin()
	return w
}

// begin gives both ends a new incarnation, which they have agreed on.
func (w *world) begin() {
	for i, e := range w.ends {
		w.numbers++
		*e = end{incarnation: e.incarnation + 1, conn: New(Config{Self: id.Node(i), Peer: id.Node(1 - i), Local: w.numbers, Window: w.window, Datagram: w.size})}
	}
	for i, e := range w.ends {
		e.conn.Bind(w.ends[1-i].conn.config.Local, w.now)
	}
}

// message makes the content that identifies a message of an end.
func (w *world) message(from int, class datagram.Class, number uint64) []byte {
	random := rand.New(rand.NewPCG(uint64(from)<<8|uint64(class), number))
	b := make([]byte, random.IntN(w.largest))
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	b = binary.LittleEndian.AppendUint64(b, number)
	return binary.LittleEndian.AppendUint64(b, w.ends[from].incarnation)
}

func (w *world) send(from int, class datagram.Class) {
	e := w.ends[from]
	if err := e.conn.Send(class, w.message(from, class, e.sent[class]), w.now); err != nil {
		w.t.Fatal(err)
	}
	e.sent[class]++
}

// flush collects what an end sends.
func (w *world) flush(from int) {
	for {
		b := w.ends[from].conn.Emit(nil, w.now)
		if len(b) == 0 {
			return
		}
		if len(b) > max(w.size, datagram.MinDatagram)-datagram.Overhead {
			w.t.Fatalf("a datagram of %d bytes", len(b))
		}
		if !w.cut {
			w.flying[1-from] = append(w.flying[1-from], b)
		}
	}
}

// arrive delivers one datagram in flight to an end; keep says that it stays in flight as well.
func (w *world) arrive(to, which int, keep bool) {
	b := w.flying[to][which]
	if !keep {
		w.lose(to, which)
	}
	var d datagram.Datagram
	if err := d.Parse(b); err != nil {
		return // truncated
	}
	if err := w.ends[to].conn.Arrive(&d, w.now); err != nil && !errors.Is(err, errForeign) {
		w.t.Fatalf("end %d: %v", to, err)
	}
	w.deliver(to)
}

func (w *world) lose(to, which int) {
	last := len(w.flying[to]) - 1
	w.flying[to][which] = w.flying[to][last]
	w.flying[to] = w.flying[to][:last]
}

// deliver checks what an end delivers against the reference.
func (w *world) deliver(at int) {
	e := w.ends[at]
	for {
		m, ok := e.conn.Deliver()
		if !ok {
			return
		}
		if want := w.message(1-at, m.Class, e.delivered[m.Class]); !bytes.Equal(m.Data, want) {
			w.t.Fatalf("end %d delivered %d bytes in class %d that are not message %d", at, len(m.Data), m.Class, e.delivered[m.Class])
		}
		e.delivered[m.Class]++
		if e.delivered[m.Class] > w.ends[1-at].sent[m.Class] {
			w.t.Fatalf("end %d delivered a message that was not sent", at)
		}
		e.unconsumed = append(e.unconsumed, m)
	}
}

func (w *world) consume(at int) {
	e := w.ends[at]
	if len(e.unconsumed) > 0 {
		e.conn.Consumed(e.unconsumed[0])
		e.unconsumed = e.unconsumed[1:]
	}
}

// bounded checks that an end holds no more than the protocol allows.
func (w *world) bounded(at int) {
	e := w.ends[at]
	whole := int(datagram.Units(w.largest + 16))
	for class := range datagram.Classes {
		i, o := &e.conn.in[class], &e.conn.out[class]
		if len(i.early) >= w.window || int(i.held) > w.window+whole || len(o.units) > datagram.Window || len(i.building) > w.largest+16 {
			w.t.Fatalf("end %d holds %d early units, %d delivered, %d sent, %d bytes", at, len(i.early), i.held, len(o.units), len(i.building))
		}
		lost, flying := 0, 0
		for u := range o.units {
			switch {
			case o.units[u].lost:
				lost++
			case !o.units[u].acked:
				flying += o.units[u].size()
			}
		}
		if lost != o.lost || flying > e.conn.congestion.inFlight {
			w.t.Fatalf("end %d counts %d lost units, there are %d", at, o.lost, lost)
		}
	}
}

// advance lets time pass, to the next deadline if that is sooner.
func (w *world) advance(d time.Duration) {
	w.now = min(w.now.Add(d), max(w.now, w.ends[0].conn.Deadline()), max(w.now, w.ends[1].conn.Deadline()))
}

// step does something at random.
func (w *world) step() {
	at := w.random.IntN(2)
	flying := len(w.flying[at])
	switch p := w.random.IntN(100); {
	case p < 20:
		w.send(at, datagram.Class(w.random.IntN(datagram.Classes)))
	case p < 60 && flying > 0:
		w.arrive(at, w.random.IntN(flying), w.random.IntN(5) == 0)
	case p < 68 && flying > 0:
		w.lose(at, w.random.IntN(flying))
	case p < 70 && flying > 0:
		which := w.random.IntN(flying)
		b := w.flying[at][which]
		w.flying[at][which] = b[:w.random.IntN(len(b)+1)]
	case p < 85:
		w.consume(at)
	case p < 86:
		w.cut = !w.cut && w.random.IntN(4) == 0
	default:
		w.advance(time.Duration(w.random.IntN(20000)) * time.Microsecond)
	}
	w.flush(at)
	w.bounded(at)
}

// restart ends an incarnation: one end has forgotten everything, and the other learns of it. What
// is in flight stays there.
func (w *world) restart() {
	w.begin()
	w.retired++
}

// heal runs a network without faults, in which a datagram takes 100 us, until everything has
// arrived, and checks that nothing is left.
func (w *world) heal() {
	w.cut = false
	for end := w.now.Add(5 * time.Second); !w.quiet(); {
		if w.now > end {
			w.t.Fatalf("not everything has arrived 5 s after the network has healed: sent %v %v, delivered %v %v",
				w.ends[0].sent, w.ends[1].sent, w.ends[1].delivered, w.ends[0].delivered)
		}
		for at := range w.ends {
			for range len(w.flying[at]) {
				w.arrive(at, 0, false)
			}
			for len(w.ends[at].unconsumed) > 0 {
				w.consume(at)
			}
			w.flush(at)
		}
		if len(w.flying[0])+len(w.flying[1]) > 0 {
			w.advance(100 * time.Microsecond)
		} else {
			w.advance(time.Second)
		}
	}
	for at, e := range w.ends {
		if e.delivered != w.ends[1-at].sent {
			w.t.Fatalf("end %d delivered %v of %v", at, e.delivered, w.ends[1-at].sent)
		}
		if n := e.conn; n.congestion.inFlight != 0 || n.Deadline() != Never {
			w.t.Fatalf("end %d: %d bytes in flight, deadline %d at %d", at, n.congestion.inFlight, n.Deadline(), w.now)
		}
		for class := range datagram.Classes {
			i, o := &e.conn.in[class], &e.conn.out[class]
			if len(i.early)+len(i.ready)+len(i.building)+int(i.held)+len(o.units)+len(o.queue)+o.queued+o.lost != 0 {
				w.t.Fatalf("end %d, class %d: %+v %+v", at, class, i, o)
			}
		}
	}
}

func (w *world) quiet() bool {
	for at, e := range w.ends {
		if e.conn.Outstanding() || e.conn.Deadline() != Never || len(w.flying[at]) > 0 || len(e.unconsumed) > 0 {
			return false
		}
	}
	return true
}

// Whatever the network does, messages are delivered once and in order within their class, memory is
// bounded, and all arrive when the network has healed. Nothing of an incarnation that has ended is
// taken for one of the next.
func TestRandomNetwork(t *testing.T) {
	seed := check.Seed(t)
	runs := 300
	if testing.Short() {
		runs = 30
	}
	total := uint64(0)
	for run := range runs {
		random := rand.New(rand.NewPCG(seed, uint64(run)))
		w := newWorld(t, random)
		for range 50 + random.IntN(1500) {
			w.step()
			if random.IntN(500) == 0 {
				w.restart()
			}
			if t.Failed() {
				t.Fatalf("run %d", run)
			}
		}
		w.heal()
		for _, e := range w.ends {
			total += e.delivered[0] + e.delivered[1]
		}
	}
	if total < uint64(runs) {
		t.Errorf("only %d messages were delivered", total)
	}
	t.Logf("%d messages in the last incarnations", total)
}
