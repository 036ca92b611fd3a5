package guestkernel

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// ErrNotDirect says that an image holds no kernel that a virtual machine can enter directly.
var ErrNotDirect = errors.New("no kernel for direct entry")

// maxUnpacked bounds an unpacked kernel, in bytes. Debian's cloud kernel has 62 MB.
const maxUnpacked = 512 << 20

// Unpack returns the ELF file that an x86 boot image (Documentation/arch/x86/boot.rst, protocol
// 2.08) holds compressed, if it has an entry for virtual machines (the PVH note of
// Documentation/arch/x86/xen, XEN_ELFNOTE_PHYS32_ENTRY). A machine that starts it skips the
// decompressor, which also chooses a random address for the kernel. The error is ErrNotDirect if
// the image is none of x86, is compressed by neither zstd nor gzip, or its kernel has no such
// entry.
func Unpack(image []byte) ([]byte, error) {
	packed, err := payload(image)
	if err != nil {
		return nil, err
	}
	var kernel []byte
	switch {
	case bytes.HasPrefix(packed, []byte("\x28\xb5\x2f\xfd")):
		kernel, err = unpackZstd(packed)
	case bytes.HasPrefix(packed, []byte("\x1f\x8b")):
		kernel, err = unpackGzip(packed)
	default:
		return nil, fmt.Errorf("%w: unknown compression", ErrNotDirect)
	}
	if err != nil {
		return nil, fmt.Errorf("unpack the kernel: %w", err)
	}
	if !entersDirectly(kernel) {
		return nil, fmt.Errorf("%w: the kernel has no PVH entry", ErrNotDirect)
	}
	return kernel, nil
}

// payload returns the compressed kernel of an x86 boot image. The offset of its payload counts from
// the end of the setup sectors.
func payload(image []byte) ([]byte, error) {
	const (
		sectorsAt, magicAt, versionAt, offsetAt, lengthAt = 0x1f1, 0x202, 0x206, 0x248, 0x24c

		end, sector, protocol = 0x250, 512, 0x208
	)
	if len(image) < end || string(image[magicAt:magicAt+4]) != "HdrS" ||
		binary.LittleEndian.Uint16(image[versionAt:]) < protocol {
		return nil, fmt.Errorf("%w: not an x86 boot image", ErrNotDirect)
	}
	sectors := int(image[sectorsAt])
	if sectors == 0 {
		sectors = 4
	}
	from := uint64((sectors+1)*sector) + uint64(binary.LittleEndian.Uint32(image[offsetAt:]))
	to := from + uint64(binary.LittleEndian.Uint32(image[lengthAt:]))
	if to > uint64(len(image)) {
		return nil, fmt.Errorf("the kernel is truncated: its payload ends at %d of %d bytes", to, len(image))
	}
	return image[from:to], nil
}

// unpackZstd unpacks a frame that is followed by the size of its content.
func unpackZstd(packed []byte) ([]byte, error) {
	const sizeLen = 4
	if len(packed) < sizeLen {
		return nil, io.ErrUnexpectedEOF
	}
	frame, size := packed[:len(packed)-sizeLen], int(binary.LittleEndian.Uint32(packed[len(packed)-sizeLen:]))
	if size > maxUnpacked {
		return nil, fmt.Errorf("%d bytes, more than %d", size, maxUnpacked)
	}
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxUnpacked))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	kernel, err := d.DecodeAll(frame, make([]byte, 0, size))
	if err == nil && len(kernel) != size {
		err = fmt.Errorf("%d bytes, want %d", len(kernel), size)
	}
	return kernel, err
}

func unpackGzip(packed []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	r.Multistream(false)
	kernel, err := io.ReadAll(io.LimitReader(r, maxUnpacked+1))
	if err == nil && len(kernel) > maxUnpacked {
		err = fmt.Errorf("more than %d bytes", maxUnpacked)
	}
	return kernel, err
}

// entersDirectly reports whether the kernel has the note with its entry for virtual machines.
func entersDirectly(kernel []byte) bool {
	f, err := elf.NewFile(bytes.NewReader(kernel))
	if err != nil || f.Machine != elf.EM_X86_64 {
		return false
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_NOTE {
			continue
		}
		notes := make([]byte, min(p.Filesz, maxNotes))
		if _, err := p.ReadAt(notes, 0); err == nil && hasEntryNote(notes) {
			return true
		}
	}
	return false
}

// maxNotes bounds the notes that are looked at, in bytes.
const maxNotes = 1 << 16

// hasEntryNote reports whether the notes of one segment include the entry. A note has three words
// (length of the name, length of the content, type), then name and content, each padded to four
// bytes.
func hasEntryNote(notes []byte) bool {
	const header, entry = 12, 18
	padded := func(n uint32) uint64 { return (uint64(n) + 3) &^ 3 }
	for len(notes) >= header {
		name, content := binary.LittleEndian.Uint32(notes), binary.LittleEndian.Uint32(notes[4:])
		size := header + padded(name) + padded(content)
		if size > uint64(len(notes)) {
			return false
		}
		if binary.LittleEndian.Uint32(notes[8:]) == entry && string(notes[header:header+uint64(name)]) == "Xen\x00" {
			return true
		}
		notes = notes[size:]
	}
	return false
}
