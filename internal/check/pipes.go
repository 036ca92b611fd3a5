package check

import (
	"net"
	"sync"
	"testing"
)

// Pipes is a listener whose connections are pipes within the process, which have the time of a
// bubble of synctest.
type Pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// NewPipes returns a listener without connections.
func NewPipes() *Pipes { return &Pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

// Accept implements net.Listener.
func (p *Pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *Pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// Addr implements net.Listener.
func (p *Pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// Dial connects to the listener.
func (p *Pipes) Dial(t testing.TB) net.Conn {
	t.Helper()
	near, far := net.Pipe()
	p.Deliver(t, far)
	return near
}

// Deliver has the listener accept a connection.
func (p *Pipes) Deliver(t testing.TB, c net.Conn) {
	t.Helper()
	select {
	case p.conns <- c:
	case <-p.closed:
		t.Fatal("the listener is closed")
	}
}
