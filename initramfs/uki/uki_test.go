package uki

import (
	"bytes"
	"crypto/sha256"
	"debug/pe"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"testing"

	"margay/initramfs/uki/ukitest"
)

// spoiled returns a stub that was changed.
func spoiled(spoil func(b []byte)) []byte {
	b := ukitest.Stub(8)
	spoil(b)
	return b
}

var sections = []Section{
	{Release, []byte("ID=test\n")}, {Uname, []byte("7")}, {Cmdline, []byte("console=ttyS0")},
	{Initrd, bytes.Repeat([]byte("initrd"), 1000)}, {Linux, bytes.Repeat([]byte("linux"), 3000)},
}

func build(t *testing.T, stub []byte, sections []Section) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Build(stub, sections, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// An image has the parts that it was built of, in memory behind the stub and without overlap, and
// the same parts give the same bytes.
func TestBuild(t *testing.T) {
	stub := ukitest.Stub(len(sections))
	image := build(t, stub, sections)
	if !bytes.Equal(image, build(t, stub, sections)) {
		t.Error("two builds differ")
	}
	if bytes.Contains(image, []byte("symbols")) {
		t.Error("the symbols of the stub are in the image")
	}
	read, err := Read(image)
	if err != nil {
		t.Fatal(err)
	}
	if read.Signed || read.Processor() != "amd64" || len(read.Parts) != len(sections) {
		t.Errorf("%+v", read)
	}
	for i, s := range sections {
		sum := sha256.Sum256(s.Data)
		if p := read.Parts[i]; p.Name != s.Name || !bytes.Equal(p.Data, s.Data) || p.Size != int64(len(s.Data)) || p.SHA256 != hex.EncodeToString(sum[:]) {
			t.Errorf("section %s: %s, %d bytes, %s", s.Name, p.Name, p.Size, p.SHA256)
		}
	}
	f, err := pe.NewFile(bytes.NewReader(image))
	if err != nil {
		t.Fatal(err)
	}
	h := f.OptionalHeader.(*pe.OptionalHeader64)
	var memory, stored uint32
	for i, s := range f.Sections {
		if s.VirtualAddress < memory || s.Offset < stored || s.Offset%512 != 0 || i > 0 && s.VirtualAddress%page != 0 {
			t.Errorf("section %s at %#x in memory, %#x in the file", s.Name, s.VirtualAddress, s.Offset)
		}
		memory, stored = s.VirtualAddress+s.VirtualSize, s.Offset+s.Size
	}
	if h.SizeOfImage < memory || h.SizeOfImage%512 != 0 || int(stored) != len(image) || h.CheckSum != 0 || f.NumberOfSymbols != 0 {
		t.Errorf("%d bytes in memory of %d, %d of %d in the file, checksum %d", h.SizeOfImage, memory, stored, len(image), h.CheckSum)
	}
}

// Stubs and sections that give no image are refused.
func TestRefused(t *testing.T) {
	header := func(b []byte) []byte { return b[ukitest.Option:] }
	for _, c := range []struct {
		name, want string
		stub       []byte
		sections   []Section
	}{
		{"a text", "not a PE file", []byte("#!/bin/sh"), sections},
		{"cut in its headers", ErrStub.Error(), ukitest.Stub(8)[:100], sections},
		{"cut in its section", "truncated", ukitest.Stub(8)[:1000], sections},
		{"for Windows", "not an EFI program", spoiled(func(b []byte) { header(b)[68] = 3 }), sections},
		{"signed", "it is signed", spoiled(func(b []byte) { header(b)[optionTable+8*pe.IMAGE_DIRECTORY_ENTRY_SECURITY+4] = 1 }), sections},
		{"odd alignment", "aligned to", spoiled(func(b []byte) { header(b)[36] = 3 }), sections},
		{"large alignment", "aligned to", spoiled(func(b []byte) { header(b)[35] = 0x80 }), sections},
		{"high in memory", "firmware cannot load it", spoiled(func(b []byte) { header(b)[240+15] = 0xff }), sections},
		{"no room", "no room for 40 more sections", ukitest.Stub(8), make([]Section, 40)},
		{"long name", "cannot be used", ukitest.Stub(8), []Section{{"123456789", []byte("a")}}},
		{"empty", "it is empty", ukitest.Stub(8), []Section{{Linux, nil}}},
		{"the stub's", "there is one already", ukitest.Stub(8), []Section{{".text", []byte("a")}}},
		{"twice", "there is one already", ukitest.Stub(8), []Section{{Linux, []byte("a")}, {Linux, []byte("a")}}},
	} {
		var b bytes.Buffer
		if err := Build(c.stub, c.sections, &b); err == nil || !strings.Contains(err.Error(), c.want) || b.Len() > 0 {
			t.Errorf("%s: %v, %d bytes", c.name, err, b.Len())
		}
	}
}

// Files without the parts of an image are refused.
func TestRead(t *testing.T) {
	whole := build(t, ukitest.Stub(8), sections)
	for _, c := range []struct {
		name, want string
		image      []byte
	}{
		{"truncated", "section .linux is truncated", whole[:len(whole)-600]},
		{"without a kernel", "no section .linux", build(t, ukitest.Stub(8), sections[:4])},
		{"without an image", "no section .initrd", build(t, ukitest.Stub(8), sections[4:])},
		{"no stub", "section", ukitest.Stub(8)},
	} {
		if _, err := Read(c.image); !errors.Is(err, ErrImage) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, err := Read([]byte("070701")); !errors.Is(err, ErrNoProgram) {
		t.Errorf("a node image: %v", err)
	}
	signed := slices.Clone(whole)
	signed[ukitest.Option+optionTable+8*pe.IMAGE_DIRECTORY_ENTRY_SECURITY+4] = 1
	if m, err := Read(signed); err != nil || !m.Signed {
		t.Errorf("signed: %+v, %v", m, err)
	}
}

// No input makes the reader or the writer fail otherwise than by an error, and what the writer
// makes has the sections that it was given.
func FuzzImage(f *testing.F) {
	f.Add(ukitest.Stub(8), []byte("kernel"))
	f.Add(ukitest.Stub(0), []byte(""))
	var whole bytes.Buffer
	if err := Build(ukitest.Stub(8), sections, &whole); err != nil {
		f.Fatal(err)
	}
	f.Add(whole.Bytes(), []byte("a"))
	f.Fuzz(func(t *testing.T, program, data []byte) {
		if m, err := Read(program); err == nil && (m.Part(Linux) == nil || m.Part(Initrd) == nil) {
			t.Errorf("accepted without a kernel or an image: %+v", m)
		}
		var b bytes.Buffer
		if err := Build(program, []Section{{Initrd, data}, {Linux, data}}, &b); err != nil {
			return
		}
		if m, err := Read(b.Bytes()); err != nil || !bytes.Equal(m.Part(Initrd), data) || !bytes.Equal(m.Part(Linux), data) {
			t.Errorf("built, and not read: %v", err)
		}
	})
}
