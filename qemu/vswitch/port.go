package vswitch

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"margay/qemu/ether"
)

// A Port is one socket of a switch. Its methods may be called from several goroutines.
type Port struct {
	sw       *Switch
	cfg      PortConfig
	queue    int
	listener *net.UnixListener
	fault    atomic.Pointer[Fault] // nil: a sound cable
	in, out  wire                  // from the peer, to the peer
	count    counters

	session atomic.Pointer[session] // nil: no peer
	mu      sync.Mutex              // held to change session
	closed  bool                    // under mu: refuses sessions
}

// Bits of the seeds of a port's two wires.
const (
	inward  = 0
	outward = 1
)

func newPort(s *Switch, index int, pc PortConfig, cfg Config) (*Port, error) {
	l, err := listen(pc.Socket)
	if err != nil {
		return nil, err
	}
	p := &Port{sw: s, cfg: pc, queue: cfg.Queue, listener: l}
	newWire := func(direction uint64, deliver func([]byte)) wire {
		rng := rand.New(rand.NewPCG(cfg.Seed, uint64(index)<<1|direction))
		return wire{deliver: deliver, fault: &p.fault, count: &p.count, limit: cfg.Queue, rng: rng}
	}
	p.in = newWire(inward, func(frame []byte) { s.forward(p, frame) })
	p.out = newWire(outward, p.transmit)
	return p, nil
}

// listen opens a socket that only this user may connect to.
func listen(path string) (*net.UnixListener, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == os.ModeSocket {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("remove old socket: %w", err)
		}
	}
	if limit := len(unix.RawSockaddrUnix{}.Path) - 1; len(path) > limit {
		return nil, fmt.Errorf("socket path %q has %d bytes, a socket's at most %d", path, len(path), limit)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Name returns the port's name.
func (p *Port) Name() string { return p.cfg.Name }

// MAC returns the address of the port's peer.
func (p *Port) MAC() ether.MAC { return p.cfg.MAC }

// Socket returns the path the peer connects to.
func (p *Port) Socket() string { return p.cfg.Socket }

// Stats returns the port's counters. They are read one after the other, not at one instant.
func (p *Port) Stats() Stats {
	s := p.count.snapshot()
	s.Connected = p.session.Load() != nil
	return s
}

// Fault returns the value of SetFault.
func (p *Port) Fault() Fault {
	if f := p.fault.Load(); f != nil {
		return *f
	}
	return Fault{}
}

// SetFault changes the faults injected between the port and its peer, for later frames. It survives
// a change of the peer.
func (p *Port) SetFault(f Fault) error {
	if err := f.validate(); err != nil {
		return fmt.Errorf("vswitch: port %q: %w", p.cfg.Name, err)
	}
	if f == (Fault{}) {
		p.fault.Store(nil)
	} else {
		p.fault.Store(&f)
	}
	return nil
}

// receive takes a frame from the peer.
func (p *Port) receive(frame []byte) {
	p.count.rxFrames.Add(1)
	p.count.rxBytes.Add(uint64(len(frame)))
	switch {
	case len(frame) < ether.HeaderLen:
		p.count.runt.Add(1)
	case ether.Source(frame) != p.cfg.MAC:
		p.count.source.Add(1)
	case !honest(frame, p.cfg.MAC, p.cfg.Address), p.cfg.Address.IsValid() && !honestDHCP(frame, p.cfg.MAC):
		p.count.claim.Add(1)
	default:
		p.in.send(frame)
	}
}

// transmit queues a frame to the peer.
func (p *Port) transmit(frame []byte) {
	if s := p.session.Load(); s != nil {
		s.out.put(frame)
	} else {
		p.count.absent.Add(1)
	}
}

// acceptRetry is the pause after an error of accept, which concerns the whole process (no
// descriptors left).
const acceptRetry = 100 * time.Millisecond

// accept accepts peers until the port is closed.
func (p *Port) accept() {
	for {
		conn, err := p.listener.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			p.sw.cfg.Log.Warn("vswitch: accept", "port", p.cfg.Name, "err", err)
			time.Sleep(acceptRetry)
			continue
		}
		if err := checkPeer(conn); err != nil {
			p.sw.cfg.Log.Warn("vswitch: peer refused", "port", p.cfg.Name, "err", err)
			conn.Close()
			continue
		}
		p.attach(conn)
	}
}

// checkPeer refuses processes of users other than this one and root.
func checkPeer(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var (
		cred    *unix.Ucred
		credErr error
	)
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if credErr != nil {
		return fmt.Errorf("peer's credentials: %w", credErr)
	}
	if !mayConnect(int(cred.Uid), os.Getuid()) {
		return fmt.Errorf("process %d is of user %d", cred.Pid, cred.Uid)
	}
	return nil
}

// mayConnect reports whether a process of user peer may use a switch of user own.
func mayConnect(peer, own int) bool { return peer == own || peer == 0 }

// attach makes conn the port's peer.
func (p *Port) attach(conn *net.UnixConn) {
	s := &session{port: p, conn: conn, out: newOutbox(p.queue, &p.count)}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		conn.Close()
		return
	}
	if old := p.session.Swap(s); old != nil {
		old.end(errReplaced)
	}
	p.count.connections.Add(1)
	p.sw.cfg.Log.Info("vswitch: connected", "port", p.cfg.Name)
	p.sw.wg.Go(s.read)
	p.sw.wg.Go(s.write)
}

// detach removes the port's peer if it is still s.
func (p *Port) detach(s *session) { p.session.CompareAndSwap(s, nil) }

func (p *Port) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	p.in.close()
	p.out.close()
	if s := p.session.Load(); s != nil {
		s.end(net.ErrClosed)
	}
	return p.listener.Close()
}

// errReplaced ends a session whose port has a newer one.
var errReplaced = errors.New("replaced by a newer connection")

// A session is one connection of a port's peer.
type session struct {
	port *Port
	conn *net.UnixConn
	out  *outbox
	once sync.Once
}

func (s *session) read() {
	r := ether.NewReader(s.conn)
	for {
		frame, err := r.Next()
		if err != nil {
			s.end(err)
			return
		}
		s.port.receive(frame)
	}
}

func (s *session) write() {
	if err := s.out.drain(s.conn); err != nil {
		s.end(err)
	}
}

// end closes the connection and logs the first reason given. It does not wait for the session's
// goroutines.
func (s *session) end(reason error) {
	s.once.Do(func() {
		s.port.detach(s)
		s.out.close()
		s.conn.Close()
		switch log := s.port.sw.cfg.Log; {
		case errors.Is(reason, net.ErrClosed):
		case errors.Is(reason, io.EOF):
			log.Info("vswitch: disconnected", "port", s.port.cfg.Name)
		default:
			log.Warn("vswitch: disconnected", "port", s.port.cfg.Name, "err", reason)
		}
	})
}
