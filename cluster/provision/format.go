package provision

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"margay/cluster/cache"
	"margay/cluster/provision/firmware"
	"margay/initramfs"
	"margay/initramfs/disk"
	"margay/initramfs/guestkernel"
	"margay/initramfs/uki"
	"margay/internal/progress"
	"margay/kernel/abi/node"
)

// Format is the form of a file with a node image.
type Format string

// The formats.
const (
	Netboot Format = "netboot" // the node image alone, for a boot program that brings kernel and command line
	UKI     Format = "uki"     // a unified kernel image: an EFI program with all that a node boots
	Disk    Format = "disk"    // a disk with that program, for UEFI firmware
)

// Formats are all of them.
var Formats = []Format{Netboot, UKI, Disk}

// Bootable describes a file that UEFI firmware boots.
type Bootable struct {
	Format  Format `json:"format"`
	Path    string `json:"path"`
	Size    int64  `json:"size"`           // bytes
	SHA256  string `json:"sha256"`         // of the file, in hexadecimal
	Cmdline string `json:"command_line"`   // without the token
	Stub    string `json:"stub,omitempty"` // path of the EFI stub that was used
}

// BootableOptions say how a file boots.
type BootableOptions struct {
	Format  Format // UKI or Disk
	Path    string // where it is written
	Profile initramfs.Profile
	Words   string // further ones of the kernel's command line
	Machine string // hash of the certificate of the machine that nodes join; empty: any
	Token   string // by which the machine that boots becomes a node; empty: none. The file is the owner's alone then
	Stub    string // path of an EFI stub; empty: the one of the distribution
	Told    progress.Func
}

// WriteBootable writes a file with a node image that UEFI firmware boots. A node that boots it
// seeks its configuration on the network (kernel/seek). The same image, options and stub give the
// same bytes.
func WriteBootable(ctx context.Context, image Image, o BootableOptions) (Bootable, error) {
	b, err := writeBootable(ctx, image, o)
	if err != nil {
		return Bootable{}, fmt.Errorf("image of format %s: %w", o.Format, err)
	}
	return b, nil
}

func writeBootable(ctx context.Context, image Image, o BootableOptions) (Bootable, error) {
	arch, err := guestkernel.ArchNamed(image.Kernel.Arch)
	if err != nil {
		return Bootable{}, err
	}
	b := Bootable{Format: o.Format, Path: o.Path, Stub: o.Stub}
	if b.Stub == "" {
		if b.Stub, err = findStub(ctx, arch, o.Told); err != nil {
			return Bootable{}, err
		}
	}
	words := append([]string{node.MachineWord + "=" + cmp.Or(o.Machine, node.AnyMachine)}, strings.Fields(o.Words)...)
	if b.Cmdline, err = initramfs.Cmdline(image.Kernel, o.Profile, initramfs.AllCores, words...); err != nil {
		return Bootable{}, err
	}
	b.Cmdline = ScreenToo + " " + b.Cmdline
	if _, secret := WithoutToken(b.Cmdline); secret {
		return Bootable{}, fmt.Errorf("the kernel command line has the word %s: give the token with --token, which keeps it from other users", node.TokenWord)
	}
	whole, mode := b.Cmdline, publicMode
	if o.Token != "" {
		whole, mode = whole+" "+node.TokenWord+"="+o.Token, ownMode
	}
	program, err := unified(image, b.Stub, whole)
	if err != nil {
		return Bootable{}, err
	}
	return b, b.write(program, arch.Name, mode)
}

// The permissions of a file that has no secret, and of one with a token.
const (
	publicMode os.FileMode = 0o644
	ownMode    os.FileMode = 0o600
)

// WithoutToken returns a kernel command line without the token of a node, and reports whether it
// has one. Any white space separates words, as where a node looks for its token (kernel/seek).
func WithoutToken(cmdline string) (without string, secret bool) {
	words := strings.Fields(cmdline)
	rest := slices.DeleteFunc(slices.Clone(words), func(word string) bool { return strings.HasPrefix(word, node.TokenWord+"=") })
	if len(rest) == len(words) {
		return cmdline, false
	}
	return strings.Join(rest, " "), true
}

// write writes a program for an architecture, by Go's name, in the format of b, and completes b.
func (b *Bootable) write(program []byte, arch string, mode os.FileMode) error {
	hash := sha256.New()
	err := initramfs.Replace(b.Path, mode, func(f *os.File) (err error) {
		w := io.MultiWriter(f, hash)
		if b.Format == Disk {
			err = disk.Write(programs[arch], program, w)
		} else {
			_, err = w.Write(program)
		}
		if err != nil {
			return err
		}
		b.Size, err = f.Seek(0, io.SeekCurrent)
		return err
	})
	b.SHA256 = hex.EncodeToString(hash.Sum(nil))
	return err
}

// WriteDisk writes a disk image with a unified kernel image that exists, which may be signed.
func WriteDisk(unified, path string) (Bootable, error) {
	program, err := os.ReadFile(unified)
	if err != nil {
		return Bootable{}, err
	}
	image, err := uki.Read(program)
	if err != nil {
		return Bootable{}, fmt.Errorf("%s: %w", unified, err)
	}
	arch := image.Processor()
	if programs[arch] == "" {
		return Bootable{}, fmt.Errorf("%s is for %s, which no node is", unified, arch)
	}
	cmdline, secret := WithoutToken(string(image.Part(uki.Cmdline)))
	b, mode := Bootable{Format: Disk, Path: path, Cmdline: cmdline}, publicMode
	if secret {
		mode = ownMode
	}
	if err := b.write(program, arch, mode); err != nil {
		return Bootable{}, fmt.Errorf("image of format %s: %w", Disk, err)
	}
	return b, nil
}

// ScreenToo are the words of the kernel command line by which a screen shows the console where no
// serial port does, and by which all consoles show the lines of PID 1 and the node kernel: these
// come by way of Linux's log then.
const ScreenToo = "console=tty0 printk.devkmsg=on"

// programs are the names of the program that firmware starts from a disk without a boot entry (UEFI
// 2.10, section 3.5.1.1), by Go's names of architectures.
var programs = map[string]string{"amd64": "BOOTX64.EFI", "arm64": "BOOTAA64.EFI"}

// findStub finds the EFI stub of the distribution.
func findStub(ctx context.Context, arch guestkernel.Arch, report progress.Func) (string, error) {
	dir, err := cache.Dir()
	if err != nil {
		return "", err
	}
	o := firmware.Options{CacheDir: filepath.Join(dir, "stub", arch.Debian), Progress: report}
	path, err := firmware.FindStub(ctx, o, arch.Debian)
	if err != nil {
		return "", fmt.Errorf("%w; or name a stub with --stub", err)
	}
	return path, nil
}

// unified returns a unified kernel image with a stub and a command line.
func unified(image Image, stubPath, cmdline string) ([]byte, error) {
	var files [3][]byte
	for i, path := range []string{stubPath, image.Kernel.Image, image.Path} {
		var err error
		if files[i], err = os.ReadFile(path); err != nil {
			return nil, err
		}
	}
	stub, kernel, initrd := files[0], files[1], files[2]
	if !bytes.HasPrefix(kernel, []byte("MZ")) {
		return nil, fmt.Errorf("kernel %s is not an EFI program: give one that is with --kernel, built with CONFIG_EFI_STUB", image.Kernel.Image)
	}
	release := fmt.Sprintf("ID=margay\nNAME=Margay\nPRETTY_NAME=\"Margay node, Linux %s\"\n", image.Kernel.Version)
	var program bytes.Buffer
	err := uki.Build(stub, []uki.Section{
		{Name: uki.Release, Data: []byte(release)},
		{Name: uki.Uname, Data: []byte(image.Kernel.Version)},
		{Name: uki.Cmdline, Data: []byte(cmdline)},
		{Name: uki.Initrd, Data: initrd},
		{Name: uki.Linux, Data: kernel},
	}, &program)
	if errors.Is(err, uki.ErrStub) {
		err = fmt.Errorf("%s: %w", stubPath, err)
	}
	return program.Bytes(), err
}

// ParseFormat returns the format of that name.
func ParseFormat(name string) (Format, error) {
	if f := Format(name); slices.Contains(Formats, f) {
		return f, nil
	}
	return "", fmt.Errorf("there is no image format %q: use %s, %s or %s", name, Netboot, UKI, Disk)
}

// CheckOutput returns an error if a file cannot be written at a path because something else is
// there.
func CheckOutput(path string) error {
	if path == "-" {
		return errors.New("an image is not written to standard output: name a file")
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().IsRegular():
		return nil
	case info.Mode()&fs.ModeDevice != 0:
		return fmt.Errorf("%s is a device: write the image to a file, and copy it: dd if=FILE of=%s bs=4M conv=fsync", path, path)
	}
	return fmt.Errorf("%s is not a file", path)
}
