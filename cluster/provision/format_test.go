package provision

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"margay/initramfs"
	"margay/initramfs/disk"
	"margay/initramfs/guestkernel"
	"margay/initramfs/uki"
	"margay/initramfs/uki/ukitest"
)

// parts are the files that something bootable is made of.
type parts struct {
	image Image
	stub  string
	dir   string
}

func playedParts(t *testing.T) parts {
	t.Helper()
	dir := t.TempDir()
	path := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return parts{
		Image{Path: path("image", []byte("image")), Kernel: guestkernel.Kernel{Image: path("vmlinuz", []byte("MZ kernel")), Arch: "amd64", Version: "7.3"}},
		path("stub", ukitest.Stub(8)), dir,
	}
}

func hashOf(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// A unified kernel image has the very bytes of the node image and the kernel, and a disk has the
// very unified kernel image. Both are the same when they are made again.
func TestWriteBootable(t *testing.T) {
	p := playedParts(t)
	made := make(map[string]Bootable)
	for _, name := range []string{"1.efi", "2.efi", "1.disk", "2.disk"} {
		o := BootableOptions{Format: UKI, Path: filepath.Join(p.dir, name), Words: "console=ttyS1  quiet", Stub: p.stub, Machine: "0a"}
		if strings.HasSuffix(name, "disk") {
			o.Format = Disk
		}
		b, err := WriteBootable(t.Context(), p.image, o)
		if err != nil {
			t.Fatal(err)
		}
		if b.SHA256 != hashOf(t, b.Path) || b.Format != o.Format || b.Stub != p.stub || b.Size == 0 {
			t.Errorf("%+v", b)
		}
		made[name] = b
	}
	if made["1.efi"].SHA256 != made["2.efi"].SHA256 || made["1.disk"].SHA256 != made["2.disk"].SHA256 {
		t.Errorf("two builds differ: %+v", made)
	}
	program, err := os.ReadFile(made["1.efi"].Path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := uki.Read(program)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range m.Parts {
		if want := map[string]string{uki.Linux: p.image.Kernel.Image, uki.Initrd: p.image.Path}[part.Name]; want != "" && part.SHA256 != hashOf(t, want) {
			t.Errorf("section %s has other bytes", part.Name)
		}
	}
	line := string(m.Part(uki.Cmdline))
	if !strings.HasPrefix(line, "console=tty0 printk.devkmsg=on console=ttyS0 ") || !strings.HasSuffix(line, " margay.machine=0a console=ttyS1 quiet") || line != made["1.disk"].Cmdline {
		t.Errorf("command line %q", line)
	}
	image, err := os.ReadFile(made["1.disk"].Path)
	if err != nil {
		t.Fatal(err)
	}
	if name, inside, err := disk.Read(image); err != nil || name != "BOOTX64.EFI" || string(inside) != string(program) {
		t.Errorf("the disk has %q, %d bytes, %v", name, len(inside), err)
	}
	again, err := WriteDisk(made["1.efi"].Path, filepath.Join(p.dir, "3.disk"))
	if err != nil || again.SHA256 != made["1.disk"].SHA256 || again.Cmdline != line {
		t.Errorf("a disk of the unified kernel image: %+v, %v", again, err)
	}
}

// A file with a token is its owner's alone, and nothing that is printed has the token. So is a disk
// with such a program.
func TestWriteToken(t *testing.T) {
	p := playedParts(t)
	o := BootableOptions{Format: UKI, Path: filepath.Join(p.dir, "out"), Stub: p.stub, Token: "3-0a", Words: "quiet"}
	b, err := WriteBootable(t.Context(), p.image, o)
	if err != nil {
		t.Fatal(err)
	}
	onDisk, err := WriteDisk(b.Path, filepath.Join(p.dir, "disk"))
	if err != nil {
		t.Fatal(err)
	}
	for _, made := range []Bootable{b, onDisk} {
		if info, err := os.Stat(made.Path); err != nil || info.Mode().Perm() != 0o600 || strings.Contains(made.Cmdline, "3-0a") || !strings.HasSuffix(made.Cmdline, " quiet") {
			t.Errorf("%v, %v, %+v", err, info, made)
		}
	}
	program, err := os.ReadFile(b.Path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := uki.Read(program)
	if err != nil || string(m.Part(uki.Cmdline)) != b.Cmdline+" margay.token=3-0a" {
		t.Errorf("%q, %v", m.Part(uki.Cmdline), err)
	}
}

// Errors name their object, and leave no file.
func TestWriteBootableRefused(t *testing.T) {
	for _, c := range []struct {
		name, want string
		spoil      func(p *parts, o *BootableOptions)
	}{
		{"no EFI kernel", "vmlinuz is not an EFI program", func(p *parts, _ *BootableOptions) {
			if err := os.WriteFile(p.image.Kernel.Image, []byte("\x1f\x8b, compressed"), 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{"no stub", "image: not an EFI stub", func(p *parts, o *BootableOptions) { o.Stub = p.image.Path }},
		{"no such stub", "no such file", func(_ *parts, o *BootableOptions) { o.Stub += "s" }},
		{"token among the words", "give the token with --token", func(_ *parts, o *BootableOptions) { o.Words = "quiet margay.token=3-0a" }},
		{"line break", "line break", func(_ *parts, o *BootableOptions) { o.Machine = "a\nb" }},
		{"processor", `architecture "sparc"`, func(p *parts, _ *BootableOptions) { p.image.Kernel.Arch = "sparc" }},
	} {
		p := playedParts(t)
		o := BootableOptions{Format: UKI, Path: filepath.Join(p.dir, "out"), Stub: p.stub}
		c.spoil(&p, &o)
		_, err := WriteBootable(t.Context(), p.image, o)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "image of format uki: ") {
			t.Errorf("%s: %v", c.name, err)
		}
		if _, err := os.Lstat(o.Path); err == nil {
			t.Errorf("%s: there is a file", c.name)
		}
	}
	p := playedParts(t)
	if _, err := WriteDisk(p.stub, filepath.Join(p.dir, "out")); err == nil || !strings.Contains(err.Error(), "stub: not a unified kernel image") {
		t.Errorf("a disk of a stub: %v", err)
	}
}

// The node image alone is copied as it is.
func TestCopyOfImage(t *testing.T) {
	p := playedParts(t)
	out := filepath.Join(p.dir, "out")
	if err := initramfs.WriteNodeImage(p.image.Path, nil, out); err != nil || hashOf(t, out) != hashOf(t, p.image.Path) {
		t.Errorf("another file: %v", err)
	}
}

func TestCheckOutput(t *testing.T) {
	dir := t.TempDir()
	for path, want := range map[string]string{filepath.Join(dir, "new"): "", dir: "is not a file", os.DevNull: "dd if=FILE of=/dev/null", "-": "name a file"} {
		if err := CheckOutput(path); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := ParseFormat("iso"); err == nil || !strings.Contains(err.Error(), "use netboot, uki or disk") {
		t.Errorf("a format: %v", err)
	}
}
