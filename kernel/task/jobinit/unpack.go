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

// unpack reads a zstd-compressed tar archive from r into the job's RAM disk and gives all of it to the job. Names are paths
// in the job's root. Only files, folders and symbolic links are taken, and nothing outside the RAM disk can be reached
// through them, whatever the names and links in the archive say.
func unpack(r io.Reader, s task.Spec) error {
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
		if err := unpackOne(root, name, h, archive, s); err != nil {
			return failure("unpack /"+name, err)
		}
	}
}

func unpackOne(root *os.Root, name string, h *tar.Header, r io.Reader, s task.Spec) error {
	if err := makeDir(root, path.Dir(name), s.UID, s.GID); err != nil {
		return err
	}
	mode := fs.FileMode(h.Mode) & 0o777
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
	case tar.TypeReg:
		return unpackFile(root, name, mode, h.Size, r, s)
	}
	return fmt.Errorf("archive entry of type %q is not supported", h.Typeflag)
}

func unpackFile(root *os.Root, name string, mode fs.FileMode, size int64, r io.Reader, s task.Spec) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, r)
	if err == nil && n != size {
		err = io.ErrUnexpectedEOF
	}
	return errors.Join(err, f.Chown(s.UID, s.GID), f.Chmod(mode), f.Close())
}

// wrap is failure for an error that may be nil.
func wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return failure(op, err)
}
