package link

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/check"
	"margay/internal/rights"
)

// bound lets nothing take longer than a while.
func bound(t *testing.T, conns ...*Conn) {
	t.Helper()
	for _, c := range conns {
		if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
	}
}

// A descriptor that is not an end of a link is refused and closed.
func TestNewConnRefuses(t *testing.T) {
	before := check.Descriptors(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fds[1])
	for name, f := range map[string]*os.File{"a pipe": r, "a stream": os.NewFile(uintptr(fds[0]), "stream")} {
		if c, err := NewConn(f); err == nil || !errors.Is(err, unix.EINVAL) {
			t.Errorf("%s was taken: %v, %v", name, c, err)
		}
	}
	if after := check.Descriptors(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// A packet that is not a message is an error, its descriptors are closed, and the next message is
// read as usual.
func TestGarbage(t *testing.T) {
	huge := make([]byte, maxPacket+1)
	for name, packet := range map[string][]byte{
		"one byte":        {1},
		"no header":       {0, 0, 0, 0},
		"header too long": {255, 255, 255, 255, '{', '}'},
		"kind too long":   {3, 0, 0, 0, 3, 'k', 'i', 'n', 'd'},
		"packet too long": huge,
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			bound(t, a, b)
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if _, _, err := a.socket.WriteMsgUnix(packet, rights.Encode(w, w), nil); err != nil {
				t.Fatal(err)
			}
			w.Close()
			if m, err := b.Recv(); err == nil || err == io.EOF {
				t.Errorf("it was taken as %+v, %v", m, err)
			}
			r.SetReadDeadline(time.Now().Add(10 * time.Second))
			if _, err := r.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("its descriptors are open: %v", err)
			}
			if err := a.Send(New("next", nil)); err != nil {
				t.Fatal(err)
			}
			if m, err := b.Recv(); err != nil || m.Kind != "next" {
				t.Errorf("the next message: %+v, %v", m, err)
			}
		})
	}
}

// More descriptors than a message may carry cannot come from this package; they are closed.
func TestTooManyFiles(t *testing.T) {
	a, b := pair(t)
	bound(t, a, b)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	m := Message{Kind: "files"}
	for range MaxFiles + 1 {
		m.Files = append(m.Files, w)
	}
	if err := a.Send(m); err == nil {
		t.Error("too many descriptors were sent")
	}
	packet, err := encode(Message{Kind: "files"})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := a.socket.WriteMsgUnix(packet, rights.Encode(slices.Repeat([]*os.File{w}, MaxFiles+1)...), nil); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if m, err := b.Recv(); err == nil {
		t.Errorf("%d descriptors came", len(m.Files))
	}
	r.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := r.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("descriptors are open: %v", err)
	}
}

func TestTooLongParameters(t *testing.T) {
	a, b := pair(t)
	bound(t, a, b)
	long := strings.Repeat("x", maxPacket)
	if err := a.Send(New("long", long)); err == nil {
		t.Error("parameters over the limit were sent")
	}
	if err := a.Send(Message{Kind: strings.Repeat("k", maxKind+1)}); err == nil {
		t.Error("a kind over the limit was sent")
	}
	if err := a.Send(New("fits", long[:32<<10])); err != nil {
		t.Fatal(err)
	}
	m, err := b.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var got string
	if err := m.Decode(&got); err != nil || got != long[:32<<10] {
		t.Errorf("%d bytes came, %v", len(got), err)
	}
	var number int
	if err := m.Decode(&number); err == nil || !strings.Contains(err.Error(), `"fits"`) {
		t.Errorf("text was read as a number: %v", err)
	}
}

// A body that cannot be encoded is a fault of the program.
func TestNewPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a channel was encoded")
		}
	}()
	New("kind", make(chan int))
}

// Close wakes waiters on this end, and Send and Recv return the reason.
func TestCloseWakes(t *testing.T) {
	a, b := pair(t)
	errs := make(chan error, 2)
	go func() {
		_, err := a.Recv()
		errs <- err
	}()
	go func() {
		var err error
		for err == nil { // until the socket is full
			err = a.Send(Message{Kind: "x", Payload: make([]byte, MaxPayload)})
		}
		errs <- err
	}()
	time.Sleep(10 * time.Millisecond) // both are likely to wait by now
	a.Close()
	for range 2 {
		select {
		case err := <-errs:
			if !errors.Is(err, os.ErrClosed) {
				t.Errorf("who waited was told %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("somebody waits for ever")
		}
	}
	if _, err := a.Dup(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Dup after Close: %v", err)
	}
	if err := b.Send(New("x", nil)); !errors.Is(err, unix.EPIPE) {
		t.Errorf("Send to nobody: %v", err)
	}
}

func TestWriteDeadline(t *testing.T) {
	a, b := pair(t)
	if err := a.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	sent := 0
	var err error
	for ; err == nil; sent++ {
		err = a.Send(Message{Kind: fmt.Sprint(sent), Payload: make([]byte, MaxPayload)})
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a full socket: %v", err)
	}
	// What was sent before is whole.
	b.SetReadDeadline(time.Now().Add(20 * time.Second))
	for i := range sent - 1 {
		if m, err := b.Recv(); err != nil || m.Kind != fmt.Sprint(i) || len(m.Payload) != MaxPayload {
			t.Fatalf("message %d came as %q with %d bytes, %v", i, m.Kind, len(m.Payload), err)
		}
	}
}

// Messages of many senders stay whole, each sender's in their order, also when the receiver is
// another one in between.
func TestManySenders(t *testing.T) {
	const senders, each = 4, 500
	a, b := pair(t)
	bound(t, a, b)
	var all sync.WaitGroup
	for s := range senders {
		all.Go(func() {
			for i := range each {
				m := New(fmt.Sprint(s), i)
				m.Payload = bytes.Repeat([]byte{byte(s)}, 1+i%1000)
				if err := a.Send(m); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	next := make(map[string]int)
	for n := range senders * each {
		if n == senders*each/2 { // the receiver dies, its successor has a copy of its end
			f, err := b.Dup()
			if err != nil {
				t.Fatal(err)
			}
			b.Close()
			if b, err = NewConn(f); err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			bound(t, b)
		}
		m, err := b.Recv()
		if err != nil {
			t.Fatal(err)
		}
		var i int
		if err := m.Decode(&i); err != nil || i != next[m.Kind] {
			t.Fatalf("sender %s: message %d, %v; expected %d", m.Kind, i, err, next[m.Kind])
		}
		if len(m.Payload) != 1+i%1000 || fmt.Sprint(m.Payload[0]) != m.Kind {
			t.Fatalf("sender %s: message %d has %d bytes of %d", m.Kind, i, len(m.Payload), m.Payload[0])
		}
		next[m.Kind]++
	}
	all.Wait()
}

// Linux may lack memory for a packet for a while.
func TestPersist(t *testing.T) {
	short := &net.OpError{Op: "write", Err: os.NewSyscallError("sendmsg", unix.ENOBUFS)}
	for _, want := range []error{nil, os.ErrDeadlineExceeded, unix.EPIPE} {
		answers := []error{short, short, want, errors.New("sent twice")}
		err := persist(func() error {
			next := answers[0]
			answers = answers[1:]
			return next
		})
		if err != want || len(answers) != 1 {
			t.Errorf("%v, %d answers left, want %v", err, len(answers), want)
		}
	}
}
