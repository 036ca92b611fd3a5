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

// fewClusters is the number of clusters of small disks. They have too few for a FAT32, which the
// reader does not mind.
const fewClusters = 100

func disk(t testing.TB, name string, program []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := write(name, program, fewClusters, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A disk has the program that it was made with, and the same program gives the same bytes.
func TestRoundTrip(t *testing.T) {
	random := rand.NewChaCha8([32]byte{byte(check.Seed(t))})
	for _, size := range []int{1, sector - 1, sector, sector + 1, (fewClusters - directories) * sector, fewClusters * sector, 200_000} {
		program := make([]byte, size)
		_, _ = random.Read(program) // never fails
		image := disk(t, "BOOTX64.EFI", program)
		if len(image)%(partition*sector) != 0 || !Is(image) {
			t.Errorf("%d bytes: a disk of %d", size, len(image))
		}
		name, got, err := Read(image)
		if err != nil || name != "BOOTX64.EFI" || !bytes.Equal(got, program) {
			t.Errorf("%d bytes: %q, %d bytes, %v", size, name, len(got), err)
		}
		if !bytes.Equal(image, disk(t, "BOOTX64.EFI", program)) {
			t.Errorf("%d bytes: two disks differ", size)
		}
	}
}

// A disk for firmware has enough clusters for a FAT32, and at most as many as its table has.
func TestWhole(t *testing.T) {
	var b bytes.Buffer
	if err := Write("BOOTX64.EFI", []byte("program"), &b); err != nil {
		t.Fatal(err)
	}
	if name, program, err := Read(b.Bytes()); err != nil || name != "BOOTX64.EFI" || string(program) != "program" {
		t.Errorf("%q, %q, %v", name, program, err)
	}
	boot := b.Bytes()[partition*sector:]
	fat := int(little.Uint32(boot[36:]))
	clusters := int(little.Uint32(boot[32:])) - reserved - tables*fat
	if clusters < 65_525 || (clusters+firstCluster)*4 > fat*sector {
		t.Errorf("%d clusters, tables of %d sectors", clusters, fat)
	}
}

// The copy of the table at the end of the disk leads to the same partition, and a larger disk keeps
// its files.
func TestTables(t *testing.T) {
	image := disk(t, "BOOTAA64.EFI", []byte("program"))
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
		if entries := little.Uint64(h[72:]); (own == 1) != (entries == firstEntries) || own > 1 && entries+entrySectors != own {
			t.Errorf("header at %d, its entries at %d", own, entries)
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
	whole := disk(t, "A.EFI", bytes.Repeat([]byte("program"), 1000))
	volume := whole[partition*sector:]
	fat := reserved * sector
	directory := fat + 2*planFor(7000, fewClusters).fat*sector
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
	whole := disk(f, "A.EFI", bytes.Repeat([]byte("program"), 300))
	f.Add(uint32(0), []byte{0}, uint16(0))
	f.Add(uint32(partition*sector+11), []byte{0, 2, 255, 1}, uint16(0))
	f.Add(uint32(2*sector+32), []byte{255, 255}, uint16(3))
	f.Fuzz(func(t *testing.T, at uint32, change []byte, cut uint16) {
		image := slices.Clone(whole[:len(whole)-int(cut)%partition*sector])
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
