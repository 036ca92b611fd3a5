package firmware

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"margay/cluster/provision/apt"
	"margay/initramfs"
)

// cardOffer is a suite that may have firmware files of network cards.
type cardOffer struct {
	suite     string // empty: the machine's own suites
	component string
	packages  []string // of these, the ones that the suite has
}

// debianCards are the packages of Debian with files for the drivers of initramfs.MetalModules. The
// files of ice and e100, for instance, have moved from one to another.
var debianCards = []string{
	"firmware-bnx2", "firmware-bnx2x", "firmware-intel-misc", "firmware-misc-nonfree", "firmware-qlogic", "firmware-realtek",
}

// cardOffers lists the suites for each known distribution, in order of preference: the kernel comes
// from the first one as well, and its drivers name the newest files.
var cardOffers = map[string][]cardOffer{
	apt.Debian: {
		{suite: "trixie-backports", component: "non-free-firmware", packages: debianCards},
		{component: "non-free-firmware", packages: debianCards},
	},
	apt.Ubuntu: {{component: "main", packages: []string{"linux-firmware"}}},
}

// Cards are firmware files that are looked for.
type Cards struct {
	Names   []string // relative to a folder such as /lib/firmware
	Arch    string   // of the machines with the cards, by Debian's name
	Refresh bool     // look for newer files than the ones in the cache
}

// FindCards returns a folder as /lib/firmware, with the files of those names that the distribution
// has. It fetches the packages if they were never searched for one of the names. It is as safe as
// Find.
func FindCards(ctx context.Context, o Options, wanted Cards) (string, error) {
	return findCards(ctx, o, wanted, "/", apt.Run)
}

// cardRecord describes a directory of the cache.
type cardRecord struct {
	Source string   `json:"source"` // for people
	Names  []string `json:"names"`  // of the files that were looked for, sorted
	Found  []string `json:"found"`  // those that are in the directory
}

// cardsTimeout bounds a fetch of 17 MB from Debian, or of a package of 500 MB from Ubuntu.
const cardsTimeout = 20 * time.Minute

func findCards(ctx context.Context, o Options, wanted Cards, root string, run apt.Runner) (string, error) {
	return cached(ctx, o, cardsTimeout, wanted.in, func(ctx context.Context, c apt.Cache) (string, error) {
		found, err := wanted.fetch(ctx, c, root, apt.Config{Arch: wanted.Arch, Run: run, Progress: o.Progress})
		if err != nil {
			return "", fmt.Errorf("firmware files of network cards: %w (a folder of your own with such files, as /lib/firmware, will do instead; so will an archive in the apt sources that has them)", err)
		}
		return found, nil
	})
}

// in returns a directory of the cache, if all of the names were looked for when it was made, and
// each file that was found is still there. None will do if newer files are wanted.
func (w Cards) in(c apt.Cache) (dir string, ok bool) {
	if w.Refresh {
		return "", false
	}
	for _, item := range c.Names() {
		var r cardRecord
		unknown := func(name string) bool { return !slices.Contains(r.Names, name) }
		gone := func(name string) bool {
			_, err := os.Stat(filepath.Join(c.Path(item), name))
			return err != nil
		}
		if c.Read(item, &r) && !slices.ContainsFunc(w.Names, unknown) && !slices.ContainsFunc(r.Found, gone) {
			return c.Path(item), true
		}
	}
	return "", false
}

// errNoCards reports a suite without the packages.
var errNoCards = errors.New("no package with firmware files")

// fetch stores the files in the cache, from the first suite that has packages. It looks also for
// those that were looked for before, so that images with different kernels have one cache. The
// caller holds the lock.
func (w Cards) fetch(ctx context.Context, c apt.Cache, root string, config apt.Config) (string, error) {
	host, err := apt.ReadHost(root)
	if err != nil {
		return "", err
	}
	scratch, err := c.Scratch()
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(scratch)
	var a *apt.Archive
	var packages []apt.Package
	for i, offer := range cardOffers[host.Distribution] {
		config.Dir = filepath.Join(scratch, fmt.Sprint("apt", i))
		a, packages, err = offer.open(ctx, host, config)
		if !errors.Is(err, apt.ErrNoSuite) && !errors.Is(err, errNoCards) {
			break
		}
	}
	if err != nil {
		return "", err
	}
	tree, err := a.Fetch(ctx, "firmware files of network cards", packages)
	if err != nil {
		return "", err
	}
	r := cardRecord{Source: a.Suite(), Names: slices.Clone(w.Names)}
	for _, p := range packages {
		r.Source += ", " + p.Name + " " + p.Version
	}
	var before cardRecord
	if c.Read(a.Suite(), &before) {
		r.Names = append(r.Names, before.Names...)
	}
	slices.Sort(r.Names)
	r.Names = slices.Compact(r.Names)
	var folders []string
	for _, dir := range []string{"usr/lib/firmware", "lib/firmware"} {
		if folder := filepath.Join(tree, dir); isFolder(folder) {
			folders = append(folders, folder)
		}
	}
	files := filepath.Join(scratch, "files")
	if err := os.Mkdir(files, 0o755); err != nil {
		return "", err
	}
	if r.Found, err = initramfs.CopyFirmware(ctx, folders, r.Names, files); err != nil {
		return "", err
	}
	if err := c.Store(files, a.Suite(), r); err != nil {
		return "", err
	}
	return c.Path(a.Suite()), nil
}

// open reads the index of a suite, and returns the packages that it has.
func (o cardOffer) open(ctx context.Context, host apt.Host, config apt.Config) (*apt.Archive, []apt.Package, error) {
	config.Component = o.component
	a, err := host.Open(ctx, o.suite, config)
	if err != nil {
		return nil, nil, err
	}
	packages, err := a.Show(ctx, o.packages...)
	if err == nil && len(packages) == 0 {
		err = fmt.Errorf("%w: the component %s of %s has none of %s", errNoCards, o.component, a.Suite(), strings.Join(o.packages, ", "))
	}
	return a, packages, err
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
