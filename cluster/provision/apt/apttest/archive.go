// Package apttest is an archive of packages for tests without apt and without a network.
package apttest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// Archive is an archive and the programs that read it. Its exported fields may be changed between
// uses.
type Archive struct {
	Suites   map[string]map[string]string // dependency field of each package of each suite; "SUITE/COMPONENT" for packages outside of main
	Versions map[string]string            // of packages that do not have version 1
	Trees    map[string]map[string]string // text of each file of each package
	Failing  map[string]error             // by program and its first argument

	mu       sync.Mutex
	calls    []string
	active   atomic.Int32 // downloads going on
	overlaps atomic.Bool
}

// Run is an apt.Runner.
func (a *Archive) Run(_ context.Context, dir string, env []string, name string, args ...string) (string, error) {
	what := name + " " + strings.Join(slices.DeleteFunc(slices.Clone(args), func(s string) bool {
		return strings.HasPrefix(s, "-") && s != "-x"
	})[:1], "")
	a.mu.Lock()
	a.calls = append(a.calls, what)
	err := a.Failing[what]
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
func (a *Archive) offered(env []string) (map[string]string, error) {
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
	var suites []string // of the entry, in which they are before the components
	for line := range strings.Lines(string(text)) {
		field, value, _ := strings.Cut(line, ":")
		switch words := strings.Fields(value); field {
		case "Suites":
			suites = words
		case "Components":
			for _, suite := range suites {
				if a.Suites[suite] == nil {
					return nil, fmt.Errorf("apt-get: E: The repository '%s Release' does not have a Release file", suite)
				}
				if component := words[0]; component != "main" {
					suite += "/" + component
				}
				maps.Copy(all, a.Suites[suite])
			}
		}
	}
	return all, nil
}

func (a *Archive) show(packages map[string]string, names []string) (string, error) {
	var text strings.Builder
	for _, name := range names {
		if depends, ok := packages[name]; ok {
			fmt.Fprintf(&text, "Package: %s\nVersion: %s\nSize: 100\nDepends: %s\n\n", name, a.version(name), depends)
		}
	}
	if text.Len() == 0 {
		return "", errors.New("apt-cache: E: No packages found")
	}
	return text.String(), nil
}

func (a *Archive) version(name string) string { return cmp.Or(a.Versions[name], "1") }

func (a *Archive) download(dir string, packages map[string]string, names []string) error {
	if a.active.Add(1) > 1 {
		a.overlaps.Store(true)
	}
	defer a.active.Add(-1)
	for _, name := range names {
		name, version, _ := strings.Cut(name, "=")
		if _, ok := packages[name]; !ok || version != a.version(name) {
			return fmt.Errorf("no package %s %s", name, version)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".deb"), []byte(name), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (a *Archive) unpack(deb, tree string) error {
	for file, content := range a.Trees[strings.TrimSuffix(deb, ".deb")] {
		path := filepath.Join(tree, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// Overlapped reports whether packages were downloaded at the same time.
func (a *Archive) Overlapped() bool { return a.overlaps.Load() }

// Calls returns the programs that were run, each with its first argument that is not an option, as
// in "apt-get update".
func (a *Archive) Calls() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.calls)
}

// Called returns the number of runs of one of Calls.
func (a *Archive) Called(what string) int {
	n := 0
	for _, c := range a.Calls() {
		if c == what {
			n++
		}
	}
	return n
}

// DebianHost returns the root of a machine with Debian 12.
func DebianHost(t *testing.T) string {
	root := t.TempDir()
	Write(t, filepath.Join(root, "etc/os-release"), "ID=debian\nVERSION_CODENAME=bookworm\nVERSION_ID=\"12\"\n")
	Write(t, filepath.Join(root, "etc/apt/sources.list"), "deb [signed-by=/keys/k.gpg] http://m.example/debian bookworm main contrib\n")
	return root
}

// Write creates a file and its directories.
func Write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
