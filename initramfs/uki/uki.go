// Package uki writes and reads unified kernel images: EFI programs that consist of a stub, which
// firmware runs, and of sections with a Linux kernel, its initramfs and its command line, which the
// stub hands on (https://uapi-group.org/specifications/specs/unified_kernel_image). An image is one
// file, so one signature covers all of it.
//
// The bytes of an image depend only on the stub and the sections.
package uki

import (
	"bytes"
	"crypto/sha256"
	"debug/pe"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
)

// The sections that a stub hands on.
const (
	Release = ".osrel"   // what the image is, in the format of os-release(5)
	Uname   = ".uname"   // release of the kernel
	Cmdline = ".cmdline" // of the kernel
	Initrd  = ".initrd"
	Linux   = ".linux"
)

// Section is a part of an image.
type Section struct {
	Name string // at most 8 bytes
	Data []byte
}

// ErrStub is wrapped by every error about a stub.
var ErrStub = errors.New("not an EFI stub that sections can be added to")

// Offsets in the headers of a PE image, in bytes (Microsoft, PE Format). Those in the optional
// header are the ones of PE32+.
const (
	signatureSize = 4
	fileHeader    = 20
	sectionHeader = 40

	fileSections   = 2 // from the file header
	fileSymbols    = 8
	optionInitData = 8 // from the optional header
	optionImage    = 56
	optionChecksum = 64
	optionTable    = 112 // of data directories

	peOffset = 0x3c // where a file has the offset of its signature
)

// magic begins every PE file.
const magic = "MZ"

// application is the subsystem of EFI programs.
const application = pe.IMAGE_SUBSYSTEM_EFI_APPLICATION

// page is the alignment of added sections in memory, in bytes. Kernels want whole pages.
const page = 4096

// maxImage bounds an image, in bytes: much firmware counts in 32 bits.
const maxImage = 1 << 31

// stub is a stub that was read.
type stub struct {
	data  []byte
	head  *pe.File
	extra *pe.OptionalHeader64
	file  int // offset of the file header
	table int // offset of the section table
}

// Build writes the image of a stub and sections, which are in memory in this order behind the
// stub's own. The kernel should be the last one: while it unpacks itself it may need room there.
func Build(program []byte, sections []Section, w io.Writer) error {
	s, err := readStub(program)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStub, err)
	}
	image, err := s.with(sections)
	if err != nil {
		return err
	}
	_, err = w.Write(image)
	return err
}

func readStub(program []byte) (stub, error) {
	if !bytes.HasPrefix(program, []byte(magic)) { // package pe also reads objects, which have no such header
		return stub{}, errors.New("it is not a PE file")
	}
	head, err := pe.NewFile(bytes.NewReader(program))
	if err != nil {
		return stub{}, err
	}
	extra, ok := head.OptionalHeader.(*pe.OptionalHeader64)
	switch {
	case !ok || extra.Subsystem != application:
		return stub{}, errors.New("it is not an EFI program for a 64-bit processor")
	case signed(extra):
		return stub{}, errors.New("it is signed, and would be no longer")
	case !powerOfTwo(extra.FileAlignment) || !powerOfTwo(extra.SectionAlignment):
		return stub{}, fmt.Errorf("its sections are aligned to %d and %d bytes", extra.FileAlignment, extra.SectionAlignment)
	case uint64(extra.SizeOfHeaders) > uint64(len(program)):
		return stub{}, errors.New("it is truncated")
	}
	file := int(binary.LittleEndian.Uint32(program[peOffset:])) + signatureSize
	return stub{program, head, extra, file, file + fileHeader + int(head.SizeOfOptionalHeader)}, nil
}

func powerOfTwo(n uint32) bool { return n > 0 && n <= 1<<20 && n&(n-1) == 0 }

// signed reports whether an image has a table of certificates.
func signed(h *pe.OptionalHeader64) bool {
	return h.NumberOfRvaAndSizes > pe.IMAGE_DIRECTORY_ENTRY_SECURITY && h.DataDirectory[pe.IMAGE_DIRECTORY_ENTRY_SECURITY].Size > 0
}

// with returns the stub with sections. What follows the last section of the stub is left out: it is
// for debuggers.
func (s stub) with(sections []Section) ([]byte, error) {
	var fileEnd, memoryEnd uint64
	first := uint64(s.extra.SizeOfHeaders)
	for _, h := range s.head.Sections {
		memoryEnd = max(memoryEnd, uint64(h.VirtualAddress)+uint64(max(h.VirtualSize, h.Size)))
		if h.Size > 0 {
			fileEnd = max(fileEnd, uint64(h.Offset)+uint64(h.Size))
			first = min(first, uint64(h.Offset))
		}
	}
	at := s.table + len(s.head.Sections)*sectionHeader
	if fileEnd > uint64(len(s.data)) || fileEnd < first {
		return nil, fmt.Errorf("%w: it is truncated", ErrStub)
	}
	if uint64(at+len(sections)*sectionHeader) > first {
		return nil, fmt.Errorf("%w: its headers have no room for %d more sections", ErrStub, len(sections))
	}
	image := bytes.Clone(s.data[:fileEnd])
	little := binary.LittleEndian
	align := uint64(max(s.extra.SectionAlignment, page))
	var added uint64
	for i, section := range sections {
		if err := s.check(section, sections[:i]); err != nil {
			return nil, err
		}
		image = pad(image, uint64(s.extra.FileAlignment))
		memory := roundUp(memoryEnd, align)
		size := uint64(len(section.Data))
		stored := roundUp(size, uint64(s.extra.FileAlignment))
		memoryEnd = memory + size
		h := image[at : at+sectionHeader]
		clear(h)
		copy(h, section.Name)
		little.PutUint32(h[8:], uint32(size))
		little.PutUint32(h[12:], uint32(memory))
		little.PutUint32(h[16:], uint32(stored))
		little.PutUint32(h[20:], uint32(len(image)))
		little.PutUint32(h[36:], pe.IMAGE_SCN_CNT_INITIALIZED_DATA|pe.IMAGE_SCN_MEM_READ)
		image = append(image, section.Data...)
		added += stored
		at += sectionHeader
	}
	image = pad(image, uint64(s.extra.FileAlignment))
	if memoryEnd > maxImage || len(image) > maxImage {
		return nil, fmt.Errorf("a unified kernel image of more than %d MB: firmware cannot load it", maxImage/1_000_000)
	}
	option := s.file + fileHeader
	little.PutUint16(image[s.file+fileSections:], uint16(len(s.head.Sections)+len(sections)))
	clear(image[s.file+fileSymbols:][:8]) // where the symbols were, and how many
	little.PutUint32(image[option+optionInitData:], uint32(uint64(s.extra.SizeOfInitializedData)+added))
	little.PutUint32(image[option+optionImage:], uint32(roundUp(memoryEnd, uint64(s.extra.SectionAlignment))))
	little.PutUint32(image[option+optionChecksum:], 0) // firmware does not look at it
	return image, nil
}

// check checks a section before it is added behind others.
func (s stub) check(section Section, before []Section) error {
	taken := func(name string) bool {
		return slices.ContainsFunc(s.head.Sections, func(h *pe.Section) bool { return h.Name == name }) ||
			slices.ContainsFunc(before, func(b Section) bool { return b.Name == name })
	}
	switch {
	case section.Name == "" || len(section.Name) > 8 || section.Name[0] == '/':
		return fmt.Errorf("section %q of a unified kernel image: the name cannot be used", section.Name)
	case len(section.Data) == 0:
		return fmt.Errorf("section %s of a unified kernel image: it is empty", section.Name)
	case taken(section.Name):
		return fmt.Errorf("section %s of a unified kernel image: there is one already", section.Name)
	}
	return nil
}

func roundUp(n, align uint64) uint64 { return (n + align - 1) &^ (align - 1) }

func pad(b []byte, align uint64) []byte {
	return append(b, make([]byte, roundUp(uint64(len(b)), align)-uint64(len(b)))...)
}

// Part is a section of an image that was read.
type Part struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`   // bytes
	SHA256 string `json:"sha256"` // in hexadecimal
	Data   []byte `json:"-"`
}

// Image is an image that was read.
type Image struct {
	Machine uint16 `json:"machine"` // the number of the processor in PE files
	Signed  bool   `json:"signed"`  // there is a signature, of whatever worth
	Parts   []Part `json:"parts"`   // of a unified kernel image, in the order of the file
}

// ErrImage is wrapped by every error about the contents of an image that is read.
var ErrImage = errors.New("not a unified kernel image")

// ErrNoProgram is the ErrImage of a file that is not even a program.
var ErrNoProgram = fmt.Errorf("%w: it is not an EFI program", ErrImage)

// names are the sections that Read returns.
var names = []string{Release, Uname, Cmdline, Initrd, Linux}

// Read reads an image, which is untrusted. The parts share its memory.
func Read(image []byte) (Image, error) {
	if !bytes.HasPrefix(image, []byte(magic)) {
		return Image{}, ErrNoProgram
	}
	f, err := pe.NewFile(bytes.NewReader(image))
	if err != nil {
		return Image{}, fmt.Errorf("%w: %w", ErrImage, err)
	}
	extra, ok := f.OptionalHeader.(*pe.OptionalHeader64)
	if !ok || extra.Subsystem != application {
		return Image{}, fmt.Errorf("%w: it is not an EFI program for a 64-bit processor", ErrImage)
	}
	read := Image{Machine: f.Machine, Signed: signed(extra)}
	for _, h := range f.Sections {
		if !slices.Contains(names, h.Name) {
			continue
		}
		if slices.ContainsFunc(read.Parts, func(p Part) bool { return p.Name == h.Name }) {
			return Image{}, fmt.Errorf("%w: there are two sections %s", ErrImage, h.Name)
		}
		start, size := uint64(h.Offset), uint64(h.VirtualSize)
		if size > uint64(h.Size) || start+size > uint64(len(image)) {
			return Image{}, fmt.Errorf("%w: section %s is truncated", ErrImage, h.Name)
		}
		data := image[start : start+size]
		sum := sha256.Sum256(data)
		read.Parts = append(read.Parts, Part{h.Name, int64(size), hex.EncodeToString(sum[:]), data})
	}
	for _, name := range []string{Linux, Initrd} {
		if read.Part(name) == nil {
			return Image{}, fmt.Errorf("%w: it has no section %s", ErrImage, name)
		}
	}
	return read, nil
}

// Processor returns the name of the processor that an image is for.
func (m Image) Processor() string {
	switch m.Machine {
	case pe.IMAGE_FILE_MACHINE_AMD64:
		return "amd64"
	case pe.IMAGE_FILE_MACHINE_ARM64:
		return "arm64"
	}
	return fmt.Sprintf("processor %#x", m.Machine)
}

// Part returns the contents of a section; nil if there is none.
func (m Image) Part(name string) []byte {
	for _, p := range m.Parts {
		if p.Name == name {
			return p.Data
		}
	}
	return nil
}
