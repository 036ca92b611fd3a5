package initramfs

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// Module names a kernel module of an image.
type Module struct {
	Name     string // "-" and "_" mean the same
	Optional bool   // the image is good without it
}

// ItemsModule is the module by which a node reads the items of its virtual machine. A node that
// boots from its network card has its configuration there.
const ItemsModule = "qemu_fw_cfg"

// DefaultModules returns the modules for a node that is a QEMU virtual machine: network, the
// channel, the random numbers and the files of its host, the network devices of namespaces, and
// what the networks of jobs need.
func DefaultModules() []Module {
	return []Module{
		{Name: "virtio_pci"},
		{Name: "virtio_net"},
		{Name: "virtio_console", Optional: true},
		{Name: "virtio_rng", Optional: true},
		{Name: ItemsModule, Optional: true},
		{Name: "veth", Optional: true},
		{Name: "vxlan", Optional: true},
		{Name: "nf_tables", Optional: true},
	}
}

// cards are the drivers of network cards of Ethernet that machines of the last fifteen years have.
var cards = []string{
	"e1000", "e1000e", "igb", "igc", "ixgbe", "i40e", "ice", "r8169", "tg3", "bnxt_en", "bnx2x", "mlx4_en", "mlx5_core", "atlantic", "alx",
	"sky2", "forcedeth", "vmxnet3", "ena",
}

// MetalModules returns the modules for a node that is a machine of its own: DefaultModules, and the
// drivers of network cards that its kernel has.
func MetalModules() []Module {
	all := DefaultModules()
	for _, name := range cards {
		all = append(all, Module{Name: name, Optional: true})
	}
	return all
}

// ErrNoModule reports that a kernel lacks a module, both as a file and built in.
var ErrNoModule = errors.New("the kernel has no such module")

// ModuleError is an error about a module of an image.
type ModuleError struct {
	Name   string
	Kernel string // release
	Err    error
}

func (e *ModuleError) Error() string {
	return fmt.Sprintf("module %s of kernel %s: %v", e.Name, e.Kernel, e.Err)
}

func (e *ModuleError) Unwrap() error { return e.Err }

// moduleName returns the name the kernel uses for a module.
func moduleName(name string) string { return strings.ReplaceAll(name, "-", "_") }

// moduleIndex lists the modules of a kernel.
type moduleIndex struct {
	dir     string            // lib/modules/VERSION
	files   map[string]string // path in dir by name
	builtIn map[string]bool
}

// indexModules reads a directory lib/modules/VERSION; without it the kernel has no modules.
func indexModules(dir string) (moduleIndex, error) {
	x := moduleIndex{dir: dir, files: map[string]string{}, builtIn: map[string]bool{}}
	if dir == "" {
		return x, nil
	}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		stem, _, ok := cutModuleSuffix(e.Name())
		if !ok {
			return nil
		}
		relative, err := filepath.Rel(dir, path)
		// A module outside kernel/ replaces the kernel's own.
		if _, taken := x.files[moduleName(stem)]; !taken || !strings.HasPrefix(relative, "kernel/") {
			x.files[moduleName(stem)] = relative
		}
		return err
	})
	if err != nil {
		return x, err
	}
	f, err := os.Open(filepath.Join(dir, "modules.builtin"))
	if errors.Is(err, fs.ErrNotExist) {
		return x, nil
	}
	if err != nil {
		return x, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if stem, _, ok := cutModuleSuffix(filepath.Base(lines.Text())); ok {
			x.builtIn[moduleName(stem)] = true
		}
	}
	return x, lines.Err()
}

// cutModuleSuffix splits the file name of a module into its stem and the suffix of its compression.
func cutModuleSuffix(name string) (stem, compression string, ok bool) {
	stem = name
	for _, c := range []string{".xz", ".zst", ".gz"} {
		if s, found := strings.CutSuffix(name, c); found {
			stem, compression = s, c
		}
	}
	stem, ok = strings.CutSuffix(stem, ".ko")
	return stem, compression, ok && stem != ""
}

// module is a module of an image.
type module struct {
	name string
	path string // in the image
	data []byte // decompressed
}

// selection is the result of selectModules.
type selection struct {
	load            []module // in load order
	builtIn, absent []string
}

// selector follows the dependencies of modules.
type selector struct {
	moduleIndex
	kernel  string
	chosen  selection
	done    map[string]bool
	pending []string // from the module asked for down to the one looked at
}

// selectModules returns the requested modules and their dependencies, dependencies first.
func selectModules(ctx context.Context, x moduleIndex, kernel string, wanted []Module) (selection, error) {
	s := selector{moduleIndex: x, kernel: kernel, done: map[string]bool{},
		chosen: selection{builtIn: []string{}, absent: []string{}}}
	for _, m := range wanted {
		name := moduleName(m.Name)
		if _, ok := x.files[name]; !ok && x.builtIn[name] {
			s.chosen.builtIn = append(s.chosen.builtIn, name)
			continue
		} else if !ok && m.Optional {
			s.chosen.absent = append(s.chosen.absent, name)
			continue
		}
		if err := s.add(ctx, name); err != nil {
			return selection{}, err
		}
	}
	return s.chosen, nil
}

// add appends the named module after its dependencies.
func (s *selector) add(ctx context.Context, name string) error {
	if s.done[name] {
		return nil
	}
	wrap := func(err error) error { return &ModuleError{Name: name, Kernel: s.kernel, Err: err} }
	relative, ok := s.files[name]
	switch {
	case !ok && s.builtIn[name]:
		return nil
	case !ok:
		return wrap(ErrNoModule)
	case slices.Contains(s.pending, name):
		return wrap(fmt.Errorf("it depends on itself through %s", strings.Join(s.pending, ", ")))
	}
	data, err := readModule(ctx, filepath.Join(s.dir, relative))
	if err != nil {
		return wrap(err)
	}
	depends, err := readDepends(data)
	if err != nil {
		return wrap(err)
	}
	s.pending = append(s.pending, name)
	for _, d := range depends {
		if err := s.add(ctx, moduleName(d)); err != nil {
			return wrap(err)
		}
	}
	s.pending = s.pending[:len(s.pending)-1]
	_, compression, _ := cutModuleSuffix(relative)
	path := "/lib/modules/" + s.kernel + "/" + strings.TrimSuffix(filepath.ToSlash(relative), compression)
	s.chosen.load = append(s.chosen.load, module{name: name, path: path, data: data})
	s.done[name] = true
	return nil
}

// maxModule bounds the decompressed size of a module in bytes.
const maxModule = 256 << 20

// readModule returns the decompressed content of a module's file.
func readModule(ctx context.Context, path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var r io.Reader = f
	switch filepath.Ext(path) {
	case ".xz":
		return filter(ctx, f, "-dc")
	case ".zst":
		d, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		defer d.Close()
		r = d
	case ".gz":
		if r, err = gzip.NewReader(f); err != nil {
			return nil, err
		}
	}
	data, err := io.ReadAll(io.LimitReader(r, maxModule+1))
	if err == nil && len(data) > maxModule {
		err = fmt.Errorf("it is longer than %d bytes", maxModule)
	}
	return data, err
}
