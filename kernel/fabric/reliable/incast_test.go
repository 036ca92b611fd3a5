package reliable

import (
	"container/heap"
	"fmt"
	"testing"
	"time"

	"margay/kernel/abi/datagram"
	"margay/kernel/abi/id"
)

// port is the switch port of a receiver: a link of limited rate behind a buffer of limited size.
// Everything else of the network takes a fixed time.
type port struct {
	rate    int // bytes per microsecond
	buffer  int // bytes
	busy    id.Time
	dropped int
}

// linkDelay is the time between two stations, beside the port.
const linkDelay = 10 * time.Microsecond

// pass returns when a datagram that enters the port arrives; false: the buffer is full.
func (p *port) pass(size int, now id.Time) (at id.Time, ok bool) {
	p.busy = max(p.busy, now)
	if waiting := int(p.busy.Sub(now)/time.Nanosecond) * p.rate / 1000; waiting+size > p.buffer {
		p.dropped++
		return 0, false
	}
	p.busy = p.busy.Add(time.Duration(size*1000/p.rate) * time.Nanosecond)
	return p.busy.Add(linkDelay), true
}

// event is the arrival of a datagram, or a deadline if it has no bytes.
type event struct {
	at       id.Time
	sequence int
	to       *Conn
	bytes    []byte
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].sequence < e[j].sequence
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// simulation is a number of senders to one receiver, in simulated time.
type simulation struct {
	t        *testing.T
	now      id.Time
	events   events
	sequence int
	inbound  port
	other    map[*Conn]*Conn
	senders  map[*Conn]bool
	received int     // bytes of messages
	last     id.Time // when the last of them arrived
	sent     int     // bytes of datagrams that have entered the port
}

func (s *simulation) schedule(at id.Time, to *Conn, b []byte) {
	s.sequence++
	heap.Push(&s.events, event{at, s.sequence, to, b})
}

// flush sends the due datagrams of an endpoint.
func (s *simulation) flush(c *Conn) {
	for {
		b := c.Emit(nil, s.now)
		if len(b) == 0 {
			break
		}
		if !s.senders[c] {
			s.schedule(s.now.Add(linkDelay), s.other[c], b)
			continue
		}
		s.sent += len(b)
		if at, ok := s.inbound.pass(len(b), s.now); ok {
			s.schedule(at, s.other[c], b)
		}
	}
	if at := c.Deadline(); at != Never {
		s.schedule(max(at, s.now), c, nil)
	}
}

func (s *simulation) run() {
	for len(s.events) > 0 {
		e := heap.Pop(&s.events).(event)
		s.now = e.at
		if e.bytes == nil && s.now < e.to.Deadline() {
			continue // it has moved
		}
		var d datagram.Datagram
		if e.bytes != nil {
			if err := d.Parse(e.bytes); err != nil {
				s.t.Fatal(err)
			}
			if err := e.to.Arrive(&d, s.now); err != nil {
				s.t.Fatal(err)
			}
		}
		for m, ok := e.to.Deliver(); ok; m, ok = e.to.Deliver() {
			s.received += len(m.Data)
			s.last = s.now
			e.to.Consumed(m)
		}
		s.flush(e.to)
	}
}

// Many senders to one receiver whose port has a small buffer share its link without a collapse:
// with ever more senders the time for the same number of bytes does not grow, although the initial
// windows alone are several times the buffer.
func TestIncast(t *testing.T) {
	const total = 16 << 20
	for _, senders := range []int{1, 4, 16, 32} {
		t.Run(fmt.Sprint(senders), func(t *testing.T) {
			// 10 Gbit/s and 64 datagrams of buffer.
			s := &simulation{t: t, inbound: port{rate: 1250, buffer: 64 * datagram.MinDatagram}, other: make(map[*Conn]*Conn), senders: make(map[*Conn]bool)}
			message := make([]byte, 32<<10)
			var all []*Conn
			for i := range senders {
				node := id.Node(i + 1)
				from, to := New(Config{Self: node, Local: 1}), New(Config{Peer: node, Local: 2})
				from.Bind(2, 0)
				to.Bind(1, 0)
				s.other[from], s.other[to], s.senders[from] = to, from, true
				all = append(all, from, to)
				for range total / senders / len(message) {
					if err := from.Send(datagram.User, message, 0); err != nil {
						t.Fatal(err)
					}
				}
			}
			for _, c := range all {
				s.flush(c)
			}
			s.run()
			goodput := float64(s.received) / float64(time.Duration(s.last)/time.Microsecond)
			t.Logf("%.0f of %d bytes/us, %.1f %% of what was sent was dropped by the port, %v", goodput, s.inbound.rate,
				100*float64(s.inbound.dropped)*datagram.MinDatagram/float64(s.sent), time.Duration(s.last))
			if s.received != total {
				t.Errorf("%d of %d bytes have arrived", s.received, total)
			}
			if goodput < 0.6*float64(s.inbound.rate) {
				t.Errorf("the goodput has collapsed to %.0f of %d bytes/us", goodput, s.inbound.rate)
			}
		})
	}
}
