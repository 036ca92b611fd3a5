// Package link is the conversation between a parent and the child it must be able to lose: PID 1
// and the node kernel, the node kernel and a job init. It runs over one AF_UNIX SOCK_SEQPACKET
// pair.
//
// A packet is a message: a 4-byte little-endian length, that many bytes of header, then raw
// payload; file descriptors travel beside it. A header is the length of the kind in one byte, the
// kind, and the parameters in JSON. Because the kernel keeps packets whole, a reader that dies
// never leaves half a message behind, and its successor, handed the same socket, continues with the
// next one. Both ends are programs of one build, so the format has no version of its own.
//
// A Conn may be used by one receiver and any number of senders at the same time.
package link

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/rights"
)

// MaxPayload is the largest payload of one message, in bytes. Linux holds most of a packet of this
// size in single pages, so it needs no large piece of memory, which a busy host may not have.
const MaxPayload = 64 << 10

// MaxFiles is the most file descriptors that one message carries (the kernel's own limit is 253).
const MaxFiles = 64

// maxPacket is below the default socket buffer.
const maxPacket = 192 << 10

// Message is one packet.
type Message struct {
	Kind    string          // the type of the message
	Body    json.RawMessage // its parameters, nil when it has none
	Payload []byte          // bulk bytes, at most MaxPayload
	Files   []*os.File      // descriptors that travel with it; the receiver owns its copies
}

// maxKind is the longest Kind, in bytes.
const maxKind = 255

// New makes a message of the given kind with body as its parameters (nil for none). It panics when
// body cannot be encoded, which is a fault of the program: bodies are its own plain structs.
func New(kind string, body any) Message {
	m := Message{Kind: kind}
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			panic(fmt.Sprintf("link: body of %q: %v", kind, err))
		}
		m.Body = b
	}
	return m
}

// Decode reads the message's parameters into v.
func (m Message) Decode(v any) error {
	if err := json.Unmarshal(m.Body, v); err != nil {
		return fmt.Errorf("link: parameters of %q: %w", m.Kind, err)
	}
	return nil
}

// CloseFiles closes the descriptors that came with an unwanted message.
func (m Message) CloseFiles() { rights.Close(m.Files) }

// Conn is one end of a link.
type Conn struct {
	socket *net.UnixConn

	recvMu sync.Mutex // one receiver at a time; guards buf and oob
	buf    []byte
	oob    []byte
}

// Pair makes both ends of a link: one to keep, and one as a file to hand to a child process.
func Pair() (*Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("link: make socket pair: %w", err)
	}
	far := os.NewFile(uintptr(fds[1]), "link")
	near, err := NewConn(os.NewFile(uintptr(fds[0]), "link"))
	if err != nil {
		far.Close()
		return nil, nil, err
	}
	return near, far, nil
}

// NewConn takes over f, one end of a link that was inherited or received. On an error f is closed.
func NewConn(f *os.File) (*Conn, error) {
	defer f.Close() // net.FileConn has a descriptor of its own
	if kind, err := unix.GetsockoptInt(int(f.Fd()), unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_SEQPACKET {
		return nil, fmt.Errorf("link: descriptor is not a SOCK_SEQPACKET socket (type %d): %w", kind, errors.Join(err, unix.EINVAL))
	}
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("link: %w", err)
	}
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return nil, fmt.Errorf("link: descriptor is of %s, not of an AF_UNIX socket: %w", conn.LocalAddr().Network(), unix.EINVAL)
	}
	return &Conn{socket: socket}, nil
}

// Dup returns another descriptor of this end, to be kept by someone else while this Conn is closed
// or its process dies.
func (c *Conn) Dup() (*os.File, error) {
	f, err := rights.Duplicate(c.socket, "link")
	if err != nil {
		return nil, fmt.Errorf("link: %w", closed(err))
	}
	return f, nil
}

// Send sends m, waiting while the socket is full or Linux has no memory for the packet, at most
// until the write deadline. The files stay the caller's.
func (c *Conn) Send(m Message) error {
	packet, err := encode(m)
	if err != nil {
		return err
	}
	oob := rights.Encode(m.Files...)
	err = persist(func() error {
		_, _, err := c.socket.WriteMsgUnix(packet, oob, nil)
		return err
	})
	if err != nil {
		return fmt.Errorf("link: send %q: %w", m.Kind, closed(err))
	}
	return nil
}

// forMemory is how long persist waits before it tries again.
const forMemory = 5 * time.Millisecond

// persist calls send again for as long as Linux has no memory for the packet.
func persist(send func() error) error {
	for {
		err := send()
		if !errors.Is(err, unix.ENOBUFS) {
			return err
		}
		time.Sleep(forMemory)
	}
}

// TrySend sends m if the socket has room and Linux has memory for it now, and reports whether it
// has. The files stay the caller's.
func (c *Conn) TrySend(m Message) (sent bool, err error) {
	packet, err := encode(m)
	if err != nil {
		return false, err
	}
	raw, err := c.socket.SyscallConn()
	if err != nil {
		return false, fmt.Errorf("link: send %q: %w", m.Kind, closed(err))
	}
	oob := rights.Encode(m.Files...)
	var failed error
	err = raw.Control(func(fd uintptr) {
		for {
			failed = unix.Sendmsg(int(fd), packet, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			if failed != unix.EINTR {
				return
			}
		}
	})
	if err == nil && (failed == unix.EAGAIN || failed == unix.ENOBUFS) {
		return false, nil
	}
	if err = cmp.Or(err, failed); err != nil {
		return false, fmt.Errorf("link: send %q: %w", m.Kind, closed(err))
	}
	return true, nil
}

// Recv waits for the next message, at most until the read deadline. It returns io.EOF when every
// copy of the other end is closed. The payload is the caller's to keep.
func (c *Conn) Recv() (Message, error) {
	c.recvMu.Lock()
	defer c.recvMu.Unlock()
	m, err := c.receive()
	m.Payload = bytes.Clone(m.Payload)
	return m, err
}

// Next is Recv without a copy of the payload, which is valid only until the next message is
// received.
func (c *Conn) Next() (Message, error) {
	c.recvMu.Lock()
	defer c.recvMu.Unlock()
	return c.receive()
}

// receive is Next, for a caller with the lock.
func (c *Conn) receive() (Message, error) {
	if c.buf == nil {
		c.buf = make([]byte, maxPacket)
		c.oob = make([]byte, rights.Space(MaxFiles))
	}
	n, oobn, flags, _, err := c.socket.ReadMsgUnix(c.buf, c.oob)
	if errors.Is(err, io.EOF) && oobn == 0 {
		// Linux looks for a packet first, and then whether the other end is closed. A packet that
		// came in between is still there.
		n, oobn, flags, _, err = c.socket.ReadMsgUnix(c.buf, c.oob)
	}
	ended := errors.Is(err, io.EOF)
	if err != nil && !ended {
		return Message{}, fmt.Errorf("link: receive: %w", closed(err))
	}
	files, ferr := rights.Decode(c.oob[:oobn], "received")
	if ferr != nil {
		return Message{}, fmt.Errorf("link: %w", ferr)
	}
	if ended && len(files) == 0 {
		return Message{}, io.EOF
	}
	m, err := decode(c.buf[:n])
	m.Files = files
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = errors.New("link: received message was cut off")
	}
	if err != nil {
		m.CloseFiles()
		return Message{}, err
	}
	return m, nil
}

// SetDeadline bounds every later Send and Recv; the zero time removes the bound.
func (c *Conn) SetDeadline(t time.Time) error { return c.socket.SetDeadline(t) }

// SetReadDeadline bounds every later Recv.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.socket.SetReadDeadline(t) }

// SetWriteDeadline bounds every later Send.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.socket.SetWriteDeadline(t) }

// Close closes this end. A Recv or Send under way returns with os.ErrClosed.
func (c *Conn) Close() error { return c.socket.Close() }

// closed returns err of a socket. One that this side has closed is os.ErrClosed, as with a file.
func closed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return os.ErrClosed
	}
	return err
}

func encode(m Message) ([]byte, error) {
	if len(m.Payload) > MaxPayload {
		return nil, fmt.Errorf("link: payload of %q is %d bytes, at most %d fit", m.Kind, len(m.Payload), MaxPayload)
	}
	if len(m.Files) > MaxFiles {
		return nil, fmt.Errorf("link: %q carries %d descriptors, at most %d fit", m.Kind, len(m.Files), MaxFiles)
	}
	if len(m.Kind) > maxKind {
		return nil, fmt.Errorf("link: kind of %d bytes, at most %d fit", len(m.Kind), maxKind)
	}
	head := 1 + len(m.Kind) + len(m.Body)
	if 4+head+len(m.Payload) > maxPacket {
		return nil, fmt.Errorf("link: parameters of %q are %d bytes, too many", m.Kind, len(m.Body))
	}
	packet := make([]byte, 0, 4+head+len(m.Payload))
	packet = binary.LittleEndian.AppendUint32(packet, uint32(head))
	packet = append(append(packet, byte(len(m.Kind))), m.Kind...)
	return append(append(packet, m.Body...), m.Payload...), nil
}

// decode reads a packet. The payload is a part of it.
func decode(packet []byte) (Message, error) {
	if len(packet) < 4 {
		return Message{}, fmt.Errorf("link: packet of %d bytes has no header", len(packet))
	}
	n := binary.LittleEndian.Uint32(packet)
	rest := packet[4:]
	if uint64(n) > uint64(len(rest)) {
		return Message{}, fmt.Errorf("link: header of %d bytes in a packet of %d", n, len(packet))
	}
	head, payload := rest[:n], rest[n:]
	if n == 0 || int(head[0]) > len(head)-1 {
		return Message{}, fmt.Errorf("link: header of %d bytes without the kind of the message", n)
	}
	kind, body := head[1:1+head[0]], head[1+head[0]:]
	m := Message{Kind: string(kind)}
	if len(body) > 0 {
		m.Body = bytes.Clone(body) // the payload is valid until the next message, the body longer
	}
	if len(payload) > 0 {
		m.Payload = payload
	}
	return m, nil
}
