package guestkernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// fetcher gets a kernel from the archive into dir, a directory of its own.
type fetcher struct {
	host     host
	arch     Arch
	dir      string
	run      runner
	progress Progress
}

// resolved is a kernel release of the archive and the packages it consists of.
type resolved struct {
	apt      apt
	suite    string
	release  string
	packages []pkg
}

// describe says for people where the release is from. The packages of one release are of one version.
func (r resolved) describe() string {
	return fmt.Sprintf("%s, %s %s", r.suite, r.packages[0].name, r.packages[0].version)
}

func (r resolved) size() int64 {
	var sum int64
	for _, p := range r.packages {
		sum += p.size
	}
	return sum
}

// resolve finds the newest release among the offers of the distribution. An offer that is not there, or that has
// nothing new enough, is passed over and progress is told; any other trouble ends the search, so that a bad network
// does not choose an old kernel.
func (f fetcher) resolve(ctx context.Context) (resolved, error) {
	own, err := f.host.archive(f.arch.Debian)
	if err != nil {
		return resolved{}, err
	}
	var missed error
	for i, o := range f.host.distribution.offers {
		sources, suite := own, f.host.codename
		if o.suite != "" {
			sources, suite = slices.Clone(own[:1]), o.suite
			sources[0].Suites = []string{o.suite}
		}
		found, err := f.tryOffer(ctx, o, suite, sources, filepath.Join(f.dir, fmt.Sprint("apt", i)))
		if err == nil {
			return found, nil
		}
		err = &Error{Op: "choose a package of", Object: suite, Err: err}
		if !errors.Is(err, ErrNoSuite) && !errors.Is(err, ErrNoPackage) {
			return resolved{}, err
		}
		f.progress.Report(Step{Text: "no kernel in " + suite + ": " + errors.Unwrap(err).Error()})
		missed = err
	}
	return resolved{}, missed
}

// tryOffer resolves the newest release that the metapackages of o lead to.
func (f fetcher) tryOffer(ctx context.Context, o offer, suite string, sources []source, dir string) (resolved, error) {
	f.progress.Report(Step{Text: "reading the package index of " + suite})
	a, err := newAPT(ctx, dir, f.arch.Debian, sources, f.run)
	if err != nil {
		return resolved{}, err
	}
	if err := a.update(ctx); err != nil {
		return resolved{}, err
	}
	names := f.host.metapackages(o, f.arch.Debian)
	metas, err := a.show(ctx, names...)
	if err != nil {
		return resolved{}, err
	}
	r := resolved{apt: a, suite: suite}
	for _, m := range metas {
		if release, ok := m.release(); ok && compareVersions(release, r.release) > 0 {
			r.release = release
		}
	}
	if r.release == "" {
		return resolved{}, fmt.Errorf("%w named %s", ErrNoPackage, strings.Join(names, " or "))
	}
	if compareVersions(r.release, o.least) < 0 {
		return resolved{}, fmt.Errorf("%w: the newest is %s, needed is %s", ErrNoPackage, r.release, o.least)
	}
	r.packages, err = a.closure(ctx, r.release)
	return r, err
}

// closure returns the image package of a release and all the packages of that release it depends on.
func (a apt) closure(ctx context.Context, release string) ([]pkg, error) {
	var all []pkg
	seen := map[string]bool{imagePrefix + release: true}
	for next := []string{imagePrefix + release}; len(next) > 0; {
		found, err := a.show(ctx, next...)
		if err != nil {
			return nil, err
		}
		if len(found) != len(next) {
			return nil, fmt.Errorf("%w: one of %s is missing", ErrNoPackage, strings.Join(next, ", "))
		}
		all = append(all, found...)
		next = nil
		for _, p := range found {
			for _, name := range p.parts(release) {
				if !seen[name] {
					seen[name] = true
					next = append(next, name)
				}
			}
		}
	}
	return all, nil
}

// download fetches and unpacks the packages of r and returns the directory they were unpacked to.
func (f fetcher) download(ctx context.Context, r resolved) (tree string, err error) {
	wrap := func(op string, err error) error { return &Error{Op: op, Object: r.release, Err: err} }
	var names []string
	for _, p := range r.packages {
		names = append(names, p.name+"="+p.version)
	}
	stop := f.watch(r)
	debs, err := r.apt.download(ctx, names...)
	stop()
	if err != nil {
		return "", wrap("download", err)
	}
	files, err := os.ReadDir(debs)
	if err != nil {
		return "", wrap("unpack", err)
	}
	tree = filepath.Join(f.dir, "tree")
	unpacked := 0
	for _, file := range files {
		if filepath.Ext(file.Name()) != ".deb" {
			continue
		}
		f.progress.Report(Step{Text: "unpacking " + file.Name()})
		if _, err := f.run(ctx, debs, nil, "dpkg", "-x", file.Name(), tree); err != nil {
			return "", wrap("unpack", err)
		}
		unpacked++
	}
	if unpacked != len(names) {
		return "", wrap("download", fmt.Errorf("%d of %d packages arrived", unpacked, len(names)))
	}
	return tree, nil
}

// watchEvery is how often the progress of a download is told.
const watchEvery = 500 * time.Millisecond

// watch tells how much of r has arrived until the function it returns is called, which tells it a last time.
func (f fetcher) watch(r resolved) (stop func()) {
	step := Step{Text: "downloading kernel " + r.release, Total: r.size()}
	f.progress.Report(step)
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for running := true; running; {
			select {
			case <-quit:
				running = false
			case <-time.After(watchEvery):
			}
			step.Done = min(treeSize(filepath.Join(r.apt.dir, "debs")), step.Total)
			f.progress.Report(step)
		}
	}()
	return func() { close(quit); <-ended }
}

// treeSize returns the bytes in the files below dir. Files that vanish meanwhile do not count.
func treeSize(dir string) int64 {
	var sum int64
	filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err == nil {
				sum += info.Size()
			}
		}
		return nil
	})
	return sum
}
