package firmware

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"margay/cluster/provision/apt/apttest"
	"margay/internal/progress"
)

// archive is the archive of a Debian 12.
func archive() *apttest.Archive {
	return &apttest.Archive{
		Suites: map[string]map[string]string{"bookworm": {"ovmf": "", "ipxe": ""}},
		Trees: map[string]map[string]string{
			"ovmf": {"usr/share/ovmf/OVMF.fd": "ovmf"},
			"ipxe": {"usr/lib/ipxe/undionly.kpxe": "bios", "usr/lib/ipxe/snponly.efi": "uefi"},
		},
		Failing: map[string]error{},
	}
}

// contents are the contents of files.
func contents(t *testing.T, f Files) string {
	t.Helper()
	var all []string
	for _, path := range []string{f.UEFI, f.IPXEBIOS, f.IPXEUEFI} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(text))
	}
	return strings.Join(all, " ")
}

// Installed files are taken without a look elsewhere.
func TestInstalled(t *testing.T) {
	root, a := apttest.DebianHost(t), archive()
	for _, tree := range a.Trees {
		for path, text := range tree {
			apttest.Write(t, filepath.Join(root, path), text)
		}
	}
	f, err := find(t.Context(), Options{CacheDir: t.TempDir()}, root, a.Run)
	if err != nil || contents(t, f) != "ovmf bios uefi" || !strings.HasPrefix(f.UEFI, root) || len(a.Calls()) != 0 {
		t.Errorf("%+v, %v; run %q", f, err, a.Calls())
	}
}

// Absent files are fetched once, and found without a network from then on.
func TestFetchThenCache(t *testing.T) {
	root, a := apttest.DebianHost(t), archive()
	apttest.Write(t, filepath.Join(root, "usr/share/ovmf/OVMF.fd"), "installed without the rest")
	var mu sync.Mutex
	var steps []string
	o := Options{CacheDir: filepath.Join(t.TempDir(), "firmware"), Progress: func(s progress.Step) {
		mu.Lock()
		defer mu.Unlock()
		steps = append(steps, s.Text)
	}}
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			f, err := find(t.Context(), o, root, a.Run)
			if err != nil {
				t.Error(err)
				return
			}
			if contents(t, f) != "ovmf bios uefi" || filepath.Dir(filepath.Dir(filepath.Dir(filepath.Dir(f.UEFI)))) != filepath.Join(o.CacheDir, "bookworm") {
				t.Errorf("found %+v", f)
			}
		})
	}
	all.Wait()
	if n := a.Called("apt-get download"); n != 1 || !strings.Contains(strings.Join(steps, "\n"), "downloading UEFI firmware and iPXE") {
		t.Errorf("%d downloads, steps %q", n, steps)
	}
	calls := len(a.Calls())
	if f, err := find(t.Context(), o, "/nonexistent", a.Run); err != nil || contents(t, f) != "ovmf bios uefi" || len(a.Calls()) != calls {
		t.Errorf("without a network: %+v, %v, run %q", f, err, a.Calls()[calls:])
	}
	// A file that is gone is fetched again.
	if err := os.Remove(filepath.Join(o.CacheDir, "bookworm/usr/lib/ipxe/snponly.efi")); err != nil {
		t.Fatal(err)
	}
	if f, err := find(t.Context(), o, root, a.Run); err != nil || contents(t, f) != "ovmf bios uefi" {
		t.Errorf("after a loss: %+v, %v", f, err)
	}
}

// The stub is fetched once, from the package for the architecture.
func TestStub(t *testing.T) {
	root, a := apttest.DebianHost(t), archive()
	a.Suites["bookworm"]["systemd-boot-efi"] = ""
	a.Trees["systemd-boot-efi"] = map[string]string{stubs["amd64"]: "stub"}
	o := Options{CacheDir: filepath.Join(t.TempDir(), "stub")}
	for range 2 {
		path, err := findStub(t.Context(), o, "amd64", root, a.Run)
		if text, _ := os.ReadFile(path); err != nil || string(text) != "stub" || !strings.HasPrefix(path, o.CacheDir) {
			t.Errorf("%s with %q, %v", path, text, err)
		}
	}
	if n := a.Called("apt-get download"); n != 1 {
		t.Errorf("%d downloads", n)
	}
	apttest.Write(t, filepath.Join(root, stubs["amd64"]), "installed")
	if path, err := findStub(t.Context(), o, "amd64", root, a.Run); err != nil || !strings.HasPrefix(path, root) {
		t.Errorf("installed: %s, %v", path, err)
	}
	delete(a.Suites["bookworm"], "systemd-boot-efi")
	o.CacheDir += "2"
	if _, err := findStub(t.Context(), o, "arm64", root, a.Run); err == nil || !strings.Contains(err.Error(), "apt-get install systemd-boot-efi") {
		t.Errorf("without the package: %v", err)
	}
	if _, err := findStub(t.Context(), o, "s390x", root, a.Run); err == nil || !strings.Contains(err.Error(), "there is none for s390x") {
		t.Errorf("for another processor: %v", err)
	}
}

// An error names its cause and the packages, and leaves nothing in the cache.
func TestErrors(t *testing.T) {
	for _, c := range []struct {
		name, want string
		spoil      func(*apttest.Archive)
	}{
		{"no network", "could not resolve", func(a *apttest.Archive) { a.Failing["apt-get update"] = errors.New("could not resolve") }},
		{"no package", "bookworm lacks some of the packages ovmf, ipxe", func(a *apttest.Archive) { delete(a.Suites["bookworm"], "ipxe") }},
		{"interrupted", "killed", func(a *apttest.Archive) { a.Failing["dpkg -x"] = errors.New("killed") }},
		{"other contents", "snponly.efi: no such file", func(a *apttest.Archive) { delete(a.Trees["ipxe"], "usr/lib/ipxe/snponly.efi") }},
		{"empty", "OVMF.fd is not a file with contents", func(a *apttest.Archive) { a.Trees["ovmf"]["usr/share/ovmf/OVMF.fd"] = "" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			root, a, dir := apttest.DebianHost(t), archive(), filepath.Join(t.TempDir(), "firmware")
			c.spoil(a)
			_, err := find(t.Context(), Options{CacheDir: dir}, root, a.Run)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "apt-get install ovmf ipxe") {
				t.Errorf("error %v", err)
			}
			if left, _ := os.ReadDir(dir); len(left) > 1 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}
