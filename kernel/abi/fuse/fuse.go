// Package fuse has the messages that Linux exchanges with a file system in user space, byte by
// byte, as <linux/fuse.h> declares them in version 7.31 (Linux 5.4). All processors that Margay
// runs on are little-endian, and so are the messages.
//
// It knows the requests that a job's ranks can cause under a shared folder (package share), and
// trusts none of them.
package fuse

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
)

// Version of the protocol. A kernel with a later minor version speaks this one.
const (
	Major = 7
	Minor = 31
)

// Sizes in bytes.
const (
	HeaderSize = 40        // of the header of a request
	AnswerSize = 16        // of the header of an answer
	MaxData    = 256 << 10 // the most data of one request, or of one answer
	MaxRequest = HeaderSize + 40 + MaxData
	MaxName    = 255                                           // of a name in a folder
	MaxPath    = 4095                                          // of the target of a link
	maxForgets = (MaxRequest - HeaderSize - 8) / forgetOneSize // as many as Linux puts into one request
)

const forgetOneSize = 16

// RootNode is the node of the folder that is mounted.
const RootNode = 1

// Opcode is the kind of a request.
type Opcode uint32

// The requests.
const (
	Lookup      Opcode = 1
	Forget      Opcode = 2 // not answered
	GetAttr     Opcode = 3
	SetAttr     Opcode = 4
	ReadLink    Opcode = 5
	Symlink     Opcode = 6
	MkNod       Opcode = 8
	MkDir       Opcode = 9
	Unlink      Opcode = 10
	RmDir       Opcode = 11
	Rename      Opcode = 12
	Link        Opcode = 13
	Open        Opcode = 14
	Read        Opcode = 15
	Write       Opcode = 16
	StatFS      Opcode = 17
	Release     Opcode = 18
	FSync       Opcode = 20
	Flush       Opcode = 25
	Init        Opcode = 26
	OpenDir     Opcode = 27
	ReadDir     Opcode = 28
	ReleaseDir  Opcode = 29
	FSyncDir    Opcode = 30
	Access      Opcode = 34
	Create      Opcode = 35
	Interrupt   Opcode = 36 // not answered
	Destroy     Opcode = 38
	BatchForget Opcode = 42 // not answered
	FAllocate   Opcode = 43
	ReadDirPlus Opcode = 44
	Rename2     Opcode = 45
	LSeek       Opcode = 46
)

// names are the system calls that cause requests, or what they do.
var names = map[Opcode]string{
	Lookup: "lookup", Forget: "forget", GetAttr: "stat", SetAttr: "setattr", ReadLink: "readlink", Symlink: "symlink", MkNod: "mknod",
	MkDir: "mkdir", Unlink: "unlink", RmDir: "rmdir", Rename: "rename", Link: "link", Open: "open", Read: "read", Write: "write",
	StatFS: "statfs", Release: "release", FSync: "fsync", Flush: "close", OpenDir: "opendir", ReadDir: "readdir", ReleaseDir: "releasedir",
	FSyncDir: "fsyncdir", Access: "access", Create: "create", BatchForget: "forget", FAllocate: "fallocate", ReadDirPlus: "readdir",
	Rename2: "rename", LSeek: "seek",
}

// String returns the name of a kind of request.
func (o Opcode) String() string {
	if name := names[o]; name != "" {
		return name
	}
	return "request" + strconv.Itoa(int(o))
}

// Answered reports whether Linux waits for an answer.
func (o Opcode) Answered() bool { return o != Forget && o != BatchForget && o != Interrupt }

// Repeatable reports whether carrying out a request twice is the same as once, so that its answer
// need not be kept. Answers of the others are short. FSync and Flush may return the error of an
// earlier write, once.
func (o Opcode) Repeatable() bool {
	switch o {
	case Read, ReadDir, ReadDirPlus, GetAttr, ReadLink, StatFS, Access, FSyncDir, LSeek:
		return true
	}
	return false
}

// Bits of SetAttr requests: the attributes that are set.
const (
	SetMode     = 1 << 0
	SetUID      = 1 << 1
	SetGID      = 1 << 2
	SetSize     = 1 << 3
	SetATime    = 1 << 4
	SetMTime    = 1 << 5
	SetHandle   = 1 << 6 // Handle is valid
	SetATimeNow = 1 << 7
	SetMTimeNow = 1 << 8
)

// Flags of answers and requests.
const (
	KeepCache    = 1 << 1 // of the answer to Open: cached data are still right
	FSyncData    = 1 << 0 // of FSync: without the attributes
	initAsync    = 1 << 0
	initTruncate = 1 << 3  // Open truncates
	initBig      = 1 << 5  // writes of more than a page
	initStale    = 1 << 12 // cached data of a changed file are dropped
	initPlus     = 1 << 13 // ReadDirPlus
	initPlusAuto = 1 << 14 // only where it helps
	initParallel = 1 << 18 // several requests on a folder at once
	initPages    = 1 << 22 // the field with the pages of a request is valid
)

// Header begins each request.
type Header struct {
	Len    uint32 // of the request, header included
	Opcode Opcode
	Unique uint64 // number of the request
	Node   uint64 // the file or folder that it is about
}

// ReadHeader reads the header of a request, which must be all of b.
func ReadHeader(b []byte) (Header, error) {
	if len(b) < HeaderSize {
		return Header{}, fmt.Errorf("%w: %d bytes", ErrMalformed, len(b))
	}
	h := Header{
		Len: binary.LittleEndian.Uint32(b), Opcode: Opcode(binary.LittleEndian.Uint32(b[4:])),
		Unique: binary.LittleEndian.Uint64(b[8:]), Node: binary.LittleEndian.Uint64(b[16:]),
	}
	if uint64(h.Len) != uint64(len(b)) {
		return Header{}, fmt.Errorf("%w: %d bytes, the header says %d", ErrMalformed, len(b), h.Len)
	}
	return h, nil
}

// ErrMalformed reports a request that is none.
var ErrMalformed = errors.New("malformed FUSE request")

// Request is a request with its arguments; which fields it has depends on its kind.
type Request struct {
	Header
	Name    string // in the folder Node; a single name of a file, neither . nor ..
	NewName string // of Rename: in NewDir; of Symlink: the target
	NewDir  uint64 // of Rename; of Link: the file that gets another name
	Handle  uint64 // of an open file
	Offset  uint64
	Size    uint64 // bytes that are read, or a length
	Flags   uint32 // of Open, Create and Rename2 as in the system calls, of Access the mask, of LSeek whence, of FAllocate the mode
	Behind  bool   // of Write: the rank does not wait for the answer, so an error must be kept for it
	Mode    uint32
	Valid   uint32 // of SetAttr
	UID     uint32
	GID     uint32
	ATime   syscall.Timespec
	MTime   syscall.Timespec
	Data    []byte // of Write; a part of the request
	Forgets []Forgotten
}

// Forgotten says how many answers with a node Linux has dropped.
type Forgotten struct{ Node, Count uint64 }

// Parse reads a request. A kind that this package does not know is an error that is
// syscall.ENOSYS, and Linux does not ask for it again.
func Parse(b []byte) (Request, error) {
	h, err := ReadHeader(b)
	if err != nil {
		return Request{}, err
	}
	r := Request{Header: h}
	in := &reader{rest: b[HeaderSize:]}
	if !r.read(in) {
		return r, syscall.ENOSYS
	}
	if in.err != nil {
		return r, in.err
	}
	if len(in.rest) > 0 {
		return r, fmt.Errorf("%w: %d bytes too long", ErrMalformed, len(in.rest))
	}
	return r, nil
}

// read reads the arguments. It returns false for an unknown kind.
func (r *Request) read(in *reader) bool {
	switch r.Opcode {
	case Lookup, Unlink, RmDir:
		r.Name = in.name()
	case Forget:
		r.Forgets = []Forgotten{{r.Node, in.u64()}}
	case BatchForget:
		r.Forgets = in.forgets()
	case GetAttr:
		r.Flags, _, r.Handle = in.u32(), in.u32(), in.u64()
	case SetAttr:
		in.setAttr(r)
	case ReadLink, StatFS, Destroy:
	case Symlink:
		r.Name, r.NewName = in.name(), in.text(MaxPath)
	case MkNod:
		r.Mode = in.u32()
		in.skip(12)
		r.Name = in.name()
	case MkDir:
		r.Mode = in.u32()
		in.skip(4)
		r.Name = in.name()
	case Rename:
		r.NewDir, r.Name, r.NewName = in.u64(), in.name(), in.name()
	case Rename2:
		r.NewDir, r.Flags = in.u64(), in.u32()
		in.skip(4)
		r.Name, r.NewName = in.name(), in.name()
	case Link:
		r.NewDir, r.Name = in.u64(), in.name()
	case Open, OpenDir:
		r.Flags = in.u32()
		in.skip(4)
	case Create:
		r.Flags, r.Mode = in.u32(), in.u32()
		in.skip(8)
		r.Name = in.name()
	case Read, ReadDir, ReadDirPlus:
		r.Handle, r.Offset, r.Size = in.u64(), in.u64(), uint64(in.u32())
		in.skip(20)
	case Write:
		r.Handle, r.Offset, r.Size = in.u64(), in.u64(), uint64(in.u32())
		r.Behind = in.u32()&writeBehind != 0
		in.skip(16)
		r.Data = in.bytes(r.Size)
	case Release, ReleaseDir, Flush:
		r.Handle = in.u64()
		in.skip(16)
	case FSync, FSyncDir:
		r.Handle, r.Flags = in.u64(), in.u32()
		in.skip(4)
	case Access:
		r.Flags = in.u32()
		in.skip(4)
	case FAllocate:
		r.Handle, r.Offset, r.Size, r.Flags = in.u64(), in.u64(), in.u64(), in.u32()
		in.skip(4)
	case LSeek:
		r.Handle, r.Offset, r.Flags = in.u64(), in.u64(), in.u32()
		in.skip(4)
	default:
		return false
	}
	return true
}

// reader reads fields one after the other. After an error all are zero.
type reader struct {
	rest []byte
	err  error
}

// bytes returns the next bytes, which stay part of the request.
func (r *reader) bytes(n uint64) []byte {
	if r.err == nil && n > uint64(len(r.rest)) {
		r.err = fmt.Errorf("%w: %d bytes missing", ErrMalformed, n-uint64(len(r.rest)))
	}
	if r.err != nil {
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) skip(n uint64) { r.bytes(n) }

func (r *reader) u32() uint32 {
	if b := r.bytes(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// text returns a text of at most so many bytes that a zero ends.
func (r *reader) text(most int) string {
	if r.err != nil {
		return ""
	}
	text, rest, ended := strings.Cut(string(r.rest), "\x00")
	switch {
	case !ended || text == "":
		r.err = fmt.Errorf("%w: no text", ErrMalformed)
	case len(text) > most:
		r.err = syscall.ENAMETOOLONG
	}
	if r.err != nil {
		return ""
	}
	r.rest = r.rest[len(r.rest)-len(rest):]
	return text
}

// name returns the name of a file in a folder.
func (r *reader) name() string {
	name := r.text(MaxName)
	if r.err == nil && (name == "." || name == ".." || strings.Contains(name, "/")) {
		r.err = fmt.Errorf("%w: %q is not the name of a file", ErrMalformed, name)
		return ""
	}
	return name
}

func (r *reader) forgets() []Forgotten {
	n := r.u32()
	r.skip(4)
	if r.err == nil && n > maxForgets {
		r.err = fmt.Errorf("%w: %d nodes forgotten at once", ErrMalformed, n)
	}
	if r.err != nil || uint64(n)*forgetOneSize > uint64(len(r.rest)) {
		r.skip(uint64(len(r.rest)) + 1)
		return nil
	}
	list := make([]Forgotten, n)
	for i := range list {
		list[i] = Forgotten{r.u64(), r.u64()}
	}
	return list
}

func (r *reader) setAttr(s *Request) {
	s.Valid = r.u32()
	r.skip(4)
	s.Handle, s.Size = r.u64(), r.u64()
	r.skip(8)
	s.ATime.Sec, s.MTime.Sec = int64(r.u64()), int64(r.u64())
	r.skip(8)
	s.ATime.Nsec, s.MTime.Nsec = int64(r.u32()), int64(r.u32())
	r.skip(4)
	s.Mode = r.u32()
	r.skip(4)
	s.UID, s.GID = r.u32(), r.u32()
	r.skip(4)
}

// Cost is how many bytes a request and its answer take at most. It is the same for both sides of a
// stream (package share), whatever the request.
func Cost(b []byte) int {
	const small = 4096 // of the answer, and of tables
	h, err := ReadHeader(b)
	if err != nil {
		return len(b) + small
	}
	switch h.Opcode {
	case Read, ReadDir, ReadDirPlus:
		in := &reader{rest: b[HeaderSize:]}
		in.skip(16)
		return len(b) + small + int(min(in.u32(), MaxData))
	}
	return len(b) + small
}
