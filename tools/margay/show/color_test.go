package show

import (
	"bytes"
	"strings"
	"testing"
)

// Colors change no column, and each ends where its cell does.
func TestColorsAlign(t *testing.T) {
	draw := func(colors bool) string {
		var out bytes.Buffer
		x := NewTable(&out, "NAME", "STATE", "GRÖSSE", "STATE") // the heading is there twice
		x.Colors = colors
		x.Row("größe", State{"up", Good}, 1, State{"ended (3)", Bad})
		x.Row("a\tb", State{"de\x1b[1mad", Bad}, 12345678, State{"other", ""})
		x.Row("c", "", "", State{"", Good})
		if err := x.Flush(); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	plain, colored := draw(false), draw(true)
	want := "NAME   STATE     GRÖSSE    STATE\n" +
		"größe  \x1b[32mup\x1b[m        1         \x1b[31mended (3)\x1b[m\n" +
		"a?b    \x1b[31mde?[1mad\x1b[m  12345678  other\n" +
		"c\n"
	if colored != want {
		t.Errorf("%q\nnot\n%q", colored, want)
	}
	if stripped := strings.NewReplacer(string(Good), "", string(Bad), "", uncolored, "").Replace(colored); stripped != plain {
		t.Errorf("without its colors it is\n%s\nnot\n%s", stripped, plain)
	}
}

// A state that is folded is colored up to the end of the line.
func TestColorsOfFoldedLine(t *testing.T) {
	line := Fold("0     killed by a signal of the machine", 30, 6)
	got := paint(line, map[int]State{1: {"killed by a signal of the machine", Bad}}, []int{0, 6})
	if want := "0     \x1b[31mkilled by a signal of\x1b[m\n      the machine"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
}

func TestWhen(t *testing.T) {
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	var out bytes.Buffer
	for text, want := range map[string]bool{"auto": false, "always": true, "never": false} {
		var w When
		if err := w.Set(text); err != nil || w.On(&out) != want || w.String() != text {
			t.Errorf("%s: %v, %t, %s", text, err, w.On(&out), w.String())
		}
	}
	w := When("")
	if err := w.Set("yes"); err == nil || w.String() != "auto" {
		t.Errorf("yes: %v, %s", err, w.String())
	}
}
