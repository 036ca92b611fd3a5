package jobinit

import (
	"archive/tar"
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"margay/kernel/abi/archive"
	"margay/kernel/task"
)

// unpackMemory bounds what decompression may take, in bytes.
const unpackMemory = 64 << 20

// copyPiece is how much of a file is copied at once, in bytes.
const copyPiece = 32 << 10

// unpacker is where the files of an archive go.
type unpacker struct {
	spec    task.Spec
	brought *brought
	held    map[archive.Digest]heldFile             // contents that the archive need not have
	added   func(digest archive.Digest, f *os.File) // receives each file with a digest that the archive had
}

// heldFile is a content that the node has.
type heldFile struct {
	*os.File
	mounted string // the folder where the node has it under the name of its digest; empty: nowhere
}

// entriesOf returns the tar archive in r, which may be compressed by zstd, and a function that ends
// reading.
func entriesOf(r io.Reader) (entries io.Reader, end func(), err error) {
	in := bufio.NewReader(r)
	// An archive that ends before is refused by its reader.
	if begin, _ := in.Peek(len(archive.Compressed)); string(begin) != archive.Compressed {
		return in, func() {}, nil
	}
	zr, err := zstd.NewReader(in, zstd.WithDecoderMaxMemory(unpackMemory), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, nil, err
	}
	return zr, zr.Close, nil
}

// unpack reads an archive (package archive) from r into the job's RAM disk and gives all of it to
// the job. Names are paths in the job's root. Only files, folders and symbolic links are taken, and
// nothing outside the RAM disk can be reached through them, whatever the names and links in the
// archive say.
func unpack(r io.Reader, u unpacker) error {
	in, end, err := entriesOf(r)
	if err != nil {
		return failure("unpack files", err)
	}
	defer end()
	root, err := os.OpenRoot(mountPoint)
	if err != nil {
		return failure("unpack files", err)
	}
	defer root.Close()
	entries := tar.NewReader(in)
	into := folder{root: root, unpacker: u}
	defer into.close()
	for {
		h, err := entries.Next()
		if err == io.EOF {
			// A tar archive may be padded; the sender waits until all of it is taken.
			_, err := io.Copy(io.Discard, in)
			return wrap("unpack files", err)
		}
		if err != nil {
			return failure("unpack files", err)
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if name == "" {
			continue
		}
		if err := unpackOne(&into, name, h, entries); err != nil {
			return failure("unpack /"+name, err)
		}
	}
}

// folder is the folder that the last file went to. It stays open for the next: to make and to open
// each of its parents for every file is most of the work where there are many small ones.
type folder struct {
	unpacker
	root    *os.Root // of the job
	name    string
	open    *os.Root // nil before the first file
	covered int      // files with code, of all folders
	buf     []byte   // for one file at a time; nil before the first with data
}

// enter goes to a folder, which it makes if it is missing.
func (d *folder) enter(name string) error {
	if d.open != nil && d.name == name {
		return nil
	}
	d.close()
	if err := makeDir(d.root, name, d.spec.UID, d.spec.GID); err != nil {
		return err
	}
	var err error
	d.open, err = d.root.OpenRoot(name)
	d.name = name
	return err
}

func (d *folder) close() {
	if d.open != nil {
		d.open.Close()
		d.open = nil
	}
}

func unpackOne(into *folder, name string, h *tar.Header, r io.Reader) error {
	mode := fs.FileMode(h.Mode) & 0o777
	if h.Typeflag == tar.TypeReg {
		if err := into.enter(path.Dir(name)); err != nil {
			return err
		}
		return into.unpackFile(path.Base(name), mode, h, r)
	}
	root, s := into.root, into.spec
	if err := makeDir(root, path.Dir(name), s.UID, s.GID); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err := root.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return errors.Join(root.Lchown(name, s.UID, s.GID), root.Chmod(name, mode|0o700))
	case tar.TypeSymlink:
		if err := root.Symlink(h.Linkname, name); err != nil {
			return err
		}
		return errors.Join(root.Lchown(name, s.UID, s.GID), into.brought.addLink(root, name))
	}
	return fmt.Errorf("archive entry of type %q is not supported", h.Typeflag)
}

func (d *folder) unpackFile(name string, mode fs.FileMode, h *tar.Header, r io.Reader) error {
	c, err := contentOf(h)
	if err != nil {
		return err
	}
	f, err := d.open.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer f.Close()
	isHeld := c.named && h.Size == 0
	if isHeld && c.code {
		if shared, err := d.share(f, c.digest); shared || err != nil {
			return err
		}
	}
	is, err := d.fill(f, h.Size, r, c)
	err = errors.Join(err, f.Chown(d.spec.UID, d.spec.GID), f.Chmod(mode), d.brought.add(f, is))
	if err == nil && c.code {
		err = d.protect(f)
	}
	if err != nil || !c.named || isHeld {
		return err
	}
	in, err := d.open.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	d.added(c.digest, in)
	return nil
}

// fill writes the data of a file. If files of the job are collected, it returns the content, unless
// ranks cannot write to the file.
func (d *folder) fill(f *os.File, size int64, r io.Reader, c contentRecords) (is *content, err error) {
	var to io.Writer = struct{ io.Writer }{f} // ReadFrom of the file would make a buffer of its own
	var quick hash.Hash
	switch {
	case !d.spec.Collects || c.code:
	case c.named:
		is = &content{sha256.New, string(c.digest[:])}
	default:
		quick = quickHash()
		to = io.MultiWriter(f, quick)
	}
	if c.named && size == 0 {
		return is, copyHeld(f, d.held[c.digest].File)
	}
	if d.buf == nil {
		d.buf = make([]byte, copyPiece)
	}
	n, err := io.CopyBuffer(to, r, d.buf)
	if err == nil && n != size {
		err = io.ErrUnexpectedEOF
	}
	if quick != nil {
		is = &content{quickHash, string(quick.Sum(nil))}
	}
	return is, err
}

// contentRecords is what an entry's records say of its content.
type contentRecords struct {
	named  bool // by a digest
	digest archive.Digest
	code   bool
}

func contentOf(h *tar.Header) (c contentRecords, err error) {
	text, named := h.PAXRecords[archive.Content]
	if !named {
		return c, nil
	}
	c.named, c.code = true, h.PAXRecords[archive.Code] != ""
	c.digest, err = archive.Parse(text)
	return c, err
}

// errNotHeld reports an entry without data whose content the node lacks.
var errNotHeld = errors.New("the archive has no data for it, and the node has none either")

// copyHeld copies a file that the node had already. It has its own position for each copy.
func copyHeld(to, from *os.File) error {
	if from == nil {
		return errNotHeld
	}
	info, err := from.Stat()
	if err != nil {
		return err
	}
	for at, left := int64(0), info.Size(); left > 0; {
		n, err := unix.Sendfile(int(to.Fd()), int(from.Fd()), &at, int(min(left, math.MaxInt32)))
		if err == unix.EINTR {
			continue
		}
		if err == nil && n == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		left -= int64(n)
	}
	return nil
}

// wrap is failure for an error that may be nil.
func wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return failure(op, err)
}
