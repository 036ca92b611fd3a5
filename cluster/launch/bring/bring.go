// Package bring writes the files that the ranks of a job have left on its nodes to folders of this
// host (margay run --out).
//
// Each node sends an archive (package archive), and nothing in it is trusted: names stay below the
// folder that the user has named, whatever links there are; a link that leads out of it, a device
// or a pipe is left out and named. No file that was here before is replaced unless the user asks
// for that, and none that another node of the job has brought: a second one with the same name gets
// the name of its node as well. A file has its name when it is complete.
package bring

import (
	"archive/tar"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/printable"
	"margay/kernel/abi/archive"
)

// Target is a file or folder that the user wants.
type Target struct {
	Path string // absolute, on the nodes
	Dest string // here: of a folder the same folder, of a file the file or the folder for it; after % comes j, n or %
}

// Bringer receives the files of a job, one node after the other. It is not safe for concurrent use.
type Bringer struct {
	Targets   []Target
	Overwrite bool              // replace files that were here before
	Progress  func(bytes int64) // receives the bytes that have come; nil: nothing does

	Collided Notes // files that have another name because theirs was taken
	Left     Notes // what the nodes could not send, or nothing could be made of here
	Failed   Notes // what could not be written here

	found []bool          // by target
	made  map[string]bool // paths of what was written
	bytes int64
}

// maxEntries bounds the archive of a node, whose names are held until its end.
const maxEntries = 2_000_000

// ErrDamaged reports an archive that no correct node sends, or that has lost its end.
var ErrDamaged = errors.New("the files from it are damaged or incomplete")

// Missing returns the targets at which no node has had anything new so far.
func (b *Bringer) Missing() (paths []string) {
	for i, t := range b.Targets {
		if i >= len(b.found) || !b.found[i] {
			paths = append(paths, t.Path)
		}
	}
	return paths
}

// Expand puts the numbers of a job and a node into the pattern of a destination.
func Expand(pattern string, job, node uint32) string {
	number := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
	return strings.NewReplacer("%%", "%", "%j", number(job), "%n", number(node)).Replace(pattern)
}

// CheckDest refuses a destination that nothing could be written to.
func CheckDest(pattern string) error {
	for i := 0; i < len(pattern); i++ {
		if pattern[i] != '%' {
			continue
		}
		if i++; i == len(pattern) || !strings.ContainsRune("jn%", rune(pattern[i])) {
			return errors.New("after % comes j (the job), n (the node), or % for itself: the ranks of a node have the same files")
		}
	}
	for dir := filepath.Clean(Expand(pattern, 0, 0)); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue // "." and "/" exist
		case err != nil:
			return err
		case !info.IsDir():
			continue // a file, which may get another name; its folder counts
		}
		if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
			return fmt.Errorf("write to the folder %s: %w", dir, err)
		}
		return nil
	}
}

// Node receives the archive of a node. An error ends the bringing: nothing more can be written
// here, or the archive is damaged.
func (b *Bringer) Node(job, node uint32, r io.Reader) error {
	b.found = append(b.found, make([]bool, len(b.Targets)-len(b.found))...)
	if b.made == nil {
		b.made = make(map[string]bool)
	}
	n := &nodeFiles{Bringer: b, job: job, node: node, places: make(map[string]place), roots: make([]*os.Root, len(b.Targets))}
	defer n.close()
	entries := tar.NewReader(r)
	for range maxEntries {
		h, err := entries.Next()
		switch {
		case errors.Is(err, io.EOF):
			return ErrDamaged // without the last entry
		case err != nil:
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		case h.Name == archive.End:
			n.setFolders()
			_, err := io.Copy(io.Discard, r) // what pads the archive
			return err
		}
		if err := n.entry(h, entries); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: more than %d files", ErrDamaged, maxEntries)
}

// fatal reports whether after an error nothing more can be written.
func fatal(err error) bool {
	return slices.ContainsFunc([]error{unix.ENOSPC, unix.EDQUOT, unix.EIO, unix.EROFS, unix.ESTALE, unix.EMFILE, unix.ENFILE}, func(e error) bool { return errors.Is(err, e) })
}

// place is where something of the archive is here.
type place struct {
	root *os.Root
	name string      // below it
	kind fs.FileMode // the type of the file
}

// nodeFiles are the files of one node.
type nodeFiles struct {
	*Bringer
	job, node uint32
	roots     []*os.Root       // by target; nil: nothing has come
	places    map[string]place // of folders and files, by their names in the archive
	folders   []folder         // that were made here
}

// folder is one that gets its mode and time when its files are written.
type folder struct {
	place
	mode fs.FileMode
	time time.Time
}

func (n *nodeFiles) close() {
	for _, root := range n.roots {
		if root != nil {
			root.Close()
		}
	}
}

// entry writes one entry of the archive.
func (n *nodeFiles) entry(h *tar.Header, r io.Reader) error {
	target, rest, err := n.split(h.Name)
	if err != nil {
		return err
	}
	n.found[target] = true
	shown := path.Join(n.Targets[target].Path, rest)
	if why := h.PAXRecords[archive.Left]; why != "" {
		n.Left.add("%s of node%d: %s", printable.Name(shown), n.node, printable.Short(why, 100))
		return nil
	}
	at, err := n.find(target, rest, h.Typeflag == tar.TypeDir)
	if err == nil {
		switch {
		case h.Typeflag == tar.TypeDir:
			err = n.folder(at, h)
		case h.Typeflag == tar.TypeReg && !expands(h):
			err = n.file(at, h, r)
		case h.Typeflag == tar.TypeSymlink && rest != "":
			err = n.symlink(at, h)
		case h.Typeflag == tar.TypeLink:
			err = n.hardLink(at, h)
		case h.Typeflag == tar.TypeSymlink:
			err = &leftError{"it is a symbolic link"}
		default:
			err = &leftError{"it is of an unknown kind"}
		}
	}
	var left *leftError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrDamaged):
		return err
	case errors.As(err, &left):
		n.Left.add("%s of node%d: %s", printable.Name(shown), n.node, left.why)
		return nil
	case fatal(err):
		return fmt.Errorf("write %s of node%d: %w", printable.Name(shown), n.node, err)
	}
	n.Failed.add("%s of node%d: %v", printable.Name(shown), n.node, printable.Line(err.Error()))
	return nil
}

// leftError says why nothing is made of an entry.
type leftError struct{ why string }

func (e *leftError) Error() string { return e.why }

// expands reports whether package tar would make more data of a file than the archive has: it fills
// holes of formats that no node sends.
func expands(h *tar.Header) bool {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// split returns the target that a name in the archive belongs to, and the rest of the name.
func (n *nodeFiles) split(name string) (target int, rest string, err error) {
	first, rest, _ := strings.Cut(strings.TrimSuffix(name, "/"), "/")
	target, err = strconv.Atoi(first)
	if err != nil || target < 0 || target >= len(n.Targets) || rest != "" && !local(rest) {
		return 0, "", fmt.Errorf("%w: the name %s", ErrDamaged, printable.Short(name, 100))
	}
	return target, rest, nil
}

// local reports whether a name has no parts but names.
func local(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." || part == ".." || strings.ContainsRune(part, 0) {
			return false
		}
	}
	return true
}

// key is the name in the archive of what find has found.
func key(target int, rest string) string { return path.Join(strconv.Itoa(target), rest) }

// located is a place for an entry.
type located struct {
	place
	key   string
	fresh bool // a folder that was made for a target
}

// find returns the place for an entry. Its folder has come before it.
func (n *nodeFiles) find(target int, rest string, isFolder bool) (located, error) {
	at := located{key: key(target, rest)}
	if rest == "" {
		var err error
		at.place, at.fresh, err = n.open(target, isFolder)
		return at, err
	}
	parent, ok := n.places[path.Dir(at.key)]
	if !ok || parent.kind != fs.ModeDir {
		return at, &leftError{"its folder was not brought back"}
	}
	at.root, at.name = parent.root, path.Join(parent.name, path.Base(rest))
	return at, nil
}

// open opens the folder here that a target belongs to, and makes it if it is missing. made reports
// that for a target that is a folder.
func (n *nodeFiles) open(target int, isFolder bool) (at place, made bool, err error) {
	if n.roots[target] != nil {
		return at, false, fmt.Errorf("%w: a name that comes twice", ErrDamaged)
	}
	pattern := n.Targets[target].Dest
	dest := filepath.Clean(Expand(pattern, n.job, n.node))
	dir, name := filepath.Dir(dest), filepath.Base(dest)
	info, err := os.Stat(dest)
	switch {
	case isFolder:
		if err == nil && !info.IsDir() {
			taken := dest
			dest = freePath(dest, n.node)
			n.collide(taken, dest)
			err = fs.ErrNotExist
		}
		made = errors.Is(err, fs.ErrNotExist)
		dir, name = dest, "."
	case err == nil && info.IsDir(), strings.HasSuffix(pattern, "/"):
		dir, name = dest, path.Base(n.Targets[target].Path)
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return at, false, err
	}
	n.roots[target], err = os.OpenRoot(dir)
	return place{root: n.roots[target], name: name}, made, err
}

// freePath returns a path beside one that is taken.
func freePath(dest string, node uint32) string {
	for try := 1; ; try++ {
		name := beside(dest, node, try)
		if _, err := os.Lstat(name); err != nil {
			return name
		}
	}
}

// beside returns a name for the file of a node whose own name is taken.
func beside(name string, node uint32, try int) string {
	name = fmt.Sprintf("%s.node%d", name, node)
	if try > 1 {
		name += fmt.Sprintf(".%d", try)
	}
	return name
}

// maxTries bounds the names that are tried for a file whose name is taken.
const maxTries = 1000

// collide notes that a file has another name than its own.
func (n *nodeFiles) collide(taken, instead string) {
	n.Collided.add("%s of node%d is %s", printable.Name(taken), n.node, printable.Name(filepath.Base(instead)))
}

// path returns the path of a place.
func (p place) path() string { return filepath.Join(p.root.Name(), p.name) }

// settle calls make with the place of an entry, and with others beside it while it is taken.
// replace, if it is not nil, is called instead when the name belongs to a file that was here before
// and may be replaced. It notes the place that the entry has.
func (n *nodeFiles) settle(at located, make, replace func(name string) error) error {
	name := at.name
	for try := 1; ; try++ {
		err := make(name)
		if errors.Is(err, fs.ErrExist) && replace != nil && n.Overwrite && !n.made[place{root: at.root, name: name}.path()] {
			if info, found := at.root.Lstat(name); found == nil && !info.IsDir() {
				err = replace(name)
			}
		}
		if errors.Is(err, fs.ErrExist) && try < maxTries {
			name = beside(at.name, n.node, try)
			continue
		}
		if err != nil {
			return err
		}
		break
	}
	got := place{root: at.root, name: name, kind: at.kind}
	if name != at.name {
		n.collide(at.path(), got.path())
	}
	n.places[at.key] = got
	n.made[got.path()] = true
	return nil
}

// folder makes a folder, or takes the one that is there.
func (n *nodeFiles) folder(at located, h *tar.Header) error {
	at.kind = fs.ModeDir
	if at.name == "." {
		n.places[at.key] = at.place
		if at.fresh { // the next node writes to it as well
			n.folders = append(n.folders, folder{at.place, fs.FileMode(h.Mode)&0o777 | 0o700, h.ModTime})
		}
		return nil
	}
	fresh := false
	err := n.settle(at, func(name string) error {
		err := at.root.Mkdir(name, 0o700)
		if fresh = err == nil; fresh || !errors.Is(err, fs.ErrExist) {
			return err
		}
		if info, err := at.root.Lstat(name); err == nil && info.IsDir() { // no link
			return nil
		}
		return err
	}, nil)
	if err == nil && fresh {
		n.folders = append(n.folders, folder{n.places[at.key], fs.FileMode(h.Mode) & 0o777, h.ModTime})
	}
	return err
}

// setFolders gives the folders that were made their modes and times, now that nothing is written
// to them any more.
func (n *nodeFiles) setFolders() {
	for _, f := range slices.Backward(n.folders) {
		if err := errors.Join(f.root.Chmod(f.name, f.mode), setTime(f.place, f.time)); err != nil {
			n.Failed.add("%s: %v", printable.Name(f.path()), err)
		}
	}
}

// setTime sets the time of a file or folder, unless it is one that Go cannot express.
func setTime(p place, t time.Time) error {
	if t.Year() < 1700 || t.Year() > 2200 {
		return nil
	}
	return p.root.Chtimes(p.name, t, t)
}

// file writes a file under a name of its own, and then gives it its name. Until then its name is a
// random one: a margay run that was killed, here or on another host, may have left one with any
// number.
func (n *nodeFiles) file(at located, h *tar.Header, r io.Reader) (err error) {
	temp := place{root: at.root, name: path.Join(path.Dir(at.name), ".margay-"+rand.Text())}
	f, err := temp.root.OpenFile(temp.name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = temp.root.Remove(temp.name)
		}
	}()
	err = n.fill(f, h, r)
	if err == nil {
		err = f.Chmod(fs.FileMode(h.Mode) & 0o777)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := setTime(temp, h.ModTime); err != nil {
		return err
	}
	rename := func(name string) error { return at.root.Rename(temp.name, name) }
	return n.settle(at, func(name string) error {
		// A rename over a file that was reserved has ext4 write each file to the disk at once.
		err := at.root.Link(temp.name, name)
		if err == nil {
			return temp.root.Remove(temp.name)
		}
		if errors.Is(err, fs.ErrExist) {
			return err
		}
		// Not every file system has links.
		reserved, err := at.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		reserved.Close()
		return rename(name)
	}, rename)
}

// fill writes the data of a file.
func (n *nodeFiles) fill(f *os.File, h *tar.Header, r io.Reader) error {
	holes, sparse := h.PAXRecords[archive.Holes]
	if !sparse {
		return n.copy(f, r, h.Size)
	}
	size, err := strconv.ParseInt(holes, 10, 64)
	if err != nil || size < 0 {
		return fmt.Errorf("%w: a file of %s bytes", ErrDamaged, printable.Short(holes, 30))
	}
	var head [16]byte
	for at := int64(0); ; {
		_, err := io.ReadFull(r, head[:])
		if errors.Is(err, io.EOF) {
			return f.Truncate(size)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		from, length := binary.BigEndian.Uint64(head[:]), binary.BigEndian.Uint64(head[8:])
		if from < uint64(at) || from > uint64(size) || length > uint64(size)-from {
			return fmt.Errorf("%w: %d bytes at %d of a file of %d", ErrDamaged, length, from, size)
		}
		if err := n.copy(io.NewOffsetWriter(f, int64(from)), r, int64(length)); err != nil {
			return err
		}
		at = int64(from + length)
	}
}

// copyPiece is how much is written at once, in bytes.
const copyPiece = 256 << 10

// copy writes size bytes.
func (n *nodeFiles) copy(w io.Writer, r io.Reader, size int64) error {
	buf := make([]byte, min(size, copyPiece))
	for size > 0 {
		piece := buf[:min(size, copyPiece)]
		if _, err := io.ReadFull(r, piece); err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		if _, err := w.Write(piece); err != nil {
			return err
		}
		size -= int64(len(piece))
		if n.bytes += int64(len(piece)); n.Progress != nil {
			n.Progress(n.bytes)
		}
	}
	return nil
}

// symlink makes a symbolic link that stays below the target's folder.
func (n *nodeFiles) symlink(at located, h *tar.Header) error {
	if !inside(h.Linkname, strings.Count(at.name, "/")) {
		return &leftError{fmt.Sprintf("it is a link to %s, out of the folder", printable.Short(h.Linkname, 100))}
	}
	at.kind = fs.ModeSymlink
	link := func(name string) error {
		err := at.root.Symlink(h.Linkname, name)
		if there, found := at.root.Readlink(name); found == nil && there == h.Linkname {
			return nil // the same link, of another node
		}
		return err
	}
	return n.settle(at, link, func(name string) error {
		if err := at.root.Remove(name); err != nil {
			return err
		}
		return link(name)
	})
}

// inside reports whether the target of a link stays in the folder that the link is so many folders
// below. After a name, which may be a link itself, it has no "..".
func inside(target string, depth int) bool {
	if target == "" || strings.HasPrefix(target, "/") {
		return false
	}
	names := false
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
		case "..":
			if depth--; names || depth < 0 {
				return false
			}
		default:
			names = true
		}
	}
	return true
}

// hardLink makes another name of a file of the same target. A link at another place might lead out
// of the folder.
func (n *nodeFiles) hardLink(at located, h *tar.Header) error {
	old, ok := n.places[h.Linkname]
	if !ok || old.root != at.root || old.kind != 0 {
		return &leftError{"the file that it is another name of was not brought back"}
	}
	link := func(name string) error { return at.root.Link(old.name, name) }
	return n.settle(at, link, func(name string) error {
		if err := at.root.Remove(name); err != nil {
			return err
		}
		return link(name)
	})
}
