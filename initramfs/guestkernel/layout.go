package guestkernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// moduleRoots are the places of VERSION/ under the root of a system, an unpacked package or `make
// modules_install`.
var moduleRoots = []string{"usr/lib/modules", "lib/modules"}

// ErrNoImage says that a directory or file is not a kernel with what belongs to it.
var ErrNoImage = errors.New("no kernel image")

// Open opens the kernel that a user names: an image, or a directory that holds one.
func Open(path string, arch Arch) (Kernel, error) {
	wrap := func(err error) error { return fmt.Errorf("guest kernel: open %s: %w", path, err) }
	path, err := filepath.Abs(path)
	if err != nil {
		return Kernel{}, wrap(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return Kernel{}, wrap(err)
	}
	var k Kernel
	if info.IsDir() {
		k, err = openTree(path)
	} else {
		k, err = openImage(path)
	}
	if err == nil {
		k.Arch, k.Source = arch.Name, "given by the user: "+path
		err = k.Load()
	}
	if err != nil {
		return Kernel{}, wrap(err)
	}
	return k, nil
}

// openImage finds the files of an image by their usual names: the image in its modules directory,
// or boot/vmlinuz-VERSION beside lib/modules/VERSION.
func openImage(image string) (Kernel, error) {
	version, err := imageVersion(image)
	if err != nil {
		return Kernel{}, err
	}
	dir := filepath.Dir(image)
	k := Kernel{Version: version, Image: image}
	modules := []string{}
	if filepath.Base(dir) == version {
		modules = append(modules, dir)
	}
	for _, root := range []string{dir, filepath.Dir(dir)} {
		for _, r := range moduleRoots {
			modules = append(modules, filepath.Join(root, r, version))
		}
	}
	k.Modules = firstThat(isDir, modules...)
	k.Config = firstThat(isFile, configNames(dir, k.Modules, version)...)
	return k, nil
}

// openTree finds the newest kernel under root that has an image.
func openTree(root string) (Kernel, error) {
	var versions []string
	for _, r := range moduleRoots {
		entries, err := os.ReadDir(filepath.Join(root, r))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Kernel{}, err
		}
		for _, e := range entries {
			versions = append(versions, e.Name())
		}
	}
	slices.SortFunc(versions, func(a, b string) int { return CompareVersions(b, a) })
	for _, v := range versions {
		if k, ok := Release(root, v); ok {
			return k, nil
		}
	}
	image := firstThat(isFile, filepath.Join(root, "vmlinuz"), filepath.Join(root, "bzImage"))
	if image == "" {
		return Kernel{}, ErrNoImage
	}
	return openImage(image)
}

// Release finds image, modules and configuration of one release under root, a root directory or an
// unpacked package. Architecture and source are the caller's to fill in, and Load reads the
// configuration. It reports false when the image or the modules are missing.
func Release(root, version string) (Kernel, bool) {
	k := Kernel{Version: version}
	for _, r := range moduleRoots {
		if dir := filepath.Join(root, r, version); k.Modules == "" && isDir(dir) {
			k.Modules = dir
		}
	}
	if k.Modules == "" {
		return Kernel{}, false
	}
	boot := filepath.Join(root, "boot")
	k.Image = firstThat(isFile, filepath.Join(k.Modules, "vmlinuz"), filepath.Join(boot, "vmlinuz-"+version),
		filepath.Join(root, "vmlinuz-"+version), filepath.Join(root, "vmlinuz"), filepath.Join(boot, "vmlinuz"))
	k.Config = firstThat(isFile, append(configNames(boot, k.Modules, version), configNames(root, "", version)...)...)
	return k, k.Image != ""
}

func configNames(beside, modules, version string) []string {
	names := []string{filepath.Join(beside, "config-"+version), filepath.Join(beside, "config")}
	if modules != "" {
		names = append(names, filepath.Join(modules, "config"))
	}
	return names
}

// load reads the configuration, if any, and fills the fields that depend on it.
func (k *Kernel) Load() error {
	if k.Config != "" {
		options, err := readConfig(k.Config)
		if err != nil {
			return err
		}
		k.options = options
	}
	k.Lacks = lacks(k.options)
	return nil
}

// imageVersion returns the release of an image: from the x86 header, else from its name
// vmlinuz-VERSION.
func imageVersion(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	head, err := io.ReadAll(io.LimitReader(f, 1<<16))
	if err != nil {
		return "", err
	}
	if v := headerVersion(head); v != "" {
		return v, nil
	}
	_, v, ok := strings.Cut(filepath.Base(path), "-")
	if !ok || v == "" {
		return "", errors.New("neither its header nor its name gives its version; name it vmlinuz-VERSION")
	}
	return v, nil
}

// headerVersion returns the first word of the kernel_version string of the x86 boot protocol
// (Documentation/arch/x86/boot.rst), or nothing if head is not the start of such an image.
func headerVersion(head []byte) string {
	const magicAt, pointerAt, pointerBase = 0x202, 0x20e, 0x200
	if len(head) < pointerAt+2 || string(head[magicAt:magicAt+4]) != "HdrS" {
		return ""
	}
	at := int(binary.LittleEndian.Uint16(head[pointerAt:])) + pointerBase
	if at == pointerBase || at >= len(head) {
		return ""
	}
	text, _, ok := strings.Cut(string(head[at:min(at+256, len(head))]), "\x00")
	words := strings.Fields(text)
	if !ok || len(words) == 0 || strings.ContainsAny(words[0], "/\\") {
		return ""
	}
	return words[0]
}

func firstThat(holds func(string) bool, paths ...string) string {
	if i := slices.IndexFunc(paths, holds); i >= 0 {
		return paths[i]
	}
	return ""
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
