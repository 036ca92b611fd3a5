package linux

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"margay/cluster/provision/apt/apttest"
	"margay/initramfs/guestkernel"
	"margay/internal/progress"
)

const (
	newRelease = "7.2.12+deb13-cloud-amd64"
	oldRelease = "6.1.0-50-cloud-amd64"
	config     = "CONFIG_NO_HZ_FULL=y\n"
)

func debianArchive() *apttest.Archive {
	usr := "usr/lib/modules/" + newRelease
	return &apttest.Archive{
		Suites: map[string]map[string]string{
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
		Trees: map[string]map[string]string{
			"linux-image-" + newRelease:   {"usr/share/doc/image": ""},
			"linux-binary-" + newRelease:  {usr + "/vmlinuz": ""},
			"linux-modules-" + newRelease: {usr + "/kernel/a.ko": ""},
			"linux-base-" + newRelease:    {usr + "/config": config, usr + "/modules.builtin": ""},
			"linux-image-" + oldRelease: {
				"boot/vmlinuz-" + oldRelease: "", "boot/config-" + oldRelease: config, "lib/modules/" + oldRelease + "/kernel/a.ko": "",
			},
		},
		Failing: map[string]error{},
	}
}

func TestFetchThenCache(t *testing.T) {
	a, root := debianArchive(), apttest.DebianHost(t)
	o := Options{CacheDir: filepath.Join(t.TempDir(), "cache"), Arch: "amd64"}
	var steps []progress.Step
	first, err := find(context.Background(), o, func(s progress.Step) { steps = append(steps, s) }, root, a.Run)
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
	if last := slices.ContainsFunc(steps, func(s progress.Step) bool { return s.Total == 400 && s.Done > 0 }); !last {
		t.Errorf("no step tells the size of the download: %v", steps)
	}
	if left, _ := os.ReadDir(o.CacheDir); len(left) != 2 {
		t.Errorf("the cache holds %v, want the kernel and the lock", left)
	}
	for _, offline := range []bool{false, true} {
		o.Offline, o.Refresh = offline, offline
		calls := len(a.Calls())
		again, err := find(context.Background(), o, nil, "/nonexistent", a.Run)
		if err != nil || again.Image != first.Image || again.Source != first.Source || !again.ConfigKnown() {
			t.Errorf("offline %v: %+v, %v", offline, again, err)
		}
		if len(a.Calls()) != calls {
			t.Errorf("offline %v: programs were run: %v", offline, a.Calls()[calls:])
		}
	}
}

func TestOffline(t *testing.T) {
	o := Options{CacheDir: t.TempDir(), Offline: true}
	_, err := find(context.Background(), o, nil, "/nonexistent", debianArchive().Run)
	if !errors.Is(err, ErrNotCached) || !strings.Contains(err.Error(), "set KERNEL") {
		t.Errorf("error %v", err)
	}
}

func TestRefresh(t *testing.T) {
	a, root := debianArchive(), apttest.DebianHost(t)
	o := Options{CacheDir: t.TempDir(), Arch: "amd64"}
	newer := a.Suites["trixie-backports"]
	delete(a.Suites, "trixie-backports")
	k, err := find(context.Background(), o, nil, root, a.Run)
	if err != nil || k.Version != oldRelease || !strings.HasPrefix(k.Source, "bookworm, ") {
		t.Fatalf("without the suite: %+v, %v", k, err)
	}
	a.Suites["trixie-backports"] = newer
	if k, err = find(context.Background(), o, nil, root, a.Run); err != nil || k.Version != oldRelease {
		t.Errorf("not refreshed: %s, %v", k.Version, err)
	}
	o.Refresh = true
	for range 2 {
		if k, err = find(context.Background(), o, nil, root, a.Run); err != nil || k.Version != newRelease {
			t.Errorf("refreshed: %s, %v", k.Version, err)
		}
	}
	if n := a.Called("apt-get download"); n != 2 {
		t.Errorf("%d downloads, want one a release", n)
	}
}

// An offer that is too old is passed over; trouble with the network is not a reason to take an old
// kernel.
func TestFallback(t *testing.T) {
	t.Run("too old", func(t *testing.T) {
		a := debianArchive()
		a.Suites["trixie-backports"]["linux-image-cloud-amd64"] = "linux-image-7.1.3+deb13-cloud-amd64"
		var told string
		k, err := find(context.Background(), Options{CacheDir: t.TempDir(), Arch: "amd64"},
			func(s progress.Step) { told += s.Text + "\n" }, apttest.DebianHost(t), a.Run)
		if err != nil || k.Version != oldRelease {
			t.Errorf("%+v, %v", k, err)
		}
		if !strings.Contains(told, "7.1.3") || !strings.Contains(told, "7.2") {
			t.Errorf("not told: %s", told)
		}
	})
	t.Run("network", func(t *testing.T) {
		a := debianArchive()
		a.Failing["apt-get update"] = errors.New("could not resolve")
		_, err := find(context.Background(), Options{CacheDir: t.TempDir(), Arch: "amd64"}, nil, apttest.DebianHost(t), a.Run)
		if err == nil || !strings.Contains(err.Error(), "could not resolve") || !strings.Contains(err.Error(), "trixie-backports") {
			t.Errorf("error %v", err)
		}
		if n := a.Called("apt-get update"); n != 1 {
			t.Errorf("%d updates, want 1", n)
		}
	})
	t.Run("nothing", func(t *testing.T) {
		a := debianArchive()
		a.Suites = map[string]map[string]string{"bookworm": {}}
		_, err := find(context.Background(), Options{CacheDir: t.TempDir(), Arch: "amd64"}, nil, apttest.DebianHost(t), a.Run)
		if !errors.Is(err, ErrNoPackage) || !strings.Contains(err.Error(), "linux-image-cloud-amd64") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("a part is missing", func(t *testing.T) {
		a := debianArchive()
		delete(a.Suites["trixie-backports"], "linux-base-"+newRelease)
		k, err := find(context.Background(), Options{CacheDir: t.TempDir(), Arch: "amd64"}, nil, apttest.DebianHost(t), a.Run)
		if err != nil || k.Version != oldRelease {
			t.Errorf("%+v, %v", k, err)
		}
	})
}

// Ubuntu has no suite of its own for new kernels, but several metapackages; the newest kernel
// counts.
func TestUbuntu(t *testing.T) {
	const hwe, ga = "6.17.0-8-generic", "6.8.0-90-generic"
	a := &apttest.Archive{
		Suites: map[string]map[string]string{"noble": {
			"linux-image-virtual":           "linux-image-" + ga,
			"linux-image-virtual-hwe-24.04": "linux-image-" + hwe,
			"linux-image-generic":           "linux-image-" + ga + ", linux-modules-extra-" + ga + ", linux-firmware",
			"linux-image-" + hwe:            "kmod, linux-base, linux-modules-" + hwe,
			"linux-modules-" + hwe:          "",
		}},
		Trees: map[string]map[string]string{
			"linux-image-" + hwe:   {"boot/vmlinuz-" + hwe: ""},
			"linux-modules-" + hwe: {"boot/config-" + hwe: config, "lib/modules/" + hwe + "/kernel/a.ko.zst": ""},
		},
		Failing: map[string]error{},
	}
	root := t.TempDir()
	apttest.Write(t, filepath.Join(root, "etc/os-release"), "ID=ubuntu\nVERSION_CODENAME=noble\nVERSION_ID=\"24.04\"\n")
	apttest.Write(t, filepath.Join(root, "etc/apt/sources.list.d/ubuntu.sources"),
		"Types: deb\nURIs: http://m.example/ubuntu/\nSuites: noble\nComponents: main universe\nSigned-By: /k/ubuntu-archive-keyring.gpg\n")
	k, err := find(context.Background(), Options{CacheDir: t.TempDir(), Arch: "amd64"}, nil, root, a.Run)
	if err != nil || k.Version != hwe || k.Config == "" || k.Modules == "" {
		t.Errorf("%+v, %v", k, err)
	}
}

// A generic kernel has the packages that its metapackage brings in addition. It is not looked for
// among the kernels of virtual machines.
func TestGeneric(t *testing.T) {
	const generic, virtual = "6.8.0-91-generic", "6.8.0-92-virtual"
	ubuntu := &apttest.Archive{
		Suites: map[string]map[string]string{"noble": {
			"linux-image-virtual":             "linux-image-" + virtual,
			"linux-image-generic":             "linux-image-" + generic + ", linux-modules-extra-" + generic + ", linux-firmware",
			"linux-image-" + generic:          "kmod, linux-base, linux-modules-" + generic,
			"linux-modules-" + generic:        "",
			"linux-modules-extra-" + generic:  "linux-modules-" + generic,
			"linux-image-" + virtual:          "",
			"linux-image-generic-hwe-24.04.1": "linux-image-9.9",
		}},
		Trees: map[string]map[string]string{
			"linux-image-" + generic:         {"boot/vmlinuz-" + generic: ""},
			"linux-modules-" + generic:       {"boot/config-" + generic: config, "lib/modules/" + generic + "/kernel/a.ko.zst": ""},
			"linux-modules-extra-" + generic: {"lib/modules/" + generic + "/kernel/sky2.ko.zst": ""},
		},
		Failing: map[string]error{},
	}
	root := t.TempDir()
	apttest.Write(t, filepath.Join(root, "etc/os-release"), "ID=ubuntu\nVERSION_CODENAME=noble\nVERSION_ID=\"24.04\"\n")
	apttest.Write(t, filepath.Join(root, "etc/apt/sources.list.d/ubuntu.sources"),
		"Types: deb\nURIs: http://m.example/ubuntu/\nSuites: noble\nComponents: main universe\nSigned-By: /k/ubuntu-archive-keyring.gpg\n")
	k, err := find(context.Background(), Options{CacheDir: t.TempDir(), Arch: "amd64", Generic: true}, nil, root, ubuntu.Run)
	if err != nil || k.Version != generic {
		t.Fatalf("%+v, %v", k, err)
	}
	if _, err := os.Stat(filepath.Join(k.Modules, "kernel/sky2.ko.zst")); err != nil {
		t.Error(err)
	}

	debian := debianArchive()
	debian.Suites["trixie-backports"]["linux-image-amd64"] = "linux-image-7.1.9+deb13-amd64" // too old
	debian.Suites["bookworm"]["linux-image-amd64"] = "linux-image-6.1.0-50-amd64 (= 1)"
	debian.Suites["bookworm"]["linux-image-6.1.0-50-amd64"] = ""
	debian.Trees["linux-image-6.1.0-50-amd64"] = map[string]string{"boot/vmlinuz-6.1.0-50-amd64": "", "lib/modules/6.1.0-50-amd64/kernel/a.ko": ""}
	k, err = find(context.Background(), Options{CacheDir: t.TempDir(), Arch: "amd64", Generic: true}, nil, apttest.DebianHost(t), debian.Run)
	if err != nil || k.Version != "6.1.0-50-amd64" {
		t.Errorf("%+v, %v", k, err)
	}
}

// Whatever ends a fetch, the cache holds no kernel afterwards, and the next fetch works.
func TestInterruptedFetch(t *testing.T) {
	for _, what := range []string{"apt-config dump", "apt-get update", "apt-cache show", "apt-get download", "dpkg -x"} {
		t.Run(what, func(t *testing.T) {
			a, root := debianArchive(), apttest.DebianHost(t)
			o := Options{CacheDir: t.TempDir(), Arch: "amd64"}
			a.Failing[what] = errors.New("killed")
			_, err := find(context.Background(), o, nil, root, a.Run)
			var e *Error
			if !errors.As(err, &e) || !strings.Contains(err.Error(), "killed") {
				t.Fatalf("error %v", err)
			}
			if left, _ := os.ReadDir(o.CacheDir); len(left) != 1 {
				t.Errorf("left behind: %v", left)
			}
			// A process that was killed leaves its scratch directory and maybe a kernel without a
			// record.
			apttest.Write(t, filepath.Join(o.CacheDir, ".new-dead", "tree", "x"), "")
			apttest.Write(t, filepath.Join(o.CacheDir, newRelease, "usr/lib/modules", newRelease, "vmlinuz"), "")
			a.Failing = map[string]error{}
			if k, err := find(context.Background(), o, nil, root, a.Run); err != nil || k.Config == "" {
				t.Errorf("second fetch: %+v, %v", k, err)
			}
			if left, _ := os.ReadDir(o.CacheDir); len(left) != 2 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestIncompletePackages(t *testing.T) {
	a, root := debianArchive(), apttest.DebianHost(t)
	delete(a.Trees, "linux-binary-"+newRelease)
	o := Options{CacheDir: t.TempDir(), Arch: "amd64"}
	if _, err := find(context.Background(), o, nil, root, a.Run); !errors.Is(err, guestkernel.ErrNoImage) {
		t.Errorf("error %v", err)
	}
	if _, err := find(context.Background(), Options{CacheDir: o.CacheDir, Offline: true}, nil, root, a.Run); !errors.Is(err, ErrNotCached) {
		t.Errorf("an incomplete kernel was cached: %v", err)
	}
}

func TestConcurrentFetch(t *testing.T) {
	a, root := debianArchive(), apttest.DebianHost(t)
	o := Options{CacheDir: t.TempDir(), Arch: "amd64"}
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if k, err := find(context.Background(), o, nil, root, a.Run); err != nil || k.Version != newRelease {
				t.Errorf("%+v, %v", k, err)
			}
		})
	}
	group.Wait()
	if n := a.Called("apt-get download"); n != 1 || a.Overlapped() {
		t.Errorf("%d downloads, at the same time: %v; want one", n, a.Overlapped())
	}
}

// A kernel of another architecture in the same cache is not taken.
func TestCacheKeepsArchitecturesApart(t *testing.T) {
	a, root := debianArchive(), apttest.DebianHost(t)
	o := Options{CacheDir: t.TempDir(), Arch: "amd64"}
	if _, err := find(context.Background(), o, nil, root, a.Run); err != nil {
		t.Fatal(err)
	}
	o.Arch, o.Offline = "arm64", true
	if _, err := find(context.Background(), o, nil, root, a.Run); !errors.Is(err, ErrNotCached) {
		t.Errorf("error %v", err)
	}
}
