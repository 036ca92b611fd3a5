package proxy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strconv"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/fuse"
)

func itoa(n int) string { return strconv.Itoa(n) }

func isEnd(err error) bool { return errors.Is(err, io.EOF) }

func (m *mount) openFolder(answer []byte, r *fuse.Request) ([]byte, error) {
	path, err := m.path(r.Node)
	if err != nil {
		return nil, err
	}
	f, err := m.open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &st)
	if err == nil && !m.permits(&st, unix.R_OK|unix.X_OK) {
		err = unix.EACCES
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	number, _, err := m.keep(f, r.Node, &st)
	if err != nil {
		return nil, err
	}
	return fuse.AppendOpen(answer, number, 0), nil
}

// dirent is an entry of a folder as getdents64 returns it.
type dirent struct {
	ino  uint64
	next int64 // position behind it
	kind uint8
	name string
}

// nextDirent reads the first of several entries. It returns false if there is none.
func nextDirent(b []byte) (d dirent, rest []byte, ok bool) {
	const head = 19
	if len(b) < head {
		return d, nil, false
	}
	size := int(binary.NativeEndian.Uint16(b[16:]))
	if size < head || size > len(b) {
		return d, nil, false
	}
	name, _, _ := bytes.Cut(b[head:size], []byte{0})
	return dirent{
		ino: binary.NativeEndian.Uint64(b), next: int64(binary.NativeEndian.Uint64(b[8:])), kind: b[18], name: string(name),
	}, b[size:], true
}

// readFolder appends entries of a folder from a position on, as many as there is room for.
func (m *mount) readFolder(answer []byte, r *fuse.Request) ([]byte, error) {
	h, err := m.handle(r.Handle)
	if err != nil {
		return nil, err
	}
	defer m.done(h)
	h.mu.Lock()
	defer h.mu.Unlock()
	fd := int(h.file.Fd())
	if int64(r.Offset) != h.next {
		if _, err := unix.Seek(fd, int64(r.Offset), io.SeekStart); err != nil {
			return nil, err
		}
	}
	h.next = -1 // until it is known
	room := len(answer) + int(min(r.Size, fuse.MaxData))
	buffer := make([]byte, max(4096, min(int(min(r.Size, fuse.MaxData)), 64<<10)))
	n, err := unix.Getdents(fd, buffer)
	if err != nil {
		return nil, err
	}
	rest := buffer[:n]
	for {
		d, left, ok := nextDirent(rest)
		if !ok {
			return answer, nil
		}
		rest = left
		size := fuse.DirentSize(len(d.name))
		if r.Opcode == fuse.ReadDirPlus {
			size += fuse.EntrySize
		}
		if len(answer)+size > room {
			return answer, nil
		}
		if r.Opcode == fuse.ReadDirPlus {
			answer = m.plus(answer, fd, r.Node, d)
		}
		answer = fuse.AppendDirent(answer, d.ino, uint64(d.next), uint32(d.kind), d.name)
	}
}

// plus appends what a lookup of an entry would give: nothing, for the folder itself, the one above,
// and a file that is gone.
func (m *mount) plus(answer []byte, fd int, folder uint64, d dirent) []byte {
	var st unix.Stat_t
	if d.name != "." && d.name != ".." && unix.Fstatat(fd, d.name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
		if with, _, err := m.entry(answer, folder, d.name, &st); err == nil {
			return with
		}
	}
	return append(answer, make([]byte, fuse.EntrySize)...)
}
