package initramfs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"margay/initramfs/guestkernel"
	"margay/internal/progress"
	"margay/kernel/abi/node"
)

// Spec lists the contents of an image. It is a plain value.
type Spec struct {
	Kernel   guestkernel.Kernel // whose modules are taken
	Init     string             // path of a static program for Kernel's architecture, the node's process 1
	JobInit  string             // path of another one, which the image has at node.JobInit; empty: none
	Modules  []Module           // nil: DefaultModules; empty: none
	Files    []File             // in addition
	Firmware []string           // folders, each as /lib/firmware: firmware files that the modules name are taken from the first that has them
	Plain    bool               // not compressed, modules without signatures if the kernel needs none: for QEMU, which has the image in memory
	Progress progress.Func      // receives each step; may be nil
}

// initPath is the program that the kernel starts first from an initramfs.
const initPath = "/init"

// required returns the options without which a kernel does not boot the image.
func (s Spec) required() []string {
	switch {
	case s.Plain:
		return []string{"BLK_DEV_INITRD"}
	case branchFilters[s.Kernel.Arch] != "":
		return []string{"BLK_DEV_INITRD", "RD_XZ", "XZ_DEC_X86"}
	}
	return []string{"BLK_DEV_INITRD", "RD_XZ"}
}

// ErrSpec is wrapped by every error about an invalid Spec.
var ErrSpec = errors.New("image specification")

// check validates s and returns it with its defaults filled in.
func (s Spec) check() (Spec, error) {
	bad := func(format string, args ...any) (Spec, error) {
		return s, fmt.Errorf("%w: %w", ErrSpec, fmt.Errorf(format, args...))
	}
	if s.Kernel.Version == "" || strings.ContainsAny(s.Kernel.Version, "/\n") {
		return bad("kernel version %q", s.Kernel.Version)
	}
	arch, err := guestkernel.ArchNamed(s.Kernel.Arch)
	if err != nil {
		return bad("kernel %s: %w", s.Kernel.Version, err)
	}
	for _, option := range s.required() {
		if s.Kernel.ConfigKnown() && s.Kernel.Option(option) != "y" {
			return bad("kernel %s was built without CONFIG_%s, so it cannot boot an image", s.Kernel.Version, option)
		}
	}
	if err := checkStatic(s.Init, arch); err != nil {
		return bad("init program %q: %w", s.Init, err)
	}
	if s.JobInit != "" {
		if err := checkStatic(s.JobInit, arch); err != nil {
			return bad("job init %q: %w", s.JobInit, err)
		}
	}
	if s.Modules == nil {
		s.Modules = DefaultModules()
	}
	return s, nil
}

// checkStatic checks that the program at path runs on arch without other files.
func checkStatic(path string, arch guestkernel.Arch) error {
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if f.Machine != arch.Machine {
		return fmt.Errorf("it is for %v, the kernel for %v", f.Machine, arch.Machine)
	}
	if f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN {
		return fmt.Errorf("it is of type %v, not an executable", f.Type)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return errors.New("it is dynamically linked, and a node has no libraries; build it with CGO_ENABLED=0")
		}
	}
	return nil
}

// Build writes an image to w and returns its manifest. The same inputs give the same bytes by the
// same version of xz. Errors about the spec, a file or a module are ErrSpec, a *FileError or a
// *ModuleError.
func Build(ctx context.Context, spec Spec, w io.Writer) (Manifest, error) {
	archive, manifest, err := assemble(ctx, spec)
	if err != nil {
		return Manifest{}, err
	}
	image, err := finish(ctx, spec, archive, &manifest)
	if err != nil {
		return Manifest{}, err
	}
	if _, err := w.Write(image); err != nil {
		return Manifest{}, fmt.Errorf("write the image: %w", err)
	}
	return manifest, ctx.Err()
}

// assemble returns the archive of an image, and its manifest without the fields of its bytes.
func assemble(ctx context.Context, spec Spec) ([]byte, Manifest, error) {
	s, err := spec.check()
	if err != nil {
		return nil, Manifest{}, err
	}
	chosen, err := s.choose(ctx)
	if err != nil {
		return nil, Manifest{}, err
	}
	manifest := Manifest{
		Kernel: s.Kernel.Version, Arch: s.Kernel.Arch, Source: s.Kernel.Source, Lacks: s.Kernel.Lacks,
		Modules: names(chosen.load), Drivers: names(chosen.drivers), BuiltIn: chosen.builtIn, Absent: chosen.absent,
	}
	var order strings.Builder
	files := append([]File{{Path: initPath, Mode: 0o755, Source: s.Init}}, base...)
	if s.JobInit != "" {
		files = append(files, File{Path: node.JobInit, Mode: 0o755, Source: s.JobInit})
	}
	for i, m := range slices.Concat(chosen.load, chosen.drivers) {
		s.Progress.Report(progress.Step{Text: "adding module " + m.name + " to the node image", Done: int64(len(m.data)), Total: int64(len(m.data))})
		if s.Plain && s.Kernel.TakesUnsigned() {
			m.data = unsigned(m.data)
		}
		if i < len(chosen.load) {
			order.WriteString(m.path + "\n")
		}
		files = append(files, File{Path: m.path, Data: m.data})
	}
	files = append(files, File{Path: node.LoadOrder, Data: []byte(order.String())})
	if drivers := chosen.listDrivers(s.Modules); len(drivers) > 0 {
		text, err := node.EncodeDrivers(drivers)
		if err != nil {
			return nil, Manifest{}, fmt.Errorf("modules of kernel %s: %w", s.Kernel.Version, err)
		}
		files = append(files, File{Path: node.Drivers, Data: text})
	}
	if len(s.Firmware) > 0 {
		found, err := collectFirmware(ctx, s.Firmware, chosen.firmware())
		if err != nil {
			return nil, Manifest{}, err
		}
		files, manifest.Firmware, manifest.NoFirmware = append(files, found.files...), found.names, found.absent
	}
	var archive bytes.Buffer
	manifest.Entries, err = writeArchive(&archive, append(files, s.Files...))
	if err != nil {
		return nil, Manifest{}, err
	}
	size := int64(archive.Len())
	manifest.Uncompressed = size
	s.Progress.Report(progress.Step{Text: "archiving the node image", Done: size, Total: size})
	return archive.Bytes(), manifest, ctx.Err()
}

// choose returns the modules of the image of a checked spec.
func (s Spec) choose(ctx context.Context) (selection, error) {
	index, err := indexModules(s.Kernel.Modules)
	if err != nil {
		return selection{}, fmt.Errorf("modules of kernel %s: %w", s.Kernel.Version, err)
	}
	return selectModules(ctx, index, s.Kernel.Version, s.Modules)
}

// finish turns an archive into an image of a spec and completes its manifest.
func finish(ctx context.Context, spec Spec, archive []byte, manifest *Manifest) ([]byte, error) {
	image, size := archive, int64(len(archive))
	if !spec.Plain {
		var err error
		spec.Progress.Report(progress.Step{Text: "compressing the node image", Total: size})
		if image, err = filter(ctx, bytes.NewReader(archive), packing(spec.Kernel.Arch)...); err != nil {
			return nil, fmt.Errorf("compress the image: %w", err)
		}
		spec.Progress.Report(progress.Step{Text: "compressing the node image", Done: size, Total: size})
	}
	sum := sha256.Sum256(image)
	manifest.Compressed, manifest.SHA256 = int64(len(image)), hex.EncodeToString(sum[:])
	spec.Progress.Report(progress.Step{Text: "node image made", Done: manifest.Compressed, Total: manifest.Compressed})
	return image, nil
}
