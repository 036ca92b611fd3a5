// Package endpoint is the node kernel's end of what it shares with one rank: the area with its
// rings (package wire), the doorbell, the upcall doorbell and the socket for requests.
//
// A message for the rank goes into one of two inboxes: the receive ring, or the upcall ring, whose
// messages interrupt the rank. If a ring is full, messages wait in node kernel memory, in order.
// Messages for the upcall ring go first, so that no message is handled before an upcall that was
// sent earlier. The release from a barrier waits behind such messages too. The rank
// rings when it has made room (Listen, Refill).
//
// The descriptors are left with the keeper (Create), and the next node kernel continues with them
// (Adopt). Messages that waited for room are lost then; their number is in memory that outlives the
// node kernel (Config.Waiting).
//
// The rank can write anything into its area at any time. Package wire checks what it reads from
// there; nonsense is reported to the Owner, and harms the rank's own job only.
//
// Locks: Endpoint.mu guards the inboxes. A Taker and an Owner are called with it held, and must not
// call the endpoint; locks that they take come after it.
package endpoint

import (
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"margay/internal/rights"
	"margay/kernel/abi/id"
	"margay/kernel/abi/wire"
	"margay/kernel/keep"
	"margay/kernel/record"
	"margay/kernel/task"
	"margay/kernel/untrusted"
	"margay/nimble/memory"
)

// Item returns the name of the item that keeps a rank's endpoint. Its files are the socket, the
// area, and both ends of the doorbell and of the upcall doorbell.
func Item(rank id.Rank) string { return fmt.Sprintf("rank/%d/kernel", rank) }

// Owner is the part of the node kernel that has the endpoint. Its methods must not wait.
type Owner interface {
	// Fault reports that the job cannot continue.
	Fault(err error)
	// Woken reports that the rank may have been woken up, and not by a message.
	Woken(rank id.Rank)
	// Held reports that a message of a rank waits for room in a ring, and Placed that one no longer
	// does.
	Held(source id.Rank)
	Placed(source id.Rank)
}

// Config describes a rank to its endpoint.
type Config struct {
	Header   wire.Header
	Nodes    []id.Node // by rank of the job
	Waiting  *uint64   // persistent counter of messages that wait for room
	Owner    Owner
	Core     id.Core          // of the rank, for the recorder
	Recorder *record.Recorder // nil: events are not recorded
}

// Endpoint is the endpoint of one rank. It is safe for concurrent use, except for Sent.
type Endpoint struct {
	config     Config
	rank       id.Rank
	socket     *net.UnixConn // for requests
	doorbell   bell
	upcallBell bell
	memory     *memory.Memory
	area       *wire.Area
	sent       *wire.Consumer

	inBarrier atomic.Uint64 // id.Time since when the rank has been in a barrier; 0: it is in none, or that is not recorded

	mu       sync.Mutex
	ordinary inbox
	upcalls  inbox
	gone     bool // the rank has ended
}

// Create makes the endpoint of a new rank and leaves it with the keeper, and the rank's end of its
// socket where the job's init finds it.
func Create(c Config, keeper keep.Keeper) (*Endpoint, error) {
	e := &Endpoint{config: c, rank: id.Rank(c.Header.Rank)}
	if err := e.create(keeper); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

func (e *Endpoint) create(keeper keep.Keeper) error {
	if err := e.createArea(); err != nil {
		return err
	}
	near, app, err := socketPair(unix.SOCK_SEQPACKET)
	if err != nil {
		return err
	}
	defer near.Close()
	defer app.Close()
	// A plain C program waits for its answers.
	if err := unix.SetNonblock(int(app.Fd()), false); err != nil {
		return fmt.Errorf("make the socket for requests blocking: %w", err)
	}
	for _, b := range []*bell{&e.doorbell, &e.upcallBell} {
		if b.near, b.far, err = socketPair(unix.SOCK_STREAM); err != nil {
			return err
		}
	}
	// A thread that waits for upcalls blocks too.
	if err := unix.SetNonblock(int(e.upcallBell.far.Fd()), false); err != nil {
		return fmt.Errorf("make the upcall doorbell blocking: %w", err)
	}
	area, err := keep.File(e.memory)
	if err != nil {
		return err
	}
	defer area.Close()
	if err := keeper.Keep(keep.Item{Name: task.AppFile(e.rank), Files: []*os.File{app}}); err != nil {
		return err
	}
	kept := []*os.File{near, area, e.doorbell.near, e.doorbell.far, e.upcallBell.near, e.upcallBell.far}
	if err := keeper.Keep(keep.Item{Name: Item(e.rank), Files: kept}); err != nil {
		return err
	}
	return e.attach(near)
}

func (e *Endpoint) createArea() (err error) {
	if e.memory, err = memory.Create("area", wire.AreaSize(len(e.config.Nodes))); err != nil {
		return err
	}
	nodes := make([]uint32, len(e.config.Nodes))
	for i, n := range e.config.Nodes {
		nodes[i] = uint32(n)
	}
	e.area, err = wire.NewArea(e.memory.Bytes(), e.config.Header, nodes)
	return err
}

// Adopt continues with the endpoint that the previous node kernel left in an item. The caller still
// owns the files in the item after the call.
func Adopt(c Config, item *keep.Item) (*Endpoint, error) {
	e := &Endpoint{config: c, rank: id.Rank(c.Header.Rank)}
	if err := e.adopt(item); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

func (e *Endpoint) adopt(item *keep.Item) (err error) {
	if item == nil || len(item.Files) != 6 {
		return fmt.Errorf("rank %d: its area was not kept", e.rank)
	}
	if e.memory, err = item.Memory(1, wire.AreaSize(len(e.config.Nodes))); err != nil {
		return err
	}
	if e.area, _, err = wire.OpenArea(e.memory.Bytes()); err != nil {
		return err
	}
	near := item.Files[0]
	e.doorbell.near, e.doorbell.far = item.Files[2], item.Files[3]
	e.upcallBell.near, e.upcallBell.far = item.Files[4], item.Files[5]
	item.Files = []*os.File{near, item.Files[1]}
	return e.attach(near)
}

// socketPair returns two connected sockets that do not block.
func socketPair(kind int) (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make sockets: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far"), nil
}

// attach opens this end of the socket for requests and the rings in the area.
func (e *Endpoint) attach(near *os.File) error {
	conn, err := net.FileConn(near)
	if err != nil {
		return fmt.Errorf("rank %d: %w", e.rank, err)
	}
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return fmt.Errorf("rank %d: its socket is a %T", e.rank, conn)
	}
	e.socket = socket
	for _, b := range []*bell{&e.doorbell, &e.upcallBell} {
		if b.raw, err = b.near.SyscallConn(); err != nil {
			return fmt.Errorf("rank %d: its doorbell: %w", e.rank, err)
		}
	}
	e.sent = e.area.SendConsumer()
	e.ordinary.ring, e.upcalls.ring = e.area.ReceiveProducer(), e.area.UpcallProducer()
	return nil
}

// Socket returns this end of the socket for requests.
func (e *Endpoint) Socket() *net.UnixConn { return e.socket }

// Sent returns this end of the send ring. Only one goroutine may use it at a time.
func (e *Endpoint) Sent() *wire.Consumer { return e.sent }

// Entered returns how many barriers the rank says that it has entered.
func (e *Endpoint) Entered() uint64 { return e.area.Entered().Load() }

// Area returns the rank's area.
func (e *Endpoint) Area() *wire.Area { return e.area }

// Openings returns the files that the rank gets when it joins: its area, and its ends of the
// doorbell and of the upcall doorbell. They are the caller's.
func (e *Endpoint) Openings() (files []*os.File, err error) {
	area, err := keep.File(e.memory)
	if err != nil {
		return nil, err
	}
	files = append(files, area)
	for _, b := range []*bell{&e.doorbell, &e.upcallBell} {
		f, err := keep.Duplicate(b.far.Fd(), b.far.Name())
		if err != nil {
			rights.Close(files)
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// Hold keeps the sockets open that the rank may have sent descriptors through, until the returned
// files are closed (untrusted.CloseSockets).
func (e *Endpoint) Hold() (held []*os.File) {
	sockets := []syscall.RawConn{e.doorbell.raw, e.upcallBell.raw}
	if raw, err := e.socket.SyscallConn(); err == nil {
		sockets = append(sockets, raw)
	}
	for _, s := range sockets {
		if f, err := untrusted.Hold(s); err == nil { // or it is closed already
			held = append(held, f)
		}
	}
	return held
}

// Shut closes the sockets of this side, which ends all waiting for the rank. Close is still
// necessary.
func (e *Endpoint) Shut() {
	e.doorbell.near.Close()
	e.upcallBell.near.Close()
	if e.socket != nil {
		e.socket.Close()
	}
}

// Close releases everything. No other method may run.
func (e *Endpoint) Close() {
	e.Shut()
	e.doorbell.far.Close()
	e.upcallBell.far.Close()
	if e.memory != nil {
		e.memory.Close()
	}
}
