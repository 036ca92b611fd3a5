package fuse

import (
	"encoding/binary"
	"syscall"
)

// Places in a Write, from the begin of its header.
const (
	handleAt     = HeaderSize
	offsetAt     = HeaderSize + 8
	sizeAt       = HeaderSize + 16
	writeFlagsAt = HeaderSize + 20
	openFlagsAt  = HeaderSize + 32
	writeSize    = HeaderSize + 40 // of all before its data
)

// Flags of a Write. Linux sets the first one; the last one is the relay's own, and Linux has none
// with its value.
const (
	writeCached = 1 << 0  // Linux itself writes behind, out of a mapping
	writeBehind = 1 << 31 // the rank does not wait for the answer
)

// direct are the flags of an open file whose writes must be carried out before they return. Appends
// are among them: what several ranks append has the order in which they wrote.
const direct = syscall.O_APPEND | syscall.O_SYNC | syscall.O_DSYNC | syscall.O_DIRECT

// Extent is the part of an open file that a Write changes: [Offset, End).
type Extent struct{ Handle, Offset, End uint64 }

// Overlaps reports whether two extents of one file have a byte in common.
func (e Extent) Overlaps(other Extent) bool { return e.Offset < other.End && other.Offset < e.End }

// Deferrable returns what a request writes, if it is a Write that may be answered before it is
// carried out.
func Deferrable(h Header, b []byte) (Extent, bool) {
	if h.Opcode != Write || len(b) <= writeSize || len(b) > MaxRequest {
		return Extent{}, false
	}
	e := Extent{Handle: binary.LittleEndian.Uint64(b[handleAt:]), Offset: binary.LittleEndian.Uint64(b[offsetAt:])}
	size := binary.LittleEndian.Uint32(b[sizeAt:])
	e.End = e.Offset + uint64(size)
	flags, opened := binary.LittleEndian.Uint32(b[writeFlagsAt:]), binary.LittleEndian.Uint32(b[openFlagsAt:])
	return e, int(size) == len(b)-writeSize && e.End > e.Offset && e.End < 1<<63 && flags&(writeCached|writeBehind) == 0 && opened&direct == 0
}

// Joins reports whether one Write can take the data of another one, which follows it.
func Joins(first, second []byte) bool { return len(first)+len(second)-writeSize <= MaxRequest }

// Join appends the data of a Write to another one. Both must be Deferrable.
func Join(first, second []byte) []byte {
	first = append(first, second[writeSize:]...)
	binary.LittleEndian.PutUint32(first[sizeAt:], uint32(len(first)-writeSize))
	return Finish(first)
}

// Full reports whether a Write has as much data as one can.
func Full(b []byte) bool { return len(b) == MaxRequest }

// Defer marks a Write as one whose rank does not wait for its answer.
func Defer(b []byte) {
	at := b[writeFlagsAt:]
	binary.LittleEndian.PutUint32(at, binary.LittleEndian.Uint32(at)|writeBehind)
}

// Written returns the answer to a Write of all its data.
func Written(h Header) []byte {
	return Finish(AppendWritten(NewAnswer(h.Unique, 8), int(h.Len)-writeSize))
}

// AllWritten reports whether an answer says that all data of a Write were written.
func AllWritten(request, answer []byte) bool {
	return len(answer) == AnswerSize+8 && binary.LittleEndian.Uint32(answer[4:]) == 0 &&
		int(binary.LittleEndian.Uint32(answer[AnswerSize:])) == len(request)-writeSize
}

// Released returns the handle that a Release gives up.
func Released(b []byte) (handle uint64, ok bool) {
	h, err := ReadHeader(b)
	if err != nil || h.Opcode != Release || len(b) < HeaderSize+8 {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b[HeaderSize:]), true
}

// Reach says which files a request can show or depends on: their writes must be carried out before
// it.
type Reach int

// The reaches of requests.
const (
	ReachNone   Reach = iota // no file's content, size or name
	ReachFile                // the file that it is about
	ReachFolder              // any file in the shared folder: it is about a name
)

// Reach returns the reach of a kind of request.
func (o Opcode) Reach() Reach {
	switch o {
	case Lookup, Create, MkNod, Link, Unlink, Rename, Rename2, ReadDirPlus:
		return ReachFolder
	case GetAttr, SetAttr, Open, Read, Write, Flush, FSync, Release, FAllocate, LSeek:
		return ReachFile
	}
	return ReachNone
}
