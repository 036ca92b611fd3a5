// Package qemu starts, monitors and stops virtual machines. A VM is one QEMU process that boots a
// kernel and an initramfs, has a serial console and at most one network card, and dies with the
// process that started it.
//
//	emulator, err := qemu.Find(ctx, qemu.AMD64, "")   // finds the program, checks its version
//	vm, err := emulator.Start(ctx, qemu.Config{...})   // returns when the process runs
//	<-vm.Done()                                        // it ended: vm.Exit() says how
//
// The packages below it are independent: vswitch connects VMs, netstack connects this process to
// them, console keeps their output, child starts processes that die with their parent.
//
// By default, guests are emulated (TCG). KVM is used only on request, and should be requested only
// after ProbeKVM: /dev/kvm may exist and yet hang every guest.
package qemu

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// An Arch is the architecture of a guest, by Go's name.
type Arch string

// AMD64 is the 64-bit x86 architecture. Linux calls its serial console ttyS0.
const AMD64 Arch = "amd64"

// arches says how each architecture is emulated.
var arches = map[Arch]struct {
	binary  string
	machine string
	cpu     map[Accel]string
	pkg     string // that contains the binary on Debian and Ubuntu
}{
	AMD64: {
		binary: "qemu-system-x86_64",
		// hpet: Linux uses it at boot and leaves its timer running, 250 times a second.
		machine: "q35,hpet=off",
		// cx16: QEMU 7.2, used if no newer one is available, corrupts the flags around an emulated
		// cmpxchg16b, and Linux guests crash at random. erms, fsrm: with these flags Linux copies
		// by "rep movsb", which is emulated a byte at a time. Without them a guest sends and
		// receives two to three times as much. aes: emulated AES-GCM is half as fast as ChaCha20,
		// which TLS selects if the processor has no AES.
		cpu: map[Accel]string{TCG: "max,-cx16,-erms,-fsrm,-aes", KVM: "host"},
		pkg: "qemu-system-x86",
	},
}

// An Accel selects how a guest's instructions are executed.
type Accel string

// The accelerators.
const (
	TCG Accel = "tcg" // emulation; works everywhere
	KVM Accel = "kvm" // hardware virtualization
)

// A Version is a version of QEMU.
type Version struct{ Major, Minor, Micro int }

// MinVersion is the first version whose VMs can be connected to a vswitch: it introduced "-netdev
// stream".
var MinVersion = Version{7, 2, 0}

// SoundVersion is the first version that correctly emulates a guest which patches its own code
// while several CPUs run it, as Linux does: since then QEMU translates code under the lock of its
// page. An older version may run an instruction that has already been replaced, usually the
// breakpoint that Linux puts there during the change, and Linux oopses.
var SoundVersion = Version{8, 1, 0}

// String returns the version as QEMU prints it.
func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Micro) }

func (v Version) less(o Version) bool {
	return slices.Compare([]int{v.Major, v.Minor, v.Micro}, []int{o.Major, o.Minor, o.Micro}) < 0
}

// An Emulator is an installed QEMU that is able to run VMs. It is immutable.
type Emulator struct {
	arch     Arch
	path     string
	firmware []string
	version  Version
}

// Path returns the program's absolute path.
func (e *Emulator) Path() string { return e.path }

// Firmware returns the firmware folders given to Find.
func (e *Emulator) Firmware() []string { return slices.Clone(e.firmware) }

// Sound reports whether the program is of SoundVersion or newer.
func (e *Emulator) Sound() bool { return !e.version.less(SoundVersion) }

// Version returns the program's version.
func (e *Emulator) Version() Version { return e.version }

// versionTimeout bounds a run of QEMU with -version.
const versionTimeout = 10 * time.Second

// Find looks for the QEMU of an architecture. The binary is a path or a name in PATH; empty selects
// the usual name. QEMU looks for firmware in the given folders before its built-in ones. The error
// names the package to install; it wraps exec.ErrNotFound if there is no such program.
func Find(ctx context.Context, arch Arch, binary string, firmware ...string) (*Emulator, error) {
	row, ok := arches[arch]
	if !ok {
		return nil, fmt.Errorf("qemu: architecture %q, want one of %v", arch, slices.Sorted(maps.Keys(arches)))
	}
	if binary == "" {
		binary = row.binary
	}
	path, err := exec.LookPath(binary)
	if err != nil {
		return nil, fmt.Errorf("qemu: %w (on Debian or Ubuntu: apt-get install %s)", err, row.pkg)
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, fmt.Errorf("qemu: %s: %w", binary, err)
	}
	version, err := askVersion(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("qemu: version of %s: %w", path, err)
	}
	if version.less(MinVersion) {
		return nil, fmt.Errorf("qemu: %s has version %v, want %v or newer for -netdev stream (package %s of Debian 12 or newer)",
			path, version, MinVersion, row.pkg)
	}
	return &Emulator{arch: arch, path: path, firmware: firmware, version: version}, nil
}

// ROMFile is the boot program of the network card, an iPXE, for both firmwares of amd64.
const ROMFile = "efi-virtio.rom"

// romPackage contains ROMFile on Debian and Ubuntu.
const romPackage = "ipxe-qemu"

// CheckNetBoot returns an error that names the package to install unless VMs can boot from their
// network card.
func (e *Emulator) CheckNetBoot(ctx context.Context) error {
	out, err := e.ask(ctx, "-L", "help")
	if err != nil {
		return fmt.Errorf("qemu: folders of %s: %w", e.path, err)
	}
	for _, dir := range append(slices.Clone(e.firmware), strings.Fields(out)...) {
		if _, err := os.Stat(filepath.Join(dir, ROMFile)); err == nil {
			return nil
		}
	}
	return fmt.Errorf("qemu: %s has no %s, from which virtual machines boot over the network (on Debian or Ubuntu: apt-get install %s)",
		e.path, ROMFile, romPackage)
}

func askVersion(ctx context.Context, path string) (Version, error) {
	out, err := (&Emulator{path: path}).ask(ctx, "--version")
	if err != nil {
		return Version{}, err
	}
	return parseVersion(out)
}

// ask runs the program for an answer.
func (e *Emulator) ask(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, e.path, args...)
	cmd.WaitDelay = waitDelay
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return "", fmt.Errorf("no answer: %w", ctx.Err())
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return "", fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	return string(out), err
}

var versionPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^QEMU emulator version (\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?`)
})

func parseVersion(out string) (Version, error) {
	m := versionPattern().FindStringSubmatch(out)
	if m == nil {
		return Version{}, fmt.Errorf("not a QEMU: its version reads %.80q", out)
	}
	number := func(s string) int {
		n, _ := strconv.Atoi(s) // digits by the pattern; the micro version may be absent
		return n
	}
	return Version{number(m[1]), number(m[2]), number(m[3])}, nil
}
