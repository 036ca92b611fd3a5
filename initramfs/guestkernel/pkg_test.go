package guestkernel

import (
	"slices"
	"testing"

	"margay/apt"
)

func TestRelease(t *testing.T) {
	meta := apt.Package{Depends: []string{"linux-base-cloud-amd64", "linux-image-7.2.12+deb13-cloud-amd64"}}
	image := apt.Package{Depends: []string{
		"linux-base", "linux-image-", "linux-binary-7.2.12+deb13-cloud-amd64", "linux-modules-7.2.12+deb13-cloud-amd64", "linux-base-7.2.12+deb13-amd64",
	}}
	number, ok := release(meta)
	if !ok || number != "7.2.12+deb13-cloud-amd64" {
		t.Errorf("release %q, %v", number, ok)
	}
	if _, ok := release(image); ok {
		t.Error("an image package taken for a metapackage")
	}
	want := []string{"linux-binary-7.2.12+deb13-cloud-amd64", "linux-modules-7.2.12+deb13-cloud-amd64"}
	if parts := parts(image, number); !slices.Equal(parts, want) {
		t.Errorf("parts %v, want %v", parts, want)
	}
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
