// Package kexec starts another Linux in the place of the one that runs, without the firmware. The
// kernel and its initramfs come in pieces, are kept in memory, and are loaded only if their hashes
// are the expected ones.
//
// Locks: Loader.mu guards the pieces.
package kexec

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/node"
	"margay/kernel/hardware"
)

// Part is a file of an image.
type Part int

// The files of an image.
const (
	Kernel Part = iota
	Initramfs
	parts
)

// Hashes are the SHA-256 hashes of the files of an image.
type Hashes [parts][]byte

func (p Part) String() string { return [...]string{"kernel", "node image"}[p] }

// Errors about an image.
var (
	ErrPiece = errors.New("a piece is missing")
	ErrHash  = errors.New("its content is not the expected one")
	ErrRoom  = errors.New("there is not enough free memory")
)

// A Loader collects the pieces of one image at a time. The zero value is ready. It is safe for
// concurrent use.
type Loader struct {
	mu    sync.Mutex
	files [parts]*os.File // in memory
	sizes [parts]int64    // bytes
}

// Write adds a piece of a part. Pieces come in order; one at offset 0 discards the part's earlier
// ones. A piece that is not the next one is ErrPiece. Another error discards the image.
func (l *Loader) Write(p Part, offset uint64, data []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if offset == 0 {
		if err := l.begin(p); err != nil {
			return err
		}
	}
	if l.files[p] == nil || offset != uint64(l.sizes[p]) {
		return fmt.Errorf("%v: %w before byte %d", p, ErrPiece, offset)
	}
	n, err := l.files[p].Write(data)
	l.sizes[p] += int64(n)
	if err != nil { // there is no memory for it
		l.discardAll()
		return fmt.Errorf("%v: %w", p, err)
	}
	return nil
}

// begin makes a part empty. The caller holds l.mu.
func (l *Loader) begin(p Part) error {
	l.discard(p)
	fd, err := unix.MemfdCreate(p.String(), unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("%v: %w", p, err)
	}
	l.files[p] = os.NewFile(uintptr(fd), p.String())
	return nil
}

func (l *Loader) discard(p Part) {
	if l.files[p] != nil {
		l.files[p].Close()
	}
	l.files[p], l.sizes[p] = nil, 0
}

// discardAll discards the image. The caller holds l.mu.
func (l *Loader) discardAll() {
	for p := range parts {
		l.discard(p)
	}
}

// Load checks the hashes of the parts (SHA-256), hands them to Linux with the command line of the
// new kernel, and discards them. It leaves nothing of an image that it refuses, also for lack of
// memory (ErrRoom).
func (l *Loader) Load(hashes Hashes, cmdline string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.discardAll()
	for p := range parts {
		if err := l.check(p, hashes[p]); err != nil {
			return err
		}
		if err := l.seal(p); err != nil {
			return err
		}
	}
	if err := l.checkRoom(hardware.FreeMemory); err != nil {
		return err
	}
	if err := unix.KexecFileLoad(int(l.files[Kernel].Fd()), int(l.files[Initramfs].Fd()), cmdline, 0); err != nil {
		return fmt.Errorf("load the kernel: %w", err)
	}
	return nil
}

// check compares the hash of a part. The caller holds l.mu.
func (l *Loader) check(p Part, hash []byte) error {
	if l.files[p] == nil {
		return fmt.Errorf("%v: %w", p, ErrPiece)
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(l.files[p], 0, l.sizes[p])); err != nil {
		return fmt.Errorf("%v: %w", p, err)
	}
	if !bytes.Equal(sum.Sum(nil), hash) {
		return fmt.Errorf("%v: %w", p, ErrHash)
	}
	return nil
}

// checkRoom refuses an image that Linux has no memory to load. The function free returns the bytes
// that are free. Without free pages, Linux would kill the node kernel, again and again. The caller
// holds l.mu.
func (l *Loader) checkRoom(free func() (int64, error)) error {
	head := make([]byte, headerSize)
	n, err := l.files[Kernel].ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%v: %w", Kernel, err)
	}
	head = head[:n]
	// Linux has a copy of each part while it moves them to where they will run.
	needed := 2*l.sizes[Initramfs] + l.sizes[Kernel] + max(runSize(head), l.sizes[Kernel])
	have, err := free()
	if err != nil {
		return err
	}
	if have < needed {
		return fmt.Errorf("load the kernel: %w: %d MiB; it takes %d MiB", ErrRoom, have>>20, (needed+1<<20-1)>>20)
	}
	return nil
}

// headerSize is how much of a kernel runSize reads, in bytes.
const headerSize = 0x264

// runSize returns the memory that a kernel takes where it runs, in bytes, before it can allocate
// any: init_size of the header of amd64 (Documentation/arch/x86/boot.rst), or image_size of arm64's
// (Documentation/arch/arm64/booting.rst). 0: the file does not say.
func runSize(head []byte) int64 {
	if len(head) == headerSize && string(head[0x202:0x206]) == "HdrS" {
		return int64(binary.LittleEndian.Uint32(head[0x260:]))
	}
	if len(head) >= 0x3c && string(head[0x38:0x3c]) == "ARM\x64" {
		return int64(min(binary.LittleEndian.Uint64(head[0x10:]), math.MaxInt32))
	}
	return 0
}

// seal opens a part for reading alone: Linux loads no file that can be written. The caller holds
// l.mu.
func (l *Loader) seal(p Part) error {
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", l.files[p].Fd()))
	if err != nil {
		return fmt.Errorf("%v: %w", p, err)
	}
	l.files[p].Close()
	l.files[p] = f
	return nil
}

// Start starts what Load has handed to Linux. All processes end without notice. It returns only
// with an error, and Linux has discarded the image then.
func (l *Loader) Start() error {
	err := unix.Reboot(unix.LINUX_REBOOT_CMD_KEXEC)
	if err == nil {
		return nil
	}
	return errors.Join(fmt.Errorf("start the loaded kernel: %w", err), l.Unload())
}

// Unload makes Linux discard what Load has handed to it.
func (l *Loader) Unload() error {
	if err := unix.KexecFileLoad(-1, -1, "", unix.KEXEC_FILE_UNLOAD); err != nil {
		return fmt.Errorf("discard the loaded kernel: %w", err)
	}
	return nil
}

// Running returns the name of the image of the running Linux, from its command line; empty if it
// has none.
func Running() (string, error) {
	cmdline, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return "", fmt.Errorf("name of the image: %w", err)
	}
	return named(string(cmdline)), nil
}

// named returns the image that a kernel command line names. The last word counts.
func named(cmdline string) (image string) {
	for word := range strings.FieldsSeq(cmdline) {
		if value, found := strings.CutPrefix(word, node.ImageWord+"="); found {
			image = value
		}
	}
	return image
}
