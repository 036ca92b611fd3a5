// Package window carries out one-sided operations on the windows of a node's ranks that ranks of
// other nodes ask for by datagrams (package onesided). It has a socket and a thread for each job.
// So a rank that asks without end takes processor time from its node, and holds up no other job.
// The thread blocks in Linux until there is a datagram. After a request it polls for a moment if
// the CPU of the window's rank is free: waking the thread would take longer than a request.
//
// A request must come from the address and port of its rank, with the key of the window's rank's
// end of their mirrored channels (package channel). All else is dropped.
//
// Socket and journals outlive the node kernel. While there is none, requests wait in the socket.
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

	"margay/internal/train"
	"margay/kernel/abi/id"
	"margay/kernel/abi/onesided"
	"margay/kernel/channel"
	"margay/kernel/keep"
	"margay/nimble/memory"
)

// kept is the name under which a job's init keeps the socket and the journals, in this order.
const kept = "windows"

// Limit is how many pairs of ranks a server serves at most: a pair needs mirrored channels.
const Limit = channel.MirrorLimit

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
}

// Server serves the clients of a job on this node. It is safe for concurrent use.
type Server struct {
	config   Config
	socket   *os.File
	port     uint16
	memory   *memory.Memory // journals
	receiver *train.Receiver
	sender   *train.Sender
	ended    chan struct{} // closed when the thread has ended; nil: it was not started
	id       atomic.Int64  // of the thread; 0: it does not run yet
	over     atomic.Bool   // the server is closed

	mu       sync.Mutex
	journals []*onesided.Journal // those in use, in the order of their memory
	clients  map[onesided.Pair]*client

	// Of the thread.
	buffer  []byte
	answers [][]byte
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

// New makes the server of a job, which begins with Start, and leaves its state with the keeper.
func New(c Config) (*Server, error) {
	f, port, err := channel.OpenSocket(c.Self)
	if err != nil {
		return nil, err
	}
	s, err := newServer(c, f, port)
	if err != nil {
		return nil, err
	}
	if s.memory, err = memory.Create("windows", Limit*onesided.JournalSize); err != nil {
		s.Close()
		return nil, err
	}
	journals, err := keep.File(s.memory)
	if err == nil {
		err = c.Keeper.Keep(keep.Item{Name: kept, Files: []*os.File{f, journals}})
		journals.Close()
	}
	if err != nil {
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
	s, err := newServer(c, f, port)
	if err != nil {
		return nil, err
	}
	if s.memory, err = item.Memory(1, Limit*onesided.JournalSize); err != nil {
		s.Close()
		return nil, err
	}
	for n := range Limit {
		j := s.journal(n)
		pair, ok := j.Pair()
		if !ok {
			break
		}
		s.journals = append(s.journals, j)
		if j.Doubtful() {
			c.Fault("it is not known whether an atomic access of rank %d to a window of rank %d was made when the node kernel was started again", pair.Source, pair.Target)
		}
	}
	return s, nil
}

// newServer makes a server without journals. The socket is the server's.
func newServer(c Config, socket *os.File, port uint16) (*Server, error) {
	fd := int(socket.Fd())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: receiveTimeout}); err != nil {
		socket.Close()
		return nil, fmt.Errorf("bound how long a socket waits: %w", err)
	}
	return &Server{
		config: c, socket: socket, port: port, receiver: train.NewReceiver(fd), sender: train.NewSender(fd),
		clients: make(map[onesided.Pair]*client), buffer: make([]byte, 0, onesided.Outstanding*onesided.Most), polls: runtime.GOMAXPROCS(0) > 1,
	}, nil
}

// journal opens the n-th journal.
func (s *Server) journal(n int) *onesided.Journal {
	j, err := onesided.OpenJournal(s.memory.Bytes()[n*onesided.JournalSize:][:onesided.JournalSize])
	if err != nil {
		panic(err) // its size is right
	}
	return j
}

// Port returns the UDP port to which clients send their requests.
func (s *Server) Port() uint16 { return s.port }

// Start begins to serve. All clients of an adopted server should be admitted before.
func (s *Server) Start() {
	s.ended = make(chan struct{})
	go s.serve()
}

// Admit admits a client, once. The requests of a pair beyond Limit are dropped.
func (s *Server) Admit(c Client) {
	pair := onesided.Pair{Source: uint32(c.Source), Target: uint32(c.Target)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clients[pair] != nil {
		return
	}
	at := slices.IndexFunc(s.journals, func(j *onesided.Journal) bool { p, _ := j.Pair(); return p == pair })
	if at < 0 {
		if at = len(s.journals); at == Limit {
			return
		}
		j := s.journal(at)
		j.Begin(pair)
		s.journals = append(s.journals, j)
	}
	s.clients[pair] = &client{Client: c, journal: s.journals[at], windows: make(map[uint8][]byte)}
}

// serve takes requests until the server is closed.
func (s *Server) serve() {
	defer close(s.ended)
	runtime.LockOSThread() // it ends with this goroutine
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

// take carries out a request, which may be anything.
func (s *Server) take(b []byte, from *unix.SockaddrInet4) {
	q, data, err := onesided.ParseRequest(b)
	if err != nil {
		return
	}
	s.mu.Lock()
	c := s.clients[q.Pair]
	s.mu.Unlock()
	if c == nil || c.Key != q.Key || c.Address != netip.AddrPortFrom(netip.AddrFrom4(from.Addr), uint16(from.Port)) {
		return
	}
	s.last = c
	begin := len(s.buffer)
	all, changed := c.journal.Carry(s.buffer, &q, data, c.ReplyKey, func(window uint8) []byte { return s.window(c, window) })
	if changed && !slices.Contains(s.changed, c.Target) {
		s.changed = append(s.changed, c.Target)
	}
	if answer := all[begin:]; len(answer) > 0 {
		s.buffer = all
		s.add(answer)
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

// add adds an answer. One without data replaces the one before it, if that has none.
func (s *Server) add(answer []byte) {
	if n := len(s.answers); n > 0 && onesided.Replaces(answer, s.answers[n-1]) {
		s.answers[n-1] = answer
		return
	}
	s.answers = append(s.answers, answer)
}

// send sends the answers to a client, and reports changes.
func (s *Server) send(to *unix.SockaddrInet4) {
	for all := s.answers; len(all) > 0; {
		n, size := 1, len(all[0])
		for n < len(all) && len(all[n-1]) == len(all[0]) && len(all[n]) <= len(all[0]) && size+len(all[n]) <= train.Bytes {
			size += len(all[n])
			n++
		}
		s.sender.Send(all[:n], to)
		all = all[n:]
	}
	for _, rank := range s.changed {
		s.config.Changed(rank)
	}
	s.buffer, s.answers, s.changed = s.buffer[:0], s.answers[:0], s.changed[:0]
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
	if s.memory != nil {
		s.memory.Close()
	}
}
