package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"path"
	"slices"
	"strings"

	"margay/cluster/launch/regular"
)

// ErrNoTar reports a file of another format, or a compressed one.
var ErrNoTar = errors.New("it is not a tar file without compression")

// Bounds of a root, far above real ones.
const (
	maxFiles = 1_000_000 // files, folders and links
	maxNames = 256 << 20 // bytes of their absolute names, and of links' targets
	maxSteps = 500 << 20 // names that are looked up on the paths of entries, in all
	maxPath  = 4095      // bytes, as in Linux
	maxName  = 255       // bytes of one name
	maxLinks = 40        // symbolic links on one path, as in Linux
)

// Names in a layer that take away files of lower layers.
const (
	whiteout = ".wh."         // before the name of the file
	opaque   = ".wh..wh..opq" // all files of the folder
	metadata = ".wh..wh."     // begins names of an older format, which mean nothing
)

// Entry is a file, folder or symbolic link of a root.
type Entry struct {
	Mode fs.FileMode // type and permissions
	Link string      // where a symbolic link leads to
	Path string      // the tar file that has the data of a file
	At   int64       // where they begin there
	Size int64       // bytes of data
}

// Tree is a root that is put together from tar files. The zero Tree is empty. Nothing is unpacked:
// an entry says where its data are. As names are looked up in the tree, no path leads out of it.
type Tree struct {
	top   node
	layer int // that is added, from 1
	files int
	names int // bytes
	steps int
}

// node is a place in the tree.
type node struct {
	Entry
	length   int              // of its absolute name, in bytes
	children map[string]*node // of a folder
	layer    int              // that has put the entry there
	hidden   int              // layer that has hidden what lower layers have put there
}

// AddTar adds the contents of a tar file. They replace files with the same names.
func (t *Tree) AddTar(ctx context.Context, name string) error { return t.add(ctx, name, false) }

// addLayer adds a layer of an image, in which names may be whiteouts.
func (t *Tree) addLayer(ctx context.Context, name string) error { return t.add(ctx, name, true) }

func (t *Tree) add(ctx context.Context, name string, isLayer bool) error {
	in, err := regular.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	t.layer++
	entries := tar.NewReader(in)
	for count := 0; ; count++ {
		h, err := entries.Next()
		switch {
		case err == io.EOF && (count > 0 || isLayer): // a layer may be empty
			return nil
		case err == io.EOF, count == 0 && (errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF)): // shorter than a header
			return ErrNoTar
		case err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		at, err := in.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		if err := t.addEntry(h, isLayer, Entry{Path: name, At: at}); err != nil {
			return fmt.Errorf("%.200q: %w", h.Name, err)
		}
	}
}

// addEntry adds an entry of a tar file, whose data are where data says.
func (t *Tree) addEntry(h *tar.Header, isLayer bool, data Entry) error {
	name := path.Clean("/" + h.Name)
	if name == "/" {
		return nil
	}
	dir, base := path.Split(name)
	if len(name) > maxPath || len(base) > maxName || len(h.Linkname) > maxPath {
		return errLong
	}
	if isLayer && strings.HasPrefix(base, whiteout) {
		t.hide(dir, base)
		return nil
	}
	parent, err := t.folder(dir, true)
	if err != nil {
		return err
	}
	entry := Entry{Mode: h.FileInfo().Mode() & (fs.ModeType | fs.ModePerm)}
	switch h.Typeflag {
	case tar.TypeReg:
		if hasHoles(h) {
			return errHoles
		}
		entry.Path, entry.At, entry.Size = data.Path, data.At, h.Size
	case tar.TypeDir:
		if old := parent.children[base]; old != nil && old.Mode.IsDir() {
			old.Mode, old.layer = entry.Mode, t.layer
			return nil
		}
	case tar.TypeSymlink:
		entry.Link = h.Linkname
	case tar.TypeLink:
		if entry, err = t.linked(h.Linkname); err != nil {
			return err
		}
	case tar.TypeGNUSparse:
		return errHoles
	case tar.TypeXGlobalHeader:
		return nil
	default: // a device or pipe, which no job has, replaces a file nevertheless
		t.remove(parent, base)
		return nil
	}
	t.remove(parent, base)
	return t.put(parent, base, entry)
}

// errLong reports a name that Linux does not take.
var errLong = errors.New("its name is too long")

// errHoles reports a file whose data are in pieces in the tar file.
var errHoles = errors.New("it has holes, which cannot be read from a tar file")

// hasHoles reports whether a file is sparse, in the format of PAX.
func hasHoles(h *tar.Header) bool {
	for record := range h.PAXRecords {
		if strings.HasPrefix(record, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// linked returns the entry that a hard link is another name of.
func (t *Tree) linked(target string) (Entry, error) {
	dir, base := path.Split(path.Clean("/" + target))
	parent, err := t.folder(dir, false)
	if err == nil {
		if n := parent.children[base]; n != nil && !n.Mode.IsDir() {
			return n.Entry, nil
		}
	}
	return Entry{}, fmt.Errorf("it is another name of %.200q, which does not come before it", target)
}

// put adds an entry to a folder that has none of that name.
func (t *Tree) put(parent *node, name string, entry Entry) error {
	n := &node{Entry: entry, length: parent.length + len("/") + len(name), layer: t.layer}
	t.files, t.names = t.files+1, t.names+n.length+len(n.Link)
	if n.length > maxPath { // through links
		return errLong
	}
	if t.files > maxFiles {
		return fmt.Errorf("it has more than %d files and folders", maxFiles)
	}
	if t.names > maxNames {
		return fmt.Errorf("the names of its files have more than %d MiB", maxNames>>20)
	}
	if parent.children == nil {
		parent.children = make(map[string]*node)
	}
	parent.children[name] = n
	return nil
}

// remove removes what a folder has under a name.
func (t *Tree) remove(parent *node, name string) {
	n := parent.children[name]
	if n == nil {
		return
	}
	for child := range n.children {
		t.remove(n, child)
	}
	delete(parent.children, name)
	t.files, t.names = t.files-1, t.names-n.length-len(n.Link)
}

// hide carries out a whiteout, which concerns what lower layers have put there. It may be nothing.
func (t *Tree) hide(dir, mark string) {
	parent, err := t.folder(dir, false)
	switch {
	case err != nil:
	case mark == opaque:
		t.hideBelow(parent)
	case !strings.HasPrefix(mark, metadata):
		t.hideOne(parent, strings.TrimPrefix(mark, whiteout))
	}
}

func (t *Tree) hideOne(parent *node, name string) {
	n := parent.children[name]
	if n == nil {
		return
	}
	t.hideBelow(n)
	if n.layer < t.layer && len(n.children) == 0 {
		t.remove(parent, name)
	}
}

// hideBelow hides the files of lower layers in a folder. Once is enough: none comes there later.
func (t *Tree) hideBelow(n *node) {
	if n.hidden == t.layer {
		return
	}
	n.hidden = t.layer
	for child := range n.children {
		t.hideOne(n, child)
	}
}

// folder returns the folder with an absolute name. Symbolic links on the way are followed as by a
// process whose root this is. Missing folders are made, or are fs.ErrNotExist.
func (t *Tree) folder(name string, create bool) (*node, error) {
	way, left := []*node{&t.top}, parts(name)
	for links := 0; len(left) > 0; {
		if t.steps++; t.steps > maxSteps {
			return nil, errors.New("the paths of its files are too long to look up")
		}
		at, part := way[len(way)-1], left[0]
		left = left[1:]
		if part == ".." {
			way = way[:max(1, len(way)-1)]
			continue
		}
		next := at.children[part]
		if next == nil {
			if !create {
				return nil, fs.ErrNotExist
			}
			if err := t.put(at, part, Entry{Mode: fs.ModeDir | 0o755}); err != nil {
				return nil, err
			}
			next = at.children[part]
		}
		switch next.Mode.Type() {
		case fs.ModeDir:
			way = append(way, next)
		case fs.ModeSymlink:
			if links++; links > maxLinks {
				return nil, errors.New("too many symbolic links are on the way to it")
			}
			if path.IsAbs(next.Link) {
				way = way[:1]
			}
			target := parts(next.Link)
			t.steps += len(target) + len(left)
			left = slices.Concat(target, left)
		default:
			return nil, fmt.Errorf("it is below %.200q, which is a file", part)
		}
	}
	return way[len(way)-1], nil
}

// parts returns the names in a path.
func parts(name string) []string {
	return slices.DeleteFunc(strings.Split(name, "/"), func(part string) bool { return part == "" || part == "." })
}

// All returns the entries and their absolute names, each folder before its contents.
func (t *Tree) All() iter.Seq2[string, Entry] {
	return func(yield func(string, Entry) bool) { below(&t.top, "/", yield) }
}

func below(n *node, at string, yield func(string, Entry) bool) bool {
	for _, name := range slices.Sorted(maps.Keys(n.children)) {
		child := n.children[name]
		if !yield(at+name, child.Entry) || !below(child, at+name+"/", yield) {
			return false
		}
	}
	return true
}
