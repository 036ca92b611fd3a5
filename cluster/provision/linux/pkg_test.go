package linux

import (
	"slices"
	"testing"

	"margay/cluster/provision/apt"
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
