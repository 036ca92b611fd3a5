// Package share is the border between the relay of a job on a node and margay run: how requests for
// files of a shared folder reach margay run, and the answers the node.
//
// A stream carries frames in both directions: a header of 24 bytes, little-endian, and a body.
//
//	length of the body   4 bytes
//	kind                 1 byte
//	folder               1 byte, its index among the job's shared folders
//	zero                 2 bytes
//	number               8 bytes, of the request
//	floor                8 bytes, of a request: all with smaller numbers are answered
//
// The relay sends Hello first, margay run answers with Welcome, and then come requests and answers:
// messages of package fuse. A stream may break at any time. The relay keeps each request until it
// is answered, and sends those that are not over the next stream (Requests). margay run carries out
// each number once (Answers), unless doing it twice is the same.
package share

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"margay/kernel/abi/fuse"
)

// Kind is the kind of a frame.
type Kind uint8

// The kinds.
const (
	Hello   Kind = 1 // body: version, user and group of the ranks, 4 bytes each
	Welcome Kind = 2 // body: window in bytes, 4 bytes
	Request Kind = 3
	Answer  Kind = 4
)

// Version of the frames.
const Version = 2

// MaxFolders is how many folders a job can share.
const MaxFolders = 16

// Bounds of the requests that are under way between a node and margay run.
const (
	MinWindow = 2 * maxCost // bytes of requests without an answer, and of their answers
	MaxWindow = 4 << 20
	MaxAhead  = 4096 // numbers from the first request without an answer on

	maxCost = fuse.MaxRequest + 4096 // of a request, and its answer
)

const headerSize = 24

// Frame is one frame.
type Frame struct {
	Kind          Kind
	Folder        uint8
	Number, Floor uint64
	Body          []byte
}

// Append appends the encoded frame.
func (f Frame) Append(b []byte) []byte { return append(f.AppendHeader(b), f.Body...) }

// AppendHeader appends the header, which the body follows.
func (f Frame) AppendHeader(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(f.Body)))
	b = append(b, byte(f.Kind), f.Folder, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, f.Number)
	return binary.LittleEndian.AppendUint64(b, f.Floor)
}

// ErrProtocol reports an other side that does not keep to the protocol.
var ErrProtocol = errors.New("stream of shared files: broken protocol")

// ReadFrame reads a frame. At a clean end it returns io.EOF.
func ReadFrame(r io.Reader) (Frame, error) {
	var head [headerSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Frame{}, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	f := Frame{
		Kind: Kind(head[4]), Folder: head[5],
		Number: binary.LittleEndian.Uint64(head[8:]), Floor: binary.LittleEndian.Uint64(head[16:]),
	}
	if n > fuse.MaxRequest || f.Kind < Hello || f.Kind > Answer || head[6] != 0 || head[7] != 0 {
		return Frame{}, fmt.Errorf("%w: frame of kind %d with %d bytes", ErrProtocol, f.Kind, n)
	}
	f.Body = make([]byte, n)
	if _, err := io.ReadFull(r, f.Body); err != nil {
		return Frame{}, io.ErrUnexpectedEOF
	}
	return f, nil
}

// Greeting is the body of Hello.
type Greeting struct{ UID, GID uint32 }

// Frame returns the frame that carries it.
func (g Greeting) Frame() Frame {
	b := binary.LittleEndian.AppendUint32(nil, Version)
	b = binary.LittleEndian.AppendUint32(b, g.UID)
	return Frame{Kind: Hello, Body: binary.LittleEndian.AppendUint32(b, g.GID)}
}

// ReadGreeting reads a Hello.
func ReadGreeting(f Frame) (Greeting, error) {
	if f.Kind != Hello || len(f.Body) != 12 || binary.LittleEndian.Uint32(f.Body) != Version {
		return Greeting{}, fmt.Errorf("%w: it does not begin with a Hello of version %d", ErrProtocol, Version)
	}
	return Greeting{binary.LittleEndian.Uint32(f.Body[4:]), binary.LittleEndian.Uint32(f.Body[8:])}, nil
}

// WelcomeFrame returns a Welcome with a window.
func WelcomeFrame(window int) Frame {
	return Frame{Kind: Welcome, Body: binary.LittleEndian.AppendUint32(nil, uint32(window))}
}

// ReadWelcome reads a Welcome.
func ReadWelcome(f Frame) (window int, err error) {
	if f.Kind != Welcome || len(f.Body) != 4 {
		return 0, fmt.Errorf("%w: Hello is not answered by Welcome", ErrProtocol)
	}
	window = int(binary.LittleEndian.Uint32(f.Body))
	if window < MinWindow || window > MaxWindow {
		return 0, fmt.Errorf("%w: a window of %d bytes", ErrProtocol, window)
	}
	return window, nil
}

// Window is the window of each of so many nodes.
func Window(nodes int) int {
	const all = 64 << 20
	return max(MinWindow, min(MaxWindow, all/max(1, nodes)))
}
