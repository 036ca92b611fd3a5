package initramfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
)

// align divides the offset of every archive in an image, in bytes.
const align = 4

// Overlay writes an archive that may follow an image. It adds the directories of the files, as in
// an image.
func Overlay(files []File, w io.Writer) error {
	_, err := writeArchive(w, files)
	return err
}

// NodeArchive returns an archive that may precede an image or follow one, for a boot program that
// joins them.
func NodeArchive(files []File) ([]byte, error) {
	var archive bytes.Buffer
	if err := Overlay(files, &archive); err != nil {
		return nil, err
	}
	return append(archive.Bytes(), make([]byte, -archive.Len()&(align-1))...), nil
}

// WriteNodeImage writes to dst the image at imagePath with the files of one node added; without
// files it is a copy. dst is complete or absent, and replaces an older file. With files, which may
// be secrets, it is readable only by its owner, else by all that the umask does not exclude.
func WriteNodeImage(imagePath string, files []File, dst string) error {
	var overlay bytes.Buffer
	mode := fs.FileMode(0o644)
	if len(files) > 0 {
		mode = 0o600
		if err := Overlay(files, &overlay); err != nil {
			return err
		}
	}
	err := Replace(dst, mode, func(f *os.File) error {
		image, err := os.Open(imagePath)
		if err != nil {
			return err
		}
		defer image.Close()
		size, err := io.Copy(f, image)
		if err != nil || len(files) == 0 {
			return err
		}
		padding := make([]byte, -size&(align-1))
		_, err = f.Write(append(padding, overlay.Bytes()...))
		return err
	})
	if err != nil {
		return fmt.Errorf("make node image %s: %w", dst, err)
	}
	return nil
}

// zstdWindow is how far back a compressed image refers, in bytes. Linux takes that much memory to
// unpack it.
const zstdWindow = 1 << 20

// Compress replaces a plain image and its overlay by one .zst stream, which Linux unpacks since
// version 5.9 (CONFIG_RD_ZSTD). An image that does not begin as a plain one stays as it is.
func Compress(path string) error {
	plain, err := os.Open(path)
	if err != nil {
		return err
	}
	defer plain.Close()
	magic := make([]byte, len(newcMagic))
	if _, err := io.ReadFull(plain, magic); err != nil || string(magic) != newcMagic {
		return nil
	}
	info, err := plain.Stat()
	if err != nil {
		return err
	}
	err = Replace(path, info.Mode().Perm(), func(f *os.File) error {
		z, err := zstd.NewWriter(f, zstd.WithWindowSize(zstdWindow), zstd.WithEncoderConcurrency(1))
		if err != nil {
			return err
		}
		_, err = io.Copy(z, io.NewSectionReader(plain, 0, info.Size()))
		return errors.Join(err, z.Close())
	})
	if err != nil {
		return fmt.Errorf("compress image %s: %w", path, err)
	}
	return nil
}

// Replace replaces path by a file with the output of write, completely or not at all. The file has
// the permissions mode, less those that the umask takes away.
func Replace(path string, mode fs.FileMode, write func(*os.File) error) error {
	beside := filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%016x", filepath.Base(path), rand.Uint64()))
	f, err := os.OpenFile(beside, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	err = errors.Join(write(f), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}
