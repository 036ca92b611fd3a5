package reliable

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"margay/kernel/abi/datagram"
	"margay/kernel/abi/id"
)

// pair makes two bound endpoints of a perfect network.
func pair(t *testing.T, c Config) *world {
	t.Helper()
	w := &world{t: t, window: c.Window, largest: 1, ends: [2]*end{{}, {}}}
	for i, e := range w.ends {
		c.Self, c.Peer, c.Local = id.Node(i), id.Node(1-i), uint32(i+1)
		e.conn = New(c)
	}
	w.ends[0].conn.Bind(2, w.now)
	w.ends[1].conn.Bind(1, w.now)
	return w
}

// pass delivers everything in flight until nothing is sent any more, and counts the datagrams.
func (w *world) pass() (datagrams int) {
	for again := true; again; {
		again = false
		for to, e := range w.ends {
			w.flush(1 - to)
			for _, b := range w.flying[to] {
				var d datagram.Datagram
				if err := d.Parse(b); err != nil {
					w.t.Fatal(err)
				}
				if err := e.conn.Arrive(&d, w.now); err != nil {
					w.t.Fatal(err)
				}
				datagrams++
				again = true
			}
			w.flying[to] = nil
		}
	}
	return datagrams
}

func (w *world) sendText(from int, class datagram.Class, text string) {
	w.t.Helper()
	if err := w.ends[from].conn.Send(class, []byte(text), w.now); err != nil {
		w.t.Fatal(err)
	}
}

// texts consumes and returns what an end delivers.
func (w *world) texts(at int) (all []string) {
	for m, ok := w.ends[at].conn.Deliver(); ok; m, ok = w.ends[at].conn.Deliver() {
		all = append(all, string(m.Data))
		w.ends[at].conn.Consumed(m)
	}
	return all
}

// A receiver that consumes nothing stops its sender after a window, without a loss, and the sender
// goes on when it consumes. System messages have a window of their own.
func TestSlowConsumer(t *testing.T) {
	w := pair(t, Config{Window: 8})
	for i := range 100 {
		w.sendText(0, datagram.User, fmt.Sprint(i))
	}
	w.sendText(0, datagram.System, "system")
	for range 50 {
		w.pass()
		w.advance(time.Second)
	}
	receiver := w.ends[1].conn
	if n := len(receiver.in[datagram.User].ready); n != 8 || w.ends[0].conn.Err() != nil {
		t.Fatalf("%d messages are delivered with a window of 8, %v", n, w.ends[0].conn.Err())
	}
	var got []string
	for range 200 {
		if m, ok := receiver.Deliver(); ok {
			got = append(got, string(m.Data))
			receiver.Consumed(m)
		}
		w.pass()
	}
	want := []string{"system"}
	for i := range 100 {
		want = append(want, fmt.Sprint(i))
	}
	if !slices.Equal(got, want) {
		t.Errorf("delivered %v", got)
	}
}

// A peer that does not answer is dead after the time set, and not before; an idle endpoint sends
// nothing.
func TestDeath(t *testing.T) {
	w := pair(t, Config{Death: 2 * time.Second})
	w.pass()
	w.advance(time.Hour)
	if n := w.pass(); n > 2 || w.ends[0].conn.Deadline() != Never {
		t.Errorf("idle endpoints have sent %d datagrams, next at %d", n, w.ends[0].conn.Deadline())
	}
	w.now = w.now.Add(time.Hour)
	w.sendText(0, datagram.User, "x")
	c, begin, sent := w.ends[0].conn, w.now, 0
	for sent < 1000 {
		if len(c.Emit(nil, w.now)) > 0 {
			sent++
		} else if c.Err() == nil {
			w.now = c.Deadline()
		} else {
			break
		}
	}
	if took := w.now.Sub(begin); took != 2*time.Second || !errors.Is(c.Err(), ErrDead) {
		t.Errorf("after %v and %d datagrams: %v", took, sent, c.Err())
	}
	if sent < 8 || sent > 100 {
		t.Errorf("%d datagrams were sent to a dead peer", sent)
	}
	if err := c.Send(datagram.User, nil, w.now); !errors.Is(err, ErrDead) || c.Deadline() != Never || len(c.Emit(nil, w.now)) > 0 {
		t.Errorf("a dead endpoint goes on: %v", err)
	}
}

// An endpoint that was stopped itself asks before it declares its peer dead.
func TestStopped(t *testing.T) {
	w := pair(t, Config{Death: time.Second})
	w.pass()
	w.sendText(0, datagram.User, "x")
	w.flush(0)
	w.now = w.now.Add(time.Hour)
	w.pass()
	if err := w.ends[0].conn.Err(); err != nil || w.ends[0].conn.Outstanding() {
		t.Errorf("%v, outstanding: %t", err, w.ends[0].conn.Outstanding())
	}
}

// A peer that is alive and does not consume is not dead, however long that takes.
func TestSlowIsNotDead(t *testing.T) {
	w := pair(t, Config{Window: 1, Death: time.Second})
	w.sendText(0, datagram.User, "one")
	w.sendText(0, datagram.User, "two")
	datagrams := 0
	for end := w.now.Add(time.Minute); w.now < end; w.advance(time.Second) {
		datagrams += w.pass()
	}
	if err := w.ends[0].conn.Err(); err != nil || datagrams > 1000 {
		t.Errorf("after %d datagrams: %v", datagrams, err)
	}
	got := w.texts(1)
	w.pass()
	if got = append(got, w.texts(1)...); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("delivered %v", got)
	}
}

// Acknowledgements travel with answers: a hundred questions and answers take two hundred datagrams
// and few more.
func TestPiggyback(t *testing.T) {
	w := pair(t, Config{})
	datagrams := w.pass()
	for range 100 {
		w.sendText(0, datagram.User, "question")
		datagrams += w.pass()
		w.sendText(1, datagram.User, "answer")
		datagrams += w.pass()
		w.texts(0)
		w.texts(1)
	}
	if datagrams > 220 {
		t.Errorf("%d datagrams", datagrams)
	}
}

// Small messages share a datagram, and system messages go first.
func TestAggregation(t *testing.T) {
	w := pair(t, Config{})
	w.pass()
	for i := range 10 {
		w.sendText(0, datagram.User, fmt.Sprint("user ", i))
	}
	w.sendText(0, datagram.System, "system")
	if n := w.pass(); n > 2 {
		t.Errorf("%d datagrams", n)
	}
	if got := w.texts(1); len(got) != 11 || got[0] != "system" || got[10] != "user 9" {
		t.Errorf("delivered %v", got)
	}
}

// A lost datagram is sent again when three later ones have been answered, long before the time-out.
func TestFastRetransmission(t *testing.T) {
	w := pair(t, Config{})
	w.pass()
	begin := w.now
	w.sendText(0, datagram.User, "lost")
	w.flush(0)
	w.flying[1] = nil
	for i := range 3 {
		w.sendText(0, datagram.User, fmt.Sprint(i))
		w.flush(0)
	}
	w.pass()
	if got := w.texts(1); !slices.Equal(got, []string{"lost", "0", "1", "2"}) || w.now != begin {
		t.Errorf("delivered %v after %v", got, w.now.Sub(begin))
	}
}

// A sender that starts again cuts the same messages into units with the same numbers: the receiver
// gets those that it lacks, and none twice.
func TestBegin(t *testing.T) {
	long := string(make([]byte, 3*datagram.Fragment+1))
	messages := []string{"a", long, "b", long + long, "c"}
	w := pair(t, Config{})
	for _, m := range messages {
		w.sendText(0, datagram.User, m)
	}
	w.pass()
	got := w.texts(1)[:3] // the receiver has stored that it has consumed three
	begin := datagram.Units(1) + datagram.Units(len(long)) + datagram.Units(1)
	c := Config{Self: 0, Peer: 1, Local: 11}
	c.Begin[datagram.User].Send = begin
	w.ends[0].conn = New(c)
	c = Config{Self: 1, Peer: 0, Local: 12}
	c.Begin[datagram.User].Receive = begin
	w.ends[1].conn = New(c)
	w.ends[0].conn.Bind(12, w.now)
	w.ends[1].conn.Bind(11, w.now)
	for _, m := range messages[3:] {
		w.sendText(0, datagram.User, m)
	}
	w.pass()
	if got = append(got, w.texts(1)...); !slices.Equal(got, messages) {
		t.Errorf("%d messages", len(got))
	}
	if next := w.ends[0].conn.out[datagram.User].next; next != begin+datagram.Units(2*len(long))+1 {
		t.Errorf("the last unit has number %d", next-1)
	}
}

// An end is reported to the other side, once, and nothing follows.
func TestEnd(t *testing.T) {
	w := pair(t, Config{})
	w.pass()
	w.ends[0].conn.End()
	b := w.ends[0].conn.Emit(nil, w.now)
	var d datagram.Datagram
	if err := d.Parse(b); err != nil {
		t.Fatal(err)
	}
	if err := w.ends[1].conn.Arrive(&d, w.now); !errors.Is(err, ErrEnded) || !errors.Is(w.ends[1].conn.Err(), ErrEnded) {
		t.Errorf("the other side: %v", err)
	}
	if more := w.ends[0].conn.Emit(nil, w.now); len(more) > 0 {
		t.Error("something follows the end")
	}
}

// A peer that breaks the rules is cut off; a stranger, and a datagram that came before, have no
// effect.
func TestViolations(t *testing.T) {
	whole := func(number uint64) datagram.Unit {
		return datagram.Unit{Number: number, First: true, Last: true, Message: 1, Payload: []byte("x")}
	}
	fragment := func(number uint64, first, last bool, message int) datagram.Unit {
		size := datagram.Fragment
		if last {
			size = message % datagram.Fragment
		}
		return datagram.Unit{Number: number, First: first, Last: last, Message: uint32(message), Payload: make([]byte, size)}
	}
	const two = datagram.Fragment + 8
	for name, c := range map[string]struct {
		change func(*datagram.Datagram)
		want   error
	}{
		"nothing wrong":      {func(d *datagram.Datagram) {}, nil},
		"another connection": {func(d *datagram.Datagram) { d.Connection++ }, errForeign},
		"another source":     {func(d *datagram.Datagram) { d.Source++ }, errForeign},
		"another target":     {func(d *datagram.Datagram) { d.Target++ }, errForeign},
		"echo of nothing":    {func(d *datagram.Datagram) { d.Echo = 1 << 40 }, ErrProtocol},
		"next of nothing":    {func(d *datagram.Datagram) { d.Acks[0].Next = 1 }, ErrProtocol},
		"bitmap of nothing":  {func(d *datagram.Datagram) { d.Acks[1].Gaps.Set(0) }, ErrProtocol},
		"too much credit":    {func(d *datagram.Datagram) { d.Acks[0].Credit = datagram.Window + 1 }, ErrProtocol},
		"beyond the credit":  {func(d *datagram.Datagram) { d.Units = []datagram.Unit{whole(8)} }, ErrProtocol},
		"too long":           {func(d *datagram.Datagram) { d.Units = []datagram.Unit{fragment(0, true, false, 1<<20)} }, ErrProtocol},
		"no beginning":       {func(d *datagram.Datagram) { d.Units = []datagram.Unit{fragment(0, false, true, two)} }, ErrProtocol},
		"two beginnings":     {func(d *datagram.Datagram) { d.Units = []datagram.Unit{fragment(0, true, false, two), whole(1)} }, ErrProtocol},
		"end too late": {func(d *datagram.Datagram) {
			d.Units = []datagram.Unit{fragment(0, true, false, two), fragment(1, false, false, two)}
		}, ErrProtocol},
		"end too early": {func(d *datagram.Datagram) {
			d.Units = []datagram.Unit{fragment(0, true, false, two+datagram.Fragment), fragment(1, false, true, two+datagram.Fragment)}
		}, ErrProtocol},
		"another length": {func(d *datagram.Datagram) {
			d.Units = []datagram.Unit{fragment(0, true, false, two), fragment(1, false, true, two+1)}
		}, ErrProtocol},
		"the largest numbers": {func(d *datagram.Datagram) { d.Units = []datagram.Unit{whole(1<<64 - 1)}; d.Number = 1<<64 - 1 }, ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			n := New(Config{Self: 1, Peer: 2, Local: 3, Window: 8, Longest: 8 * datagram.Fragment})
			n.Bind(4, 0)
			n.Emit(nil, 0)
			d := datagram.Datagram{Source: 2, Target: 1, Connection: 3, Number: 1}
			c.change(&d)
			if err := n.Arrive(&d, 1); !errors.Is(err, c.want) || errors.Is(n.Err(), ErrProtocol) != (c.want == ErrProtocol) {
				t.Fatalf("%v, then %v", err, n.Err())
			}
			d.Acks[0].Next = 77
			if err := n.Arrive(&d, 2); c.want == nil && err != nil {
				t.Errorf("the same number again: %v", err)
			}
		})
	}
}

// Whatever a peer sends, an endpoint holds a bounded amount and does not panic.
func FuzzArrive(f *testing.F) {
	sender := New(Config{Self: 2, Peer: 1, Local: 4})
	sender.Bind(3, 0)
	sender.out[0].limit, sender.out[1].limit = datagram.Window, datagram.Window
	sender.Send(datagram.User, make([]byte, 2*datagram.Fragment), 0)
	sender.Send(datagram.System, []byte("system"), 0)
	for b := sender.Emit(nil, 0); len(b) > 0; b = sender.Emit(nil, 0) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		n := New(Config{Self: 1, Peer: 2, Local: 3, Window: 4, Longest: 8192})
		n.Bind(4, 0)
		n.Send(datagram.User, make([]byte, 3000), 0)
		for now := range id.Time(4) {
			n.Emit(nil, now)
			var d datagram.Datagram
			if d.Parse(b) != nil {
				return
			}
			d.Number += uint64(now)
			n.Arrive(&d, now)
		}
		for class := range n.in {
			if i := &n.in[class]; len(i.early) > 4 || i.held > 4+8 || cap(i.building) > 8192 {
				t.Fatalf("%d early units, %d held, %d bytes", len(i.early), i.held, cap(i.building))
			}
		}
	})
}

// A number is new once, and too old when it is far behind.
func TestReplay(t *testing.T) {
	var r replay
	seen := make(map[uint64]bool)
	for _, number := range []uint64{1, 2, 2, 5, 3, 5, 4, 1, replayWindow, 6, replayWindow + 6, 6, 7, 5 * replayWindow, 4*replayWindow + 1, 4 * replayWindow, 4*replayWindow + 1} {
		want := !seen[number] && number+replayWindow > r.largest
		if got := r.enter(number); got != want {
			t.Errorf("number %d after %d: new is %t", number, r.largest, got)
		}
		seen[number] = true
	}
}
