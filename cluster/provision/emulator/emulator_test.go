package emulator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"margay/cluster/provision/apt"
	"margay/cluster/provision/apt/apttest"
	"margay/internal/progress"
	"margay/qemu"
)

const (
	pkgVersion = "1:10.0.2+ds-2~bpo12+1"
	entry      = "10.0.2+ds-2~bpo12+1" // its directory in the cache
)

// says returns a program that stands in for QEMU.
func says(version string) string {
	return fmt.Sprintf("#!/bin/sh\necho 'QEMU emulator version %s (Debian)'\n", version)
}

// install makes a QEMU of that version the one in PATH, and returns its path.
func install(t *testing.T, version string) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	path := filepath.Join(dir, "qemu-system-x86_64")
	if err := os.WriteFile(path, []byte(says(version)), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// backports is an archive that has QEMU 10 for Debian 12.
func backports() *apttest.Archive {
	return &apttest.Archive{
		Suites: map[string]map[string]string{
			"bookworm-backports": {"qemu-system-x86": "libc6", "qemu-system-data": "", "seabios": "", "qemu-system-arm": ""},
		},
		Versions: map[string]string{"qemu-system-x86": pkgVersion},
		Trees: map[string]map[string]string{
			"qemu-system-x86":  {"usr/bin/qemu-system-x86_64": says("10.0.2")},
			"qemu-system-data": {"usr/share/qemu/linuxboot_dma.bin": "rom"},
			"seabios":          {"usr/share/seabios/bios-256k.bin": "bios"},
		},
		Failing: map[string]error{},
	}
}

// search is one search on a Debian 12 with the archive.
type search struct {
	Options
	archive *apttest.Archive
	root    string
	told    []string
	steps   []progress.Step
}

func newSearch(t *testing.T) *search {
	s := &search{archive: backports(), root: apttest.DebianHost(t), Options: Options{Arch: qemu.AMD64, CacheDir: filepath.Join(t.TempDir(), "qemu")}}
	s.Told = func(format string, args ...any) { s.told = append(s.told, fmt.Sprintf(format, args...)) }
	s.Progress = func(step progress.Step) { s.steps = append(s.steps, step) }
	return s
}

func (s *search) find(t *testing.T) *qemu.Emulator {
	t.Helper()
	s.told, s.steps = nil, nil
	e, err := find(t.Context(), s.Options, s.root, s.archive.Run)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// isPrivate checks that e is the one of the cache, with its firmware.
func (s *search) isPrivate(t *testing.T, e *qemu.Emulator) {
	t.Helper()
	dir := filepath.Join(s.CacheDir, entry)
	firmware := []string{dir + "/usr/share/qemu", dir + "/usr/share/seabios"}
	if e.Path() != dir+"/usr/bin/qemu-system-x86_64" || !slices.Equal(e.Firmware(), firmware) || e.Version() != (qemu.Version{Major: 10, Micro: 2}) {
		t.Errorf("found %s of version %v with firmware in %q", e.Path(), e.Version(), e.Firmware())
	}
}

// A sound QEMU that is installed, and one that the user names, are taken without a look elsewhere.
func TestInstalled(t *testing.T) {
	s := newSearch(t)
	for _, version := range []string{"8.1.0", "10.0.2", "8.2.2"} {
		if path := install(t, version); s.find(t).Path() != path {
			t.Errorf("%s: not taken", version)
		}
	}
	own := filepath.Join(t.TempDir(), "my-qemu")
	if err := os.WriteFile(own, []byte(says("7.2.0")), 0o755); err != nil {
		t.Fatal(err)
	}
	s.Program = own
	if e := s.find(t); e.Path() != own || e.Sound() {
		t.Errorf("the user's own is %s, found %s", own, e.Path())
	}
	if calls := s.archive.Calls(); len(calls) != 0 || len(s.told) != 0 {
		t.Errorf("run %q, told %q", calls, s.told)
	}
	s.Program = ""
	t.Setenv("PATH", t.TempDir())
	if _, err := find(t.Context(), s.Options, s.root, s.archive.Run); !errors.Is(err, exec.ErrNotFound) || len(s.archive.Calls()) != 0 {
		t.Errorf("none is installed: %v, %q", err, s.archive.Calls())
	}
}

// One that is too old is replaced by one that is fetched once, and found without a network from
// then on.
func TestFetchThenCache(t *testing.T) {
	install(t, "7.2.22")
	s := newSearch(t)
	s.isPrivate(t, s.find(t))
	want := []string{"QEMU 7.2.22 does not emulate faithfully a Linux that changes its own code; fetching a newer one from bookworm-backports"}
	if !slices.Equal(s.told, want) {
		t.Errorf("told %q, want %q", s.told, want)
	}
	if !slices.ContainsFunc(s.steps, func(p progress.Step) bool {
		return p.Text == "downloading QEMU "+pkgVersion && p.Total == 300 && p.Done > 0
	}) {
		t.Errorf("no step tells the size of the download: %v", s.steps)
	}
	if left, _ := os.ReadDir(s.CacheDir); len(left) != 2 {
		t.Errorf("the cache holds %v, want the emulator and the lock", left)
	}
	s.root = "/nonexistent"
	calls := len(s.archive.Calls())
	s.isPrivate(t, s.find(t))
	if again := s.archive.Calls(); len(again) != calls || len(s.told) != 0 {
		t.Errorf("the second time %q were run, and told was %q", again[calls:], s.told)
	}
}

// After any error the installed QEMU is used, one line warns the user, and the cache stays empty.
func TestFallback(t *testing.T) {
	cases := []struct {
		name, want string
		spoil      func(*search)
	}{
		{"no network", "could not resolve", func(s *search) { s.archive.Failing["apt-get update"] = errors.New("could not resolve") }},
		{"no suite", "no such suite", func(s *search) { delete(s.archive.Suites, "bookworm-backports") }},
		{"no package", "lacks some of the packages", func(s *search) { delete(s.archive.Suites["bookworm-backports"], "seabios") }},
		{"interrupted", "killed", func(s *search) { s.archive.Failing["dpkg -x"] = errors.New("killed") }},
		{"a library is missing", "libnone.so.1", func(s *search) {
			s.archive.Trees["qemu-system-x86"]["usr/bin/qemu-system-x86_64"] = "#!/bin/sh\necho no libnone.so.1 >&2; exit 127\n"
		}},
		{"too old as well", "has version 8.0.4, want 8.1.0 or newer", func(s *search) {
			s.archive.Trees["qemu-system-x86"]["usr/bin/qemu-system-x86_64"] = says("8.0.4")
		}},
		{"no firmware", "usr/share/seabios: no such file", func(s *search) { delete(s.archive.Trees, "seabios") }},
		{"another release", "no suite with a newer one is known for debian trixie", func(s *search) {
			s.root = t.TempDir()
			apttest.Write(t, filepath.Join(s.root, "etc/os-release"), "ID=debian\nVERSION_CODENAME=trixie\n")
		}},
		{"another distribution", apt.ErrUnknown.Error(), func(s *search) {
			s.root = t.TempDir()
			apttest.Write(t, filepath.Join(s.root, "etc/os-release"), "ID=strange\n")
		}},
	}
	path := install(t, "7.2.22")
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newSearch(t)
			c.spoil(s)
			if e := s.find(t); e.Path() != path {
				t.Errorf("found %s", e.Path())
			}
			last := s.told[len(s.told)-1]
			if !strings.Contains(last, c.want) || !strings.HasSuffix(last, "; QEMU 7.2.22 has to do, under which about one node in twenty has to be started again") {
				t.Errorf("told %q, want ...%s...", last, c.want)
			}
			if left, _ := os.ReadDir(s.CacheDir); len(left) > 1 {
				t.Errorf("left behind: %v", left)
			}
			s.archive, s.root = backports(), apttest.DebianHost(t)
			s.isPrivate(t, s.find(t)) // once that is out of the way
		})
	}
}

// An entry of the cache that is incomplete, does not run or has another architecture is not used.
func TestIncompleteCache(t *testing.T) {
	install(t, "7.2.22")
	for name, spoil := range map[string]func(dir string) error{
		"no record":   func(dir string) error { return os.Remove(dir + "/qemu.json") },
		"no program":  func(dir string) error { return os.Remove(dir + "/usr/bin/qemu-system-x86_64") },
		"no firmware": func(dir string) error { return os.RemoveAll(dir + "/usr/share/seabios") },
		"does not run": func(dir string) error {
			return os.WriteFile(dir+"/usr/bin/qemu-system-x86_64", []byte("#!/bin/sh\nexit 1\n"), 0o755)
		},
		"other arch": func(dir string) error { return os.WriteFile(dir+"/qemu.json", []byte(`{"arch": "arm64"}`), 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSearch(t)
			s.find(t)
			if err := spoil(filepath.Join(s.CacheDir, entry)); err != nil {
				t.Fatal(err)
			}
			s.isPrivate(t, s.find(t))
			if n := s.archive.Called("apt-get download"); n != 2 {
				t.Errorf("%d downloads, want another", n)
			}
		})
	}
}

func TestConcurrentFetch(t *testing.T) {
	install(t, "7.2.22")
	s := newSearch(t)
	o := s.Options
	o.Told, o.Progress = func(string, ...any) {}, nil
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if e, err := find(t.Context(), o, s.root, s.archive.Run); err != nil || !e.Sound() {
				t.Errorf("%+v, %v", e, err)
			}
		})
	}
	group.Wait()
	if n := s.archive.Called("apt-get download"); n != 1 || s.archive.Overlapped() {
		t.Errorf("%d downloads, at the same time: %v; want one", n, s.archive.Overlapped())
	}
}

// A cancelled call returns no emulator and no warning.
func TestGivenUp(t *testing.T) {
	install(t, "7.2.22")
	s := newSearch(t)
	ctx, cancel := context.WithCancel(t.Context())
	run := func(context.Context, string, []string, string, ...string) (string, error) {
		cancel()
		return "", ctx.Err()
	}
	if _, err := find(ctx, s.Options, s.root, run); !errors.Is(err, context.Canceled) || len(s.told) != 1 {
		t.Errorf("error %v, told %q", err, s.told)
	}
}
