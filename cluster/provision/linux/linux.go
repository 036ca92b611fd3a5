// Package linux finds the Linux kernel that the virtual nodes of a machine boot.
//
// A kernel comes from one of three places, tried in this order:
//
//  1. what the user names (Options.Override: a kernel image, or a directory that holds one and its modules);
//  2. the cache, one directory a kernel release, complete or absent;
//  3. the package archive of the host's own distribution.
//
// Package apt reads the archive and keeps what it fetches. The suite may be another one than the
// host's (the table distributions). A kernel is resolved by the name of a metapackage and by
// following the dependencies, because releases leave the archive within weeks.
package linux

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"runtime"

	"margay/cluster/provision/apt"
	"margay/initramfs/guestkernel"
	"margay/internal/progress"
)

// Options says where a kernel may come from. Only CacheDir has no default; each kind of kernel
// needs one of its own.
type Options struct {
	Override string // an image, or a directory with an image and lib/modules/VERSION; used instead of everything else
	CacheDir string // of kernels for virtual machines, or of generic ones
	Offline  bool   // use the cache only
	Generic  bool   // a kernel for machines of any kind, instead of one for virtual machines
	Refresh  bool   // ask the archive for a newer kernel even if one is cached; not if Offline
	Arch     string // processor architecture, as Go names it; default: GOARCH
}

// Find returns the kernel that o asks for, and fetches it if necessary. It is safe for concurrent
// use, also by several processes with one cache. Faults of an archive or the cache are an *Error.
func Find(ctx context.Context, o Options, report progress.Func) (guestkernel.Kernel, error) {
	return find(ctx, o, report, "/", apt.Run)
}

// find is Find with the host's root directory and its programs given.
func find(ctx context.Context, o Options, report progress.Func, root string, run apt.Runner) (guestkernel.Kernel, error) {
	arch, err := guestkernel.ArchNamed(cmp.Or(o.Arch, runtime.GOARCH))
	if err != nil {
		return guestkernel.Kernel{}, err
	}
	if o.Override != "" {
		return guestkernel.Open(o.Override, arch)
	}
	// apt resolves relative names against a directory of its own.
	dir, err := filepath.Abs(o.CacheDir)
	if err != nil {
		return guestkernel.Kernel{}, &Error{Op: "open the cache", Object: o.CacheDir, Err: err}
	}
	c := newCache(dir)
	if k, ok := c.newest(arch); ok && (o.Offline || !o.Refresh) {
		return k, nil
	}
	if o.Offline {
		return guestkernel.Kernel{}, &Error{Op: "look into the cache", Object: dir, Err: ErrNotCached}
	}
	offers := distributions
	if o.Generic {
		offers = generic
	}
	return c.fetch(ctx, arch, offers, o.Refresh, report, root, run)
}

// fetch gets the newest kernel that an archive offers into the cache. Unless refresh is set it is
// content with one that another process fetched while this one waited for the lock.
func (c cache) fetch(
	ctx context.Context, arch guestkernel.Arch, offers map[string][]offer, refresh bool, report progress.Func, root string, run apt.Runner,
) (guestkernel.Kernel, error) {
	wrap := func(err error) error { return &Error{Op: "fetch to", Object: c.Dir, Err: err} }
	unlock, err := c.Lock(ctx, report)
	if err != nil {
		return guestkernel.Kernel{}, wrap(err)
	}
	defer unlock()
	if k, ok := c.newest(arch); ok && !refresh {
		return k, nil
	}
	h, err := apt.ReadHost(root)
	if err != nil {
		return guestkernel.Kernel{}, wrap(err)
	}
	tmp, err := c.Scratch()
	if err != nil {
		return guestkernel.Kernel{}, wrap(err)
	}
	defer os.RemoveAll(tmp)
	f := fetcher{host: h, offers: offers[h.Distribution], arch: arch, dir: tmp, run: run, progress: report}
	found, err := f.resolve(ctx)
	if err != nil {
		return guestkernel.Kernel{}, err
	}
	if k, ok := c.open(found.release, arch); ok {
		return k, nil
	}
	tree, err := found.archive.Fetch(ctx, "kernel "+found.release, found.packages)
	if err != nil {
		return guestkernel.Kernel{}, wrap(err)
	}
	return c.install(tree, found.release, arch, found.describe())
}
