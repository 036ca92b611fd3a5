// Package memory maps memory outside the Go heap, at addresses that never move.
//
// Everything an extension can touch lives in such memory: its context, its
// stack, its maps. The registers of an extension hold host addresses, so an
// engine may keep them, and an application that maps the same memory sees the
// same bytes.
//
// A Memory is anonymous (Map), a sealed memfd that other processes can map
// (Create), or a sealed memfd of another process (Attach). Each lies between two
// inaccessible guard pages. A Region is a range of addresses with permissions:
// the form in which an extension is given memory.
//
// Shared memory is only accepted when it is sealed against shrinking. If a file
// shrinks under a mapping, the next access raises SIGBUS, and an application
// must not be able to do that to the node kernel.
package memory

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// MaxSize is the largest Memory in bytes, 64 GiB.
const MaxSize = 64 << 30

// seals are the seals that shared memory must have.
const seals = unix.F_SEAL_SHRINK

// ErrUnsealed is wrapped by Attach when the file could shrink.
var ErrUnsealed = errors.New("not sealed against shrinking")

// Memory is one mapping. Its methods are safe for concurrent use, except Close;
// their results are valid until Close.
type Memory struct {
	name     string
	reserved []byte // the mapping with its guard pages
	data     []byte // the usable part, in the middle of reserved
	fd       int    // -1: anonymous
}

// Map makes anonymous zeroed memory of size bytes, 1 to MaxSize, for this
// process alone.
func Map(name string, size int) (*Memory, error) {
	m, err := reserve(name, size)
	if err != nil {
		return nil, err
	}
	if err := unix.Mprotect(m.pages(), unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return nil, errors.Join(m.fail("protect", err), m.Close())
	}
	return m, nil
}

// Create makes zeroed memory of size bytes, 1 to MaxSize, in a sealed memfd that
// other processes can map: see FD.
func Create(name string, size int) (*Memory, error) {
	m, err := reserve(name, size)
	if err != nil {
		return nil, err
	}
	m.fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		m.fd = -1
		return nil, errors.Join(m.fail("create", err), m.Close())
	}
	if err := m.fill(size); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// fill gives a new memfd its final size and maps it.
func (m *Memory) fill(size int) error {
	if err := unix.Ftruncate(m.fd, int64(size)); err != nil {
		return m.fail("resize", err)
	}
	all := seals | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(m.fd), unix.F_ADD_SEALS, all); err != nil {
		return m.fail("seal", err)
	}
	return m.mapFile()
}

// Attach maps the first size bytes, 1 to MaxSize, of a memfd of another process.
// The file must have at least size bytes and be sealed against shrinking, or the
// error wraps ErrUnsealed. The descriptor is duplicated; the caller keeps its own.
func Attach(name string, fd, size int) (*Memory, error) {
	m, err := reserve(name, size)
	if err != nil {
		return nil, err
	}
	m.fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		m.fd = -1
		return nil, errors.Join(m.fail("duplicate", err), m.Close())
	}
	if err := m.adopt(size); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// adopt checks an untrusted file and maps it. Huge pages are refused because
// their pool can be empty at the first touch, which also raises SIGBUS.
func (m *Memory) adopt(size int) error {
	has, err := unix.FcntlInt(uintptr(m.fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return m.fail("read seals", err)
	}
	if has&seals != seals {
		return m.fail("attach", ErrUnsealed)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(m.fd, &fs); err != nil {
		return m.fail("stat", err)
	}
	if fs.Type == unix.HUGETLBFS_MAGIC {
		return m.fail("attach", errors.New("huge pages are not accepted"))
	}
	var st unix.Stat_t
	if err := unix.Fstat(m.fd, &st); err != nil {
		return m.fail("stat", err)
	}
	if st.Size < int64(size) {
		return m.fail("attach", fmt.Errorf("the file has %d bytes, need %d", st.Size, size))
	}
	return m.mapFile()
}

// reserve takes address space for size bytes between two guard pages.
func reserve(name string, size int) (*Memory, error) {
	m := &Memory{name: name, fd: -1}
	if size <= 0 || size > MaxSize {
		return nil, m.fail("map", fmt.Errorf("size %d is not in [1, %d]", size, MaxSize))
	}
	page := os.Getpagesize()
	whole := (size+page-1)/page*page + 2*page
	reserved, err := unix.Mmap(-1, 0, whole, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, m.fail("map", err)
	}
	m.reserved, m.data = reserved, reserved[page:page+size:page+size]
	return m, nil
}

// pages returns the whole pages between the guards.
func (m *Memory) pages() []byte {
	page := os.Getpagesize()
	return m.reserved[page : len(m.reserved)-page]
}

func (m *Memory) fail(action string, err error) error {
	return fmt.Errorf("%s memory %q: %w", action, m.name, err)
}

// Name returns the name given when the memory was made.
func (m *Memory) Name() string { return m.name }

// Bytes returns the memory. Extensions and other processes may change it at
// any time, so a value that matters is read once.
func (m *Memory) Bytes() []byte { return m.data }

// FD returns the descriptor of the file behind the memory, for sending it to
// another process; ok is false for anonymous memory. The Memory owns it.
func (m *Memory) FD() (fd int, ok bool) { return m.fd, m.fd >= 0 }

// Region returns the whole memory as a readable region under its own name.
func (m *Memory) Region(writable bool) Region {
	return Region{Name: m.name, Base: address(m.data), Length: uint64(len(m.data)), Readable: true, Writable: writable}
}

// Close unmaps the memory and closes its descriptor. No access may be under way
// or follow. A second Close does nothing.
func (m *Memory) Close() error {
	var errs []error
	if m.reserved != nil {
		errs = append(errs, unix.Munmap(m.reserved))
	}
	if m.fd >= 0 {
		errs = append(errs, unix.Close(m.fd))
	}
	m.reserved, m.data, m.fd = nil, nil, -1
	if err := errors.Join(errs...); err != nil {
		return m.fail("close", err)
	}
	return nil
}

// Region is a range of addresses, [Base, Base+Length), with the permissions of
// an extension. It is a plain value and owns nothing. The zero Region contains
// no address.
type Region struct {
	Name     string
	Base     uint64 // host address
	Length   uint64 // bytes
	Readable bool
	Writable bool
}

// Contains reports whether the size bytes at addr, size > 0, lie in the region.
// Addresses wrap around at 2^64 as they do in registers, so a range that wraps
// is in no region.
func (r Region) Contains(addr, size uint64) bool {
	offset := addr - r.Base
	return offset < r.Length && size <= r.Length-offset
}

// Slice returns the part [offset, offset+length) of the region as a region of
// its own, with the same permissions; ok is false if it is not inside.
func (r Region) Slice(name string, offset, length uint64) (part Region, ok bool) {
	if offset > r.Length || length > r.Length-offset {
		return Region{}, false
	}
	part = r
	part.Name, part.Base, part.Length = name, r.Base+offset, length
	return part, true
}
