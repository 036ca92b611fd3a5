// Package emulator finds the QEMU for virtual nodes.
//
// It is the installed one if that is sound (qemu.SoundVersion). Otherwise it is a private one from
// the cache, fetched from another suite of the machine's own archive (package apt), which installs
// and upgrades nothing. The private one uses the installed one's shared libraries, and is run once
// before it is used. If there is no such suite or no network, the installed one is used, with a
// warning.
package emulator

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"margay/cluster/provision/apt"
	"margay/internal/progress"
	"margay/qemu"
)

// Options select a QEMU.
type Options struct {
	Arch     qemu.Arch
	Program  string // the user's own, a path or a name in PATH; used instead of everything else
	CacheDir string
	Told     func(format string, args ...any) // receives warnings, one line each
	Progress progress.Func                    // receives each step of a fetch; may be nil
}

// offer is a suite with a sound QEMU for a release that has none.
type offer struct {
	distribution, codename string
	arch                   qemu.Arch
	suite                  string
	packages               []string // the first one has the program
	program                string   // its path in there
	firmware               []string // folders in there
}

// offers has a row for each known release with an unsound QEMU whose archive has a sound one in
// another suite.
var offers = []offer{{
	distribution: apt.Debian, codename: "bookworm", arch: qemu.AMD64, suite: "bookworm-backports",
	packages: []string{"qemu-system-x86", "qemu-system-data", "seabios"},
	program:  "usr/bin/qemu-system-x86_64", firmware: []string{"usr/share/qemu", "usr/share/seabios"},
}}

// fetchTimeout bounds a fetch of about 13 MB; the installed QEMU is the fallback.
const fetchTimeout = 3 * time.Minute

// Find returns the QEMU that o selects, and fetches it if necessary. It is safe for concurrent use,
// even by several processes with one cache. The error comes from qemu.Find for the installed one or
// the user's own.
func Find(ctx context.Context, o Options) (*qemu.Emulator, error) {
	return find(ctx, o, "/", apt.Run)
}

// find is Find with the machine's root directory and its programs given.
func find(ctx context.Context, o Options, root string, run apt.Runner) (*qemu.Emulator, error) {
	installed, err := qemu.Find(ctx, o.Arch, o.Program)
	if err != nil || o.Program != "" || installed.Sound() {
		return installed, err
	}
	private, err := o.private(ctx, installed.Version(), root, run)
	switch {
	case err == nil:
		return private, nil
	case ctx.Err() != nil:
		return nil, err
	}
	o.Told("%v; QEMU %v has to do, under which about one node in twenty has to be started again", err, installed.Version())
	return installed, nil
}

// private returns the QEMU of the cache, and fetches it if it is absent.
func (o *Options) private(ctx context.Context, installed qemu.Version, root string, run apt.Runner) (*qemu.Emulator, error) {
	wrap := func(err error) error { return fmt.Errorf("emulator: fetch a newer QEMU: %w", err) }
	// apt resolves relative names against a directory of its own.
	dir, err := filepath.Abs(o.CacheDir)
	if err != nil {
		return nil, wrap(err)
	}
	c := cache{apt.Cache{Dir: dir, Record: "qemu.json"}}
	if e := c.any(ctx, o.Arch); e != nil {
		return e, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, fetchTimeout, fmt.Errorf("not done after %v", fetchTimeout))
	defer cancel()
	unlock, err := c.Lock(ctx, o.Progress)
	if err != nil {
		return nil, wrap(err)
	}
	defer unlock()
	if e := c.any(ctx, o.Arch); e != nil { // another process has fetched it in the meantime
		return e, nil
	}
	host, offer, err := choose(o.Arch, root)
	if err != nil {
		return nil, wrap(err)
	}
	o.Told("QEMU %v does not emulate faithfully a Linux that changes its own code; fetching a newer one from %s", installed, offer.suite)
	e, err := c.fetch(ctx, host, offer, apt.Config{Arch: string(o.Arch), Run: run, Progress: o.Progress})
	if err != nil {
		return nil, wrap(err)
	}
	return e, nil
}

// choose returns the host and the offer for it.
func choose(arch qemu.Arch, root string) (apt.Host, offer, error) {
	host, err := apt.ReadHost(root)
	if err != nil {
		return host, offer{}, err
	}
	i := slices.IndexFunc(offers, func(o offer) bool {
		return o.distribution == host.Distribution && o.codename == host.Codename && o.arch == arch
	})
	if i < 0 {
		return host, offer{}, fmt.Errorf("no suite with a newer one is known for %s %s", host.Distribution, host.Codename)
	}
	return host, offers[i], nil
}

// cache has one directory for each version of the package with the program.
type cache struct{ apt.Cache }

// record describes a directory of the cache.
type record struct {
	Arch     qemu.Arch `json:"arch"`
	Source   string    `json:"source"`   // for people
	Program  string    `json:"program"`  // its path in the directory
	Firmware []string  `json:"firmware"` // folders in the directory
}

// open finds and runs the program in dir.
func (r record) open(ctx context.Context, dir string) (*qemu.Emulator, error) {
	firmware := make([]string, len(r.Firmware))
	for i, folder := range r.Firmware {
		firmware[i] = filepath.Join(dir, folder)
		if _, err := os.Stat(firmware[i]); err != nil {
			return nil, err
		}
	}
	e, err := qemu.Find(ctx, r.Arch, filepath.Join(dir, r.Program), firmware...)
	if err == nil && !e.Sound() {
		err = fmt.Errorf("%s has version %v, want %v or newer", r.Source, e.Version(), qemu.SoundVersion)
	}
	return e, err
}

// any returns a sound emulator of the cache, nil if none is complete and runs.
func (c cache) any(ctx context.Context, arch qemu.Arch) *qemu.Emulator {
	for _, name := range c.Names() {
		var r record
		if !c.Read(name, &r) || r.Arch != arch {
			continue
		}
		if e, err := r.open(ctx, c.Path(name)); err == nil {
			return e
		}
	}
	return nil
}

// fetch stores the offered packages in the cache. The caller holds the lock.
func (c cache) fetch(ctx context.Context, host apt.Host, o offer, config apt.Config) (*qemu.Emulator, error) {
	scratch, err := c.Scratch()
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(scratch)
	config.Dir = filepath.Join(scratch, "apt")
	archive, err := host.Open(ctx, o.suite, config)
	if err != nil {
		return nil, err
	}
	packages, version, err := o.resolve(ctx, archive)
	if err != nil {
		return nil, err
	}
	tree, err := archive.Fetch(ctx, "QEMU "+version, packages)
	if err != nil {
		return nil, err
	}
	r := record{Arch: o.arch, Source: fmt.Sprintf("%s, %s %s", o.suite, o.packages[0], version), Program: o.program, Firmware: o.firmware}
	if _, err := r.open(ctx, tree); err != nil {
		return nil, err
	}
	name := version[strings.Index(version, ":")+1:] // the epoch is in no name of a file
	if err := c.Store(tree, name, r); err != nil {
		return nil, err
	}
	return r.open(ctx, c.Path(name))
}

// resolve returns the packages of the offer and the version of the package with the program.
func (o offer) resolve(ctx context.Context, archive *apt.Archive) (packages []apt.Package, version string, err error) {
	packages, err = archive.Show(ctx, o.packages...)
	if err != nil {
		return nil, "", err
	}
	i := slices.IndexFunc(packages, func(p apt.Package) bool { return p.Name == o.packages[0] })
	if i < 0 || len(packages) != len(o.packages) {
		return nil, "", fmt.Errorf("%s lacks some of the packages %s", o.suite, strings.Join(o.packages, ", "))
	}
	return packages, packages[i].Version, nil
}
