// Package control is the control protocol of a machine: its messages (control.proto) and
// connections that carry them.
//
// A connection carries frames of at most MaxFrame bytes, each a 4-byte big-endian length and a
// Frame. Its first frames are a Hello and a Welcome. After that both sides send as they like; a
// request is answered by the frame whose answer number is the request's call number.
package control

import (
	"encoding/binary"
	"fmt"
	"io"

	"google.golang.org/protobuf/proto"
)

//go:generate sh -c "cd ../../tools/gen && go run ./proto ../../cluster/control/control.proto"

// Version is the version of the protocol. Both sides of a connection must speak the same one.
const Version = 7

// MaxFrame is the largest encoded Frame, in bytes.
const MaxFrame = 4 << 20

// maxOpening is the largest encoded Frame that opens a conversation, in bytes: its sender has not
// authenticated yet.
const maxOpening = 64 << 10

// FileWindow is how many bytes of a job's files may be on the way beyond what its first node has
// taken.
const FileWindow = 2 << 20

// StdinPiece is how many bytes of standard input a Stdin carries at most. serve passes them on to
// each rank that reads.
const StdinPiece = 16 << 10

// FilesAhead is how many bytes of a job's files a RunRequest carries at most.
const FilesAhead = 64 << 10

// WriteFrame writes one frame to w, in a single Write.
func WriteFrame(w io.Writer, f *Frame) error {
	packet, err := encode(f)
	if err != nil {
		return err
	}
	_, err = w.Write(packet)
	return err
}

// ReadFrame reads one frame from r. At a clean end it returns io.EOF.
func ReadFrame(r io.Reader) (*Frame, error) { return readFrame(r, MaxFrame) }

// readFrame is ReadFrame of frames of at most so many bytes.
func readFrame(r io.Reader, most uint32) (*Frame, error) {
	n, err := readLength(r, most)
	if err != nil {
		return nil, err
	}
	return readBody(r, n, unlimited)
}

// readLength reads the length of a frame, which is followed by so many bytes.
func readLength(r io.Reader, most uint32) (uint32, error) {
	var head [lengthSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > most {
		return 0, fmt.Errorf("control: frame of %d bytes, at most %d are allowed", n, most)
	}
	return n, nil
}

// readBody reads and decodes a frame of n bytes, which may take so many bytes of memory then.
func readBody(r io.Reader, n uint32, memory int) (*Frame, error) {
	packet := make([]byte, n)
	if _, err := io.ReadFull(r, packet); err != nil {
		return nil, fmt.Errorf("control: frame of %d bytes: %w", n, io.ErrUnexpectedEOF)
	}
	f, err := parseFrame(packet, memory)
	if err != nil {
		return nil, fmt.Errorf("control: frame of %d bytes: %w", n, err)
	}
	return f, nil
}

// unfitError reports that a frame cannot carry a message.
type unfitError struct{ text string }

func (e *unfitError) Error() string { return e.text }

// Fits reports whether a frame can carry a message of this protocol.
func Fits(body proto.Message) bool { return proto.Size(body) <= MaxFrame-frameHead }

// lengthSize is the size of a frame's length, and frameHead the most that a frame takes besides its
// message, in bytes.
const (
	lengthSize = 4
	frameHead  = 32
)

func encode(f *Frame) ([]byte, error) {
	packet, err := marshalFrame(f)
	if err != nil {
		return nil, &unfitError{fmt.Sprintf("control: encode frame: %v", err)}
	}
	if len(packet)-lengthSize > MaxFrame {
		return nil, &unfitError{fmt.Sprintf("control: frame of %d bytes, at most %d are allowed", len(packet)-lengthSize, MaxFrame)}
	}
	binary.BigEndian.PutUint32(packet, uint32(len(packet)-lengthSize))
	return packet, nil
}
