package outbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/check"
	"margay/kernel/link"
)

// patience bounds every wait of these tests.
const patience = 2 * time.Minute

// pair returns an outbox and the end that takes its messages.
func pair(t *testing.T, l Limits, broken func(error)) (*Outbox, *link.Conn) {
	t.Helper()
	near, f, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	far, err := link.NewConn(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close(); far.Close() })
	far.SetReadDeadline(time.Now().Add(patience))
	return New(near, l, broken), far
}

// patient are limits that no test reaches.
var patient = Limits{Bytes: 1 << 30, Pause: patience, Looks: 100}

// fill puts messages until some wait in the queue, and returns how many there are.
func fill(t *testing.T, o *Outbox) (n int) {
	t.Helper()
	for ; ; n++ {
		o.mu.Lock()
		waits := len(o.queue)
		o.mu.Unlock()
		if waits > 3 {
			return n
		}
		if err := o.Put(link.Message{Kind: fmt.Sprint(n), Payload: make([]byte, 8<<10)}); err != nil {
			t.Fatal(err)
		}
	}
}

// Messages arrive whole, in order and with their files from several senders, by Put and by Send,
// also at a slow receiver.
func TestOrder(t *testing.T) {
	check.Leaks(t)
	seed := check.Seed(t)
	o, far := pair(t, patient, nil)
	const senders, each = 3, 200
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var all sync.WaitGroup
	for s := range senders {
		r := rand.New(rand.NewPCG(seed, uint64(s)))
		all.Go(func() {
			buf := make([]byte, link.MaxPayload)
			for i := range each {
				m := link.New(fmt.Sprint(s), i)
				m.Payload = buf[:1+r.IntN(link.MaxPayload/4)]
				m.Payload[0] = byte(i)
				if r.IntN(4) == 0 {
					m.Files = []*os.File{file}
				}
				var err error
				if r.IntN(2) == 0 {
					err = o.Put(m)
				} else {
					err = o.Send(context.Background(), m)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	next := make(map[string]int)
	r := rand.New(rand.NewPCG(seed, senders))
	for range senders * each {
		m, err := far.Next()
		if err != nil {
			t.Fatal(err)
		}
		m.CloseFiles()
		var i int
		if err := m.Decode(&i); err != nil || i != next[m.Kind] || m.Payload[0] != byte(i) {
			t.Fatalf("sender %s: message %d with %d, %v; %d is next", m.Kind, i, m.Payload[0], err, next[m.Kind])
		}
		next[m.Kind]++
		if r.IntN(50) == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	all.Wait()
}

// A newer message takes the place of one of its kind at the end of the queue, so any number of them
// fits. It passes no other message.
func TestNewest(t *testing.T) {
	l := patient
	l.Bytes = 64 << 10
	o, far := pair(t, l, nil)
	first := fill(t, o)
	const each = 100_000
	for i := range 3 * each {
		if i == each || i == 2*each {
			if err := o.Put(link.Message{Kind: "other"}); err != nil {
				t.Fatal(err)
			}
		}
		if err := o.PutNewest(link.New("ack", i)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range first {
		if m, err := far.Next(); err != nil || m.Kind != fmt.Sprint(i) {
			t.Fatalf("message %d came as %q, %v", i, m.Kind, err)
		}
	}
	for round := 1; round <= 3; round++ {
		m, err := far.Next()
		var got int
		if err != nil || m.Kind != "ack" || m.Decode(&got) != nil || got != round*each-1 {
			t.Fatalf("%q with %d, %v", m.Kind, got, err)
		}
		if round == 3 {
			break
		}
		if m, err := far.Next(); err != nil || m.Kind != "other" {
			t.Fatalf("%q, %v", m.Kind, err)
		}
	}
	if err := o.Send(context.Background(), link.Message{Kind: "last"}); err != nil { // behind all others
		t.Fatal(err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.bytes != 0 {
		t.Errorf("%d bytes are counted", o.bytes)
	}
}

// What Put queues is bounded, and sent as soon as there is room.
func TestFull(t *testing.T) {
	l := patient
	l.Bytes = 64 << 10
	o, far := pair(t, l, nil)
	var err error
	n := 0
	for ; err == nil; n++ {
		err = o.Put(link.Message{Kind: fmt.Sprint(n), Payload: make([]byte, 8<<10)})
	}
	if !errors.Is(err, ErrFull) {
		t.Fatal(err)
	}
	o.mu.Lock()
	if o.bytes > l.Bytes {
		t.Errorf("%d bytes wait", o.bytes)
	}
	o.mu.Unlock()
	for i := range n - 1 {
		if m, err := far.Next(); err != nil || m.Kind != fmt.Sprint(i) {
			t.Fatalf("message %d came as %q, %v", i, m.Kind, err)
		}
	}
	if err := o.Send(context.Background(), link.Message{Kind: "last"}); err != nil {
		t.Fatal(err)
	}
	if m, err := far.Next(); err != nil || m.Kind != "last" {
		t.Errorf("%q, %v", m.Kind, err)
	}
}

// A message whose sender no longer waits is not sent later, first or not; the others are.
func TestAbandoned(t *testing.T) {
	check.Leaks(t)
	o, far := pair(t, patient, nil)
	n := fill(t, o)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := o.Send(ctx, link.Message{Kind: "behind others"}); !errors.Is(err, context.Canceled) {
		t.Errorf("behind others: %v", err)
	}
	for i := range n {
		if m, err := far.Next(); err != nil || m.Kind != fmt.Sprint(i) {
			t.Fatalf("message %d came as %q, %v", i, m.Kind, err)
		}
	}
	for full, err := true, error(nil); full; {
		if full, err = o.conn.TrySend(link.Message{Kind: "x", Payload: make([]byte, 8<<10)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.Send(ctx, link.Message{Kind: "first", Payload: make([]byte, 8<<10)}); !errors.Is(err, context.Canceled) {
		t.Errorf("first: %v", err)
	}
	if err := o.Put(link.Message{Kind: "last"}); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := far.Next()
		if err != nil || m.Kind == "first" {
			t.Fatalf("%q, %v", m.Kind, err)
		}
		if m.Kind == "last" {
			return
		}
	}
}

// An end that takes nothing is given up once, with all that waits.
func TestBroken(t *testing.T) {
	check.Leaks(t)
	reasons := make(chan error, 10)
	o, _ := pair(t, Limits{Bytes: 1 << 30, Pause: 20 * time.Millisecond, Looks: 10}, func(err error) { reasons <- err })
	fill(t, o)
	if err := o.Send(t.Context(), link.Message{Kind: "waits"}); !errors.Is(err, ErrBroken) {
		t.Errorf("a message that waited: %v", err)
	}
	select {
	case err := <-reasons:
		if !errors.Is(err, ErrBroken) {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("the end is not reported")
	}
	if err := o.Put(link.Message{Kind: "later"}); !errors.Is(err, ErrBroken) {
		t.Errorf("a later message: %v", err)
	}
	select {
	case err := <-reasons:
		t.Errorf("reported again: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
}

// The end of the other process is an error of all that waits, and is not reported as silence.
func TestEnded(t *testing.T) {
	check.Leaks(t)
	o, far := pair(t, patient, func(err error) { t.Error(err) })
	fill(t, o)
	done := make(chan error, 1)
	go func() { done <- o.Send(context.Background(), link.Message{Kind: "waits"}) }()
	far.Close()
	select {
	case err := <-done:
		if !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("a message waits for a process that has ended")
	}
}
