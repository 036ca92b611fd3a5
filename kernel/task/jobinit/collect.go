package jobinit

import (
	"archive/tar"
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/archive"
	"margay/kernel/link"
	"margay/kernel/task"
)

// collectBuffer is how much of an archive is written to its pipe at once, in bytes.
const collectBuffer = 64 << 10

// collect ends the job's processes, so that nothing changes any more, and has the files that they
// have written sent through the pipe that comes with a message.
func (in *initProcess) collect(m *link.Message) error {
	var b task.CollectBody
	if err := m.Decode(&b); err != nil {
		return err
	}
	if len(m.Files) != 1 {
		return fmt.Errorf("job init: %d pipes for the files", len(m.Files))
	}
	if !in.started {
		return errors.New("collect files: the ranks have not run")
	}
	var paths []string
	for _, p := range b.Paths {
		paths = append(paths, path.Clean("/"+string(p)))
	}
	pipe := m.Files[0]
	m.Files = nil
	go func() {
		defer pipe.Close()
		in.killAll()
		// An error ends the archive early, and its reader notices.
		if err := in.brought.collect("/", paths, pipe); err == nil {
			in.brought.take(paths)
			in.output.travelled()
		}
	}()
	return in.tell(task.Collect, nil)
}

// collector writes the archive of what ranks have written (package archive). Nothing may change
// the files while it does, so that an archive that is written once more is the same.
type collector struct {
	brought *brought
	out     *tar.Writer
	links   map[place]string // names in the archive of files with several links
	pending []*tar.Header    // folders that are not written unless something is in them that is
	buf     [32 << 10]byte
}

// collect writes the archive of the new and changed files at paths in the file system below root,
// which is "/" but in tests.
func (b *brought) collect(root string, paths []string, w io.Writer) error {
	buffered := bufio.NewWriterSize(w, collectBuffer)
	c := &collector{brought: b, out: tar.NewWriter(buffered), links: make(map[place]string)}
	for i, path := range paths {
		if err := c.collect(root, path, strconv.Itoa(i)); err != nil {
			return err
		}
	}
	err := c.out.WriteHeader(&tar.Header{Name: archive.End, Typeflag: tar.TypeReg, Format: tar.FormatPAX})
	return errors.Join(err, c.out.Close(), buffered.Flush())
}

// shm is the folder of /dev where a job may keep files.
const shm = "/dev/shm"

// collect writes what a path names.
func (c *collector) collect(root, name, as string) error {
	base, rest := root, strings.TrimPrefix(name, "/")
	if name == shm || strings.HasPrefix(name, shm+"/") {
		base, rest = path.Join(root, shm), strings.TrimPrefix(strings.TrimPrefix(name, shm), "/")
	}
	top, err := os.OpenFile(base, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer top.Close()
	if rest == "" {
		rest = "."
	}
	parent, err := openBelow(top, path.Dir(rest), unix.O_PATH|unix.O_DIRECTORY)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return nil // the ranks have not made it
	case err != nil:
		return c.leave(as, whyClosed(err))
	}
	defer parent.Close()
	_, err = c.entry(entry{parent: parent, base: path.Base(rest), path: name, name: as})
	return err
}

// openBelow opens a file below a folder, in the same mount, without following a link.
func openBelow(dir *os.File, name string, flags uint64) (*os.File, error) {
	fd, err := unix.Openat2(int(dir.Fd()), name, &unix.OpenHow{
		Flags:   flags | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// whyClosed says why a file that is there cannot be opened.
func whyClosed(err error) string {
	switch {
	case errors.Is(err, unix.ELOOP):
		return "a symbolic link is on the path to it"
	case errors.Is(err, unix.EXDEV):
		return "it is not in the job's RAM disk"
	}
	return err.Error()
}

// entry is a file that may travel.
type entry struct {
	parent     *os.File
	base       string
	path, name string // in the job's root, and in the archive
	depth      int
	unix.Stat_t
}

func (e *entry) header(kind byte) *tar.Header {
	return &tar.Header{
		Name: e.name, Typeflag: kind, Mode: int64(e.Mode & 0o777), ModTime: time.Unix(e.Mtim.Unix()), Format: tar.FormatPAX,
	}
}

// read opens a file. A lease must not stop it.
func (e *entry) read() (*os.File, error) {
	return openBelow(e.parent, e.base, unix.O_RDONLY|unix.O_NONBLOCK)
}

// entry writes a file, or a folder with all that is new in it. It reports whether it has left out
// anything because that has come with the job, or is the node's.
func (c *collector) entry(e entry) (known bool, err error) {
	if err := unix.Fstatat(int(e.parent.Fd()), e.base, &e.Stat_t, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return false, ignoreMissing(err)
	}
	if given[e.path] {
		return true, nil
	}
	switch e.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return c.folder(e)
	case unix.S_IFREG, unix.S_IFLNK:
		if c.unchanged(e) {
			return true, nil
		}
		if e.Mode&unix.S_IFMT == unix.S_IFLNK {
			return false, c.link(e)
		}
		return false, c.file(e)
	}
	return false, c.leave(e.name, "it is a "+kindOf(e.Mode))
}

func ignoreMissing(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// kindOf names the kind of a special file.
func kindOf(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFIFO:
		return "named pipe"
	case unix.S_IFSOCK:
		return "socket"
	}
	return "device"
}

// unchanged reports whether a file came with the job and is as it was. One that cannot be read
// counts as changed: whatever then sends it says why.
func (c *collector) unchanged(e entry) bool {
	c.brought.mu.Lock()
	known, open := c.brought.has(&e.Stat_t)
	c.brought.mu.Unlock()
	if !known || open == nil {
		return known
	}
	f, err := e.read()
	if err != nil {
		return false
	}
	defer f.Close()
	return open.is(f, c.buf[:])
}

func (c *collector) folder(e entry) (known bool, err error) {
	if e.depth > archive.MaxDepth {
		return false, c.leave(e.name, fmt.Sprintf("it is more than %d folders deep", archive.MaxDepth))
	}
	dir, err := openBelow(e.parent, e.base, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, unix.EXDEV) && e.depth > 0 {
		return true, nil // the node's own, such as /proc
	}
	if err != nil {
		return false, c.leave(e.name, whyClosed(err))
	}
	defer dir.Close()
	c.pending = append(c.pending, e.header(tar.TypeDir))
	place := len(c.pending)
	for {
		names, err := dir.Readdirnames(256)
		for _, name := range names {
			in, err := c.entry(entry{parent: dir, base: name, path: path.Join(e.path, name), name: e.name + "/" + name, depth: e.depth + 1})
			if err != nil {
				return false, err
			}
			known = known || in
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return false, err
		}
	}
	switch {
	case len(c.pending) < place: // it was written
		return known, nil
	case known:
		c.pending = c.pending[:place-1]
		return true, nil
	}
	return false, c.flush()
}

// flush writes the folders that something is in.
func (c *collector) flush() error {
	for _, h := range c.pending {
		if err := c.out.WriteHeader(h); err != nil {
			return err
		}
	}
	c.pending = c.pending[:0]
	return nil
}

// write writes the header of an entry, after the folders that it is in.
func (c *collector) write(h *tar.Header) error {
	if err := c.flush(); err != nil {
		return err
	}
	return c.out.WriteHeader(h)
}

// leave writes why a file does not travel.
func (c *collector) leave(name, why string) error {
	return c.write(&tar.Header{Name: name, Typeflag: tar.TypeReg, Format: tar.FormatPAX, PAXRecords: map[string]string{archive.Left: why}})
}

func (c *collector) link(e entry) error {
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(e.parent.Fd()), e.base, target)
	if err != nil {
		return c.leave(e.name, err.Error())
	}
	h := e.header(tar.TypeSymlink)
	h.Linkname = string(target[:n])
	return c.write(h)
}

func (c *collector) file(e entry) error {
	at := place{e.Dev, e.Ino}
	if first := c.links[at]; first != "" {
		h := e.header(tar.TypeLink)
		h.Linkname = first
		return c.write(h)
	}
	f, err := e.read()
	if err != nil {
		return c.leave(e.name, whyClosed(err))
	}
	defer f.Close()
	if e.Nlink > 1 {
		c.links[at] = e.name
	}
	h := e.header(tar.TypeReg)
	if h.Size = e.Size; e.Blocks*512 < e.Size {
		return c.holes(h, f)
	}
	if err := c.write(h); err != nil {
		return err
	}
	return c.copy(f, 0, e.Size)
}

// copy writes a part of a file.
func (c *collector) copy(f *os.File, from, size int64) error {
	n, err := io.CopyBuffer(struct{ io.Writer }{c.out}, io.NewSectionReader(f, from, size), c.buf[:])
	if err == nil && n < size {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// holes writes a file with holes.
func (c *collector) holes(h *tar.Header, f *os.File) error {
	size := h.Size
	h.PAXRecords = map[string]string{archive.Holes: strconv.FormatInt(size, 10)}
	h.Size = 0
	if err := extents(f, size, func(_, length int64) error { h.Size += 16 + length; return nil }); err != nil {
		return err
	}
	if err := c.write(h); err != nil {
		return err
	}
	return extents(f, size, func(from, length int64) error {
		head := binary.BigEndian.AppendUint64(nil, uint64(from))
		if _, err := c.out.Write(binary.BigEndian.AppendUint64(head, uint64(length))); err != nil {
			return err
		}
		return c.copy(f, from, length)
	})
}

// extents calls do for each part of a file between its holes.
func extents(f *os.File, size int64, do func(from, length int64) error) error {
	for at := int64(0); at < size; {
		from, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return err
		}
		to, err := unix.Seek(int(f.Fd()), from, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if to = min(to, size); from < to {
			if err := do(from, to-from); err != nil {
				return err
			}
		}
		at = max(to, at+1)
	}
	return nil
}
