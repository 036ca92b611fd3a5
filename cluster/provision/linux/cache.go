package linux

import (
	"errors"
	"fmt"

	"margay/cluster/provision/apt"
	"margay/initramfs/guestkernel"
)

// cache has one directory a kernel release.
type cache struct{ apt.Cache }

func newCache(dir string) cache { return cache{apt.Cache{Dir: dir, Record: "kernel.json"}} }

// record describes a cached kernel, besides its files.
type record struct {
	Version string `json:"version"`
	Arch    string `json:"arch"`
	Source  string `json:"source"`
}

// newest returns the newest cached kernel for arch.
func (c cache) newest(arch guestkernel.Arch) (guestkernel.Kernel, bool) {
	var best guestkernel.Kernel
	for _, release := range c.Names() {
		k, ok := c.open(release, arch)
		if ok && (best.Version == "" || guestkernel.CompareVersions(k.Version, best.Version) > 0) {
			best = k
		}
	}
	return best, best.Version != ""
}

// open returns a cached release if it exists, is complete and is for arch.
func (c cache) open(release string, arch guestkernel.Arch) (guestkernel.Kernel, bool) {
	var r record
	if !c.Read(release, &r) || r.Version != release || r.Arch != arch.Name {
		return guestkernel.Kernel{}, false
	}
	k, ok := guestkernel.Release(c.Path(release), release)
	if !ok {
		return guestkernel.Kernel{}, false
	}
	k.Arch, k.Source = r.Arch, r.Source
	return k, k.Load() == nil
}

// install stores an unpacked tree as the cached kernel of a release. The caller holds the lock.
func (c cache) install(tree, release string, arch guestkernel.Arch, source string) (guestkernel.Kernel, error) {
	wrap := func(err error) error { return &Error{Op: "store", Object: release, Err: err} }
	if _, ok := guestkernel.Release(tree, release); !ok {
		return guestkernel.Kernel{}, wrap(fmt.Errorf("its packages have %w or no modules", guestkernel.ErrNoImage))
	}
	if err := c.Store(tree, release, record{Version: release, Arch: arch.Name, Source: source}); err != nil {
		return guestkernel.Kernel{}, wrap(err)
	}
	k, ok := c.open(release, arch)
	if !ok {
		return guestkernel.Kernel{}, wrap(errors.New("the stored kernel cannot be read back"))
	}
	return k, nil
}
