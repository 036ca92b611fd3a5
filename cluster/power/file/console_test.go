package file

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Each node gets the command of its entry, with its number. A program that is a path is relative to
// the file.
func TestConsole(t *testing.T) {
	path := write(t, `
console:
  - {nodes: 0..3, command: [ipmitool, -H, "10.9.0.{number}", sol, activate]}
  - {nodes: 7, command: [./serial, "a b"]}
`)
	m, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	for node, want := range map[uint32][]string{
		2: {"ipmitool", "-H", "10.9.0.2", "sol", "activate"}, 7: {filepath.Join(filepath.Dir(path), "serial"), "a b"}, 4: nil,
	} {
		if got := m.Console(node); !slices.Equal(got, want) {
			t.Errorf("node%d: %q", node, got)
		}
	}
}

func TestBadConsoles(t *testing.T) {
	for text, want := range map[string]string{
		"console: [{command: [x]}]":                                     "entry 1 of console: nodes: it names no node",
		"console: [{nodes: 1}]":                                         "entry 1 of console: command has no program",
		"console: [{nodes: 1, command: ['', x]}]":                       "entry 1 of console: command has no program",
		"console: [{nodes: 1..2, command: [x, y]}]":                     "1..2 would be one and the same: each needs an entry, or {number} in its command",
		"console: [{nodes: 1, command: [x]}, {nodes: 1, command: [y]}]": "entry 2 of console: an earlier entry has node1 already",
		"console: [{nodes: 1, command: x}]":                             "the value is of the wrong kind",
		"console: [{nodes: 1, driver: command}]":                        "there is no field driver",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
