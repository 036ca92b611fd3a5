// Package firmware finds what machines boot over the network with: a UEFI firmware for virtual
// machines, and the iPXE that firmware fetches first.
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

// packages are the packages with the files on Debian and Ubuntu.
var packages = []string{"ovmf", "ipxe"}

// in returns the files below a folder, into which the packages were unpacked.
func in(root string) (Files, error) {
	f := Files{
		UEFI:     filepath.Join(root, "usr/share/ovmf/OVMF.fd"),
		IPXEBIOS: filepath.Join(root, "usr/lib/ipxe/undionly.kpxe"),
		IPXEUEFI: filepath.Join(root, "usr/lib/ipxe/snponly.efi"),
	}
	for _, path := range []string{f.UEFI, f.IPXEBIOS, f.IPXEUEFI} {
		if info, err := os.Stat(path); err != nil {
			return Files{}, err
		} else if !info.Mode().IsRegular() || info.Size() == 0 {
			return Files{}, fmt.Errorf("%s is not a file with contents", path)
		}
	}
	return f, nil
}

// fetchTimeout bounds a fetch of about 9 MB.
const fetchTimeout = 3 * time.Minute

// Find returns the files, and fetches them if necessary. It is safe for concurrent use, even by
// several processes with one cache.
func Find(ctx context.Context, o Options) (Files, error) { return find(ctx, o, "/", apt.Run) }

// find is Find with the machine's root directory and its programs given.
func find(ctx context.Context, o Options, root string, run apt.Runner) (Files, error) {
	if f, err := in(root); err == nil {
		return f, nil
	}
	f, err := o.cached(ctx, root, run)
	if err != nil {
		return Files{}, fmt.Errorf("firmware to boot over the network: %w (apt-get install %s brings it as well)", err, strings.Join(packages, " "))
	}
	return f, nil
}

// record describes a directory of the cache.
type record struct {
	Source string `json:"source"` // for people
}

// cached returns the files of the cache, and fetches them if they are absent.
func (o *Options) cached(ctx context.Context, root string, run apt.Runner) (Files, error) {
	// apt resolves relative names against a directory of its own.
	dir, err := filepath.Abs(o.CacheDir)
	if err != nil {
		return Files{}, err
	}
	c := apt.Cache{Dir: dir, Record: "firmware.json"}
	if f, ok := complete(c); ok {
		return f, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, fetchTimeout, fmt.Errorf("not done after %v", fetchTimeout))
	defer cancel()
	unlock, err := c.Lock(ctx, o.Progress)
	if err != nil {
		return Files{}, err
	}
	defer unlock()
	if f, ok := complete(c); ok { // another process has fetched it in the meantime
		return f, nil
	}
	return fetch(ctx, c, root, apt.Config{Arch: "amd64", Run: run, Progress: o.Progress})
}

// complete returns the files of a directory of the cache that has all of them.
func complete(c apt.Cache) (Files, bool) {
	for _, name := range c.Names() {
		if !c.Read(name, new(record)) {
			continue
		}
		if f, err := in(c.Path(name)); err == nil {
			return f, true
		}
	}
	return Files{}, false
}

// fetch stores the packages in the cache. The caller holds the lock.
func fetch(ctx context.Context, c apt.Cache, root string, config apt.Config) (Files, error) {
	host, err := apt.ReadHost(root)
	if err != nil {
		return Files{}, err
	}
	scratch, err := c.Scratch()
	if err != nil {
		return Files{}, err
	}
	defer os.RemoveAll(scratch)
	config.Dir = filepath.Join(scratch, "apt")
	archive, err := host.Open(ctx, "", config)
	if err != nil {
		return Files{}, err
	}
	found, err := archive.Show(ctx, packages...)
	if err != nil {
		return Files{}, err
	}
	if len(found) != len(packages) {
		return Files{}, fmt.Errorf("%s lacks some of the packages %s", archive.Suite(), strings.Join(packages, ", "))
	}
	tree, err := archive.Fetch(ctx, "UEFI firmware and iPXE", found)
	if err != nil {
		return Files{}, err
	}
	if _, err := in(tree); err != nil {
		return Files{}, err
	}
	var versions []string
	for _, p := range found {
		versions = append(versions, p.Name+" "+p.Version)
	}
	source := archive.Suite() + ", " + strings.Join(versions, ", ")
	if err := c.Store(tree, archive.Suite(), record{Source: source}); err != nil {
		return Files{}, err
	}
	return in(c.Path(archive.Suite()))
}
