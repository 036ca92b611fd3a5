// Package wayback carries TCP connections from a program on a node back to a process beside its
// client, over the standard input and output of a job. A job reaches no other network than its own:
// this is how the daemons of a launcher such as Open MPI's mpirun reach it.
//
// The node's side listens, and opens a connection at the client's side for each one that it
// accepts. The client's side chooses where these go. Both sides send frames: kind (1 byte), number
// of the connection (4 bytes), length of the data (4 bytes), data; numbers are big-endian. A
// connection ends when both sides have shut it. A connection that does not read holds up the
// others.
//
// Locks: side.mu guards the table of connections, side.sending the writer. Neither is held for the
// other.
package wayback

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// kind is what a frame does.
type kind byte

const (
	open kind = iota + 1 // begins a connection: from the node's side alone, without data
	data
	shut // no data follow in this direction: without data
)

// Bounds of a frame's data, and of the connections at a time.
const (
	maxData  = 32 << 10
	maxConns = 64
)

const headSize = 1 + 4 + 4

// frame is one frame.
type frame struct {
	kind   kind
	number uint32
	data   []byte
}

func (f frame) append(b []byte) []byte {
	b = append(b, byte(f.kind))
	b = binary.BigEndian.AppendUint32(b, f.number)
	b = binary.BigEndian.AppendUint32(b, uint32(len(f.data)))
	return append(b, f.data...)
}

// readFrame reads a frame. At the end of the input between two frames it returns io.EOF.
func readFrame(r io.Reader) (f frame, err error) {
	var head [headSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return f, err
	}
	f.kind, f.number = kind(head[0]), binary.BigEndian.Uint32(head[1:])
	size := binary.BigEndian.Uint32(head[5:])
	switch {
	case f.kind != open && f.kind != data && f.kind != shut:
		return f, fmt.Errorf("a frame of kind %d", f.kind)
	case f.kind == data && (size == 0 || size > maxData), f.kind != data && size != 0:
		return f, fmt.Errorf("a frame of kind %d with %d bytes", f.kind, size)
	}
	f.data = make([]byte, size)
	if _, err := io.ReadFull(r, f.data); err != nil {
		return f, errors.Join(io.ErrUnexpectedEOF, err)
	}
	return f, nil
}

// side is one side.
type side struct {
	out     io.Writer
	sending sync.Mutex

	mu    sync.Mutex
	conns map[uint32]*conn
	ended bool
}

// conn is a connection to a program here.
type conn struct {
	net.Conn
	shuts int // directions that are shut
}

func (s *side) send(f frame) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	_, err := s.out.Write(f.append(nil))
	return err
}

// errFull is why a connection is one too many.
var errFull = fmt.Errorf("there are %d connections already", maxConns)

// add enters a connection. Data of the other side then go there.
func (s *side) add(number uint32, c net.Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended || s.conns[number] != nil:
		c.Close()
		return fmt.Errorf("connection %d, beside %d others", number, len(s.conns))
	case len(s.conns) == maxConns:
		c.Close()
		return errFull
	}
	s.conns[number] = &conn{Conn: c}
	return nil
}

// copy sends what a connection has to the other side.
func (s *side) copy(number uint32, c net.Conn) {
	buffer := make([]byte, maxData)
	for {
		n, err := c.Read(buffer)
		if n > 0 && s.send(frame{data, number, buffer[:n]}) != nil {
			return
		}
		if err != nil {
			_ = s.send(frame{kind: shut, number: number})
			s.shut(number)
			return
		}
	}
}

// shut notes that one direction of a connection is shut, and closes it after the second one.
func (s *side) shut(number uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.conns[number]
	if c == nil {
		return
	}
	if c.shuts++; c.shuts == 2 {
		delete(s.conns, number)
		c.Close()
	}
}

// find returns a connection, or nil.
func (s *side) find(number uint32) *conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns[number]
}

// end closes all connections.
func (s *side) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for _, c := range s.conns {
		c.Close()
	}
}

// serve carries out the frames of the other side until its end. It calls opened for a connection
// that the other side opens.
func (s *side) serve(in io.Reader, opened func(number uint32) error) error {
	defer s.end()
	for {
		f, err := readFrame(in)
		if errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch c := s.find(f.number); {
		case f.kind == open:
			if err := opened(f.number); err != nil {
				return err
			}
		case c == nil: // it has just ended here
		case f.kind == data:
			if _, err := c.Write(f.data); err != nil { // its reader is gone: copy sees that, too
				c.Close()
			}
		case f.kind == shut:
			if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite()
			}
			s.shut(f.number)
		}
	}
}

func newSide(out io.Writer) *side { return &side{out: out, conns: make(map[uint32]*conn)} }

// ServeNode is the side of the node: it carries the connections that the listener accepts, until
// in ends.
func ServeNode(l net.Listener, in io.Reader, out io.Writer) error {
	s := newSide(out)
	defer l.Close()
	go func() {
		for number := uint32(1); ; number++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if err := s.add(number, c); errors.Is(err, errFull) {
				continue
			} else if err != nil {
				return
			}
			// The other side knows the connection before it gets its data, and may answer at once.
			if s.send(frame{kind: open, number: number}) != nil {
				c.Close()
				return
			}
			go s.copy(number, c)
		}
	}()
	return s.serve(in, func(uint32) error { return errors.New("the client opens a connection") })
}

// ServeClient is the side of the client: it connects to what dial returns, until in ends. A
// connection that dial cannot make, or that is one too many, is shut.
func ServeClient(dial func() (net.Conn, error), in io.Reader, out io.Writer) error {
	s := newSide(out)
	return s.serve(in, func(number uint32) error {
		c, err := dial()
		if err == nil {
			err = s.add(number, c)
		}
		switch {
		case err == nil:
			go s.copy(number, c)
			return nil
		case c != nil && !errors.Is(err, errFull):
			return err
		}
		return s.send(frame{kind: shut, number: number})
	})
}
