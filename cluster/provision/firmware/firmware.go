// Package firmware finds the programs that run before Linux: a UEFI firmware for virtual machines,
// the iPXE that firmware fetches first, and the stub of unified kernel images. It also finds the
// files that drivers load into network cards.
//
// All of it is installed, or in the cache, or fetched to the cache from the machine's own archive
// (package apt), which installs nothing.
package firmware

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"margay/cluster/provision/apt"
	"margay/internal/progress"
)

// Options say where firmware is found.
type Options struct {
	CacheDir string
	Progress progress.Func // receives each step of a fetch; may be nil
}

// Files are the paths of the files, which are for x86-64.
type Files struct {
	UEFI     string // a UEFI firmware with its variables, in one file
	IPXEBIOS string // an iPXE for a BIOS, which uses the BIOS's driver of the network card
	IPXEUEFI string // an iPXE for UEFI, which uses the firmware's
}

// in returns the files below a folder, into which the packages were unpacked.
func in(root string) Files {
	return Files{
		UEFI:     filepath.Join(root, "usr/share/ovmf/OVMF.fd"),
		IPXEBIOS: filepath.Join(root, "usr/lib/ipxe/undionly.kpxe"),
		IPXEUEFI: filepath.Join(root, "usr/lib/ipxe/snponly.efi"),
	}
}

// Find returns the files, and fetches them if necessary. It is safe for concurrent use, even by
// several processes with one cache.
func Find(ctx context.Context, o Options) (Files, error) { return find(ctx, o, "/", apt.Run) }

// find is Find with the machine's root directory and its programs given.
func find(ctx context.Context, o Options, root string, run apt.Runner) (Files, error) {
	s := set{
		what: "UEFI firmware and iPXE", purpose: "firmware to boot over the network", arch: "amd64", packages: []string{"ovmf", "ipxe"},
		paths: func(root string) []string {
			f := in(root)
			return []string{f.UEFI, f.IPXEBIOS, f.IPXEUEFI}
		},
	}
	dir, err := s.find(ctx, o, root, run)
	if err != nil {
		return Files{}, err
	}
	return in(dir), nil
}

// stubs are the paths of the stub, by Debian's names of architectures.
var stubs = map[string]string{
	"amd64": "usr/lib/systemd/boot/efi/linuxx64.efi.stub",
	"arm64": "usr/lib/systemd/boot/efi/linuxaa64.efi.stub",
}

// FindStub returns the path of the stub of unified kernel images for an architecture, by Debian's
// name for it, and fetches it if necessary. Architectures need caches of their own. It is as safe
// as Find.
func FindStub(ctx context.Context, o Options, arch string) (string, error) {
	return findStub(ctx, o, arch, "/", apt.Run)
}

func findStub(ctx context.Context, o Options, arch, root string, run apt.Runner) (string, error) {
	if stubs[arch] == "" {
		return "", fmt.Errorf("stub of unified kernel images: there is none for %s", arch)
	}
	s := set{
		what: "the EFI stub", purpose: "stub of unified kernel images", arch: arch, packages: []string{"systemd-boot-efi"},
		paths: func(root string) []string { return []string{filepath.Join(root, stubs[arch])} },
	}
	dir, err := s.find(ctx, o, root, run)
	if err != nil {
		return "", err
	}
	return s.paths(dir)[0], nil
}

// set is a set of files that packages of Debian and Ubuntu bring.
type set struct {
	what, purpose string // for people
	arch          string // Debian's name
	packages      []string
	paths         func(root string) []string // where the files are
}

// complete reports whether all files are below a folder.
func (s set) complete(root string) error {
	for _, path := range s.paths(root) {
		if info, err := os.Stat(path); err != nil {
			return err
		} else if !info.Mode().IsRegular() || info.Size() == 0 {
			return fmt.Errorf("%s is not a file with contents", path)
		}
	}
	return nil
}

// fetchTimeout bounds a fetch of about 9 MB.
const fetchTimeout = 3 * time.Minute

// find returns a folder with the files.
func (s set) find(ctx context.Context, o Options, root string, run apt.Runner) (string, error) {
	if s.complete(root) == nil {
		return root, nil
	}
	dir, err := s.cached(ctx, o, root, run)
	if err != nil {
		return "", fmt.Errorf("%s: %w (apt-get install %s brings it as well)", s.purpose, err, strings.Join(s.packages, " "))
	}
	return dir, nil
}

// record describes a directory of the cache.
type record struct {
	Source string `json:"source"` // for people
}

// cached returns the files of the cache, and fetches them if they are absent.
func (s set) cached(ctx context.Context, o Options, root string, run apt.Runner) (string, error) {
	return cached(ctx, o, fetchTimeout, s.in, func(ctx context.Context, c apt.Cache) (string, error) {
		return s.fetch(ctx, c, root, apt.Config{Arch: s.arch, Run: run, Progress: o.Progress})
	})
}

// cached returns the directory that in finds in the cache, or else the one that fetch makes within
// a time. fetch is called with the lock of the cache.
func cached(ctx context.Context, o Options, timeout time.Duration, in func(apt.Cache) (string, bool), fetch func(context.Context, apt.Cache) (string, error)) (string, error) {
	// apt resolves relative names against a directory of its own.
	dir, err := filepath.Abs(o.CacheDir)
	if err != nil {
		return "", err
	}
	c := apt.Cache{Dir: dir, Record: "firmware.json"}
	if found, ok := in(c); ok {
		return found, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not done after %v", timeout))
	defer cancel()
	unlock, err := c.Lock(ctx, o.Progress)
	if err != nil {
		return "", err
	}
	defer unlock()
	if found, ok := in(c); ok { // another process has fetched it in the meantime
		return found, nil
	}
	return fetch(ctx, c)
}

// in returns a directory of the cache that has all files.
func (s set) in(c apt.Cache) (dir string, ok bool) {
	for _, name := range c.Names() {
		if c.Read(name, new(record)) && s.complete(c.Path(name)) == nil {
			return c.Path(name), true
		}
	}
	return "", false
}

// fetch stores the packages in the cache. The caller holds the lock.
func (s set) fetch(ctx context.Context, c apt.Cache, root string, config apt.Config) (string, error) {
	host, err := apt.ReadHost(root)
	if err != nil {
		return "", err
	}
	scratch, err := c.Scratch()
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(scratch)
	config.Dir = filepath.Join(scratch, "apt")
	archive, err := host.Open(ctx, "", config)
	if err != nil {
		return "", err
	}
	found, err := archive.Show(ctx, s.packages...)
	if err != nil {
		return "", err
	}
	if len(found) != len(s.packages) {
		return "", fmt.Errorf("%s lacks some of the packages %s", archive.Suite(), strings.Join(s.packages, ", "))
	}
	tree, err := archive.Fetch(ctx, s.what, found)
	if err != nil {
		return "", err
	}
	if err := s.complete(tree); err != nil {
		return "", err
	}
	var versions []string
	for _, p := range found {
		versions = append(versions, p.Name+" "+p.Version)
	}
	source := archive.Suite() + ", " + strings.Join(versions, ", ")
	if err := c.Store(tree, archive.Suite(), record{Source: source}); err != nil {
		return "", err
	}
	return c.Path(archive.Suite()), nil
}
