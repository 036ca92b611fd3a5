// Package train sends and receives several UDP datagrams by one system call: UDP_SEGMENT and
// UDP_GRO of Linux. They carry datagrams of one length; the last may be shorter.
package train

import (
	"encoding/binary"
	"errors"
	"iter"

	"golang.org/x/sys/unix"
)

// Bounds of a train.
const (
	Most  = 64    // datagrams
	Bytes = 60000 // without headers

	Longest = 1 << 16 // bytes of one that arrives
)

// Sender sends trains from a socket. It is not safe for concurrent use.
type Sender struct {
	socket int
	alone  bool // Linux has refused a train
}

// NewSender returns a sender. The socket stays the caller's.
func NewSender(socket int) *Sender { return &Sender{socket: socket} }

// Send sends at most Most datagrams of at most Bytes together: of one length, but the last may be
// shorter. Datagrams that Linux does not take are lost, like any others. It never waits.
func (s *Sender) Send(datagrams [][]byte, to *unix.SockaddrInet4) {
	const flags = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL
	if len(datagrams) > 1 && !s.alone {
		_, err := unix.SendmsgBuffers(s.socket, datagrams, segment(len(datagrams[0])), to, flags)
		if !refused(err) {
			return
		}
		s.alone = true
	}
	for _, b := range datagrams {
		_ = unix.Sendto(s.socket, b, flags, to)
	}
}

// refused reports whether an error of sending says that there are no trains on this way.
func refused(err error) bool {
	for _, e := range []error{unix.EINVAL, unix.EIO, unix.EMSGSIZE, unix.EOPNOTSUPP, unix.ENOPROTOOPT} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// segment returns the control data by which Linux cuts a train into datagrams of a length (udp(7),
// cmsg(3)).
func segment(length int) []byte {
	b := make([]byte, unix.CmsgSpace(2))
	binary.NativeEndian.PutUint64(b, uint64(unix.CmsgLen(2)))
	binary.NativeEndian.PutUint32(b[8:], unix.SOL_UDP)
	binary.NativeEndian.PutUint32(b[12:], unix.UDP_SEGMENT)
	binary.NativeEndian.PutUint16(b[unix.CmsgLen(0):], uint16(length))
	return b
}

// Split returns the datagrams of a train that was received with control data.
func Split(b, control []byte) iter.Seq[[]byte] { return split(b, length(control)) }

// length returns the length of the datagrams that control data name, 0 if there is one datagram.
func length(control []byte) int {
	if len(control) == 0 {
		return 0
	}
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return 0
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_UDP && m.Header.Type == unix.UDP_GRO && len(m.Data) >= 4 {
			return int(binary.NativeEndian.Uint32(m.Data))
		}
	}
	return 0
}

// split cuts a train into its datagrams.
func split(b []byte, length int) iter.Seq[[]byte] {
	if length <= 0 {
		length = max(len(b), 1)
	}
	return func(yield func([]byte) bool) {
		for len(b) > 0 {
			n := min(length, len(b))
			if !yield(b[:n:n]) {
				return
			}
			b = b[n:]
		}
	}
}
