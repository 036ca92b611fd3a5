// Package ether defines Ethernet addresses and the framing of Ethernet on a byte stream, as the
// switch and its peers use them.
//
// The framing matches QEMU's "stream" network back end: each frame is preceded by its length in
// octets, a 4-byte big-endian number that does not count itself. A frame starts at the destination
// address and has neither preamble nor frame check sequence:
//
//	length (4) | destination (6) | source (6) | type (2) | payload
//
// The stream has no marks for finding the next frame, so an impossible length ends the connection.
package ether

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Sizes of the framing, in bytes.
const (
	PrefixLen = 4  // the length in front of a frame
	HeaderLen = 14 // the Ethernet header: destination, source, type

	// MaxFrame is the longest frame accepted: an IPv4 packet of the greatest length behind an
	// Ethernet header. QEMU's own limit is slightly higher.
	MaxFrame = HeaderLen + 65536
)

// ErrLength is the error of a length prefix that is zero or beyond MaxFrame. The stream cannot be
// read any further.
var ErrLength = errors.New("impossible frame length")

// readSize is the size of a Reader's buffer: several frames of the greatest length, about the
// capacity of a unix socket.
const readSize = 256 << 10

// A Reader cuts a stream into frames. It reads as much as the stream offers and copies only the
// tail of its buffer. It is for one goroutine at a time.
type Reader struct {
	src        io.Reader
	buf        []byte
	start, end int // buf[start:end] is read and not yet returned
}

// NewReader returns a Reader of the frames of src.
func NewReader(src io.Reader) *Reader {
	return &Reader{src: src, buf: make([]byte, readSize)}
}

// Next returns the next frame, which is valid until the following call. A frame may be shorter than
// an Ethernet header. At the end of the stream the error is io.EOF between two frames and
// io.ErrUnexpectedEOF inside one; it wraps ErrLength if the length is impossible, and is the
// stream's own otherwise.
func (r *Reader) Next() ([]byte, error) {
	if err := r.fill(PrefixLen); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(r.buf[r.start:])
	if n == 0 || n > MaxFrame {
		return nil, fmt.Errorf("%w %d, want 1 to %d", ErrLength, n, MaxFrame)
	}
	if err := r.fill(PrefixLen + int(n)); err != nil {
		return nil, err
	}
	frame := r.buf[r.start+PrefixLen : r.start+PrefixLen+int(n)]
	r.start += PrefixLen + int(n)
	return frame, nil
}

// fill reads until n bytes are buffered; n is at most PrefixLen + MaxFrame.
func (r *Reader) fill(n int) error {
	if r.start == r.end {
		r.start, r.end = 0, 0
	}
	if r.start+n > len(r.buf) {
		r.end = copy(r.buf, r.buf[r.start:r.end])
		r.start = 0
	}
	missing := n - (r.end - r.start)
	if missing <= 0 {
		return nil
	}
	got, err := io.ReadAtLeast(r.src, r.buf[r.end:], missing)
	r.end += got
	if err == io.EOF && r.end > r.start {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Prefix returns the length prefix of a frame of n bytes.
func Prefix(n int) [PrefixLen]byte {
	var p [PrefixLen]byte
	binary.BigEndian.PutUint32(p[:], uint32(n))
	return p
}

// Append appends the frame and its prefix to buf and returns the extended buffer.
func Append(buf, frame []byte) []byte {
	buf = binary.BigEndian.AppendUint32(buf, uint32(len(frame)))
	return append(buf, frame...)
}

// Destination returns the destination address of a frame of at least HeaderLen bytes.
func Destination(frame []byte) MAC { return MAC(frame[0:6]) }

// Source returns the source address of a frame of at least HeaderLen bytes.
func Source(frame []byte) MAC { return MAC(frame[6:12]) }
