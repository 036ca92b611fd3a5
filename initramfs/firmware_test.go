package initramfs

import (
	"bytes"
	"context"
	"debug/elf"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// wanting returns a spec whose only module names firmware files.
func wanting(t *testing.T, names ...string) Spec {
	t.Helper()
	s := testSpec(t)
	info := "license=GPL\x00name=card\x00alias=pci:v1d*\x00"
	for _, name := range names {
		info += "firmware=" + name + "\x00"
	}
	write(t, filepath.Join(s.Kernel.Modules, "kernel/drivers/net/card.ko"), elfFile(elf.EM_X86_64, elf.ET_REL, ".modinfo", []byte(info), elf.PT_NULL))
	s.Modules = []Module{{Name: "card", Driver: true}}
	return s
}

// folderOf makes a folder with files. A text that begins with "->" is the target of a symbolic
// link.
func folderOf(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		target, link := strings.CutPrefix(text, "->")
		if !link {
			write(t, path, []byte(text))
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// firmwareIn returns the firmware files of an image, in the form of folderOf.
func firmwareIn(t *testing.T, image []byte) map[string]string {
	t.Helper()
	files := map[string]string{}
	for path, record := range unpacked(t, image) {
		name, below := strings.CutPrefix(path, firmwareDir[1:]+"/")
		switch mode := goMode(uint32(record.Mode)); {
		case below && mode.IsRegular():
			files[name] = contentOf(t, record)
		case below && mode.Type() == fs.ModeSymlink:
			files[name] = "->" + contentOf(t, record)
		}
	}
	return files
}

// An image has those firmware files that its modules name, not compressed, with the symbolic links
// that lead to them, each from the first folder that has it. It has no others.
func TestFirmware(t *testing.T) {
	first := folderOf(t, map[string]string{
		"net/a.bin": "a", "net/other.bin": "not named", "z.bin.zst": string(zstdBytes(t, []byte("z"))), "x.bin.xz": string(xzBytes(t, []byte("x"), "--format=xz")),
		"deep/link.pkg": "->link-2.pkg", "deep/link-2.pkg": "link", "linked.zst": "->sub/linked-1.zst", "sub/linked-1.zst": string(zstdBytes(t, []byte("linked"))),
		"folders": "->net", "up/more.pkg": "->../deep/link.pkg", "dangling": "->nowhere", "../outside": "outside",
	})
	second := folderOf(t, map[string]string{"net/a.bin": "another", "dangling": "second", "late.bin": ""})
	s := wanting(t, "net/a.bin", "z.bin", "x.bin", "deep/link.pkg", "up/more.pkg", "linked", "folders/a.bin", "dangling", "late.bin", "none.bin", "net/a.bin", "../outside", "/etc/passwd", "", ".")
	if image, m := build(t, s); len(firmwareIn(t, image)) != 0 || m.Firmware != nil || m.NoFirmware != nil {
		t.Errorf("an image that nobody asked for firmware has %v, without %v", m.Firmware, m.NoFirmware)
	}
	names, err := FirmwareNames(t.Context(), s)
	if err != nil || len(names) != 14 || !slices.IsSorted(names) {
		t.Errorf("the modules name %q, %v", names, err)
	}
	s.Firmware = []string{first, second}
	image, m := build(t, s)
	want := map[string]string{
		"net/a.bin": "a", "z.bin": "z", "x.bin": "x", "deep/link.pkg": "->link-2.pkg", "deep/link-2.pkg": "link", "up/more.pkg": "->../deep/link.pkg",
		"linked": "->sub/linked-1", "sub/linked-1": "linked", "folders/a.bin": "a", "dangling": "second", "late.bin": "",
	}
	if got := firmwareIn(t, image); !reflect.DeepEqual(got, want) {
		t.Errorf("the image has\n%q; want\n%q", got, want)
	}
	if absent := []string{"", ".", "../outside", "/etc/passwd", "none.bin"}; !slices.Equal(m.NoFirmware, absent) || len(m.Firmware) != 9 {
		t.Errorf("the image has %q, without %q", m.Firmware, m.NoFirmware)
	}
	if again, _ := build(t, s); !bytes.Equal(image, again) {
		t.Error("the same files make another image")
	}
	if text := m.FirmwareText(); !strings.HasPrefix(text, "firmware files of network cards: 9, 0.0 MB unpacked; drivers name ") || !strings.Contains(text, "none.bin") {
		t.Errorf("described as %q", text)
	}
	// A copy has what an image has.
	copied := t.TempDir()
	if there, err := CopyFirmware(t.Context(), s.Firmware, names, copied); err != nil || !slices.Equal(there, m.Firmware) {
		t.Errorf("copied %q, %v", there, err)
	}
	s.Firmware = []string{copied}
	if again, _ := build(t, s); !bytes.Equal(image, again) {
		t.Error("copied files make another image")
	}
}

// A name that leads to no firmware file is an error with the name, the folder and the way out.
func TestFirmwareErrors(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"outside":  {map[string]string{"a.bin": "->../../etc/passwd"}, "copy the file into the folder"},
		"absolute": {map[string]string{"a.bin": "->/etc/passwd"}, "copy the file into the folder"},
		"cycle":    {map[string]string{"a.bin": "->b.bin", "b.bin": "->a.bin"}, "more than 40 symbolic links"},
		"folder":   {map[string]string{"a.bin/b": ""}, "it is not a file"},
		"damaged":  {map[string]string{"a.bin.zst": "nonsense"}, "magic number"},
	} {
		t.Run(name, func(t *testing.T) {
			s := wanting(t, "a.bin")
			s.Firmware = []string{folderOf(t, c.files)}
			_, err := Build(context.Background(), s, new(bytes.Buffer))
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "firmware file a.bin in "+s.Firmware[0]) {
				t.Errorf("error %v", err)
			}
		})
	}
	s := wanting(t, "a.bin")
	s.Firmware = []string{"/nonexistent"}
	if _, err := Build(context.Background(), s, new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), "firmware files: open /nonexistent") {
		t.Errorf("no folder: %v", err)
	}
}
