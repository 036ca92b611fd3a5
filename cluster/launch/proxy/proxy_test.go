package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"margay/internal/check"
	"margay/kernel/abi/fuse"
)

// node plays Linux on a node that has a shared folder.
type node struct {
	*Node
	t testing.TB
}

// share shares a folder with one node.
func share(t testing.TB, folder Folder) *node {
	t.Helper()
	folders, err := Open([]Folder{folder}, 1)
	if err != nil {
		t.Fatal(err)
	}
	n := folders.Node(1000, 1001, Watch{})
	t.Cleanup(func() {
		n.Close()
		folders.Close()
	})
	return &node{n, t}
}

// ask makes a request and returns its answer without the header.
func (n *node) ask(opcode fuse.Opcode, inode uint64, body ...any) ([]byte, error) {
	b := make([]byte, fuse.HeaderSize)
	binary.LittleEndian.PutUint32(b[4:], uint32(opcode))
	binary.LittleEndian.PutUint64(b[8:], 7)
	binary.LittleEndian.PutUint64(b[16:], inode)
	for _, v := range body {
		if s, ok := v.(string); ok {
			b = append(append(b, s...), 0)
			continue
		}
		b, _ = binary.Append(b, binary.LittleEndian, v)
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	answer := n.Do(0, b)
	if !fuse.Valid(answer, 7) {
		n.t.Fatalf("malformed answer %x", answer)
	}
	if errno := int32(binary.LittleEndian.Uint32(answer[4:])); errno != 0 {
		return nil, unix.Errno(-errno)
	}
	return answer[fuse.AnswerSize:], nil
}

func (n *node) must(b []byte, err error) []byte {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
	return b
}

// look looks for a path and returns its inode.
func (n *node) look(path ...string) uint64 {
	n.t.Helper()
	inode := uint64(fuse.RootNode)
	for _, name := range path {
		inode = binary.LittleEndian.Uint64(n.must(n.ask(fuse.Lookup, inode, name)))
	}
	return inode
}

func (n *node) open(inode uint64, flags int) (handle uint64, keep bool, err error) {
	b, err := n.ask(fuse.Open, inode, uint32(flags), uint32(0))
	if err != nil {
		return 0, false, err
	}
	return binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:])&fuse.KeepCache != 0, nil
}

func (n *node) read(handle uint64) string {
	n.t.Helper()
	return string(n.must(n.ask(fuse.Read, 0, [5]uint64{handle, 0, fuse.MaxData})))
}

func (n *node) write(handle, offset uint64, text string) error {
	_, err := n.ask(fuse.Write, 0, [5]uint64{handle, offset, uint64(len(text))}, []byte(text))
	return err
}

// later sets the clock of margay run this much ahead.
func (n *node) later(d time.Duration) {
	for _, m := range n.mounts {
		m.now = func() time.Time { return time.Now().Add(d) }
	}
}

func put(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestEscape tries to reach files outside the shared folder, with links, devices and pipes in it.
func TestEscape(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	put(t, filepath.Join(outside, "secret"), "secret")
	if err := errors.Join(os.Symlink(filepath.Join(outside, "secret"), filepath.Join(dir, "file")), os.Symlink(outside, filepath.Join(dir, "folder")),
		unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600), os.Mkdir(filepath.Join(dir, "real"), 0o700)); err != nil {
		t.Fatal(err)
	}
	n := share(t, Folder{Path: dir})
	file, folder, pipe, real := n.look("file"), n.look("folder"), n.look("pipe"), n.look("real")
	put(t, filepath.Join(dir, "real", "secret"), "mine")
	inside := n.look("real", "secret")
	// The folder that the node knows becomes a link.
	if err := errors.Join(os.Rename(filepath.Join(dir, "real"), filepath.Join(dir, "was")), os.Symlink(outside, filepath.Join(dir, "real"))); err != nil {
		t.Fatal(err)
	}
	set := make([]byte, 88)
	binary.LittleEndian.PutUint32(set, fuse.SetMode|fuse.SetSize)
	for _, inode := range []uint64{file, folder, pipe, real, inside} {
		for name, try := range map[string]func() ([]byte, error){
			"open":   func() ([]byte, error) { return n.ask(fuse.Open, inode, uint64(unix.O_RDWR|unix.O_TRUNC)) },
			"lookup": func() ([]byte, error) { return n.ask(fuse.Lookup, inode, "secret") },
			"list":   func() ([]byte, error) { return n.ask(fuse.OpenDir, inode, uint64(0)) },
			"unlink": func() ([]byte, error) { return n.ask(fuse.Unlink, inode, "secret") },
			"create": func() ([]byte, error) {
				return n.ask(fuse.Create, inode, uint32(unix.O_WRONLY), uint32(0o600), uint64(0), "new")
			},
			"mkdir":    func() ([]byte, error) { return n.ask(fuse.MkDir, inode, uint64(0o700), "new") },
			"rename":   func() ([]byte, error) { return n.ask(fuse.Rename, inode, uint64(fuse.RootNode), "secret", "got") },
			"truncate": func() ([]byte, error) { return n.ask(fuse.SetAttr, inode, set) },
			"device": func() ([]byte, error) {
				return n.ask(fuse.MkNod, inode, [4]uint32{unix.S_IFCHR | 0o666, 0x103}, "null")
			},
		} {
			if b, err := try(); err == nil {
				t.Errorf("%s of inode %d succeeds: %x", name, inode, b)
			}
		}
	}
	for path, want := range map[string]string{outside + "/secret": "secret", dir + "/was/secret": "mine"} {
		if text, err := os.ReadFile(path); err != nil || string(text) != want {
			t.Errorf("%s: %q, %v", path, text, err)
		}
	}
	if names, _ := os.ReadDir(outside); len(names) != 1 {
		t.Errorf("outside: %v", names)
	}
	// The names of links are links, wherever they lead.
	if target := string(n.must(n.ask(fuse.ReadLink, file))); target != filepath.Join(outside, "secret") {
		t.Errorf("the link leads to %q", target)
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	n := share(t, Folder{Path: dir})
	b := n.must(n.ask(fuse.Create, fuse.RootNode, uint32(unix.O_RDWR), uint32(0o6666), uint64(0), "a"))
	handle := binary.LittleEndian.Uint64(b[fuse.EntrySize:])
	if err := n.write(handle, 1, "text"); err != nil || n.read(handle) != "\x00text" {
		t.Errorf("%v, %q", err, n.read(handle))
	}
	if info, err := os.Stat(filepath.Join(dir, "a")); err != nil || info.Mode() != 0o666 {
		t.Errorf("%v, %v: not the mode that the rank has asked for, without set-user-ID", info.Mode(), err)
	}
	a := n.look("a")
	// A file without a name is still a file.
	n.must(n.ask(fuse.Unlink, fuse.RootNode, "a"))
	if _, err := n.ask(fuse.GetAttr, a, [2]uint64{}); err != nil {
		t.Errorf("attributes of an open file: %v", err)
	}
	n.must(n.ask(fuse.Release, a, [3]uint64{handle}))
	if _, err := n.ask(fuse.GetAttr, a, [2]uint64{}); err != unix.ENOENT && err != unix.ESTALE {
		t.Errorf("attributes of a file that is gone: %v", err)
	}
	if _, err := n.ask(fuse.Read, a, [5]uint64{handle, 0, 1}); err != unix.EBADF {
		t.Errorf("read of a closed file: %v", err)
	}
}

// TestCache: a node keeps what it has of a file as long as that is the content of the file.
func TestCache(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	put(t, path, "one")
	n := share(t, Folder{Path: dir})
	n.later(time.Hour)
	a := n.look("a")
	for i, want := range []bool{true, true} {
		handle, keep, err := n.open(a, unix.O_RDONLY)
		if err != nil || keep != want || n.read(handle) != "one" {
			t.Errorf("open %d: %v, %v", i, keep, err)
		}
	}
	put(t, path, "other") // another size, so that the clock does not matter
	for i, want := range []bool{false, true} {
		handle, keep, err := n.open(a, unix.O_RDONLY)
		if err != nil || keep != want || n.read(handle) != "other" {
			t.Errorf("open %d after a change: %v, %v", i, keep, err)
		}
	}
	put(t, path+"1", "one")
	found := n.look("a1")
	put(t, path+"1", "other") // before it is opened for the first time
	if _, keep, err := n.open(found, unix.O_RDONLY); err != nil || keep {
		t.Errorf("changed after it was found: %v, %v", keep, err)
	}
	put(t, path+"2", "third")
	if err := os.Rename(path+"2", path); err != nil {
		t.Fatal(err)
	}
	if _, _, err := n.open(a, unix.O_RDONLY); err != unix.ESTALE {
		t.Errorf("open of a file that another one has replaced: %v", err)
	}
	if again := n.look("a"); again == a {
		t.Error("another file has the same inode")
	}
}

// TestTick: the stamp of a file does not show a write in the same tick as another one. A node that
// has read the file between the two gets the later content when it opens the file again, also if
// the clock of the file server is behind. A tick later, it keeps what it has.
func TestTick(t *testing.T) {
	for _, server := range []time.Duration{0, behind} {
		path := filepath.Join(t.TempDir(), "a")
		put(t, path, "one")
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		content, err := unix.Mmap(int(f.Fd()), 0, 3, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Munmap(content)
		copy(content, "one") // of the changes to come, Linux does not note the time
		n := share(t, Folder{Path: filepath.Dir(path)})
		n.later(server)
		a := n.look("a")
		for i, step := range []struct {
			text  string
			later time.Duration
			keep  bool
		}{
			{"one", 0, true}, // there is nothing to drop
			{"two", 0, false}, {"six", tick / 2, false}, {"six", tick, false}, {"six", tick, true}, {"six", time.Hour, true},
		} {
			copy(content, step.text)
			n.later(server + step.later)
			handle, keep, err := n.open(a, unix.O_RDONLY)
			if err != nil || keep != step.keep || n.read(handle) != step.text {
				t.Errorf("open %d, with a clock that is %v behind: %v, %v, %q", i, server, keep, err, n.read(handle))
			}
		}
	}
}

// TestTimeToCome: a file may get the time that it has once more.
func TestTimeToCome(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	put(t, path, "one")
	if err := os.Chtimes(path, time.Time{}, time.Now().Add(2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	n := share(t, Folder{Path: filepath.Dir(path)})
	a := n.look("a")
	for i, want := range []bool{true, false, false, true} {
		n.later(time.Duration(i) * time.Hour)
		if _, keep, err := n.open(a, unix.O_RDONLY); err != nil || keep != want {
			t.Errorf("open after %d h: %v, %v", i, keep, err)
		}
	}
}

// TestReadError: an error in the middle of a read is not the end of the file. The data before it
// can be read.
func TestReadError(t *testing.T) {
	page := os.Getpagesize()
	path := filepath.Join(t.TempDir(), "a")
	put(t, path, strings.Repeat("x", page))
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	memory, err := unix.Mmap(int(f.Fd()), 0, 3*page, unix.PROT_READ, unix.MAP_SHARED) // there is one page
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(memory)
	n := share(t, Folder{Path: "/proc/self"})
	handle, _, err := n.open(n.look("mem"), unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	at := uint64(uintptr(unsafe.Pointer(&memory[0])))
	if b, err := n.ask(fuse.Read, 0, [5]uint64{handle, at, uint64(3 * page)}); err != unix.EIO {
		t.Errorf("a read of three pages, the first one of them good: %d bytes, %v", len(b), err)
	}
	if b, err := n.ask(fuse.Read, 0, [5]uint64{handle, at, uint64(page)}); err != nil || len(b) != page {
		t.Errorf("a read of the good page: %d bytes, %v", len(b), err)
	}
}

// set changes attributes as SetAttr does: the mode, and the times to a second after 1970.
func (n *node) set(inode uint64, valid, mode uint32) error {
	b := make([]byte, 88)
	binary.LittleEndian.PutUint32(b, valid)
	binary.LittleEndian.PutUint64(b[32:], 1)
	binary.LittleEndian.PutUint64(b[40:], 1)
	binary.LittleEndian.PutUint32(b[68:], mode)
	_, err := n.ask(fuse.SetAttr, inode, b)
	return err
}

// TestReplaced: what a rank does with a file whose name another file has got does not change this
// other one. If the rank has the file open, it changes the file that is open.
func TestReplaced(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	put(t, path, "old")
	if err := os.Link(path, path+"-old"); err != nil {
		t.Fatal(err)
	}
	n := share(t, Folder{Path: dir})
	a := n.look("a")
	handle, _, err := n.open(a, unix.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	put(t, path+"-new", "new")
	if err := os.Rename(path+"-new", path); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.set(a, fuse.SetMode|fuse.SetATime|fuse.SetMTime, 0o4640); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(path + "-old"); err != nil || info.Mode() != 0o640 || info.ModTime().Unix() != 1 {
		t.Errorf("the open file has %v and %v, %v", info.Mode(), info.ModTime(), err)
	}
	n.must(n.ask(fuse.Link, fuse.RootNode, a, "b"))
	if text, err := os.ReadFile(filepath.Join(dir, "b")); err != nil || string(text) != "old" {
		t.Errorf("a link to the open file leads to %q, %v", text, err)
	}
	n.must(n.ask(fuse.Release, a, [3]uint64{handle}))
	for name, err := range map[string]error{"mode": n.set(a, fuse.SetMode, 0o640), "times": n.set(a, fuse.SetMTime, 0)} {
		if err != unix.ESTALE {
			t.Errorf("%s of a file that is not open: %v", name, err)
		}
	}
	if _, err := n.ask(fuse.Link, fuse.RootNode, a, "c"); err != unix.ESTALE {
		t.Errorf("a link to a file that is not open: %v", err)
	}
	if after, err := os.Stat(path); err != nil || after.Mode() != before.Mode() || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("the other file has %v and %v, %v", after.Mode(), after.ModTime(), err)
	}
}

// TestLinks: times and names of a link are its own, wherever it leads.
func TestLinks(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "a"), "one")
	if err := os.Symlink("a", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	n := share(t, Folder{Path: dir})
	link := n.look("link")
	if err := n.set(link, fuse.SetATime|fuse.SetMTime, 0); err != nil {
		t.Error(err)
	}
	if err := n.set(link, fuse.SetMode, 0o600); err != unix.EOPNOTSUPP {
		t.Errorf("mode of a link: %v", err)
	}
	n.must(n.ask(fuse.Link, fuse.RootNode, link, "again"))
	for name, want := range map[string]fs.FileMode{"a": 0, "link": fs.ModeSymlink, "again": fs.ModeSymlink} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil || info.Mode().Type() != want || (info.ModTime().Unix() == 1) != (want != 0) {
			t.Errorf("%s has %v and %v, %v", name, info.Mode(), info.ModTime(), err)
		}
	}
}

func TestReadOnly(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "a"), "one")
	n := share(t, Folder{Path: dir, ReadOnly: true})
	a := n.look("a")
	for name, try := range map[string]func() ([]byte, error){
		"unlink": func() ([]byte, error) { return n.ask(fuse.Unlink, fuse.RootNode, "a") },
		"open":   func() ([]byte, error) { return n.ask(fuse.Open, a, uint64(unix.O_WRONLY)) },
		"cut":    func() ([]byte, error) { return n.ask(fuse.Open, a, uint64(unix.O_RDONLY|unix.O_TRUNC)) },
		"create": func() ([]byte, error) { return n.ask(fuse.Create, fuse.RootNode, [4]uint32{}, "b") },
		"chmod":  func() ([]byte, error) { return n.ask(fuse.SetAttr, a, [11]uint64{}) },
		"link":   func() ([]byte, error) { return n.ask(fuse.Link, fuse.RootNode, a, "b") },
		"rename": func() ([]byte, error) { return n.ask(fuse.Rename, fuse.RootNode, uint64(fuse.RootNode), "a", "b") },
		"access": func() ([]byte, error) { return n.ask(fuse.Access, a, uint64(unix.W_OK)) },
	} {
		if _, err := try(); err != unix.EROFS {
			t.Errorf("%s: %v", name, err)
		}
	}
	if handle, _, err := n.open(a, unix.O_RDONLY); err != nil || n.read(handle) != "one" {
		t.Errorf("read: %v", err)
	}
}

// Of a folder of the host, ranks get world-readable files only, whatever the rights of this process
// are. The node remembers names for long, also of missing files. Closing a file needs no answer.
func TestHost(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"open": 0o755, "names": 0o754, "hidden": 0o711, "closed": 0o750} {
		if err := errors.Join(os.Mkdir(filepath.Join(dir, name), 0o700), os.Chmod(filepath.Join(dir, name), mode)); err != nil {
			t.Fatal(err)
		}
	}
	inside := filepath.Join(dir, "open", "inside")
	if err := errors.Join(os.Mkdir(inside, 0o700), os.Chmod(inside, 0o755)); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"open/all": 0o644, "open/own": 0o640, "names/all": 0o644, "hidden/all": 0o644, "closed/all": 0o644} {
		put(t, filepath.Join(dir, name), name)
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	n := share(t, Folder{Path: dir, ReadOnly: true, Host: true})
	for path, want := range map[string]error{
		"open/all": nil, "open/own": unix.EACCES, "hidden/all": nil, "names/all": unix.EACCES, "closed/all": unix.EACCES,
	} {
		folder, name, _ := strings.Cut(path, "/")
		b, err := n.ask(fuse.Lookup, n.look(folder), name)
		if err == nil {
			inode := binary.LittleEndian.Uint64(b)
			var handle uint64
			if handle, _, err = n.open(inode, unix.O_RDONLY); err == nil && n.read(handle) != path {
				t.Errorf("%s has another content", path)
			}
			if _, failed := n.ask(fuse.Access, inode, uint64(unix.R_OK)); failed != want {
				t.Errorf("access to %s: %v", path, failed)
			}
			if _, failed := n.ask(fuse.Flush, inode, [3]uint64{handle}); err == nil && failed != unix.ENOSYS {
				t.Errorf("flush of %s: %v", path, failed)
			}
		}
		if err != want {
			t.Errorf("%s: %v", path, err)
		}
	}
	for folder, want := range map[string]error{"open": nil, "names": unix.EACCES, "hidden": unix.EACCES, "closed": unix.EACCES} {
		if _, err := n.ask(fuse.OpenDir, n.look(folder), uint64(0)); err != want {
			t.Errorf("list %s: %v", folder, err)
		}
	}
	for name, there := range map[string]bool{"open": true, "nothing": false} {
		b := n.must(n.ask(fuse.Lookup, fuse.RootNode, name))
		if seconds := binary.LittleEndian.Uint64(b[16:]); (binary.LittleEndian.Uint64(b) != 0) != there || seconds != uint64(validHost.Seconds()) {
			t.Errorf("%s: valid for %d s, %x", name, seconds, b)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "open"), 0o750); err != nil {
		t.Fatal(err)
	}
	if _, err := n.ask(fuse.Lookup, n.look("open"), "all"); err != unix.EACCES {
		t.Errorf("in a folder that was closed: %v", err)
	}
}

// list reads a folder, a few entries at a time.
func (n *node) list(opcode fuse.Opcode, size uint64) (names []string) {
	n.t.Helper()
	handle := binary.LittleEndian.Uint64(n.must(n.ask(fuse.OpenDir, fuse.RootNode, uint64(0))))
	for next := uint64(0); ; {
		b := n.must(n.ask(opcode, fuse.RootNode, [5]uint64{handle, next, size}))
		if len(b) == 0 {
			n.must(n.ask(fuse.ReleaseDir, fuse.RootNode, [3]uint64{handle}))
			return names
		}
		for len(b) > 0 {
			if opcode == fuse.ReadDirPlus {
				b = b[fuse.EntrySize:]
			}
			next = binary.LittleEndian.Uint64(b[8:])
			length := int(binary.LittleEndian.Uint32(b[16:]))
			if name := string(b[24 : 24+length]); name != "." && name != ".." {
				names = append(names, name)
			}
			b = b[fuse.DirentSize(length):]
		}
	}
}

func TestFolders(t *testing.T) {
	dir := t.TempDir()
	var want []string
	for i := range 60 {
		want = append(want, fmt.Sprintf("file%02d", i))
		put(t, filepath.Join(dir, want[i]), "")
	}
	n := share(t, Folder{Path: dir})
	for _, opcode := range []fuse.Opcode{fuse.ReadDir, fuse.ReadDirPlus} {
		for _, size := range []uint64{300, 64 << 10} {
			names := n.list(opcode, size)
			slices.Sort(names)
			if !slices.Equal(names, want) {
				t.Errorf("%v", names)
			}
		}
	}
	m := n.mounts[0]
	var all []fuse.Forgotten
	for inode := range m.inodes {
		all = append(all, fuse.Forgotten{Node: inode, Count: 1 << 60})
	}
	m.forget(all)
	if len(m.inodes) != 1 || len(m.handles) != 0 {
		t.Errorf("%d files are remembered that the node has forgotten, %d are open", len(m.inodes)-1, len(m.handles))
	}
}

// TestBounds: a node cannot make this process keep more than its part, in however many folders.
func TestBounds(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "a"), "")
	folders, err := Open([]Folder{{Path: dir}, {Path: dir}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	folders.mostFiles, folders.mostInodes = 3, 4
	both := folders.Node(1000, 1001, Watch{})
	t.Cleanup(func() {
		both.Close()
		folders.Close()
	})
	first, second := &node{both, t}, &node{&Node{mounts: both.mounts[1:]}, t}
	failed, handles := 0, []uint64(nil)
	for range 5 {
		for _, n := range []*node{first, second} {
			handle, _, err := n.open(n.look("a"), unix.O_RDONLY)
			if errors.Is(err, unix.ENFILE) {
				failed++
			} else {
				handles = append(handles, handle)
			}
		}
	}
	if failed != 7 || len(handles) != 3 {
		t.Errorf("%d of 10 files are not opened, %d are open", failed, len(handles))
	}
	first.must(first.ask(fuse.Release, 0, [3]uint64{handles[0]}))
	if _, _, err := second.open(second.look("a"), unix.O_RDONLY); err != nil {
		t.Errorf("one file was closed, and another one is not opened: %v", err)
	}
	for i := range 10 {
		_, _ = first.ask(fuse.MkDir, fuse.RootNode, uint64(0o700), fmt.Sprint(i))
	}
	if n := len(both.mounts[0].inodes); n != 1+4 {
		t.Errorf("%d files are remembered, the shared folder among them", n)
	}
	if _, err := first.ask(fuse.Lookup, fuse.RootNode, "9"); err != unix.ENOMEM {
		t.Errorf("a folder more than the bound: %v", err)
	}
	both.mounts[0].forget([]fuse.Forgotten{{Node: first.look("0"), Count: 1 << 60}})
	if _, err := first.ask(fuse.Lookup, fuse.RootNode, "9"); err != nil {
		t.Errorf("one folder is forgotten, and another one is not remembered: %v", err)
	}
	if _, err := second.ask(fuse.Lookup, fuse.RootNode, "9"); err != nil {
		t.Errorf("the other shared folder: %v", err)
	}
}

// TestManyNames: a node that looks at more files than are remembered finds all of them. The ones
// that were not used for long get another number. Folders and open files keep theirs.
func TestManyNames(t *testing.T) {
	dir := t.TempDir()
	const most, files = 8, 100
	for i := range files {
		put(t, filepath.Join(dir, fmt.Sprint(i)), fmt.Sprint(i))
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	n := share(t, Folder{Path: dir})
	m := n.mounts[0]
	m.mostInodes = most
	folder, open, used := n.look("folder"), n.look("0"), n.look("1")
	handle, _, err := n.open(open, unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	attr := func(inode uint64) error {
		_, err := n.ask(fuse.GetAttr, inode, [2]uint64{})
		return err
	}
	var numbers []uint64
	for i := 2; i < files; i++ {
		numbers = append(numbers, n.look(fmt.Sprint(i)))
		for name, err := range map[string]error{"a folder": attr(folder), "an open file": attr(open), "a used file": attr(used), "the last file": attr(numbers[i-2])} {
			if err != nil {
				t.Fatalf("%s, with %d others: %v", name, i, err)
			}
		}
	}
	if n := len(m.inodes); n != 1+most || m.spare.Len() != most-1 {
		t.Errorf("%d files are remembered, the shared folder among them, %d may be dropped", n, m.spare.Len())
	}
	if err := attr(numbers[0]); err != unix.ESTALE {
		t.Errorf("the file that was used least recently: %v", err)
	}
	if again := n.look("2"); again == numbers[0] || attr(again) != nil {
		t.Errorf("it is found again as %d, it was %d", again, numbers[0])
	}
	m.forget([]fuse.Forgotten{{Node: numbers[0], Count: 1}}) // Linux does not know of the drop
	if text := n.read(handle); text != "0" {
		t.Errorf("the open file has %q", text)
	}
	n.must(n.ask(fuse.Release, 0, [3]uint64{handle}))
	for i := range most {
		n.look(fmt.Sprint(10 + i))
	}
	if err := attr(open); err != unix.ESTALE {
		t.Errorf("a file that is closed: %v", err)
	}
}

// TestRelease: a file stays open while a request uses it, so that the request meets no other file.
func TestRelease(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "a"), "one")
	n := share(t, Folder{Path: dir})
	handle, _, err := n.open(n.look("a"), unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	m := n.mounts[0]
	h, err := m.handle(handle)
	if err != nil {
		t.Fatal(err)
	}
	n.must(n.ask(fuse.Release, 0, [3]uint64{handle}))
	if _, err := h.file.Stat(); err != nil {
		t.Errorf("a file that is used: %v", err)
	}
	if _, err := m.handle(handle); err != unix.EBADF {
		t.Errorf("a request after the release: %v", err)
	}
	m.done(h)
	if _, err := h.file.Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a file that nothing uses: %v", err)
	}
}

// TestRandom makes random changes, and compares the paths that the table has with the files.
func TestRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(check.Seed(t), 1))
	dir := t.TempDir()
	n := share(t, Folder{Path: dir})
	m := n.mounts[0]
	names := []string{"a", "b", "c"}
	pick := func() uint64 { // some inode that the node knows
		var known []uint64
		for inode := range m.inodes {
			known = append(known, inode)
		}
		slices.Sort(known)
		return known[r.IntN(len(known))]
	}
	for range 3000 {
		x, y, name, other := pick(), pick(), names[r.IntN(3)], names[r.IntN(3)]
		switch r.IntN(8) {
		case 0:
			_, _ = n.ask(fuse.MkDir, x, uint64(0o700), name)
		case 1:
			_, _ = n.ask(fuse.MkNod, x, [4]uint32{unix.S_IFREG | 0o600}, name)
		case 2:
			_, _ = n.ask(fuse.Rename2, x, y, uint64(r.IntN(3)), name, other)
		case 3:
			_, _ = n.ask(fuse.Unlink, x, name)
		case 4:
			_, _ = n.ask(fuse.RmDir, x, name)
		case 5:
			_, _ = n.ask(fuse.Lookup, x, name)
		case 6:
			_, _ = n.ask(fuse.Link, x, y, name)
		case 7:
			_, _ = n.ask(fuse.Forget, x, uint64(r.IntN(4)))
		}
	}
	for number, i := range m.inodes {
		path, err := m.path(number)
		if err != nil {
			continue // it has no name
		}
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, path), &st); err != nil || number != fuse.RootNode && st.Ino != i.ino {
			t.Errorf("inode %d is not at %s: %v", number, path, err)
		}
		if i.parent != nil && m.inodes[i.parent.number] != i.parent {
			t.Errorf("the folder of %s is forgotten", path)
		}
	}
}

// FuzzDo makes any requests, and looks whether something outside the folder has changed.
func FuzzDo(f *testing.F) {
	outside := f.TempDir()
	put(f, filepath.Join(outside, "secret"), "secret")
	dir := filepath.Join(outside, "shared")
	if err := os.Mkdir(dir, 0o700); err != nil {
		f.Fatal(err)
	}
	n := share(f, Folder{Path: dir})
	for opcode := range byte(50) {
		for _, body := range []string{"secret\x00", "\x01\x00\x00\x00\x00\x00\x00\x00secret\x00../secret\x00", strings.Repeat("\x00", 88)} {
			f.Add(opcode, uint64(1), []byte(body))
		}
	}
	f.Fuzz(func(t *testing.T, opcode byte, inode uint64, body []byte) {
		n.t = t
		if fuse.Opcode(opcode) == fuse.FAllocate {
			return // it could fill the disk
		}
		_, _ = n.ask(fuse.Symlink, fuse.RootNode, "link", "../secret")
		_, _ = n.ask(fuse.Lookup, fuse.RootNode, "link")
		_, _ = n.ask(fuse.Opcode(opcode), inode%8, body)
		var found []string
		_ = filepath.WalkDir(outside, func(path string, e fs.DirEntry, err error) error {
			if path == dir {
				return filepath.SkipDir
			}
			found = append(found, path)
			return err
		})
		text, err := os.ReadFile(filepath.Join(outside, "secret"))
		if err != nil || string(text) != "secret" || len(found) != 2 {
			t.Fatalf("something outside has changed: %v, %q, %v", found, text, err)
		}
	})
}
