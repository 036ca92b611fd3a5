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

	"margay/kernel/abi/node"
)

// Module names a kernel module of an image.
type Module struct {
	Name     string // "-" and "_" mean the same
	Optional bool   // the image is good without it
	Driver   bool   // it is loaded on nodes with a device that it is for, and not on every node
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
// Cards of e100 are older; it is the driver with firmware files whose cards QEMU plays.
var cards = []string{
	"e1000", "e1000e", "igb", "igc", "ixgbe", "i40e", "ice", "r8169", "tg3", "bnxt_en", "bnx2", "bnx2x", "qede", "cxgb4", "mlx4_en", "mlx5_core",
	"atlantic", "alx", "sky2", "forcedeth", "vmxnet3", "ena", "e100",
}

// keepers are the drivers of memory in which firmware keeps the log of a Linux that panics:
// variables of UEFI, and RAM that a device tree sets aside. The driver for ACPI (ERST) is a part of
// Linux itself.
var keepers = []string{"efi_pstore", "ramoops"}

// MetalModules returns the modules for a node that is a machine of its own: what the networks of
// jobs need, what sends its console over the network and, as drivers, modules for the devices of
// virtual machines, for network cards, and for memory that keeps logs. A node does not use disks,
// so it has no driver of one.
func MetalModules() []Module {
	var all []Module
	for _, m := range DefaultModules() {
		m.Driver = slices.Contains(virtualDrivers, m.Name)
		all = append(all, m)
	}
	all = append(all, Module{Name: node.ConsoleModule, Optional: true})
	for _, name := range slices.Concat(cards, keepers) {
		all = append(all, Module{Name: name, Optional: true, Driver: true})
	}
	return all
}

// virtualDrivers are the default modules that are drivers of devices. A virtual node has these
// devices.
var virtualDrivers = []string{"virtio_pci", "virtio_net", "virtio_console", "virtio_rng", ItemsModule}

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
	name     string
	path     string // in the image
	data     []byte // decompressed
	aliases  []string
	firmware []string
	needs    []string // names of modules that are loaded before it, of those that the image may have
}

// names returns the names of modules.
func names(modules []module) []string {
	n := make([]string, len(modules))
	for i, m := range modules {
		n[i] = m.name
	}
	return n
}

// selection is the result of selectModules.
type selection struct {
	load            []module // on every node, in load order
	drivers         []module // drivers, and what they need in addition, in load order
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
	if err := s.addAll(ctx, wanted, false); err != nil {
		return selection{}, err
	}
	always := len(s.chosen.load)
	if err := s.addAll(ctx, wanted, true); err != nil {
		return selection{}, err
	}
	s.chosen.load, s.chosen.drivers = s.chosen.load[:always:always], s.chosen.load[always:]
	return s.chosen, nil
}

// addAll appends the wanted modules that are drivers, or the others.
func (s *selector) addAll(ctx context.Context, wanted []Module, drivers bool) error {
	for _, m := range wanted {
		name := moduleName(m.Name)
		if m.Driver != drivers {
			continue
		} else if _, ok := s.files[name]; !ok && s.builtIn[name] {
			s.chosen.builtIn = append(s.chosen.builtIn, name)
			continue
		} else if !ok && m.Optional {
			s.chosen.absent = append(s.chosen.absent, name)
			continue
		}
		if err := s.add(ctx, name); err != nil {
			return err
		}
	}
	return nil
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
	info, err := readModinfo(data)
	if err != nil {
		return wrap(err)
	}
	s.pending = append(s.pending, name)
	var needs []string
	for _, d := range info.before {
		pending := s.pending
		if d = moduleName(d); s.files[d] == "" || slices.Contains(pending, d) {
			continue
		}
		if s.add(ctx, d) == nil {
			needs = append(needs, d)
		} else if err := ctx.Err(); err != nil {
			return wrap(err)
		}
		s.pending = pending // the module does without one that cannot be added
	}
	for _, d := range info.depends {
		needs = append(needs, moduleName(d))
		if err := s.add(ctx, moduleName(d)); err != nil {
			return wrap(err)
		}
	}
	s.pending = s.pending[:len(s.pending)-1]
	_, compression, _ := cutModuleSuffix(relative)
	path := "/lib/modules/" + s.kernel + "/" + strings.TrimSuffix(filepath.ToSlash(relative), compression)
	s.chosen.load = append(s.chosen.load, module{name: name, path: path, data: data, aliases: info.aliases, firmware: info.firmware, needs: needs})
	s.done[name] = true
	return nil
}

// listDrivers returns the drivers among the modules of a selection. A module that a driver needs is
// one of its own if it has aliases: it may be the bus of the other. A driver without aliases is for
// the devices of what it needs, and if these say nothing either, for all devices.
func (s selection) listDrivers(wanted []Module) (drivers []node.Driver) {
	asked := func(name string) bool {
		return slices.ContainsFunc(wanted, func(m Module) bool { return m.Driver && moduleName(m.Name) == name })
	}
	for i, m := range s.drivers {
		needed := map[string]bool{m.name: true}
		aliases := m.aliases
		var modules []string
		for _, before := range slices.Backward(s.drivers[:i+1]) { // what a module needs is before it
			if !needed[before.name] {
				continue
			}
			for _, name := range before.needs {
				needed[name] = true
			}
			modules = append(modules, before.path)
			if len(m.aliases) == 0 {
				aliases = append(aliases, before.aliases...)
			}
		}
		slices.Reverse(modules)
		switch {
		case len(m.aliases) == 0 && !asked(m.name):
			continue
		case len(aliases) == 0:
			aliases = []string{"*"}
		}
		drivers = append(drivers, node.Driver{Modules: modules, Aliases: aliases})
	}
	return drivers
}

// maxModule bounds the decompressed size of a module, or of a firmware file, in bytes.
const maxModule = 256 << 20

// readModule returns the decompressed content of a module's file.
func readModule(ctx context.Context, path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return decompress(ctx, f, filepath.Ext(path))
}

// decompress returns the content of a file, whose compression the end of its name says.
func decompress(ctx context.Context, f io.Reader, suffix string) ([]byte, error) {
	r := f
	switch suffix {
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
		z, err := gzip.NewReader(f)
		if err != nil {
			return nil, err
		}
		r = z
	}
	data, err := io.ReadAll(io.LimitReader(r, maxModule+1))
	if err == nil && len(data) > maxModule {
		err = fmt.Errorf("it is longer than %d bytes", maxModule)
	}
	return data, err
}
