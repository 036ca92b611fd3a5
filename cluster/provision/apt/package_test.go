package apt

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
	if got[0].Size != 1716 || got[1].Size != 0 {
		t.Errorf("sizes %d and %d", got[0].Size, got[1].Size)
	}
	want := []string{"linux-base", "linux-binary-7.2.12+deb13-cloud-amd64", "linux-modules-7.2.12+deb13-cloud-amd64", "linux-base-7.2.12+deb13-amd64"}
	if !slices.Equal(got[1].Depends, want) {
		t.Errorf("depends on %q, want %q", got[1].Depends, want)
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
			if p.Name == "" || p.Version == "" || p.Size < 0 || slices.Contains(p.Depends, "") {
				t.Fatalf("bad package %+v", p)
			}
		}
	})
}
