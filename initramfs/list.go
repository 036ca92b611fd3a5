package initramfs

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"path"
	"strconv"

	"github.com/u-root/u-root/pkg/cpio"
)

// Bounds of List, so that no image exhausts memory or takes unreasonable time.
const (
	maxImage    = 512 << 20 // bytes of an image
	maxUnpacked = 4 << 30   // bytes of one archive
	maxParts    = 64        // archives of an image; xz runs for each stream
	maxEntries  = 1 << 20   // files of an image
)

// ErrImage is wrapped by every error about an invalid image.
var ErrImage = errors.New("not a node image")

// List returns the files of an image, an overlay's last. As Linux does, it accepts archives of
// format newc, in an .xz stream or not, with zero bytes between them, and also streams whose check
// Linux does not know. Errors about the image wrap ErrImage; an error about a missing xz does not.
func List(r io.Reader) ([]Entry, error) {
	image, err := io.ReadAll(io.LimitReader(r, maxImage+1))
	if err != nil {
		return nil, fmt.Errorf("read the image: %w", err)
	}
	if len(image) > maxImage {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrImage, maxImage)
	}
	var entries []Entry
	for at, parts := 0, 0; ; parts++ {
		for at < len(image) && image[at] == 0 {
			at++
		}
		if at == len(image) {
			break
		}
		if parts == maxParts {
			return nil, fmt.Errorf("%w: more than %d archives", ErrImage, maxParts)
		}
		n, err := listPart(image[at:], &entries)
		if errors.Is(err, exec.ErrNotFound) {
			return nil, err
		}
		if err != nil {
			return nil, fmt.Errorf("%w: part at byte %d: %w", ErrImage, at, err)
		}
		at += n
	}
	if len(entries) == 0 {
		return nil, fmt.Errorf("%w: it is empty", ErrImage)
	}
	return entries, nil
}

// listPart adds the files of the archive at the beginning of image and returns the number of bytes
// it read.
func listPart(image []byte, entries *[]Entry) (int, error) {
	if bytes.HasPrefix(image, []byte(newcMagic)) {
		source := bytes.NewReader(image)
		buffered := bufio.NewReader(source)
		err := listArchive(buffered, entries)
		return len(image) - source.Len() - buffered.Buffered(), err
	}
	n, err := streamLength(image)
	if err != nil {
		return 0, err
	}
	return n, unpack(image[:n], func(r io.Reader) error {
		return listArchive(bufio.NewReader(io.LimitReader(r, maxUnpacked)), entries)
	})
}

const (
	newcMagic  = "070701"
	newcFields = 13
	newcHeader = len(newcMagic) + newcFields*8
)

// The offsets of the header fields used here.
const (
	fieldMode     = 1
	fieldUID      = 2
	fieldGID      = 3
	fieldFileSize = 6
	fieldNameSize = 11
)

// listArchive adds the files of one archive up to its trailer. It does not use the reader of
// package cpio, which allocates as much as a header demands.
func listArchive(r *bufio.Reader, entries *[]Entry) error {
	for {
		h, err := readHeader(r)
		if err != nil {
			return err
		}
		if h[fieldNameSize] < 2 || h[fieldNameSize] > maxPath+1 {
			return fmt.Errorf("a file name of %d bytes", h[fieldNameSize])
		}
		name, err := readPadded(r, newcHeader, h[fieldNameSize])
		if err != nil {
			return err
		}
		name = name[:len(name)-1]
		if string(name) == cpio.Trailer {
			return nil
		}
		e := Entry{Path: path.Join("/", string(name)), Mode: goMode(h[fieldMode]), UID: h[fieldUID], GID: h[fieldGID],
			Size: int64(h[fieldFileSize])}
		if err := readContent(r, &e); err != nil {
			return fmt.Errorf("%s: %w", e.Path, err)
		}
		if len(*entries) == maxEntries {
			return fmt.Errorf("more than %d files", maxEntries)
		}
		*entries = append(*entries, e)
	}
}

func readHeader(r io.Reader) (fields [newcFields]uint32, err error) {
	var text [newcHeader]byte
	if _, err := io.ReadFull(r, text[:]); err != nil {
		return fields, fmt.Errorf("the archive is truncated: %w", err)
	}
	if string(text[:len(newcMagic)]) != newcMagic {
		return fields, fmt.Errorf("a file begins with %q instead of %q", text[:len(newcMagic)], newcMagic)
	}
	for i := range fields {
		digits := text[len(newcMagic)+8*i:][:8]
		value, err := strconv.ParseUint(string(digits), 16, 32)
		if err != nil {
			return fields, fmt.Errorf("header field %d: %w", i, err)
		}
		fields[i] = uint32(value)
	}
	return fields, nil
}

// readContent skips e's content, and keeps a symbolic link's.
func readContent(r *bufio.Reader, e *Entry) error {
	if e.Mode.Type() != fs.ModeSymlink {
		_, err := r.Discard(int(e.Size + -e.Size&(align-1)))
		return err
	}
	if e.Size > maxPath {
		return fmt.Errorf("a symbolic link of %d bytes", e.Size)
	}
	target, err := readPadded(r, 0, uint32(e.Size))
	e.Target = string(target)
	return err
}

// readPadded reads n bytes and the padding after them, given the number of bytes read since an
// aligned offset.
func readPadded(r *bufio.Reader, offset int, n uint32) ([]byte, error) {
	data := make([]byte, n)
	if _, err := io.ReadFull(r, data); err != nil {
		return nil, err
	}
	_, err := r.Discard(-(offset + int(n)) & (align - 1))
	return data, err
}
