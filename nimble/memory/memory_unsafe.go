package memory

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// address returns where a slice of mapped memory starts.
func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// mapFile puts the file over the reserved pages.
func (m *Memory) mapFile() error { return m.cover(m.fd) }

// Cover puts the memory of a map of Linux, which has the same size and is mapped from its
// beginning, in the place of this one's: from then on the bytes at its addresses are the map's, and
// FD, whose number stays the same, is open on the map. The file of before, which others may have,
// loses its contents. The memory must be shared. No access may be under way. After an error nothing
// has changed.
func (m *Memory) Cover(fd int) error {
	before, err := unix.FcntlInt(uintptr(m.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return m.fail("duplicate", err)
	}
	defer unix.Close(before)
	if err := m.cover(fd); err != nil {
		return err
	}
	if err := unix.Dup3(fd, m.fd, unix.O_CLOEXEC); err != nil {
		return errors.Join(m.fail("duplicate", err), m.mapFile())
	}
	_ = unix.Fallocate(before, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(len(m.pages()))) // it saves memory only
	return nil
}

// cover puts a file over the reserved pages.
func (m *Memory) cover(fd int) error {
	pages := m.pages()
	_, err := unix.MmapPtr(fd, 0, unsafe.Pointer(unsafe.SliceData(pages)), uintptr(len(pages)),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	if err != nil {
		return m.fail("map", err)
	}
	return nil
}

// View returns the length bytes at a host address outside the Go heap, nil for
// length 0. They must lie in a Region that stays mapped for as long as the slice
// is used; View does not check that.
func View(addr, length uint64) []byte {
	if length == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(pointer(addr)), length)
}

// pointer turns a host address outside the Go heap into a pointer.
func pointer(addr uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }
