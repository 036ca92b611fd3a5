// Package proxy carries out at a job's client what the ranks do in the folders that it shares with
// them: requests of package fuse, which come from the nodes of the job.
//
// A node is not trusted. It can name files only by a shared folder, and below that by names of
// files in folders: each is a single name, checked by package fuse. Linux resolves them with
// openat2, below the shared folder and without following a link, so neither a link nor a file that
// is moved in that moment leads out. Only regular files are opened. What a node can make this
// process keep is bounded: open files, and files that Linux on the node remembers.
//
// What the user may not do fails as it does for any process of the user. All files look as if they
// belonged to the user of the ranks. None gets a set-user-ID or set-group-ID bit.
//
// Locks: handle.mu is held while a folder is read, mount.mu guards the tables of a shared folder on
// a node and is taken last; no request waits for a file with it held.
package proxy

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/fuse"
)

// Folder is a folder to share.
type Folder struct {
	Path     string
	ReadOnly bool
	// Host means that it is a folder with programs and configuration of this host. Ranks get
	// world-readable files only, whatever the rights of this process are, and names and attributes
	// stay valid for longer.
	Host bool
}

// Folders are the open folders of a job. They are safe for concurrent use.
type Folders struct {
	list  []Folder
	roots []*os.File // opened with O_PATH

	mostFiles  int // that each node may have open
	mostInodes int // that each node has remembered in each folder
}

// Bounds of what all nodes of a job together make this process keep. A remembered file takes about
// 0.5 KiB: all together take 256 MiB.
const (
	allRemembered   = 1 << 19
	leastRemembered = 1024 // in each folder on each node
	leastFiles      = 16
)

// Open opens the folders of a job with so many nodes.
func Open(list []Folder, nodes int) (*Folders, error) {
	f := &Folders{list: list}
	for _, folder := range list {
		fd, err := unix.Open(folder.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("share %s: %w", folder.Path, err)
		}
		f.roots = append(f.roots, os.NewFile(uintptr(fd), folder.Path))
		if _, err := openBelow(fd, ".", unix.O_PATH, 0); err != nil {
			f.Close()
			return nil, fmt.Errorf("share %s: openat2, which Linux has since 5.6: %w", folder.Path, err)
		}
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		f.Close()
		return nil, err
	}
	nodes = max(1, nodes)
	f.mostFiles = max(leastFiles, int(min(limit.Cur, 1<<20))/2/nodes)
	f.mostInodes = max(leastRemembered, allRemembered/nodes/max(1, len(list)))
	return f, nil
}

// Close closes the folders. Every Node must be closed.
func (f *Folders) Close() {
	for _, root := range f.roots {
		root.Close()
	}
}

// Node is what a node of the job does. It is safe for concurrent use.
type Node struct{ mounts []*mount }

// Node returns a new node, on which ranks have a user and a group.
func (f *Folders) Node(uid, gid uint32, watch Watch) *Node {
	n, left := new(Node), new(room)
	left.files.Store(int64(f.mostFiles))
	for i, folder := range f.list {
		n.mounts = append(n.mounts, newMount(f.roots[i], folder, uid, gid, watch, left, f.mostInodes))
	}
	return n
}

// Close closes all files of the node. No request may be carried out any more.
func (n *Node) Close() {
	for _, m := range n.mounts {
		m.close()
	}
}

// Do carries out a request in a folder, and returns the answer.
func (n *Node) Do(folder int, request []byte) []byte {
	r, err := fuse.Parse(request)
	if err == nil && folder >= len(n.mounts) {
		err = unix.ENODEV
	}
	answer := fuse.NewAnswer(r.Unique, int(min(r.Size, fuse.MaxData))*readRoom(r.Opcode)+fuse.EntrySize+64)
	if err == nil {
		m, empty := n.mounts[folder], answer
		did := m.begin(&r)
		answer, err = m.do(r, empty)
		did(&r, answer, err)
		if err == unix.ENOENT && r.Opcode == fuse.Lookup && m.Host {
			answer, err = fuse.AppendEntry(empty, fuse.Entry{Valid: m.valid()}), nil
		}
	}
	if err != nil {
		return fuse.Failed(r.Unique, errnoOf(err))
	}
	return fuse.Finish(answer)
}

// readRoom is 1 for requests whose answer has as many bytes as they ask for.
func readRoom(o fuse.Opcode) int {
	switch o {
	case fuse.Read, fuse.ReadDir, fuse.ReadDirPlus:
		return 1
	}
	return 0
}

// errnoOf returns the error number for a rank.
func errnoOf(err error) unix.Errno {
	var errno unix.Errno
	switch {
	case errors.As(err, &errno) && errno > 0 && errno < 512:
		return errno
	case errors.Is(err, fuse.ErrMalformed):
		return unix.EINVAL
	}
	return unix.EIO
}
