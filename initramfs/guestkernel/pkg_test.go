package guestkernel

import (
	"slices"
	"testing"
)

func TestParsePackages(t *testing.T) {
	got := parsePackages(`Package: linux-image-cloud-amd64
Version: 7.2.12-1
Size: 1716
Depends: linux-base-cloud-amd64 (= 7.2.12-1), linux-image-7.2.12+deb13-cloud-amd64 (= 7.2.12-1)
Description: Linux
 Depends: not-a-field

Package: linux-image-7.2.12+deb13-cloud-amd64
Version: 7.2.12-1
Size: lots
Depends: initramfs-tools | dracut, linux-base (>= 4),
 linux-binary-7.2.12+deb13-cloud-amd64 (= 7.2.12-1), linux-modules-7.2.12+deb13-cloud-amd64:any, linux-base-7.2.12+deb13-amd64

Package: no-version
`)
	if len(got) != 2 {
		t.Fatalf("got %d packages: %+v", len(got), got)
	}
	meta, image := got[0], got[1]
	if meta.size != 1716 || image.size != 0 {
		t.Errorf("sizes %d and %d", meta.size, image.size)
	}
	release, ok := meta.release()
	if !ok || release != "7.2.12+deb13-cloud-amd64" {
		t.Errorf("release %q, %v", release, ok)
	}
	if _, ok := image.release(); ok {
		t.Error("an image package taken for a metapackage")
	}
	want := []string{"linux-binary-7.2.12+deb13-cloud-amd64", "linux-modules-7.2.12+deb13-cloud-amd64"}
	if parts := image.parts(release); !slices.Equal(parts, want) {
		t.Errorf("parts %v, want %v", parts, want)
	}
}

func TestParseDepends(t *testing.T) {
	for field, want := range map[string][]string{
		"":                         nil,
		" , ,":                     nil,
		"a":                        {"a"},
		"a (= 1), b | c, d:any":    {"a", "d"},
		"a(>= 2),b[amd64] , \n c ": {"a", "b", "c"},
	} {
		if got := parseDepends(field); !slices.Equal(got, want) {
			t.Errorf("%q: got %v, want %v", field, got, want)
		}
	}
}

func FuzzParsePackages(f *testing.F) {
	f.Add("Package: a\nVersion: 1\nSize: 9\nDepends: linux-image-7 (= 1) | b, c\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, p := range parsePackages(text) {
			if p.name == "" || p.version == "" || p.size < 0 || slices.Contains(p.depends, "") {
				t.Fatalf("bad package %+v", p)
			}
			if release, ok := p.release(); ok && !isDigit(release[0]) {
				t.Fatalf("release %q", release)
			}
		}
	})
}

func TestCompareVersions(t *testing.T) {
	ordered := []string{"", "6.1.0-9-cloud", "6.1.0-40-cloud", "6.18.5+deb13", "7.2", "7.2.9+deb13", "7.2.12+deb13", "7.10", "10.0"}
	for i, a := range ordered {
		for j, b := range ordered {
			got := compareVersions(a, b)
			if got < 0 != (i < j) || got > 0 != (i > j) {
				t.Errorf("%q and %q: %d", a, b, got)
			}
		}
	}
	if compareVersions("7.02", "7.2") != 0 {
		t.Error("leading zeros count")
	}
}
