package klog

import (
	"strings"
	"testing"
)

// The reason of the last panic is found in lines as consoles and firmware have them, and in no
// line of a program.
func TestPanic(t *testing.T) {
	const head = "Kernel panic - not syncing: "
	for text, want := range map[string]string{
		"":                                    "",
		head + "x":                            "x",
		"[    9.1] " + head + " no init \r\n": "no init",
		"<0>[    9.1][    T1] " + head + "a\n<4>[    9.2] later\n": "a",
		"<0>[    9.1] " + head + "a\n<0>[    9.9] " + head + "b\n": "b",
		"[    9.1] I say: " + head + "x\n":                         "",
		"<" + head + "x\n[" + head + "x\n":                         "",
	} {
		if got := Panic(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// FuzzPanic: the reason is one line of the text.
func FuzzPanic(f *testing.F) {
	f.Add("<0>[    9.1][    T1] Kernel panic - not syncing: a\n")
	f.Fuzz(func(t *testing.T, text string) {
		if reason := Panic(text); strings.Contains(reason, "\n") || !strings.Contains(text, reason) {
			t.Errorf("%q: %q", text, reason)
		}
	})
}
