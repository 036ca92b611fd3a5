package udp

import (
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// socketBuffer is what a socket asks for in each direction, in bytes. Linux gives an ordinary user
// less (net.core.rmem_max).
const socketBuffer = 4 << 20

// Most datagrams, and most bytes of them, that Linux takes in one call (UDP_MAX_SEGMENTS).
const (
	batchDatagrams = 64
	batchBytes     = 60 << 10
)

// socket sends and receives datagrams, several in one system call where Linux can do that
// (UDP_SEGMENT and UDP_GRO). Its methods are safe for concurrent use, except receive.
type socket struct {
	conn   *net.UDPConn
	single atomic.Bool // Linux refuses batches on this way
	oob    []byte      // of receive
}

func newSocket(c *net.UDPConn) *socket {
	// A smaller buffer and single datagrams are slower, and nothing else.
	c.SetReadBuffer(socketBuffer)
	c.SetWriteBuffer(socketBuffer)
	if raw, err := c.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_GRO, 1) })
	}
	return &socket{conn: c, oob: make([]byte, 256)}
}

// send sends the datagrams of these sizes that b consists of. Whatever cannot be sent is lost, as
// it may be on the way.
func (s *socket) send(b []byte, sizes []int, to netip.AddrPort) {
	for len(sizes) > 0 {
		n, bytes := run(sizes)
		if n > 1 && !s.single.Load() {
			_, _, err := s.conn.WriteMsgUDPAddrPort(b[:bytes], segment(sizes[0]), to)
			if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EIO) && !errors.Is(err, unix.ENOPROTOOPT) && !errors.Is(err, unix.EOPNOTSUPP) {
				b, sizes = b[bytes:], sizes[n:]
				continue
			}
			s.single.Store(true)
		}
		s.conn.WriteToUDPAddrPort(b[:sizes[0]], to)
		b, sizes = b[sizes[0]:], sizes[1:]
	}
}

// run returns how many datagrams one call can send, and their bytes: all have one size, but the
// last one may be shorter.
func run(sizes []int) (n, bytes int) {
	for n < len(sizes) && n < batchDatagrams && sizes[n] <= sizes[0] && bytes+sizes[n] <= batchBytes {
		bytes += sizes[n]
		n++
		if sizes[n-1] < sizes[0] {
			break
		}
	}
	return n, bytes
}

// segment returns the control message that asks for datagrams of a size.
func segment(size int) []byte {
	b := make([]byte, unix.CmsgSpace(2))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = unix.IPPROTO_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	*(*uint16)(unsafe.Pointer(&b[unix.CmsgLen(0)])) = uint16(size)
	return b
}

// receive waits for datagrams of one source. All have the size that it returns, but the last one
// may be shorter.
func (s *socket) receive(b []byte) (n, size int, from netip.AddrPort, err error) {
	n, oobn, _, from, err := s.conn.ReadMsgUDPAddrPort(b, s.oob)
	return n, segmentSize(s.oob[:oobn], n), from, err
}

// segmentSize returns the size of each datagram in n received bytes.
func segmentSize(oob []byte, n int) int {
	for len(oob) >= unix.CmsgLen(0) {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			break
		}
		if h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_GRO && len(data) >= 4 {
			if size := int(*(*int32)(unsafe.Pointer(&data[0]))); size > 0 {
				return size
			}
		}
		oob = rest
	}
	return max(n, 1)
}
