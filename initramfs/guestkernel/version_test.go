package guestkernel

import "testing"

func TestCompareVersions(t *testing.T) {
	ordered := []string{"", "6.1.0-9-cloud", "6.1.0-40-cloud", "6.18.5+deb13", "7.2", "7.2.9+deb13", "7.2.12+deb13", "7.10", "10.0"}
	for i, a := range ordered {
		for j, b := range ordered {
			got := CompareVersions(a, b)
			if got < 0 != (i < j) || got > 0 != (i > j) {
				t.Errorf("%q and %q: %d", a, b, got)
			}
		}
	}
	if CompareVersions("7.02", "7.2") != 0 {
		t.Error("leading zeros count")
	}
}
