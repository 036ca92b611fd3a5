package keep

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"margay/nimble/memory"
)

// File returns a descriptor of shared memory, to be kept or given away. It is the caller's to
// close.
func File(m *memory.Memory) (*os.File, error) {
	fd, ok := m.FD()
	if !ok {
		return nil, fmt.Errorf("memory %s is not shared", m.Name())
	}
	return Duplicate(uintptr(fd), m.Name())
}

// Duplicate returns another descriptor of what fd is one of.
func Duplicate(fd uintptr, name string) (*os.File, error) {
	other, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: duplicate descriptor: %w", name, err)
	}
	return os.NewFile(uintptr(other), name), nil
}

// Memory maps the piece of shared memory that is one of the item's files; a size of -1 is the size
// that it has.
func (i *Item) Memory(file, size int) (*memory.Memory, error) {
	if i == nil || file >= len(i.Files) {
		return nil, errors.New("a piece of memory was not kept")
	}
	f := i.Files[file]
	if size < 0 {
		info, err := f.Stat()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", i.Name, err)
		}
		size = int(info.Size())
	}
	return memory.Attach(i.Name, int(f.Fd()), size)
}
