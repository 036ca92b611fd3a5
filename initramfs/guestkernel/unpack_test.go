package guestkernel

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"margay/initramfs/guestkernel/kerneltest"
)

// entryNote is the entry for virtual machines.
var entryNote = kerneltest.Note("Xen\x00", 18, "\x00\x00\x00\x01")

func zstdOf(t testing.TB, kernel []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return binary.LittleEndian.AppendUint32(w.EncodeAll(kernel, nil), uint32(len(kernel)))
}

func gzipOf(t testing.TB, kernel []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(kernel); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestUnpack(t *testing.T) {
	kernel := kerneltest.ELF(elf.EM_X86_64, kerneltest.Note("Linux\x00", 1, "x")+entryNote)
	for name, image := range map[string][]byte{
		"zstd": kerneltest.BootImage(zstdOf(t, kernel)),
		"gzip": kerneltest.BootImage(gzipOf(t, kernel)),
	} {
		if got, err := Unpack(image); err != nil || !bytes.Equal(got, kernel) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
}

// The error distinguishes a damaged image from one that cannot be entered directly, but boots.
func TestUnpackRefuses(t *testing.T) {
	good := zstdOf(t, kerneltest.ELF(elf.EM_X86_64, entryNote))
	old := kerneltest.BootImage(good)
	binary.LittleEndian.PutUint16(old[0x206:], 0x207)
	wrongSize := bytes.Clone(good)
	wrongSize[len(wrongSize)-1]++
	for name, c := range map[string]struct {
		image []byte
		want  error // nil: any other
	}{
		"no boot image":     {[]byte("MZ" + strings.Repeat("\x00", 1<<12)), ErrNotDirect},
		"nothing":           {nil, ErrNotDirect},
		"an old protocol":   {old, ErrNotDirect},
		"xz":                {kerneltest.BootImage([]byte("\xfd7zXZ\x00 and so on")), ErrNotDirect},
		"no entry":          {kerneltest.BootImage(zstdOf(t, kerneltest.ELF(elf.EM_X86_64, kerneltest.Note("Xen\x00", 17, "x")))), ErrNotDirect},
		"another's note":    {kerneltest.BootImage(zstdOf(t, kerneltest.ELF(elf.EM_X86_64, kerneltest.Note("Xem\x00", 18, "x")))), ErrNotDirect},
		"a torn note":       {kerneltest.BootImage(zstdOf(t, kerneltest.ELF(elf.EM_X86_64, entryNote[:len(entryNote)-1]))), ErrNotDirect},
		"another processor": {kerneltest.BootImage(zstdOf(t, kerneltest.ELF(elf.EM_AARCH64, entryNote))), ErrNotDirect},
		"no ELF file":       {kerneltest.BootImage(zstdOf(t, []byte("text"))), ErrNotDirect},
		"cut off":           {kerneltest.BootImage(good)[:2200], nil},
		"a cut frame":       {kerneltest.BootImage(good[:len(good)/2]), nil},
		"a wrong size":      {kerneltest.BootImage(wrongSize), nil},
		"a cut gzip stream": {kerneltest.BootImage(gzipOf(t, kerneltest.ELF(elf.EM_X86_64, entryNote))[:40]), nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Unpack(c.image)
			if err == nil || errors.Is(err, ErrNotDirect) != (c.want == ErrNotDirect) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

// What Unpack accepts is an ELF file with the entry.
func FuzzUnpack(f *testing.F) {
	kernel := kerneltest.ELF(elf.EM_X86_64, entryNote)
	f.Add(kerneltest.BootImage(zstdOf(f, kernel)))
	f.Add(kerneltest.BootImage(gzipOf(f, kernel)))
	f.Fuzz(func(t *testing.T, image []byte) {
		if kernel, err := Unpack(image); err == nil && !entersDirectly(kernel) {
			t.Error("accepted")
		}
	})
}

// Notes are read to their end, whatever their lengths say.
func FuzzNotes(f *testing.F) {
	f.Add([]byte(entryNote))
	f.Add([]byte(kerneltest.Note("Linux\x00", 1, "x") + entryNote))
	f.Fuzz(func(t *testing.T, notes []byte) {
		if hasEntryNote(notes) && !bytes.Contains(notes, []byte("Xen\x00")) {
			t.Error("found")
		}
	})
}
