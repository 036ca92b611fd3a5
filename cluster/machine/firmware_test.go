package machine

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// What firmware has kept is in one file for a boot of its node, with a line that says since when,
// printable, and bounded.
func TestKeepFirmwareLog(t *testing.T) {
	d := Dir(t.TempDir())
	if err := os.Mkdir(d.file("log"), 0o700); err != nil {
		t.Fatal(err)
	}
	keep := func(text string, first bool) {
		t.Helper()
		if err := d.keepFirmwareLog(3, []byte(text), first); err != nil {
			t.Fatal(err)
		}
	}
	const head = `-- kept by the firmware of node3, and read on \d{4}-\d\d-\d\d \d\d:\d\d:\d\d --\n`
	is := func(want string) {
		t.Helper()
		if got := kept(t, d.FirmwareLog(3)); !regexp.MustCompile("^" + want + "$").MatchString(got) {
			t.Errorf("kept: %.500q", got)
		}
	}
	keep("a\x1b[2J\n\tb", false) // the first for the machine
	is(head + `a\?\[2J\n\tb\n`)
	keep("c\n", true)
	is(head + `c\n`)
	keep("d\n", false)
	is(head + `c\n` + head + `d\n`)
	if err := d.keepFirmwareLog(3, []byte(strings.Repeat("x", maxFirmwareLog)), false); err == nil || !strings.Contains(err.Error(), "the log of the firmware of node3 would have 1048") {
		t.Errorf("too much: %v", err)
	}
	is(head + `c\n` + head + `d\n`)
	if err := os.WriteFile(d.FirmwareLog(3)+".next", nil, 0o600); err != nil { // of a serve that was killed
		t.Fatal(err)
	}
	if err := d.removeFirmwareLog(3); err != nil {
		t.Fatal(err)
	}
	if files, err := os.ReadDir(d.file("log")); err != nil || len(files) != 0 {
		t.Errorf("there remain %v, %v", files, err)
	}
	if err := d.removeFirmwareLog(3); err != nil {
		t.Errorf("of a node whose firmware has kept nothing: %v", err)
	}
}
