package machinename

import (
	"strings"
	"testing"
)

func TestValid(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "Z9": true, "0": true, "a.b_c-d": true, strings.Repeat("x", 32): true,
		"": false, ".": false, "..": false, "-a": false, "_a": false, "a/b": false, "a b": false, "a\x00": false, "a\n": false, "ä": false, "a=b": false,
		strings.Repeat("x", 33): false,
	} {
		if got := Valid(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}
