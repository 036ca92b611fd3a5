package jobinit

import (
	"hash"
	"hash/maphash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/printable"
	"margay/kernel/task"
)

// Bounds of the search for files that vanish with the job.
const (
	unkeptNames   = 5 // how many are named
	unkeptEntries = 10000
	unkeptTime    = time.Second
)

// scratch are the folders for temporary files, or folders outside the RAM disk.
var scratch = []string{"/dev", "/proc", "/tmp", "/var/tmp"}

// compiled is the name of the folders in which Python keeps what it has compiled, wherever modules
// are.
const compiled = "__pycache__"

// given are the files that each job's root begins with.
var given = map[string]bool{"/etc/passwd": true, "/etc/group": true, "/etc/hostname": true, "/etc/hosts": true, "/etc/nsswitch.conf": true}

// brought notes the files that came with the job, as they were.
type brought struct {
	mu    sync.Mutex
	files map[place]stamp
	taken []string // paths of files and folders that have travelled back
}

// place identifies a file.
type place struct{ device, inode uint64 }

// stamp changes when a file is written to, unless it is fixed: ranks cannot write to the file. When
// it is written to through a mapping, only its content does: the RAM disk gives it no other time if
// the page was read before.
type stamp struct {
	size    int64
	time    unix.Timespec
	fixed   bool
	content *content // nil: not noted
}

// same reports whether a file has the size and the time of the stamp.
func (s stamp) same(st *unix.Stat_t) bool { return s.size == st.Size && s.time == st.Mtim }

// content identifies the content of a file by a hash.
type content struct {
	hash func() hash.Hash
	sum  string
}

// quickSeed is the seed of quickHash.
var quickSeed = maphash.MakeSeed()

// quickHash is the hash of contents that come without a digest: they need not be known outside this
// process, and SHA-256 takes several times as long.
func quickHash() hash.Hash {
	h := new(maphash.Hash)
	h.SetSeed(quickSeed)
	return h
}

// is reports whether the rest of a file is the content.
func (c *content) is(f *os.File, buf []byte) bool {
	h := c.hash()
	_, err := io.CopyBuffer(h, struct{ io.Reader }{f}, buf) // WriteTo of the file would make a buffer of its own
	return err == nil && string(h.Sum(nil)) == c.sum
}

// add notes a file that was unpacked, with its content unless that is nil.
func (b *brought) add(f *os.File, c *content) error {
	return b.addAs(f, func(st *unix.Stat_t) stamp { return stamp{size: st.Size, time: st.Mtim, content: c} })
}

// addFixed notes a file of the node or of its host that ranks see through a read-only mount. There
// its times may change: margay run notes by them when it has lent a file.
func (b *brought) addFixed(f *os.File) error {
	return b.addAs(f, func(*unix.Stat_t) stamp { return stamp{fixed: true} })
}

func (b *brought) addAs(f *os.File, as func(*unix.Stat_t) stamp) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	b.note(place{st.Dev, st.Ino}, as(&st))
	return nil
}

func (b *brought) note(at place, as stamp) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.files == nil {
		b.files = make(map[place]stamp)
	}
	b.files[at] = as
}

// addLink notes a symbolic link that was unpacked.
func (b *brought) addLink(root *os.Root, name string) error {
	info, err := root.Lstat(name)
	if err != nil {
		return err
	}
	st := info.Sys().(*syscall.Stat_t)
	b.note(place{st.Dev, st.Ino}, stamp{size: st.Size, time: unix.Timespec(st.Mtim)})
	return nil
}

// take notes that what ranks have written at the paths has travelled back.
func (b *brought) take(paths []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken = paths
}

// has reports whether a file came with the job and is as it was, by its size and time. These leave
// the question to its content if that is not nil. The caller holds b.mu.
func (b *brought) has(st *unix.Stat_t) (known bool, open *content) {
	was, ok := b.files[place{st.Dev, st.Ino}]
	return ok && (was.fixed || was.same(st)), was.content
}

// unkept looks for the files that ranks have written: those that are new or changed, from the
// working directory on, in the file system of the root. Links are not followed. Contents are not
// read: that could take long. root is prefixed to all names; it is empty but in tests.
func (b *brought) unkept(root, dir string) task.Unkept {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := &search{brought: b, root: root, dir: filepath.Clean(dir), left: unkeptEntries + len(b.files), until: time.Now().Add(unkeptTime)}
	var st unix.Stat_t
	if unix.Lstat(root+"/", &st) == nil {
		w.device = st.Dev
	}
	if w.dir != "/" && !isScratch(w.dir) {
		w.walk(w.dir, "")
		w.walk("/", w.dir)
	} else {
		w.walk("/", "")
	}
	return w.found
}

// isScratch reports whether a folder is for temporary files.
func isScratch(name string) bool {
	for _, s := range scratch {
		if name == s {
			return true
		}
	}
	return false
}

// search is a walk through the job's root.
type search struct {
	brought *brought
	root    string
	dir     string
	device  uint64 // of the root
	left    int    // entries
	until   time.Time
	found   task.Unkept
}

// walk visits the files below a folder, except below another.
func (w *search) walk(from, but string) {
	_ = filepath.WalkDir(w.root+from, func(path string, e fs.DirEntry, err error) error {
		name := strings.TrimPrefix(path, w.root)
		if w.left--; w.left < 0 || w.left%256 == 0 && time.Now().After(w.until) {
			w.found.More = true
			return filepath.SkipAll
		}
		switch {
		case err != nil:
			return nil // it cannot be read, and nothing is known of it
		case slices.Contains(w.brought.taken, name):
			if e.IsDir() {
				return filepath.SkipDir
			}
			return nil
		case e.IsDir() && (name == but || !w.own(path) || isScratch(name) || e.Name() == compiled):
			return filepath.SkipDir
		case !e.Type().IsRegular() || given[name]:
			return nil
		}
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil {
			return nil
		}
		if known, _ := w.brought.has(&st); !known {
			w.add(name)
		}
		return nil
	})
}

// own reports whether a folder is in the job's RAM disk, and not one of the host.
func (w *search) own(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil && st.Dev == w.device
}

func (w *search) add(name string) {
	w.found.Files++
	if len(w.found.Names) < unkeptNames {
		if w.dir != "/" {
			name = strings.TrimPrefix(name, w.dir+"/")
		}
		w.found.Names = append(w.found.Names, printable.Name(name))
	}
}
