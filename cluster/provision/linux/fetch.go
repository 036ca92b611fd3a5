package linux

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"margay/cluster/provision/apt"
	"margay/initramfs/guestkernel"
	"margay/internal/progress"
)

// fetcher looks for a kernel in the archive, in dir, a directory of its own.
type fetcher struct {
	host     apt.Host
	offers   []offer
	arch     guestkernel.Arch
	dir      string
	run      apt.Runner
	progress progress.Func
}

// resolved is a kernel release of the archive and the packages it consists of.
type resolved struct {
	archive  *apt.Archive
	release  string
	packages []apt.Package
}

// describe returns the origin of the release for people. All packages of a release have one
// version.
func (r resolved) describe() string {
	return fmt.Sprintf("%s, %s %s", r.archive.Suite(), r.packages[0].Name, r.packages[0].Version)
}

// resolve finds the newest release among the offers of the distribution. An offer that is absent or
// too old is skipped and reported to progress; any other error ends the search, so that a network
// failure does not select an old kernel.
func (f fetcher) resolve(ctx context.Context) (resolved, error) {
	var missed error
	for i, o := range f.offers {
		suite := o.suite
		if suite == "" {
			suite = f.host.Codename
		}
		found, err := f.tryOffer(ctx, o, filepath.Join(f.dir, fmt.Sprint("apt", i)))
		if err == nil {
			return found, nil
		}
		err = &Error{Op: "choose a package of", Object: suite, Err: err}
		if !errors.Is(err, apt.ErrNoSuite) && !errors.Is(err, ErrNoPackage) {
			return resolved{}, err
		}
		f.progress.Report(progress.Step{Text: "no kernel in " + suite + ": " + errors.Unwrap(err).Error()})
		missed = err
	}
	return resolved{}, missed
}

// tryOffer resolves the newest release that the metapackages of o depend on.
func (f fetcher) tryOffer(ctx context.Context, o offer, dir string) (resolved, error) {
	a, err := f.host.Open(ctx, o.suite, apt.Config{Dir: dir, Arch: f.arch.Debian, Run: f.run, Progress: f.progress})
	if err != nil {
		return resolved{}, err
	}
	names := o.metapackages(f.host, f.arch.Debian)
	metas, err := a.Show(ctx, names...)
	if err != nil {
		return resolved{}, err
	}
	r := resolved{archive: a}
	var newest apt.Package
	for _, m := range metas {
		if release, ok := release(m); ok && guestkernel.CompareVersions(release, r.release) > 0 {
			r.release, newest = release, m
		}
	}
	if r.release == "" {
		return resolved{}, fmt.Errorf("%w named %s", ErrNoPackage, strings.Join(names, " or "))
	}
	if guestkernel.CompareVersions(r.release, o.least) < 0 {
		return resolved{}, fmt.Errorf("%w: the newest is %s, needed is %s", ErrNoPackage, r.release, o.least)
	}
	r.packages, err = closure(ctx, a, r.release, parts(newest, r.release))
	return r, err
}

// closure returns the image package of a release, the other parts of it that a metapackage depends
// on, and their dependencies within that release.
func closure(ctx context.Context, a *apt.Archive, release string, next []string) ([]apt.Package, error) {
	var all []apt.Package
	seen := make(map[string]bool)
	for _, name := range next {
		seen[name] = true
	}
	for len(next) > 0 {
		found, err := a.Show(ctx, next...)
		if err != nil {
			return nil, err
		}
		if len(found) != len(next) {
			return nil, fmt.Errorf("%w: one of %s is missing", ErrNoPackage, strings.Join(next, ", "))
		}
		all = append(all, found...)
		next = nil
		for _, p := range found {
			for _, name := range parts(p, release) {
				if !seen[name] {
					seen[name] = true
					next = append(next, name)
				}
			}
		}
	}
	return all, nil
}
