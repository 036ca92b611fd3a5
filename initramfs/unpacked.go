package initramfs

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/u-root/u-root/pkg/cpio"

	"margay/initramfs/guestkernel"
)

const (
	kernelSuffix = ".elf"
	keepKernels  = 2
)

// UnpackImage replaces an image of Build by its archive, which Linux boots as well. An emulated
// processor would take half a second to unpack it at each boot, and as long to verify the
// signatures of the modules, which are removed if the kernel needs none.
func UnpackImage(path string, kernel guestkernel.Kernel) error {
	err := Replace(path, func(dst *os.File) error {
		archive, err := readPacked(path)
		switch {
		case err != nil:
			return err
		case kernel.TakesUnsigned():
			return copyUnsigned(dst, archive)
		}
		_, err = dst.Write(archive)
		return err
	})
	if err != nil {
		return fmt.Errorf("unpack node image %s: %w", path, err)
	}
	return nil
}

// readPacked returns the archive of the image at path.
func readPacked(path string) ([]byte, error) {
	src, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	d, err := newDecoder(src)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	archive, err := io.ReadAll(io.LimitReader(d, maxUnpacked+1))
	if err == nil && len(archive) > maxUnpacked {
		err = fmt.Errorf("more than %d bytes", int64(maxUnpacked))
	}
	return archive, err
}

// copyUnsigned writes the files of an archive, modules without their signatures.
func copyUnsigned(dst io.Writer, archive []byte) error {
	w := cpio.Newc.Writer(dst)
	err := cpio.ForEachRecord(cpio.Newc.Reader(bytes.NewReader(archive)), func(r cpio.Record) error {
		if strings.HasSuffix(r.Name, ".ko") {
			module, err := io.ReadAll(io.NewSectionReader(r, 0, int64(r.FileSize)))
			if err != nil {
				return err
			}
			r = cpio.StaticRecord(unsigned(module), r.Info)
		}
		return w.WriteRecord(r)
	})
	if err != nil {
		return err
	}
	return w.WriteRecord(cpio.TrailerRecord)
}

// A signed module ends with the signature, a structure with its length, and a mark
// (scripts/sign-file.c of Linux).
const (
	signatureMark    = "~Module signature appended~\n"
	signatureTrailer = 12 // bytes; the last four are the length, the most significant byte first
)

// unsigned returns a module without its signature, or the module itself if it has none.
func unsigned(module []byte) []byte {
	rest, ok := bytes.CutSuffix(module, []byte(signatureMark))
	if !ok || len(rest) < signatureTrailer {
		return module
	}
	signature := int64(binary.BigEndian.Uint32(rest[len(rest)-4:]))
	size := int64(len(rest)) - signatureTrailer - signature
	if size < 0 {
		return module
	}
	return rest[:size]
}

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
	err = Replace(path, func(f *os.File) error {
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
