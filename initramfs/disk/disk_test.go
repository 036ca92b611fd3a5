package disk

import (
	"bytes"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"margay/internal/check"
)

func write(t testing.TB, name string, program []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(name, program, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A disk has the program that it was made with, and the same program gives the same bytes.
func TestRoundTrip(t *testing.T) {
	random := rand.NewChaCha8([32]byte{byte(check.Seed(t))})
	for _, size := range []int{1, sector - 1, sector, sector + 1, 100_000, leastClusters*sector + 1} {
		program := make([]byte, size)
		_, _ = random.Read(program) // never fails
		image := write(t, "BOOTX64.EFI", program)
		if len(image)%(partition*sector) != 0 || !Is(image) {
			t.Errorf("%d bytes: a disk of %d", size, len(image))
		}
		name, got, err := Read(image)
		if err != nil || name != "BOOTX64.EFI" || !bytes.Equal(got, program) {
			t.Errorf("%d bytes: %q, %d bytes, %v", size, name, len(got), err)
		}
		if size == 100_000 && !bytes.Equal(image, write(t, "BOOTX64.EFI", program)) {
			t.Error("two disks differ")
		}
	}
}

// The copy of the table at the end of the disk leads to the same partition, and a larger disk keeps
// its files.
func TestTables(t *testing.T) {
	image := write(t, "BOOTAA64.EFI", []byte("program"))
	header := image[len(image)-sector:]
	entries := image[len(image)-sector-entrySectors*sector : len(image)-sector]
	if string(header[:8]) != "EFI PART" || !bytes.Equal(entries, image[2*sector:(2+entrySectors)*sector]) {
		t.Error("there is no copy of the table")
	}
	for _, h := range [][]byte{header, image[sector : 2*sector]} {
		own := little.Uint64(h[24:])
		if !bytes.Equal(image[own*sector:(own+1)*sector], h) || crc32.ChecksumIEEE(entries) != little.Uint32(h[88:]) ||
			!bytes.Equal(image[little.Uint64(h[72:])*sector:][:len(entries)], entries) {
			t.Errorf("header at %d", own)
		}
		if other := little.Uint64(h[32:]); own+other != uint64(len(image)/sector) {
			t.Errorf("header at %d, the other at %d", own, other)
		}
	}
	if name, program, err := Read(append(image, make([]byte, 1<<20)...)); err != nil || name != "BOOTAA64.EFI" || string(program) != "program" {
		t.Errorf("on a larger disk: %q, %q, %v", name, program, err)
	}
}

func TestRefused(t *testing.T) {
	for _, name := range []string{"", ".EFI", "bootx64.efi", "BOOTX64LONG.EFI", "BOOTX64.EFIX", "A B.EFI", "A.B.C"} {
		if err := Write(name, []byte("a"), new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), "cannot have the name") {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := Write("A.EFI", nil, new(bytes.Buffer)); err == nil {
		t.Error("an empty program was accepted")
	}
	whole := write(t, "A.EFI", bytes.Repeat([]byte("program"), 1000))
	volume := whole[partition*sector:]
	fat := reserved * sector
	directory := fat + 2*planFor(7000).fat*sector
	for _, c := range []struct {
		name, want string
		spoil      func(b []byte) []byte
	}{
		{"a text", "no GUID partition table", func([]byte) []byte { return []byte("text") }},
		{"cut in the table", "truncated", func(b []byte) []byte { return b[:3*sector] }},
		{"cut in the partition", "truncated", func(b []byte) []byte { return b[:(partition+1)*sector] }},
		{"a header that was changed", "damaged", func(b []byte) []byte { b[sector+40]++; return b }},
		{"entries that were changed", "damaged", func(b []byte) []byte { b[2*sector]++; return b }},
		{"no FAT32", "no FAT32", func(b []byte) []byte { b[len(b)-len(volume)+510]++; return b }},
		{"no folder", "folder EFI: there is none", func(b []byte) []byte { b[len(b)-len(volume)+directory+slot]++; return b }},
		{"no program", "program in EFI/BOOT: there is none", func(b []byte) []byte {
			b[len(b)-len(volume)+directory+2*sector+2*slot] = deleted
			return b
		}},
		{"a chain out of the disk", "truncated", func(b []byte) []byte {
			b[len(b)-len(volume)+fat+programCluster*4+2] = 0xff
			return b
		}},
		{"a large program", "truncated", func(b []byte) []byte {
			b[len(b)-len(volume)+directory+2*sector+2*slot+31] = 0x7f
			return b
		}},
	} {
		if _, _, err := Read(c.spoil(slices.Clone(whole))); !errors.Is(err, ErrDisk) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// FuzzRead changes some bytes of a disk, and repairs the checksums of its table, which would hide
// the rest. No disk makes the reader fail otherwise than by an error.
func FuzzRead(f *testing.F) {
	whole := write(f, "A.EFI", bytes.Repeat([]byte("program"), 300))
	f.Add(uint32(0), []byte{0}, uint16(0))
	f.Add(uint32(partition*sector+11), []byte{0, 2, 255, 1}, uint16(0))
	f.Add(uint32(2*sector+32), []byte{255, 255}, uint16(3))
	f.Fuzz(func(t *testing.T, at uint32, change []byte, cut uint16) {
		image := slices.Clone(whole[:len(whole)-int(cut)*sector])
		copy(image[int(at)%len(image):], change)
		h := image[sector : 2*sector]
		little.PutUint32(h[88:], crc32.ChecksumIEEE(image[2*sector:(2+entrySectors)*sector]))
		clear(h[16:20])
		little.PutUint32(h[16:], crc32.ChecksumIEEE(h[:tableHeader]))
		if _, program, err := Read(image); err == nil && len(program) > len(image) {
			t.Errorf("a program of %d bytes", len(program))
		}
	})
}
