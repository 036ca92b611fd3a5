package metal

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
)

// took plays datagrams that come at the same moment.
func (c *Console) took(at time.Time, datagrams ...string) (text string, reasons []string) {
	for _, d := range datagrams {
		piece, reason := c.Take(at, []byte(d))
		text += string(piece)
		if reason != "" {
			reasons = append(reasons, reason)
		}
	}
	return text, reasons
}

// The pieces of a console become its text, and the first panic in it is reported.
func TestConsole(t *testing.T) {
	const panicked = "[   12.345678] Kernel panic - not syncing: Attempted to kill init! exitcode=0x0000000b\n"
	for name, c := range map[string]struct {
		datagrams []string
		want      string // empty: all of it
		reasons   string
	}{
		"nothing":    {[]string{"", ""}, "", ""},
		"lines":      {[]string{"[    0.1] a\n", "[    0.2] b\n"}, "", ""},
		"a cut line": {[]string{"[    0.1] aaa", "bbb\n"}, "", ""},
		"a panic":    {[]string{"[   12.3] BUG: x\n", panicked, "[   12.4] CPU: 0\n"}, "", "Attempted to kill init! exitcode=0x0000000b"},
		"twice":      {[]string{panicked, panicked}, "", "Attempted to kill init! exitcode=0x0000000b"},
		"another":    {[]string{panicked, "[   13.1] Kernel panic - not syncing: VFS\n", panicked}, "", "Attempted to kill init! exitcode=0x0000000b|VFS|Attempted to kill init! exitcode=0x0000000b"},
		"in the middle of a line": {[]string{"[    1.0] task says ", "[    1.0] Kernel panic - not syncing: x\n", panicked}, "",
			"Attempted to kill init! exitcode=0x0000000b"},
		"after the middle of a line": {[]string{"[    1.0] task", " says\n" + panicked}, "", "Attempted to kill init! exitcode=0x0000000b"},
		"with caller":                {[]string{"[   12.3][  T123] Kernel panic - not syncing: VFS\n"}, "", "VFS"},
		"in the middle of a datagram": {[]string{"[    1.0] x\n" + panicked + "[    1.1] y\n"}, "",
			"Attempted to kill init! exitcode=0x0000000b"},
		"controls":       {[]string{"[    1.0] Kernel panic - not syncing: \x1b[2J\xff\n"}, "", "?[2J?"},
		"long":           {[]string{"[    1.0] Kernel panic - not syncing: " + strings.Repeat("x", 900) + "\n"}, "", strings.Repeat("x", maxReason) + "... (900 bytes)"},
		"without reason": {[]string{"[    1.0] Kernel panic - not syncing: \n"}, "", ""},
		"quoted":         {[]string{"[    1.0] task Kernel panic - not syncing: x\n", "[    1.0 Kernel panic - not syncing: x\n"}, "", ""},
		"its end":        {[]string{"[   12.5] ---[ end Kernel panic - not syncing: x ]---\n"}, "", ""},
	} {
		text, reasons := NewConsole().took(time.Now(), c.datagrams...)
		want := c.want
		if want == "" {
			want = strings.Join(c.datagrams, "")
		}
		if text != want || strings.Join(reasons, "|") != c.reasons {
			t.Errorf("%s: %q, %q", name, text, reasons)
		}
	}
}

// Text that comes too fast is dropped and counted, but a panic in it is reported.
func TestConsoleFlood(t *testing.T) {
	c, now := NewConsole(), time.Now()
	line := strings.Repeat("x", 999) + "\n"
	kept := 0
	for range 3 * consoleBurst / len(line) {
		text, _ := c.took(now, line)
		kept += len(text)
	}
	if kept > consoleBurst || kept < consoleBurst-len(line) {
		t.Fatalf("%d bytes are kept at once", kept)
	}
	if text, reasons := c.took(now, "[    1.0] Kernel panic - not syncing: x"+line); text != "" || len(reasons) != 1 {
		t.Errorf("%q, %q", text, reasons)
	}
	now = now.Add(time.Second)
	text, _ := c.took(now, "tail without an end")
	var lost int
	if n, err := fmt.Sscanf(text, "-- missing: %d bytes of the console, which came too fast --\ntail without an end", &lost); n != 1 || err != nil {
		t.Fatalf("%v: %q", err, text)
	}
	if all := 3*consoleBurst/len(line)*len(line) - kept; lost < all || lost > all+2000 {
		t.Errorf("%d bytes are missing, want a little over %d", lost, all)
	}
	for range 2 * consoleRate / len(line) {
		c.took(now, line)
	}
	if text, _ := c.took(now.Add(time.Minute), "\n"); !strings.HasPrefix(text, "-- missing: ") {
		t.Errorf("after whole lines: %.100q", text)
	}
}

// Few panics are reported at once, and later one a minute, so that a forged one does not hide the
// real one.
func TestConsolePanics(t *testing.T) {
	c, now := NewConsole(), time.Now()
	reports := func(at time.Time, n int) (reported int) {
		for i := range n {
			_, reasons := c.took(at, fmt.Sprintf("[    1.0] Kernel panic - not syncing: %v %d\n", at, i))
			reported += len(reasons)
		}
		return reported
	}
	if n := reports(now, 10*reasonBurst); n != reasonBurst {
		t.Errorf("%d are reported at once", n)
	}
	if n := reports(now.Add(reasonPause), 10); n != 1 {
		t.Errorf("%d are reported a pause later", n)
	}
}

// FuzzConsole: of any datagram all is kept, with one remark before it, or nothing, and the reason
// of a panic is printable and short.
func FuzzConsole(f *testing.F) {
	f.Add([]byte("[    1.0] Kernel panic - not syncing: x\n"), []byte("[["))
	f.Add([]byte("[\n]"), []byte{0xff, 0})
	f.Fuzz(func(t *testing.T, first, second []byte) {
		c := NewConsole()
		for _, d := range [][]byte{first, second} {
			text, reason := c.Take(time.Now(), d)
			if !bytes.HasSuffix(text, d) && len(text) > 0 || len(text) > len(d)+100 {
				t.Errorf("%q became %q", d, text)
			}
			if len(reason) > maxReason+40 || strings.ContainsAny(reason, "\n\x1b\x00") {
				t.Errorf("reason %q", reason)
			}
		}
	})
}
