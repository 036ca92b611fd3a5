package initramfs

import (
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
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
