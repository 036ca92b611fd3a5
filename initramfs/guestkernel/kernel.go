package guestkernel

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"margay/apt"
)

// Kernel is a kernel that a node can boot. It is a plain value: copy it freely.
type Kernel struct {
	Version string   `json:"version"` // release as uname -r prints it
	Arch    string   `json:"arch"`    // processor architecture, Go's name
	Image   string   `json:"image"`   // path of the bootable image
	Modules string   `json:"modules"` // path of the directory lib/modules/VERSION, empty if there is none
	Config  string   `json:"config"`  // path of the build configuration, empty if it is not known
	Source  string   `json:"source"`  // where it came from, for people
	Lacks   []string `json:"lacks"`   // names of the Features it does not have; Describe explains one
	options map[string]string
}

// Option returns the value of a build option, named without CONFIG_: "y", "m", a number or a string. The value is empty
// if the option is not set or the configuration is not known.
func (k Kernel) Option(name string) string { return k.options[name] }

// ConfigKnown reports whether the build configuration was found, so that Option says something.
func (k Kernel) ConfigKnown() bool { return k.options != nil }

// Options says where a kernel may come from. The zero value takes the newest of the distribution for this processor,
// cached in the user's cache directory.
type Options struct {
	Override string // an image, or a directory with an image and lib/modules/VERSION; used instead of everything else
	CacheDir string // default: DefaultCacheDir
	Offline  bool   // use the cache only
	Refresh  bool   // ask the archive for a newer kernel even if one is cached; not if Offline
	Arch     string // processor architecture, Go's name; default: that of this program
}

// Step is one piece of news about work that goes on.
type Step = apt.Step

// Progress is told of each step.
type Progress = apt.Progress

// DefaultCacheDir returns the kernel cache of the current user.
func DefaultCacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("guest kernel cache: %w", err)
	}
	return filepath.Join(dir, "margay", "kernel"), nil
}

// Find returns the kernel that o asks for, fetching it if it must. It is safe for concurrent use, by several processes
// with one cache too. What is wrong with a kernel or its archive is an *Error.
func Find(ctx context.Context, o Options, progress Progress) (Kernel, error) {
	return find(ctx, o, progress, "/", apt.Run)
}

// find is Find with the machine's root directory and its programs given.
func find(ctx context.Context, o Options, progress Progress, root string, run apt.Runner) (Kernel, error) {
	if o.Arch == "" {
		o.Arch = runtime.GOARCH
	}
	arch, err := ArchNamed(o.Arch)
	if err != nil {
		return Kernel{}, err
	}
	if o.Override != "" {
		return openOverride(o.Override, arch)
	}
	if o.CacheDir == "" {
		if o.CacheDir, err = DefaultCacheDir(); err != nil {
			return Kernel{}, err
		}
	}
	// apt resolves relative names against a directory of its own.
	dir, err := filepath.Abs(o.CacheDir)
	if err != nil {
		return Kernel{}, &Error{Op: "open the cache", Object: o.CacheDir, Err: err}
	}
	c := newCache(dir)
	if k, ok := c.newest(arch); ok && (o.Offline || !o.Refresh) {
		return k, nil
	}
	if o.Offline {
		return Kernel{}, &Error{Op: "look into the cache", Object: dir, Err: ErrNotCached}
	}
	return c.fetch(ctx, arch, o.Refresh, progress, root, run)
}

// fetch gets the newest kernel of the archive into the cache. Unless refresh is set it is content with one that another
// process fetched while this one waited for the lock.
func (c cache) fetch(ctx context.Context, arch Arch, refresh bool, progress Progress, root string, run apt.Runner) (Kernel, error) {
	wrap := func(err error) error { return &Error{Op: "fetch to", Object: c.Dir, Err: err} }
	unlock, err := c.Lock(ctx, progress)
	if err != nil {
		return Kernel{}, wrap(err)
	}
	defer unlock()
	if k, ok := c.newest(arch); ok && !refresh {
		return k, nil
	}
	h, err := apt.ReadHost(root)
	if err != nil {
		return Kernel{}, wrap(err)
	}
	tmp, err := c.Scratch()
	if err != nil {
		return Kernel{}, wrap(err)
	}
	defer os.RemoveAll(tmp)
	f := fetcher{host: h, arch: arch, dir: tmp, run: run, progress: progress}
	found, err := f.resolve(ctx)
	if err != nil {
		return Kernel{}, err
	}
	if k, ok := c.open(found.release, arch); ok {
		return k, nil
	}
	tree, err := found.archive.Fetch(ctx, "kernel "+found.release, found.packages)
	if err != nil {
		return Kernel{}, wrap(err)
	}
	return c.install(tree, found.release, arch, found.describe())
}
