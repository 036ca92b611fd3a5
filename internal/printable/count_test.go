package printable

import "testing"

func TestCount(t *testing.T) {
	for want, got := range map[string]string{
		"0 ranks": Count(0, "rank"), "1 rank": Count(1, "rank"), "2 ranks": Count(2, "rank"), "1 access": Count(1, "access"), "12 accesses": Count(12, "access"),
	} {
		if got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}
