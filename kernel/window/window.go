// Package window carries out one-sided operations on the windows of a node's ranks that ranks of
// other nodes ask for by datagrams (package onesided), if the window's rank does not do so itself.
// It has a socket and a thread for each job.
// So a rank that asks without end takes processor time from its node, and holds up no other job.
// The thread blocks in Linux until there is a datagram. After a request it polls for a moment if
// the CPU of the window's rank is free: waking the thread would take longer than a request.
//
// A request must come from the address and port of its rank, with the key of the window's rank's
// end of their mirrored channels (package channel). All else is dropped.
//
// The socket outlives the node kernel, as the journals do, which are beside the mirrored channels.
// While there is no node kernel, requests wait in the socket.
package window

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/throwaway"
	"margay/internal/train"
	"margay/kernel/abi/id"
	"margay/kernel/abi/onesided"
	"margay/kernel/channel"
	"margay/kernel/keep"
)

// kept is the name under which a job's init keeps the socket.
const kept = "windows"

// receiveTimeout bounds, in seconds, how long the thread waits for a request. It may be any: Linux
// repeats a call that has no bound after a signal, and the thread would miss that it must end.
const receiveTimeout = 3600

// wakeEach is how often a thread is woken that must end.
const wakeEach = 5 * time.Millisecond

// spinTime is how long the thread polls after a request.
const spinTime = 50 * time.Microsecond

// Config is what a server needs. All fields are required.
type Config struct {
	Self   netip.Addr // of this node, IPv4
	Keeper keep.Keeper
	// Memory returns the memory of a window of a rank of this node, nil if there is none. It must
	// stay mapped until the server is closed.
	Memory func(rank id.Rank, window uint8) []byte
	// Changed is called when an event of a rank may have been counted. It must not wait.
	Changed func(rank id.Rank)
	// Idle reports whether a rank leaves its CPU to others. It must not wait.
	Idle func(rank id.Rank) bool
	// Fault is called when the job cannot continue. It must not wait.
	Fault func(format string, args ...any)
}

// Client is a rank of another node that may use the windows of a rank of this node.
type Client struct {
	Source, Target id.Rank
	Key            uint64         // of its requests
	ReplyKey       uint64         // of their answers
	Address        netip.AddrPort // of its socket
	Journal        []byte         // memory for the journal of its requests; it must stay mapped until the server is closed
}

// Server serves the clients of a job on this node. It is safe for concurrent use.
type Server struct {
	config   Config
	socket   *os.File
	port     uint16
	receiver *train.Receiver
	sender   *train.Sender
	ended    chan struct{} // closed when the thread has ended; nil: it was not started
	id       atomic.Int64  // of the thread; 0: it does not run yet
	over     atomic.Bool   // the server is closed

	mu      sync.Mutex
	clients map[onesided.Pair]*client

	// Of the thread.
	answers onesided.Answers
	changed []id.Rank
	last    *client // that has sent a request since the thread blocked last; nil: there was none
	polls   bool    // other goroutines can run while the thread polls
}

// client is a Client with the state of its requests.
type client struct {
	Client
	journal *onesided.Journal
	windows map[uint8][]byte
}

// New makes the server of a job, which begins with Start, and leaves its socket with the keeper.
func New(c Config) (*Server, error) {
	f, port, err := channel.OpenSocket(c.Self)
	if err != nil {
		return nil, err
	}
	s, err := newServer(c, f, port)
	if err != nil {
		return nil, err
	}
	if err := c.Keeper.Keep(keep.Item{Name: kept, Files: []*os.File{f}}); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Adopt takes up the server of the node kernel before this one from what was kept of it, nil if
// there was none. The items' files stay the caller's. Each client must be admitted again.
func Adopt(c Config, items map[string]*keep.Item) (*Server, error) {
	item := items[kept]
	if item == nil {
		return nil, nil
	}
	f, port, err := channel.AdoptSocket(item)
	if err != nil {
		return nil, err
	}
	return newServer(c, f, port)
}

// newServer makes a server without clients. The socket is the server's.
func newServer(c Config, socket *os.File, port uint16) (*Server, error) {
	fd := int(socket.Fd())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: receiveTimeout}); err != nil {
		socket.Close()
		return nil, fmt.Errorf("bound how long a socket waits: %w", err)
	}
	return &Server{
		config: c, socket: socket, port: port, receiver: train.NewReceiver(fd), sender: train.NewSender(fd),
		clients: make(map[onesided.Pair]*client), polls: runtime.GOMAXPROCS(0) > 1,
	}, nil
}

// Port returns the UDP port to which clients send their requests.
func (s *Server) Port() uint16 { return s.port }

// Start begins to serve. All clients of an adopted server should be admitted before.
func (s *Server) Start() {
	s.ended = make(chan struct{})
	throwaway.Go(s.serve)
}

// Admit admits a client, once.
func (s *Server) Admit(c Client) {
	pair := onesided.Pair{Source: uint32(c.Source), Target: uint32(c.Target)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clients[pair] != nil {
		return
	}
	j, err := onesided.OpenJournal(c.Journal[:onesided.JournalSize], onesided.ByKernel)
	if err != nil {
		panic(err) // its size is right
	}
	if !j.TakeUp() {
		s.config.Fault("it is not known whether an atomic access of rank %d to a window of rank %d was made when the node kernel was started again", c.Source, c.Target)
	}
	s.clients[pair] = &client{Client: c, journal: j, windows: make(map[uint8][]byte)}
}

// Ended notes that a rank of this node has ended, perhaps in the middle of a request. It may be
// called again.
func (s *Server) Ended(target id.Rank) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.clients {
		if c.Target == target && !c.journal.Abandon() {
			s.config.Fault("it is not known whether an atomic access of rank %d to a window of rank %d was made when that ended", c.Source, target)
		}
	}
}

// serve takes requests until the server is closed.
func (s *Server) serve() {
	defer close(s.ended)
	s.id.Store(int64(unix.Gettid()))
	for !s.over.Load() {
		datagrams, from, err := s.receive()
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			s.config.Fault("receive requests about windows: %v", err)
			return
		}
		left := onesided.Outstanding // of a rank that sends more, or smaller ones
		for b := range datagrams {
			s.take(b, from)
			if left--; left == 0 {
				break
			}
		}
		s.send(from)
	}
}

// receive waits for requests. It polls before it blocks.
func (s *Server) receive() (datagrams iter.Seq[[]byte], from *unix.SockaddrInet4, err error) {
	for begin := time.Now(); s.polls && s.last != nil && s.config.Idle(s.last.Target) && time.Since(begin) < spinTime; {
		if datagrams, from, err = s.receiver.Receive(unix.MSG_DONTWAIT); !errors.Is(err, unix.EAGAIN) {
			return datagrams, from, err
		}
	}
	s.last = nil
	return s.receiver.Receive(0)
}

// Take carries out a request that waits for a rank of this node, which may compute, and may be
// anything. It sends no answer: a requester that does not compute, too, asks the server soon. Take
// must not be called beside Close or after it.
func (s *Server) Take(b []byte, from netip.AddrPort) {
	q, data, c := s.parse(b, from)
	if c == nil {
		return
	}
	_, changed := c.journal.Carry(nil, &q, data, c.ReplyKey, func(window uint8) []byte { return s.config.Memory(c.Target, window) })
	if changed {
		s.config.Changed(c.Target)
	}
}

// parse reads a request, which may be anything, and returns its client, nil if it is of none.
func (s *Server) parse(b []byte, from netip.AddrPort) (q onesided.Request, data []byte, c *client) {
	q, data, err := onesided.ParseRequest(b)
	if err != nil {
		return q, nil, nil
	}
	s.mu.Lock()
	c = s.clients[q.Pair]
	s.mu.Unlock()
	if c == nil || c.Key != q.Key || c.Address != from {
		return q, nil, nil
	}
	return q, data, c
}

// take carries out a request, which may be anything.
func (s *Server) take(b []byte, from *unix.SockaddrInet4) {
	q, data, c := s.parse(b, netip.AddrPortFrom(netip.AddrFrom4(from.Addr), uint16(from.Port)))
	if c == nil {
		return
	}
	s.last = c
	changed := s.answers.Carry(c.journal, &q, data, c.ReplyKey, func(window uint8) []byte { return s.window(c, window) })
	if changed && !slices.Contains(s.changed, c.Target) {
		s.changed = append(s.changed, c.Target)
	}
}

// window returns the memory of a window of a client, nil if there is none.
func (s *Server) window(c *client, number uint8) []byte {
	b := c.windows[number]
	if b == nil {
		if b = s.config.Memory(c.Target, number); b != nil {
			c.windows[number] = b
		}
	}
	return b
}

// send sends the answers to a client, and reports changes.
func (s *Server) send(to *unix.SockaddrInet4) {
	for t := range s.answers.Trains() {
		s.sender.Send(t, to)
	}
	for _, rank := range s.changed {
		s.config.Changed(rank)
	}
	s.changed = s.changed[:0]
}

// Close ends the server and waits until it uses no memory of a window any more. The socket of the
// keeper stays open.
func (s *Server) Close() {
	s.over.Store(true)
	for ended := s.ended == nil; !ended; {
		// The signal may come before the thread waits.
		if id := s.id.Load(); id != 0 {
			_ = unix.Tgkill(unix.Getpid(), int(id), unix.SIGURG) // the Go runtime takes it at any time
		}
		select {
		case <-s.ended:
			ended = true
		case <-time.After(wakeEach):
		}
	}
	s.socket.Close()
}
