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
