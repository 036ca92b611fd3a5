package serve

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"sync"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// link is a connection to serve whose messages stay in flight until a test delivers them, in order
// in each direction.
type link struct {
	sent []*control.Frame // in flight to serve

	mu       sync.Mutex
	changed  sync.Cond
	arrived  []byte           // delivered to serve, not read yet
	received []*control.Frame // in flight from serve
	closed   bool
}

func newLink() *link {
	l := new(link)
	l.changed.L = &l.mu
	return l
}

// send puts a message to serve in flight.
func (l *link) send(m proto.Message) { l.sent = append(l.sent, control.NewFrame(m)) }

// call is send for a request that expects an answer.
func (l *link) call(m proto.Message) {
	f := control.NewFrame(m)
	f.Call = 1
	l.sent = append(l.sent, f)
}

// deliver delivers the oldest message in flight to serve, and waits until serve has processed it.
func (l *link) deliver() *control.Frame {
	f := l.sent[0]
	l.sent = l.sent[1:]
	var packet bytes.Buffer
	if err := control.WriteFrame(&packet, f); err != nil {
		panic(err)
	}
	l.mu.Lock()
	l.arrived = append(l.arrived, packet.Bytes()...)
	l.changed.Broadcast()
	l.mu.Unlock()
	synctest.Wait()
	return f
}

// receive returns the oldest message in flight from serve, nil if there is none.
func (l *link) receive() *control.Frame {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.received) == 0 {
		return nil
	}
	f := l.received[0]
	l.received = l.received[1:]
	return f
}

// incoming returns how many messages are in flight from serve.
func (l *link) incoming() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.received)
}

// open reports whether the connection has not ended.
func (l *link) open() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.closed
}

// cut ends the connection. Messages in flight to serve are lost; the other side may still receive
// messages from serve.
func (l *link) cut() {
	l.sent = nil
	l.Close()
	synctest.Wait()
}

// Read implements net.Conn for serve, like the other methods.
func (l *link) Read(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.arrived) == 0 && !l.closed {
		l.changed.Wait()
	}
	if l.closed {
		return 0, io.EOF
	}
	n := copy(p, l.arrived)
	l.arrived = l.arrived[n:]
	return n, nil
}

func (l *link) Write(p []byte) (int, error) {
	f, err := control.ReadFrame(bytes.NewReader(p)) // a Conn writes whole frames
	if err != nil {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return 0, net.ErrClosed
	}
	l.received = append(l.received, f)
	return len(p), nil
}

func (l *link) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.changed.Broadcast()
	return nil
}

func (l *link) LocalAddr() net.Addr              { return &net.UnixAddr{Name: "link", Net: "unix"} }
func (l *link) RemoteAddr() net.Addr             { return l.LocalAddr() }
func (l *link) SetDeadline(time.Time) error      { return nil }
func (l *link) SetReadDeadline(time.Time) error  { return nil }
func (l *link) SetWriteDeadline(time.Time) error { return nil }

// brief is a message in short form.
func brief(f *control.Frame) string {
	switch m := f.Message().(type) {
	case *control.Record:
		text := fmt.Sprintf("record %d.%d", m.Node, m.Seq)
		switch m.Stream {
		case control.Stream_STREAM_EXIT:
			text += fmt.Sprintf(" (exit of rank %d and %d more)", m.Rank, len(m.More))
		case control.Stream_STREAM_END:
			text += " (end)"
		}
		return text
	case *control.Ack:
		return fmt.Sprintf("ack %d.%d", m.Node, m.Seq)
	default:
		return string(m.ProtoReflect().Descriptor().Name())
	}
}
