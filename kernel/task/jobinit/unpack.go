package jobinit

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/klauspost/compress/zstd"

	"margay/kernel/task"
)

// unpackMemory bounds what decompression may take, in bytes.
const unpackMemory = 64 << 20

// unpack reads a zstd-compressed tar archive from r into the job's RAM disk and gives all of it to
// the job. Names are paths in the job's root. Only files, folders and symbolic links are taken, and
// nothing outside the RAM disk can be reached through them, whatever the names and links in the
// archive say.
func unpack(r io.Reader, s task.Spec, b *brought) error {
	zr, err := zstd.NewReader(r, zstd.WithDecoderMaxMemory(unpackMemory), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return failure("unpack files", err)
	}
	defer zr.Close()
	root, err := os.OpenRoot(mountPoint)
	if err != nil {
		return failure("unpack files", err)
	}
	defer root.Close()
	archive := tar.NewReader(zr)
	into := folder{root: root, spec: s}
	defer into.close()
	for {
		h, err := archive.Next()
		if err == io.EOF {
			// A tar archive may be padded; the sender waits until all of it is taken.
			_, err := io.Copy(io.Discard, zr)
			return wrap("unpack files", err)
		}
		if err != nil {
			return failure("unpack files", err)
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if name == "" {
			continue
		}
		if err := unpackOne(&into, name, h, archive, b); err != nil {
			return failure("unpack /"+name, err)
		}
	}
}

// folder is the folder that the last file went to. It stays open for the next: to make and to open
// each of its parents for every file is most of the work where there are many small ones.
type folder struct {
	root *os.Root // of the job
	spec task.Spec
	name string
	open *os.Root       // nil before the first file
	buf  [32 << 10]byte // for one file at a time
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

func unpackOne(into *folder, name string, h *tar.Header, r io.Reader, b *brought) error {
	mode := fs.FileMode(h.Mode) & 0o777
	if h.Typeflag == tar.TypeReg {
		if err := into.enter(path.Dir(name)); err != nil {
			return err
		}
		return into.unpackFile(path.Base(name), mode, h.Size, r, b)
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
		return root.Lchown(name, s.UID, s.GID)
	}
	return fmt.Errorf("archive entry of type %q is not supported", h.Typeflag)
}

func (d *folder) unpackFile(name string, mode fs.FileMode, size int64, r io.Reader, b *brought) error {
	f, err := d.open.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{f}, r, d.buf[:]) // ReadFrom of the file would make a buffer of its own
	if err == nil && n != size {
		err = io.ErrUnexpectedEOF
	}
	return errors.Join(err, f.Chown(d.spec.UID, d.spec.GID), f.Chmod(mode), b.add(f), f.Close())
}

// wrap is failure for an error that may be nil.
func wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return failure(op, err)
}
