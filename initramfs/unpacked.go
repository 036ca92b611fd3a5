package initramfs

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"margay/initramfs/guestkernel"
)

const (
	kernelSuffix = ".elf"
	keepKernels  = 2
)

// UnpackedKernel returns the path in cacheDir of the unpacked kernel of an x86 boot image, and
// unpacks it if necessary: see guestkernel.Unpack, whose error is passed on. The hash of the boot
// image identifies a kernel. The newest few are kept.
func UnpackedKernel(image, cacheDir string) (string, error) {
	packed, err := os.ReadFile(image)
	if err != nil {
		return "", err
	}
	key := sha256.Sum256(packed)
	path := filepath.Join(cacheDir, hex.EncodeToString(key[:16])+kernelSuffix)
	if now := time.Now(); os.Chtimes(path, now, now) == nil {
		return path, nil
	}
	kernel, err := guestkernel.Unpack(packed)
	if err != nil {
		return "", fmt.Errorf("kernel %s: %w", image, err)
	}
	if err := os.MkdirAll(cacheDir, 0o755); err != nil {
		return "", err
	}
	err = Replace(path, 0o600, func(f *os.File) error {
		_, err := f.Write(kernel)
		return errors.Join(err, f.Sync()) // nothing checks the file later
	})
	if err != nil {
		return "", fmt.Errorf("store kernel %s: %w", path, err)
	}
	if err := prune(cacheDir, kernelSuffix, keepKernels); err != nil {
		return "", fmt.Errorf("prune kernel cache %s: %w", cacheDir, err)
	}
	return path, nil
}
