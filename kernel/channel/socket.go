package channel

import (
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"margay/internal/train"
	"margay/kernel/keep"
)

// keptSocket is the name under which a job's init keeps the socket of a rank, followed by its local
// number.
const keptSocket = "mirror/socket/"

// socketRoom is the most bytes of datagrams that wait in a socket, as Linux counts them.
const socketRoom = 1 << 20

// Ports of ranks' sockets: [firstPort, firstPort+ports).
const (
	firstPort = 32768
	ports     = 28000
)

// socket is the socket that the mirrored channels of a rank share. The rank has a descriptor of it.
type socket struct {
	file  *os.File
	port  uint16
	ends  uint32          // how many mirrored channels use it
	inbox *train.Receiver // after the rank's end
	peek  *train.Receiver // before that; for Peek alone
}

func socketItem(local int) string { return fmt.Sprint(keptSocket, local) }

// socket returns the socket of a local rank, and makes it if there is none. The caller holds the
// lock.
func (t *Table) socket(local int) (*socket, error) {
	if t.sockets[local] != nil {
		return t.sockets[local], nil
	}
	f, port, err := OpenSocket(t.config.Remote.Self)
	if err != nil {
		return nil, err
	}
	s := &socket{file: f, port: port}
	if err := t.config.Keeper.Keep(keep.Item{Name: socketItem(local), Files: []*os.File{s.file}}); err != nil {
		s.file.Close()
		return nil, err
	}
	t.sockets[local] = s
	return s, nil
}

// OpenSocket opens a UDP socket of this node and returns its port. The socket is bound to a port by
// number: a rank could move it away from a port that Linux had chosen. The socket blocks, and ranks
// use it with MSG_DONTWAIT: Go would poll a nonblocking descriptor, in node kernel and job init,
// which would then wake for each datagram.
func OpenSocket(self netip.Addr) (f *os.File, port uint16, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("make a socket: %w", err)
	}
	f = os.NewFile(uintptr(fd), "socket")
	for range 100 {
		port = uint16(firstPort + rand.IntN(ports))
		if err = unix.Bind(fd, &unix.SockaddrInet4{Addr: self.As4(), Port: int(port)}); !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, 0, fmt.Errorf("bind a socket to %s: %w", self, err)
	}
	// Without trains, each datagram comes alone.
	_ = unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO, 1)
	// Less room only means that more datagrams are lost. An ordinary user gets less.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketRoom) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, socketRoom)
	}
	return f, port, nil
}

// adoptSocket takes over the socket that was kept for a local rank, if there is one.
func (t *Table) adoptSocket(local int, item *keep.Item) error {
	if item == nil {
		return nil
	}
	f, port, err := AdoptSocket(item)
	if err != nil {
		return err
	}
	t.sockets[local] = &socket{file: f, port: port}
	return nil
}

// AdoptSocket takes over the socket that is the first file of an item, and returns its port.
func AdoptSocket(item *keep.Item) (f *os.File, port uint16, err error) {
	if len(item.Files) == 0 {
		return nil, 0, fmt.Errorf("%s: no files", item.Name)
	}
	if f, err = keep.Duplicate(item.Files[0].Fd(), "socket"); err != nil {
		return nil, 0, err
	}
	name, err := unix.Getsockname(int(f.Fd()))
	address, ok := name.(*unix.SockaddrInet4)
	if err == nil && !ok {
		err = errors.New("not an IPv4 socket")
	}
	if err != nil {
		f.Close()
		return nil, 0, fmt.Errorf("%s: %w", item.Name, err)
	}
	return f, uint16(address.Port), nil
}

// send sends a datagram. One that Linux does not take is lost, like any other.
func (s *socket) send(b []byte, to netip.AddrPort) {
	_ = unix.Sendto(int(s.file.Fd()), b, unix.MSG_DONTWAIT, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
}

// waits reports whether there are datagrams in the socket.
func (s *socket) waits() bool {
	bytes, err := unix.GetsockoptInt(int(s.file.Fd()), unix.SOL_SOCKET, unix.SO_MEMINFO)
	return err == nil && bytes > 0
}

// receive takes datagrams for a rank that has ended, and returns where they come from.
func (s *socket) receive() (datagrams iter.Seq[[]byte], from netip.AddrPort, ok bool) {
	if s.inbox == nil {
		s.inbox = train.NewReceiver(int(s.file.Fd()))
	}
	datagrams, address, err := s.inbox.Receive(unix.MSG_DONTWAIT)
	if err != nil {
		return nil, from, false
	}
	return datagrams, netip.AddrPortFrom(netip.AddrFrom4(address.Addr), uint16(address.Port)), true
}
