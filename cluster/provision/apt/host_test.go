package apt

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"margay/cluster/provision/apt/apttest"
)

func TestParseRelease(t *testing.T) {
	for name, c := range map[string]struct{ text, id, codename, version string }{
		"debian":   {"ID=debian\nVERSION_CODENAME=bookworm\nVERSION_ID=\"12\"\n", "debian", "bookworm", "12"},
		"ubuntu":   {"ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\nUBUNTU_CODENAME=noble\nVERSION_ID=\"24.04\"", "ubuntu", "noble", "24.04"},
		"child":    {"ID=mint\nID_LIKE='ubuntu debian'\nVERSION_CODENAME=wilma\nUBUNTU_CODENAME=noble\n", "ubuntu", "noble", ""},
		"stranger": {"ID=fedora\nVERSION_CODENAME=x\n", "", "", ""},
		"empty":    {"", "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := parseRelease(c.text)
			if c.id == "" {
				if !errors.Is(err, ErrUnknown) {
					t.Fatalf("error %v", err)
				}
				return
			}
			if err != nil || h.Distribution != c.id || h.Codename != c.codename || h.Version != c.version {
				t.Fatalf("got %s %s %s, %v", h.Distribution, h.Codename, h.Version, err)
			}
		})
	}
}

// The distribution's main entry must be found among third-party entries with the release's suite
// name.
func TestArchive(t *testing.T) {
	debian := "Types: deb\nURIs: http://m.example/debian/\nSuites: trixie trixie-updates\nComponents: main contrib\n"
	security := "Types: deb\nURIs: http://m.example/debian-security\nSuites: trixie-security\nComponents: main\n"
	other := "Types: deb\nURIs: http://tools.example/apt\nSuites: trixie\nComponents: main\nSigned-By: /keys/tools.gpg\n"
	foreign := "Types: deb\nURIs: http://f.example/debian\nSuites: trixie\nComponents: main\nArchitectures: arm64\n"
	mirror := "Types: deb\nURIs: mirror+file:///etc/mirrors/debian.list\nSuites: trixie\nComponents: main\n"
	keyed := "Types: deb\nURIs: http://m.example/d\nSuites: stable\nComponents: main\nSigned-By: /k/debian-archive-keyring.pgp\n"
	for name, c := range map[string]struct {
		sources []string
		want    []string // addresses
	}{
		"others first":  {[]string{other, foreign, security, debian}, []string{"http://m.example/debian/", "http://m.example/debian-security"}},
		"mirror list":   {[]string{other, mirror}, []string{"mirror+file:///etc/mirrors/debian.list"}},
		"by keyring":    {[]string{other, keyed}, []string{"http://m.example/d"}},
		"unknown name":  {[]string{other}, []string{"http://tools.example/apt"}},
		"security only": {[]string{security, foreign}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			h := Host{Distribution: Debian, Codename: "trixie", sources: parseSources(strings.Join(c.sources, "\n"))}
			got, err := h.archive("amd64", "a-component")
			if c.want == nil {
				if !errors.Is(err, ErrNoArchive) {
					t.Fatalf("error %v", err)
				}
				return
			}
			var uris []string
			for _, s := range got {
				uris = append(uris, s.URIs...)
				if !slices.Equal(s.Components, []string{"a-component"}) {
					t.Errorf("components %v", s.Components)
				}
			}
			if err != nil || !slices.Equal(uris, c.want) {
				t.Fatalf("got %v, %v; want %v", uris, err, c.want)
			}
		})
	}
}

func TestReadHost(t *testing.T) {
	root := t.TempDir()
	apttest.Write(t, filepath.Join(root, "usr/lib/os-release"), "ID=debian\nVERSION_CODENAME=bookworm\n")
	apttest.Write(t, filepath.Join(root, "etc/apt/sources.list"), "deb http://m.example/debian bookworm main\n")
	apttest.Write(t, filepath.Join(root, "etc/apt/sources.list.d/x.list"), "deb http://x.example/x bookworm main\n")
	apttest.Write(t, filepath.Join(root, "etc/apt/sources.list.d/y.sources"), "Types: deb\nURIs: http://y.example\nSuites: s\nComponents: c\n")
	apttest.Write(t, filepath.Join(root, "etc/apt/sources.list.d/z.list.disabled"), "deb http://z.example/z bookworm main\n")
	h, err := ReadHost(root)
	if err != nil {
		t.Fatal(err)
	}
	var uris []string
	for _, s := range h.sources {
		uris = append(uris, s.URIs...)
	}
	if want := []string{"http://m.example/debian", "http://x.example/x", "http://y.example"}; !slices.Equal(uris, want) {
		t.Errorf("addresses %v, want %v", uris, want)
	}
	if _, err := ReadHost(t.TempDir()); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "os-release") {
		t.Errorf("no os-release: %v", err)
	}
	apttest.Write(t, filepath.Join(root, "etc/apt/sources.list"), strings.Repeat("#", maxFile+1))
	if _, err := ReadHost(root); err == nil || !strings.Contains(err.Error(), "longer") {
		t.Errorf("huge file: %v", err)
	}
}
