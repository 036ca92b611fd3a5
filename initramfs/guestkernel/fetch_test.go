package guestkernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// fakeArchive is an archive and the programs that read it.
type fakeArchive struct {
	suites  map[string]map[string]string // dependency field of each package of each suite
	trees   map[string][]string          // files of each package
	failing map[string]error             // by program and its first argument

	mu       sync.Mutex
	calls    []string
	active   atomic.Int32 // downloads going on
	overlaps atomic.Bool
}

const (
	newRelease = "7.2.12+deb13-cloud-amd64"
	oldRelease = "6.1.0-50-cloud-amd64"
)

func debianArchive() *fakeArchive {
	usr := "usr/lib/modules/" + newRelease
	return &fakeArchive{
		suites: map[string]map[string]string{
			"trixie-backports": {
				"linux-image-cloud-amd64":     "linux-base-cloud-amd64, linux-image-" + newRelease + " (= 1)",
				"linux-image-" + newRelease:   "dracut | initramfs-tools, linux-binary-" + newRelease + ", linux-modules-" + newRelease,
				"linux-binary-" + newRelease:  "linux-base-" + newRelease,
				"linux-modules-" + newRelease: "kmod, linux-base-" + newRelease,
				"linux-base-" + newRelease:    "",
			},
			"bookworm": {
				"linux-image-cloud-amd64":   "linux-image-" + oldRelease,
				"linux-image-" + oldRelease: "kmod, linux-base (>= 4.3)",
			},
		},
		trees: map[string][]string{
			"linux-image-" + newRelease:   {"usr/share/doc/image"},
			"linux-binary-" + newRelease:  {usr + "/vmlinuz"},
			"linux-modules-" + newRelease: {usr + "/kernel/a.ko"},
			"linux-base-" + newRelease:    {usr + "/config", usr + "/modules.builtin"},
			"linux-image-" + oldRelease: {
				"boot/vmlinuz-" + oldRelease, "boot/config-" + oldRelease, "lib/modules/" + oldRelease + "/kernel/a.ko",
			},
		},
		failing: map[string]error{},
	}
}

// run is a runner.
func (a *fakeArchive) run(_ context.Context, dir string, env []string, name string, args ...string) (string, error) {
	what := name + " " + strings.Join(slices.DeleteFunc(slices.Clone(args), func(s string) bool {
		return strings.HasPrefix(s, "-") && s != "-x"
	})[:1], "")
	a.mu.Lock()
	a.calls = append(a.calls, what)
	err := a.failing[what]
	a.mu.Unlock()
	if err != nil {
		return "", err
	}
	switch what {
	case "apt-config dump":
		return "APT::Architecture \"host\";\nDPkg::Post-Invoke:: \"rm -rf /\";\nAcquire::http::Proxy \"http://proxy.example\";\n" +
			"Acquire::AllowInsecureRepositories \"true\";\nAPT::Update::Post-Invoke:: \"rm\";\n", nil
	case "dpkg -x":
		return "", a.unpack(args[1], args[2])
	}
	packages, err := a.offered(env)
	if err != nil {
		return "", err
	}
	switch what {
	case "apt-get update":
		return "", nil
	case "apt-cache show":
		return a.show(packages, args[slices.Index(args, "--")+1:])
	case "apt-get download":
		return "", a.download(dir, packages, args[slices.Index(args, "--")+1:])
	}
	return "", fmt.Errorf("unexpected %s", what)
}

// offered returns the packages of the suites that the private configuration names.
func (a *fakeArchive) offered(env []string) (map[string]string, error) {
	i := slices.IndexFunc(env, func(s string) bool { return strings.HasPrefix(s, "APT_CONFIG=") })
	if i < 0 {
		return nil, errors.New("the configuration of the host is in use")
	}
	etc := filepath.Join(filepath.Dir(strings.TrimPrefix(env[i], "APT_CONFIG=")), "etc/sources.list.d/archive.sources")
	text, err := os.ReadFile(etc)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, s := range parseSources(string(text)) {
		for _, suite := range s.Suites {
			if a.suites[suite] == nil {
				return nil, fmt.Errorf("apt-get: E: The repository '%s %s Release' does not have a Release file", s.URIs, suite)
			}
			for name, depends := range a.suites[suite] {
				all[name] = depends
			}
		}
	}
	return all, nil
}

func (a *fakeArchive) show(packages map[string]string, names []string) (string, error) {
	var text strings.Builder
	for _, name := range names {
		if depends, ok := packages[name]; ok {
			fmt.Fprintf(&text, "Package: %s\nVersion: 1\nSize: 100\nDepends: %s\n\n", name, depends)
		}
	}
	if text.Len() == 0 {
		return "", errors.New("apt-cache: E: No packages found")
	}
	return text.String(), nil
}

func (a *fakeArchive) download(dir string, packages map[string]string, names []string) error {
	if a.active.Add(1) > 1 {
		a.overlaps.Store(true)
	}
	defer a.active.Add(-1)
	for _, name := range names {
		name, _, _ = strings.Cut(name, "=")
		if _, ok := packages[name]; !ok {
			return fmt.Errorf("no package %s", name)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".deb"), []byte(name), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (a *fakeArchive) unpack(deb, tree string) error {
	for _, file := range a.trees[strings.TrimSuffix(deb, ".deb")] {
		content := ""
		if strings.Contains(file, "config") {
			content = "CONFIG_NO_HZ_FULL=y\n"
		}
		path := filepath.Join(tree, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (a *fakeArchive) called(what string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, c := range a.calls {
		if c == what {
			n++
		}
	}
	return n
}

// debianHost returns the root of a machine with Debian 12.
func debianHost(t *testing.T) string {
	root := t.TempDir()
	write(t, filepath.Join(root, "etc/os-release"), "ID=debian\nVERSION_CODENAME=bookworm\nVERSION_ID=\"12\"\n")
	write(t, filepath.Join(root, "etc/apt/sources.list"), "deb [signed-by=/keys/k.gpg] http://m.example/debian bookworm main contrib\n")
	return root
}

func TestFetchThenCache(t *testing.T) {
	a, root := debianArchive(), debianHost(t)
	o := Options{CacheDir: filepath.Join(t.TempDir(), "cache"), Arch: "amd64"}
	var steps []Step
	first, err := find(context.Background(), o, func(s Step) { steps = append(steps, s) }, root, a.run)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(o.CacheDir, newRelease)
	modules := filepath.Join(dir, "usr/lib/modules", newRelease)
	if first.Version != newRelease || first.Image != modules+"/vmlinuz" || first.Modules != modules || first.Arch != "amd64" {
		t.Errorf("kernel %+v", first)
	}
	if first.Source != "trixie-backports, linux-image-"+newRelease+" 1" {
		t.Errorf("source %q", first.Source)
	}
	if slices.Contains(first.Lacks, "nohz_full") || !slices.Contains(first.Lacks, "sched_ext") {
		t.Errorf("lacks %v", first.Lacks)
	}
	if last := slices.ContainsFunc(steps, func(s Step) bool { return s.Total == 400 && s.Done > 0 }); !last {
		t.Errorf("no step tells the size of the download: %v", steps)
	}
	if left, _ := os.ReadDir(o.CacheDir); len(left) != 2 {
		t.Errorf("the cache holds %v, want the kernel and the lock", left)
	}
	for _, offline := range []bool{false, true} {
		o.Offline, o.Refresh = offline, offline
		calls := len(a.calls)
		again, err := find(context.Background(), o, nil, "/nonexistent", a.run)
		if err != nil || again.Image != first.Image || again.Source != first.Source || !again.ConfigKnown() {
			t.Errorf("offline %v: %+v, %v", offline, again, err)
		}
		if len(a.calls) != calls {
			t.Errorf("offline %v: programs were run: %v", offline, a.calls[calls:])
		}
	}
}

func TestOffline(t *testing.T) {
	o := Options{CacheDir: t.TempDir(), Offline: true}
	_, err := find(context.Background(), o, nil, "/nonexistent", debianArchive().run)
	if !errors.Is(err, ErrNotCached) || !strings.Contains(err.Error(), "set KERNEL") {
		t.Errorf("error %v", err)
	}
}

func TestRefresh(t *testing.T) {
	a, root := debianArchive(), debianHost(t)
	o := Options{CacheDir: t.TempDir(), Arch: "amd64"}
	newer := a.suites["trixie-backports"]
	delete(a.suites, "trixie-backports")
	k, err := find(context.Background(), o, nil, root, a.run)
	if err != nil || k.Version != oldRelease || !strings.HasPrefix(k.Source, "bookworm, ") {
		t.Fatalf("without the suite: %+v, %v", k, err)
	}
	a.suites["trixie-backports"] = newer
	if k, err = find(context.Background(), o, nil, root, a.run); err != nil || k.Version != oldRelease {
		t.Errorf("not refreshed: %s, %v", k.Version, err)
	}
	o.Refresh = true
	for range 2 {
		if k, err = find(context.Background(), o, nil, root, a.run); err != nil || k.Version != newRelease {
			t.Errorf("refreshed: %s, %v", k.Version, err)
		}
	}
	if n := a.called("apt-get download"); n != 2 {
		t.Errorf("%d downloads, want one a release", n)
	}
}

// An offer that is too old is passed over; trouble with the network is not a reason to take an old kernel.
func TestFallback(t *testing.T) {
	t.Run("too old", func(t *testing.T) {
		a := debianArchive()
		a.suites["trixie-backports"]["linux-image-cloud-amd64"] = "linux-image-7.1.3+deb13-cloud-amd64"
		var told string
		k, err := find(context.Background(), Options{CacheDir: t.TempDir(), Arch: "amd64"},
			func(s Step) { told += s.Text + "\n" }, debianHost(t), a.run)
		if err != nil || k.Version != oldRelease {
			t.Errorf("%+v, %v", k, err)
		}
		if !strings.Contains(told, "7.1.3") || !strings.Contains(told, "7.2") {
			t.Errorf("not told: %s", told)
		}
	})
	t.Run("network", func(t *testing.T) {
		a := debianArchive()
		a.failing["apt-get update"] = errors.New("could not resolve")
		_, err := find(context.Background(), Options{CacheDir: t.TempDir(), Arch: "amd64"}, nil, debianHost(t), a.run)
		if err == nil || !strings.Contains(err.Error(), "could not resolve") || !strings.Contains(err.Error(), "trixie-backports") {
			t.Errorf("error %v", err)
		}
		if n := a.called("apt-get update"); n != 1 {
			t.Errorf("%d updates, want 1", n)
		}
	})
	t.Run("nothing", func(t *testing.T) {
		a := debianArchive()
		a.suites = map[string]map[string]string{"bookworm": {}}
		_, err := find(context.Background(), Options{CacheDir: t.TempDir(), Arch: "amd64"}, nil, debianHost(t), a.run)
		if !errors.Is(err, ErrNoPackage) || !strings.Contains(err.Error(), "linux-image-cloud-amd64") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("a part is missing", func(t *testing.T) {
		a := debianArchive()
		delete(a.suites["trixie-backports"], "linux-base-"+newRelease)
		k, err := find(context.Background(), Options{CacheDir: t.TempDir(), Arch: "amd64"}, nil, debianHost(t), a.run)
		if err != nil || k.Version != oldRelease {
			t.Errorf("%+v, %v", k, err)
		}
	})
}

// Ubuntu has no suite of its own for new kernels, and several metapackages, of which the newest kernel counts.
func TestUbuntu(t *testing.T) {
	const hwe, ga = "6.17.0-8-generic", "6.8.0-90-generic"
	a := &fakeArchive{
		suites: map[string]map[string]string{"noble": {
			"linux-image-virtual":           "linux-image-" + ga,
			"linux-image-virtual-hwe-24.04": "linux-image-" + hwe,
			"linux-image-generic":           "linux-image-" + ga + ", linux-modules-extra-" + ga + ", linux-firmware",
			"linux-image-" + hwe:            "kmod, linux-base, linux-modules-" + hwe,
			"linux-modules-" + hwe:          "",
		}},
		trees: map[string][]string{
			"linux-image-" + hwe:   {"boot/vmlinuz-" + hwe},
			"linux-modules-" + hwe: {"boot/config-" + hwe, "lib/modules/" + hwe + "/kernel/a.ko.zst"},
		},
		failing: map[string]error{},
	}
	root := t.TempDir()
	write(t, filepath.Join(root, "etc/os-release"), "ID=ubuntu\nVERSION_CODENAME=noble\nVERSION_ID=\"24.04\"\n")
	write(t, filepath.Join(root, "etc/apt/sources.list.d/ubuntu.sources"),
		"Types: deb\nURIs: http://m.example/ubuntu/\nSuites: noble\nComponents: main universe\nSigned-By: /k/ubuntu-archive-keyring.gpg\n")
	k, err := find(context.Background(), Options{CacheDir: t.TempDir(), Arch: "amd64"}, nil, root, a.run)
	if err != nil || k.Version != hwe || k.Config == "" || k.Modules == "" {
		t.Errorf("%+v, %v", k, err)
	}
}

// Whatever ends a fetch, the cache holds no kernel afterwards, and the next fetch works.
func TestInterruptedFetch(t *testing.T) {
	for _, what := range []string{"apt-config dump", "apt-get update", "apt-cache show", "apt-get download", "dpkg -x"} {
		t.Run(what, func(t *testing.T) {
			a, root := debianArchive(), debianHost(t)
			o := Options{CacheDir: t.TempDir(), Arch: "amd64"}
			a.failing[what] = errors.New("killed")
			_, err := find(context.Background(), o, nil, root, a.run)
			var e *Error
			if !errors.As(err, &e) || !strings.Contains(err.Error(), "killed") {
				t.Fatalf("error %v", err)
			}
			if left, _ := os.ReadDir(o.CacheDir); len(left) != 1 {
				t.Errorf("left behind: %v", left)
			}
			// A process that was killed leaves its scratch directory and maybe a kernel without a record.
			write(t, filepath.Join(o.CacheDir, scratchPrefix+"dead", "tree", "x"), "")
			write(t, filepath.Join(o.CacheDir, newRelease, "usr/lib/modules", newRelease, "vmlinuz"), "")
			a.failing = map[string]error{}
			if k, err := find(context.Background(), o, nil, root, a.run); err != nil || k.Config == "" {
				t.Errorf("second fetch: %+v, %v", k, err)
			}
			if left, _ := os.ReadDir(o.CacheDir); len(left) != 2 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestIncompletePackages(t *testing.T) {
	a, root := debianArchive(), debianHost(t)
	delete(a.trees, "linux-binary-"+newRelease)
	o := Options{CacheDir: t.TempDir(), Arch: "amd64"}
	if _, err := find(context.Background(), o, nil, root, a.run); !errors.Is(err, ErrNoImage) {
		t.Errorf("error %v", err)
	}
	if _, err := find(context.Background(), Options{CacheDir: o.CacheDir, Offline: true}, nil, root, a.run); !errors.Is(err, ErrNotCached) {
		t.Errorf("an incomplete kernel was cached: %v", err)
	}
}

func TestConcurrentFetch(t *testing.T) {
	a, root := debianArchive(), debianHost(t)
	o := Options{CacheDir: t.TempDir(), Arch: "amd64"}
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if k, err := find(context.Background(), o, nil, root, a.run); err != nil || k.Version != newRelease {
				t.Errorf("%+v, %v", k, err)
			}
		})
	}
	group.Wait()
	if n := a.called("apt-get download"); n != 1 || a.overlaps.Load() {
		t.Errorf("%d downloads, at the same time: %v; want one", n, a.overlaps.Load())
	}
}

func TestLockHonoursContext(t *testing.T) {
	c := cache{dir: t.TempDir()}
	unlock, err := c.lock(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	told := ""
	_, err = c.lock(ctx, func(s Step) { told = s.Text; cancel() })
	if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "KERNEL") || !strings.Contains(told, "waiting") {
		t.Errorf("error %v, told %q", err, told)
	}
	unlock()
	if again, err := c.lock(context.Background(), nil); err != nil {
		t.Error(err)
	} else {
		again()
	}
}

// A kernel of another architecture in the same cache is not taken.
func TestCacheKeepsArchitecturesApart(t *testing.T) {
	a, root := debianArchive(), debianHost(t)
	o := Options{CacheDir: t.TempDir(), Arch: "amd64"}
	if _, err := find(context.Background(), o, nil, root, a.run); err != nil {
		t.Fatal(err)
	}
	o.Arch, o.Offline = "arm64", true
	if _, err := find(context.Background(), o, nil, root, a.run); !errors.Is(err, ErrNotCached) {
		t.Errorf("error %v", err)
	}
}
