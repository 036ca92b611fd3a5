package fuse

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"time"
)

// Attr describes a file.
type Attr struct {
	Ino, Size, Blocks   uint64
	ATime, MTime, CTime syscall.Timespec
	Mode, Links         uint32
	UID, GID            uint32
	BlockSize           uint32
}

const attrSize = 88

func (a Attr) append(b []byte) []byte {
	for _, v := range []uint64{a.Ino, a.Size, a.Blocks, uint64(a.ATime.Sec), uint64(a.MTime.Sec), uint64(a.CTime.Sec)} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	for _, v := range []uint32{
		uint32(a.ATime.Nsec), uint32(a.MTime.Nsec), uint32(a.CTime.Nsec), a.Mode, a.Links, a.UID, a.GID, 0, a.BlockSize, 0,
	} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

// AppendAttr appends the answer to GetAttr and SetAttr; valid is how long Linux may use it without
// asking again.
func AppendAttr(b []byte, a Attr, valid time.Duration) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(valid/time.Second))
	b = binary.LittleEndian.AppendUint32(b, uint32(valid%time.Second))
	b = binary.LittleEndian.AppendUint32(b, 0)
	return a.append(b)
}

// Entry is a file in a folder.
type Entry struct {
	Node, Generation uint64 // 0: there is none, which Linux may remember
	Attr
	Valid time.Duration // how long Linux may use this without asking again
}

// EntrySize is how many bytes AppendEntry appends.
const EntrySize = 40 + attrSize

// AppendEntry appends the answer to Lookup and to requests that make files.
func AppendEntry(b []byte, e Entry) []byte {
	sec, nsec := uint64(e.Valid/time.Second), uint32(e.Valid%time.Second)
	for _, v := range []uint64{e.Node, e.Generation, sec, sec} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	b = binary.LittleEndian.AppendUint32(b, nsec)
	b = binary.LittleEndian.AppendUint32(b, nsec)
	return e.append(b)
}

// AppendOpen appends the answer to Open and OpenDir, and behind an entry the answer to Create.
func AppendOpen(b []byte, handle uint64, flags uint32) []byte {
	b = binary.LittleEndian.AppendUint64(b, handle)
	b = binary.LittleEndian.AppendUint32(b, flags)
	return binary.LittleEndian.AppendUint32(b, 0)
}

// AppendWritten appends the answer to Write.
func AppendWritten(b []byte, n int) []byte {
	return binary.LittleEndian.AppendUint64(b, uint64(uint32(n)))
}

// AppendOffset appends the answer to LSeek.
func AppendOffset(b []byte, offset int64) []byte {
	return binary.LittleEndian.AppendUint64(b, uint64(offset))
}

// Space is the space of a file system, in blocks and files.
type Space struct {
	Blocks, Free, Available, Files, FreeFiles uint64
	BlockSize, FragmentSize                   uint32
}

// AppendSpace appends the answer to StatFS.
func AppendSpace(b []byte, s Space) []byte {
	for _, v := range []uint64{s.Blocks, s.Free, s.Available, s.Files, s.FreeFiles} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	for _, v := range []uint32{s.BlockSize, MaxName, s.FragmentSize, 0, 0, 0, 0, 0, 0, 0} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

// DirentSize is how many bytes AppendDirent appends for a name of so many bytes.
func DirentSize(name int) int { return (24 + name + 7) &^ 7 }

// AppendDirent appends a file of the answer to ReadDir. With ReadDirPlus an Entry stands before it.
// next is the offset of the one behind it; kind is as in <dirent.h>.
func AppendDirent(b []byte, ino, next uint64, kind uint32, name string) []byte {
	b = binary.LittleEndian.AppendUint64(b, ino)
	b = binary.LittleEndian.AppendUint64(b, next)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(name)))
	b = binary.LittleEndian.AppendUint32(b, kind)
	b = append(b, name...)
	return append(b, make([]byte, DirentSize(len(name))-24-len(name))...)
}

// NewAnswer returns an answer without a body, with room for one.
func NewAnswer(unique uint64, room int) []byte {
	b := make([]byte, AnswerSize, AnswerSize+room)
	binary.LittleEndian.PutUint64(b[8:], unique)
	return b
}

// Finish completes an answer that has its body.
func Finish(b []byte) []byte {
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	return b
}

// Failed returns an answer with an error.
func Failed(unique uint64, err syscall.Errno) []byte {
	b := NewAnswer(unique, 0)
	binary.LittleEndian.PutUint32(b[4:], uint32(-int32(err)))
	return Finish(b)
}

// Valid reports whether b is the answer to a request, or claims to be.
func Valid(b []byte, unique uint64) bool {
	return len(b) >= AnswerSize && uint64(binary.LittleEndian.Uint32(b)) == uint64(len(b)) && binary.LittleEndian.Uint64(b[8:]) == unique
}

// Changed returns a message by which Linux asks for the attributes of a file again, if the answer
// to a request says that the file has been opened and has changed. Else it returns nil.
func Changed(h Header, answer []byte) []byte {
	const invalidInode = 2 // FUSE_NOTIFY_INVAL_INODE
	if h.Opcode != Open || len(answer) < AnswerSize+12 || binary.LittleEndian.Uint32(answer[4:]) != 0 ||
		binary.LittleEndian.Uint32(answer[AnswerSize+8:])&KeepCache != 0 {
		return nil
	}
	b := NewAnswer(0, 24)
	binary.LittleEndian.PutUint32(b[4:], invalidInode)
	b = binary.LittleEndian.AppendUint64(b, h.Node)
	b = binary.LittleEndian.AppendUint64(b, ^uint64(0)) // the attributes alone
	return Finish(binary.LittleEndian.AppendUint64(b, 0))
}

// AnswerInit returns the answer to Init, the first request of a mount: the terms of all others.
func AnswerInit(b []byte) ([]byte, error) {
	h, err := ReadHeader(b)
	if err != nil {
		return nil, err
	}
	in := &reader{rest: b[HeaderSize:]}
	major, minor, ahead, offered := in.u32(), in.u32(), in.u32(), in.u32()
	if in.err != nil {
		return nil, in.err
	}
	if major != Major || minor < Minor {
		return nil, fmt.Errorf("FUSE of version %d.%d, at least %d.%d is needed (Linux 5.4)", major, minor, Major, Minor)
	}
	const wanted = initAsync | initTruncate | initBig | initStale | initPlus | initPlusAuto | initParallel | initPages
	out := NewAnswer(h.Unique, 64)
	for _, v := range []uint32{Major, Minor, max(ahead, MaxData), wanted & offered} {
		out = binary.LittleEndian.AppendUint32(out, v)
	}
	out = binary.LittleEndian.AppendUint16(out, 64) // requests in the background
	out = binary.LittleEndian.AppendUint16(out, 48)
	out = binary.LittleEndian.AppendUint32(out, MaxData)
	out = binary.LittleEndian.AppendUint32(out, 1) // nanoseconds of a time
	out = binary.LittleEndian.AppendUint16(out, MaxData/4096)
	out = append(out, make([]byte, 2+32)...)
	return Finish(out), nil
}
