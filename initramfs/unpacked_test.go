package initramfs

import (
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"margay/initramfs/guestkernel"
	"margay/initramfs/guestkernel/kerneltest"
)

// unpackedKernel is a kernel that differs from others in its name.
func unpackedKernel(name string) []byte {
	return kerneltest.ELF(elf.EM_X86_64, kerneltest.Note("Xen\x00", 18, name))
}

// packedKernel is the boot image of such a kernel.
func packedKernel(name string) []byte {
	return kerneltest.BootImage(gzipBytes(unpackedKernel(name)))
}

// A kernel that is in the cache is not unpacked again, and the newest few stay.
func TestUnpackedKernel(t *testing.T) {
	dir := t.TempDir()
	image := filepath.Join(dir, "vmlinuz")
	write(t, image, []byte("no boot image"))
	cache := filepath.Join(dir, "cache")
	if path, err := UnpackedKernel(image, cache); !errors.Is(err, guestkernel.ErrNotDirect) {
		t.Fatalf("%q, %v", path, err)
	}
	if _, err := UnpackedKernel(filepath.Join(dir, "none"), cache); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	write(t, image, packedKernel("one"))
	first, err := UnpackedKernel(image, cache)
	if err != nil {
		t.Fatal(err)
	}
	if kernel, err := os.ReadFile(first); err != nil || string(kernel) != string(unpackedKernel("one")) {
		t.Errorf("%q, %v", kernel, err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(first, old, old); err != nil {
		t.Fatal(err)
	}
	if again, err := UnpackedKernel(image, cache); err != nil || again != first {
		t.Errorf("%s, %v, want %s", again, err, first)
	}
	if info, err := os.Stat(first); err != nil || !info.ModTime().After(old) {
		t.Errorf("%v, %v: its use does not count", info, err)
	}
	if err := os.Chtimes(first, old, old); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"two", "three"} {
		write(t, image, packedKernel(name))
		path, err := UnpackedKernel(image, cache)
		if err != nil || path == first {
			t.Errorf("%s, %v", path, err)
		}
	}
	entries, err := os.ReadDir(cache)
	if _, gone := os.Stat(first); err != nil || len(entries) != keepKernels || !errors.Is(gone, os.ErrNotExist) {
		t.Errorf("%v are kept, %v", entries, err)
	}
}

// An unpacked image has the same files. The files of a node can be added to it.
func TestUnpackImage(t *testing.T) {
	image, _ := build(t, testSpec(t))
	want := unpack(t, image)
	path := write(t, filepath.Join(t.TempDir(), "image"), image)
	if err := UnpackImage(path, guestkernel.Kernel{}); err != nil {
		t.Fatal(err)
	}
	if err := WriteNodeImage(path, []File{{Path: "/margay/node.json", Data: []byte("{}")}}, path); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	entries, err := List(f)
	if err != nil || len(entries) <= len(want) {
		t.Errorf("%d files, of the image %d: %v", len(entries), len(want), err)
	}
	archive, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, record := range readArchive(t, archive) {
		if contentOf(t, record) != contentOf(t, want[name]) || record.Mode != want[name].Mode {
			t.Errorf("%s differs", name)
		}
	}
	if err := UnpackImage(path, guestkernel.Kernel{}); err == nil {
		t.Error("an archive was unpacked as an image")
	}
}

// signed is a module with a signature, as Linux's scripts/sign-file makes it.
func signed(module string, signature int) string {
	trailer := append(make([]byte, 8), byte(signature>>24), byte(signature>>16), byte(signature>>8), byte(signature))
	return module + strings.Repeat("s", signature) + string(trailer) + signatureMark
}

func TestUnsigned(t *testing.T) {
	for _, c := range []struct{ name, module, want string }{
		{"signed", signed("module", 263), "module"},
		{"empty signature", signed("module", 0), "module"},
		{"signed twice", signed(signed("module", 9), 9), signed("module", 9)},
		{"none", "module", "module"},
		{"empty", "", ""},
		{"mark alone", signatureMark, signatureMark},
		{"too long", signed("module", 263)[200:], signed("module", 263)[200:]},
		{"mark inside", signatureMark + "module", signatureMark + "module"},
	} {
		if got := unsigned([]byte(c.module)); string(got) != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// kernelWith returns a kernel with a configuration; empty: it is unknown.
func kernelWith(t *testing.T, config string) guestkernel.Kernel {
	t.Helper()
	root := t.TempDir()
	if config != "" {
		write(t, filepath.Join(root, "config-"+testVersion), []byte(config))
	}
	k, err := guestkernel.Open(write(t, filepath.Join(root, "vmlinuz-"+testVersion), nil), amd64(t))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// Modules lose their signatures in an image for a kernel that is known to take them like that, and
// nothing else changes.
func TestUnpackImageOfModules(t *testing.T) {
	module, lookalike := signed(string(moduleFile("extra", "")), 256), signed("no module", 3)
	spec := testSpec(t)
	spec.Files = append(spec.Files, File{Path: "/lib/modules/extra.ko", Data: []byte(module)}, File{Path: "/lookalike", Data: []byte(lookalike), Mode: 0o640})
	image, _ := build(t, spec)
	for name, c := range map[string]struct{ config, want string }{
		"unknown":       {"", module},
		"takes them":    {"CONFIG_MODULE_SIG=y\n", string(moduleFile("extra", ""))},
		"forced":        {"CONFIG_MODULE_SIG_FORCE=y\n", module},
		"lockdown":      {"CONFIG_LOCK_DOWN_KERNEL_FORCE_INTEGRITY=y\n", module},
		"more lockdown": {"CONFIG_LOCK_DOWN_KERNEL_FORCE_CONFIDENTIALITY=y\n", module},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, filepath.Join(t.TempDir(), "image"), image)
			if err := UnpackImage(path, kernelWith(t, c.config)); err != nil {
				t.Fatal(err)
			}
			archive, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			want, got := unpack(t, image), readArchive(t, archive)
			if len(got) != len(want) {
				t.Errorf("%d files, want %d", len(got), len(want))
			}
			for name, record := range got {
				content := contentOf(t, want[name])
				if name == "lib/modules/extra.ko" {
					content = c.want
				}
				if contentOf(t, record) != content || record.Mode != want[name].Mode || record.UID != want[name].UID {
					t.Errorf("%s differs", name)
				}
			}
		})
	}
}
