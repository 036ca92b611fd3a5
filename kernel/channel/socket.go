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

// keptSocket is the name under which a job's init keeps the socket of a rank, with its local number behind it.
const keptSocket = "mirror/socket/"

// socketRoom is how many bytes of datagrams wait in a socket at most, as Linux counts them.
const socketRoom = 1 << 20

// Ports of ranks' sockets: [firstPort, firstPort+ports).
const (
	firstPort = 32768
	ports     = 28000
)

// socket is what the mirrored channels of a rank share. The rank has a descriptor of it.
type socket struct {
	file  *os.File
	port  uint16
	ends  uint32          // how many mirrored channels use it
	inbox *train.Receiver // after the rank's end
}

func socketItem(local int) string { return fmt.Sprint(keptSocket, local) }

// socket returns the socket of a local rank, which it makes if there is none. The caller holds the lock.
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

// OpenSocket opens a UDP socket of this node and returns its port. A rank's is bound to a port by
// its number: from a port that Linux has chosen, the rank could move the socket to another one. It
// blocks: ranks use it with MSG_DONTWAIT, and Go would poll a descriptor that does not block, in
// node kernel and job init, which then wake for each datagram.
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
	// With less room more datagrams are lost, and nothing else. An ordinary user gets less.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketRoom) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, socketRoom)
	}
	return f, port, nil
}

// adoptSocket takes up the socket that was kept for a local rank, if there is one.
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

// AdoptSocket takes up the socket that is the first file of an item, and returns its port.
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
		err = errors.New("it is no socket of IPv4")
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
