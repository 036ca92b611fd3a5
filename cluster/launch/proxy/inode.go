package proxy

import (
	"container/list"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/fuse"
)

// mount is a shared folder on a node.
type mount struct {
	root *os.File
	Folder
	uid, gid uint32
	watch    Watch
	*room

	mu         sync.Mutex
	inodes     map[uint64]*inode
	mostInodes int       // besides the root
	spare      list.List // the *inode of files, not of folders: the least recently used one is first
	handles    map[uint64]*handle
	last       uint64 // number that was given to an inode or a handle
	now        func() time.Time
}

// room is how many more files a node may have open in all its folders.
type room struct{ files atomic.Int64 }

// take takes a place, and reports whether there was one.
func take(left *atomic.Int64) bool {
	if left.Add(-1) >= 0 {
		return true
	}
	left.Add(1)
	return false
}

// inode is a file or folder that Linux on the node remembers. Its number is never given again.
//
// Linux forgets a name when it needs the memory, which it may not do for long: when there are too
// many, the least recently used file is dropped. When Linux uses its number again, it gets ESTALE,
// looks for the path again from the root, and so finds the file under a new number. A folder is not
// dropped: it may be the working directory of a process, which Linux does not look for. Nor is an
// open file.
type inode struct {
	number   uint64
	parent   *inode            // nil: the root, or it is no longer where it was
	name     string            // in parent
	children map[string]*inode // by name
	lookups  uint64            // answers with it that the node has
	dev, ino uint64
	seen     stamp         // of its content, when it was opened last, or found first
	since    time.Time     // when seen was seen first
	settled  bool          // what the node has read is in the file as long as that has this stamp
	open     int           // handles of it
	closed   bool          // it is a folder of the host that is not world-searchable
	spare    *list.Element // of mount.spare; nil: it is a folder
}

// stamp differs between two contents of a file, unless both were written in one tick of its file
// system.
type stamp struct {
	size         int64
	mtime, ctime unix.Timespec
}

func stampOf(st *unix.Stat_t) stamp { return stamp{st.Size, st.Mtim, st.Ctim} }

// written returns when a file was written last, at the latest, by the clock of its file system.
func (s stamp) written() time.Time {
	changed, modified := time.Unix(s.ctime.Unix()), time.Unix(s.mtime.Unix())
	if modified.After(changed) { // where ctime is another time, or none
		return modified
	}
	return changed
}

// A stamp that is a tick old is settled: later writes give the file another one.
const (
	tick   = 2 * time.Second // the longest, of vfat
	behind = time.Minute     // at most, of the clock of a file server behind the clock of this host
)

// look notes the stamp of a file that is opened. It reports whether all that the node has read of
// the file before is in it now. The caller holds mount.mu, and has looked at the file before now.
//
// Until a stamp is settled, the content may change under it, so what the node reads is good for
// this open file alone. A stamp that was seen a tick ago is a tick old by all clocks. A time to
// come is of a clock that was wrong, and the right clock may reach it at any moment.
func (i *inode) look(s stamp, now time.Time) (same bool) {
	if s != i.seen {
		i.seen, i.since, i.settled = s, now, false
	}
	same = i.settled
	age := now.Sub(s.written())
	i.settled = age >= behind+tick || age >= 0 && now.Sub(i.since) >= tick
	return same
}

// handle is an open file or folder. It is closed when the node has released it and no request uses
// it: another file could get its descriptor in the middle of a request.
type handle struct {
	file  *os.File
	inode uint64
	users int        // requests, and the table; guarded by mount.mu
	owed  unix.Errno // of a write behind that has failed, and no request has reported; guarded by mount.mu

	mu   sync.Mutex // of a folder: held while entries are read
	next int64      // of a folder: position
}

func newMount(root *os.File, folder Folder, uid, gid uint32, watch Watch, left *room, mostInodes int) *mount {
	m := &mount{
		root: root, Folder: folder, uid: uid, gid: gid, watch: watch, room: left, mostInodes: mostInodes,
		inodes: make(map[uint64]*inode), handles: make(map[uint64]*handle), last: fuse.RootNode, now: time.Now,
	}
	m.inodes[fuse.RootNode] = &inode{number: fuse.RootNode, lookups: 1}
	return m
}

func (m *mount) close() {
	m.mu.Lock()
	left := slices.Collect(maps.Keys(m.handles))
	m.mu.Unlock()
	for _, number := range left {
		m.release(number)
	}
}

// path returns the path of a file below the shared folder.
func (m *mount) path(number uint64) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := m.inodes[number]
	if i == nil {
		return "", unix.ESTALE
	}
	m.used(i)
	var path string
	for ; i.parent != nil; i = i.parent {
		path = filepath.Join(i.name, path)
		if len(path) > fuse.MaxPath {
			return "", unix.ENAMETOOLONG
		}
	}
	switch {
	case i.number != fuse.RootNode:
		return "", unix.ESTALE
	case path == "":
		return ".", nil
	}
	return path, nil
}

// still returns an error, upon which the node looks again, if another file has the name of the one
// with this number.
func (m *mount) still(number uint64, st *unix.Stat_t) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := m.inodes[number]; i == nil || number != fuse.RootNode && (i.dev != st.Dev || i.ino != st.Ino) {
		return unix.ESTALE
	}
	return nil
}

// enter returns the number of a file that the node is about to remember under a name in a folder.
func (m *mount) enter(folder uint64, name string, st *unix.Stat_t) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	parent := m.inodes[folder]
	if parent == nil {
		return 0, unix.ESTALE
	}
	i := parent.children[name]
	isFolder := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if i != nil && (i.dev != st.Dev || i.ino != st.Ino || (i.spare == nil) != isFolder) {
		m.leave(i)
		i = nil
	}
	if i == nil {
		if len(m.inodes) > m.mostInodes && !m.dropSpare() {
			return 0, unix.ENOMEM
		}
		m.last++
		i = &inode{number: m.last, parent: parent, name: name, dev: st.Dev, ino: st.Ino, seen: stampOf(st), since: m.now(), settled: true}
		m.inodes[i.number] = i
		parent.add(i)
		if !isFolder {
			i.spare = m.spare.PushBack(i)
		}
	}
	m.used(i)
	i.lookups++
	i.closed = isFolder && !m.permits(st, unix.X_OK)
	return i.number, nil
}

// permits reports whether ranks may use a file in ways (R_OK, X_OK) as far as the folder decides
// that. Whether this process may is another question.
func (m *mount) permits(st *unix.Stat_t, ways uint32) bool { return !m.Host || st.Mode&ways == ways }

// searchable returns an error if ranks may not look for names in a folder.
func (m *mount) searchable(folder uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := m.inodes[folder]; i != nil && i.closed {
		return unix.EACCES
	}
	return nil
}

// used notes a use of an inode. The caller holds mount.mu.
func (m *mount) used(i *inode) {
	if i.spare != nil {
		m.spare.MoveToBack(i.spare)
	}
}

// dropSpare drops the file that was used least recently and is not open. It returns false if there
// is none. The caller holds mount.mu.
func (m *mount) dropSpare() bool {
	for range m.spare.Len() {
		i := m.spare.Front().Value.(*inode)
		if i.open == 0 {
			i.lookups = 0
			m.drop(i)
			return true
		}
		m.used(i)
	}
	return false
}

func (i *inode) add(child *inode) {
	if i.children == nil {
		i.children = make(map[string]*inode)
	}
	i.children[child.name] = child
}

// leave takes an inode from its folder. The caller holds mount.mu.
func (m *mount) leave(i *inode) {
	parent := i.parent
	if parent == nil {
		return
	}
	i.parent = nil
	delete(parent.children, i.name)
	m.drop(i)
	m.drop(parent)
}

// drop removes an inode that neither the node nor a child needs, and so those above it. The caller
// holds mount.mu.
func (m *mount) drop(i *inode) {
	for i != nil && i.lookups == 0 && len(i.children) == 0 && i.number != fuse.RootNode {
		parent := i.parent
		if m.inodes[i.number] == i {
			delete(m.inodes, i.number)
		}
		if i.spare != nil {
			m.spare.Remove(i.spare)
			i.spare = nil
		}
		if parent != nil {
			delete(parent.children, i.name)
		}
		i = parent
	}
}

// removed notes that a name in a folder is gone.
func (m *mount) removed(folder uint64, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if parent := m.inodes[folder]; parent != nil && parent.children[name] != nil {
		m.leave(parent.children[name])
	}
}

// moved notes that a file has another name, or that two files have exchanged theirs.
func (m *mount) moved(folder uint64, name string, to uint64, newName string, exchange bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	from, into := m.inodes[folder], m.inodes[to]
	if from == nil || into == nil {
		return
	}
	i, other := from.children[name], into.children[newName]
	if i == other {
		return // two names of one file
	}
	for _, x := range []*inode{i, other} {
		if x != nil {
			delete(x.parent.children, x.name)
			x.parent = nil
		}
	}
	if i != nil && !i.above(into) {
		i.parent, i.name = into, newName
		into.add(i)
	}
	if other != nil && exchange && !other.above(from) {
		other.parent, other.name = from, name
		from.add(other)
	}
	for _, x := range []*inode{other, from} {
		if x != nil {
			m.drop(x)
		}
	}
}

// above reports whether an inode is another one or a folder above it.
func (i *inode) above(other *inode) bool {
	for ; other != nil; other = other.parent {
		if other == i {
			return true
		}
	}
	return false
}

// forget notes answers that the node has dropped.
func (m *mount) forget(list []fuse.Forgotten) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range list {
		if i := m.inodes[f.Node]; i != nil && f.Node != fuse.RootNode {
			i.lookups -= min(i.lookups, f.Count)
			m.drop(i)
		}
	}
}

// keep enters an open file into the table, and reports whether the content that the node may have
// of it is still right, and so are the attributes from when it found the file first.
func (m *mount) keep(f *os.File, node uint64, st *unix.Stat_t) (number uint64, same bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !take(&m.files) {
		f.Close()
		return 0, false, unix.ENFILE
	}
	if i := m.inodes[node]; i != nil {
		same = i.look(stampOf(st), m.now())
		i.open++
	}
	m.last++
	m.handles[m.last] = &handle{file: f, inode: node, users: 1}
	return m.last, same, nil
}

// handle returns an open file, which the caller uses until done.
func (m *mount) handle(number uint64) (*handle, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := m.handles[number]; h != nil {
		h.users++
		return h, nil
	}
	return nil, unix.EBADF
}

// opened returns any open file of an inode, or nil: the inode may have no name any more. The caller
// uses it until done.
func (m *mount) opened(node uint64) *handle {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range m.handles {
		if h.inode == node {
			h.users++
			return h
		}
	}
	return nil
}

// done ends a use of an open file.
func (m *mount) done(h *handle) {
	m.mu.Lock()
	h.users--
	last := h.users == 0
	if i := m.inodes[h.inode]; last && i != nil {
		i.open--
	}
	m.mu.Unlock()
	if last {
		h.file.Close()
		m.files.Add(1)
	}
}

// release takes an open file from the table.
func (m *mount) release(number uint64) {
	m.mu.Lock()
	h := m.handles[number]
	delete(m.handles, number)
	m.mu.Unlock()
	if h != nil {
		m.settleLoss(h)
		m.done(h)
	}
}
