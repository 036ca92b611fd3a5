package firmware

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"margay/cluster/provision/apt/apttest"
)

// cardArchive is the archive of a Debian 12, which has the packages in its own suite and, newer, in
// the one of the kernel.
func cardArchive() *apttest.Archive {
	return &apttest.Archive{
		Suites: map[string]map[string]string{
			"bookworm": {}, "trixie-backports": {},
			"bookworm/non-free-firmware":         {"firmware-bnx2": "", "firmware-misc-nonfree": ""},
			"trixie-backports/non-free-firmware": {"firmware-bnx2": "", "firmware-intel-misc": "", "firmware-iwlwifi": ""},
		},
		Trees: map[string]map[string]string{
			"firmware-bnx2":         {"usr/lib/firmware/bnx2/a.fw": "a", "usr/share/doc/firmware-bnx2/copyright": "c"},
			"firmware-intel-misc":   {"usr/lib/firmware/ice/ice-2.pkg": "ice", "usr/lib/firmware/sound.bin": "loud"},
			"firmware-misc-nonfree": {"lib/firmware/e100/u.bin": "e100"},
			"firmware-iwlwifi":      {"usr/lib/firmware/iwl.bin": "iwl"},
		},
		Failing: map[string]error{},
	}
}

// inCards returns the files of a folder with their contents.
func inCards(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Name() == "firmware.json" {
			return err
		}
		text, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		all = append(all, name+"="+string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// The files that are asked for, and no others, are fetched once, from the newest suite, also if the
// suite does not have all of them. Without a network they are found from then on.
func TestCards(t *testing.T) {
	root, a := apttest.DebianHost(t), cardArchive()
	o := Options{CacheDir: filepath.Join(t.TempDir(), "cards")}
	wanted := Cards{Names: []string{"bnx2/a.fw", "none.bin"}, Arch: "amd64"}
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			dir, err := findCards(t.Context(), o, wanted, root, a.Run)
			if err != nil || dir != filepath.Join(o.CacheDir, "trixie-backports") {
				t.Errorf("%s, %v", dir, err)
			}
		})
	}
	all.Wait()
	dir, err := findCards(t.Context(), o, wanted, "/nonexistent", a.Run)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := inCards(t, dir), []string{"bnx2/a.fw=a"}; !slices.Equal(got, want) || a.Called("apt-get download") != 1 {
		t.Errorf("%d downloads, and files %q; want %q", a.Called("apt-get download"), got, want)
	}
	// Another kernel has drivers for further files. The first one's stay.
	wanted.Names = []string{"ice/ice-2.pkg"}
	if dir, err = findCards(t.Context(), o, wanted, root, a.Run); err != nil {
		t.Fatal(err)
	}
	if got, want := inCards(t, dir), []string{"bnx2/a.fw=a", "ice/ice-2.pkg=ice"}; !slices.Equal(got, want) {
		t.Errorf("files %q; want %q", got, want)
	}
	wanted.Names = []string{"ice/ice-2.pkg", "bnx2/a.fw", "none.bin"}
	if _, err = findCards(t.Context(), o, wanted, "/nonexistent", a.Run); err != nil {
		t.Errorf("both kernels: %v", err)
	}
	// A file that is gone is fetched again.
	if err := os.Remove(filepath.Join(dir, "bnx2/a.fw")); err != nil {
		t.Fatal(err)
	}
	if dir, err = findCards(t.Context(), o, wanted, root, a.Run); err != nil || len(inCards(t, dir)) != 2 {
		t.Errorf("after a loss: %v", err)
	}
	a.Trees["firmware-bnx2"]["usr/lib/firmware/bnx2/a.fw"], wanted.Refresh = "newer", true
	if dir, err = findCards(t.Context(), o, wanted, root, a.Run); err != nil || inCards(t, dir)[0] != "bnx2/a.fw=newer" {
		t.Errorf("refreshed: %v", err)
	}
}

// An archive without the newer suite, or whose newer suite lacks the component, has its own one.
func TestCardsOfOwnSuite(t *testing.T) {
	for _, lacking := range []string{"trixie-backports", "trixie-backports/non-free-firmware"} {
		root, a := apttest.DebianHost(t), cardArchive()
		delete(a.Suites, lacking)
		dir, err := findCards(t.Context(), Options{CacheDir: filepath.Join(t.TempDir(), "cards")}, Cards{Names: []string{"e100/u.bin", "bnx2/a.fw"}, Arch: "amd64"}, root, a.Run)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := inCards(t, dir), []string{"bnx2/a.fw=a", "e100/u.bin=e100"}; !slices.Equal(got, want) {
			t.Errorf("without %s, files %q; want %q", lacking, got, want)
		}
	}
}

// Ubuntu has all files in one package of its main component.
func TestCardsOfUbuntu(t *testing.T) {
	root := t.TempDir()
	apttest.Write(t, filepath.Join(root, "etc/os-release"), "ID=ubuntu\nVERSION_CODENAME=noble\nVERSION_ID=\"24.04\"\n")
	apttest.Write(t, filepath.Join(root, "etc/apt/sources.list"), "deb http://m.example/ubuntu noble main\n")
	a := &apttest.Archive{
		Suites: map[string]map[string]string{"noble": {"linux-firmware": ""}},
		Trees:  map[string]map[string]string{"linux-firmware": {"usr/lib/firmware/a.fw": "a", "usr/lib/firmware/b.fw": "b"}},
	}
	dir, err := findCards(t.Context(), Options{CacheDir: t.TempDir()}, Cards{Names: []string{"b.fw"}, Arch: "amd64"}, root, a.Run)
	if err != nil {
		t.Fatal(err)
	}
	if got := inCards(t, dir); !slices.Equal(got, []string{"b.fw=b"}) {
		t.Errorf("files %q", got)
	}
}

// An error names its cause and the way out, and leaves nothing in the cache.
func TestCardErrors(t *testing.T) {
	for _, c := range []struct {
		name, want string
		spoil      func(*apttest.Archive)
	}{
		{"no network", "could not resolve", func(a *apttest.Archive) { a.Failing["apt-get update"] = errors.New("could not resolve") }},
		{"no component", "the component non-free-firmware of bookworm has none of firmware-bnx2, ", func(a *apttest.Archive) {
			delete(a.Suites, "trixie-backports/non-free-firmware")
			delete(a.Suites, "bookworm/non-free-firmware")
		}},
		{"interrupted", "killed", func(a *apttest.Archive) { a.Failing["dpkg -x"] = errors.New("killed") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			root, a, dir := apttest.DebianHost(t), cardArchive(), filepath.Join(t.TempDir(), "cards")
			c.spoil(a)
			_, err := findCards(t.Context(), Options{CacheDir: dir}, Cards{Names: []string{"a"}, Arch: "amd64"}, root, a.Run)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "a folder of your own") {
				t.Errorf("error %v", err)
			}
			if left, _ := os.ReadDir(dir); len(left) > 1 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}
