package launch

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
)

func TestCheckPattern(t *testing.T) {
	for _, pattern := range []string{"", "out", "out.%j.%r.%n", "100%%", "%%r"} {
		if err := CheckPattern(pattern, false); err != nil {
			t.Errorf("%s: %v", pattern, err)
		}
	}
	for _, pattern := range []string{"%", "out.%x", "out%%%", "out-%a", "%A"} {
		if err := CheckPattern(pattern, false); err == nil {
			t.Errorf("%s is accepted", pattern)
		}
	}
	if err := CheckPattern("out-%A-%a.%j", true); err != nil {
		t.Errorf("of an array: %v", err)
	}
}

// twoRanks are the places of two ranks on nodes 0 and 3.
var twoRanks = []*control.Place{{Rank: 0, Node: 0}, {Rank: 1, Node: 3}}

// Records of two ranks whose lines come in pieces.
func pieces(p *printer) error {
	for _, r := range []*control.Record{
		{Rank: 0, Stream: control.Stream_STREAM_STDOUT, Data: []byte("a0")},
		{Rank: 1, Node: 3, Stream: control.Stream_STREAM_STDOUT, Data: []byte("b0")},
		{Rank: 0, Stream: control.Stream_STREAM_STDOUT, Data: []byte("a1\n")},
		{Rank: 1, Node: 3, Stream: control.Stream_STREAM_STDERR, Data: []byte("e\n")},
		{Rank: 1, Node: 3, Stream: control.Stream_STREAM_STDOUT, Data: []byte("b1")},
	} {
		if err := p.print(r); err != nil {
			return err
		}
	}
	return p.finish()
}

// Ranks that share a file share it line by line; one that has a file of its own has in it what it
// wrote, byte for byte.
func TestRedirect(t *testing.T) {
	for _, c := range []struct {
		out, err string
		label    Label
		want     map[string]string
		stderr   string
	}{
		{"all", "all", NoLabel, map[string]string{"all": "a0a1\ne\nb0b1\n"}, ""},
		{"out", "", NoLabel, map[string]string{"out": "a0a1\nb0b1\n"}, "e\n"},
		{"out.%j", "err", ByRank, map[string]string{"out.7": "[0] a0a1\n[1] b0b1\n", "err": "[1] e\n"}, ""},
		{"%r.%n.%%", "", NoLabel, map[string]string{"0.0.%": "a0a1\n", "1.3.%": "b0b1"}, "e\n"},
		{"n%n", "e%r", NoLabel, map[string]string{"n0": "a0a1\n", "n3": "b0b1\n", "e0": "", "e1": "e\n"}, ""},
	} {
		t.Run(c.out+" "+c.err, func(t *testing.T) {
			dir := t.TempDir()
			t.Chdir(dir)
			var stdout, stderr bytes.Buffer
			p := newPrinter(&stdout, &stderr, 2, c.label)
			p.files.out, p.files.err = c.out, c.err
			if err := p.files.open(7, twoRanks); err != nil {
				t.Fatal(err)
			}
			if err := pieces(p); err != nil {
				t.Fatal(err)
			}
			files, err := os.ReadDir(dir)
			if err != nil || len(files) != len(c.want) {
				t.Errorf("%v: %v", files, err)
			}
			for name, want := range c.want {
				if text, err := os.ReadFile(name); err != nil || string(text) != want {
					t.Errorf("%s: %q, %v", name, text, err)
				}
			}
			if stdout.Len() > 0 || stderr.String() != c.stderr {
				t.Errorf("%q, %q", stdout.String(), stderr.String())
			}
		})
	}
}

// A file that cannot be made, and a full disk, are errors that name the file.
func TestRedirectFails(t *testing.T) {
	p := newPrinter(nil, nil, 2, NoLabel)
	p.files.out = filepath.Join(t.TempDir(), "none", "out")
	if err := p.files.open(7, twoRanks); !errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(err.Error(), "output of rank 0: open ") {
		t.Error(err)
	}
	p.files.out = "/dev/full"
	if err := p.files.open(7, twoRanks); err != nil {
		t.Fatal(err)
	}
	if err := pieces(p); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "/dev/full") {
		t.Error(err)
	}
}

// A file of a rank that tasks of an array share has whole lines.
func TestRedirectSharedByTasks(t *testing.T) {
	for pattern, want := range map[string]bool{"out-%r": false, "out-%a": true, "out-%a-%r": true, "out": false} {
		files := redirects{out: pattern, task: new(control.Task), single: true}
		if got := files.alone(control.Stream_STREAM_STDOUT); got != want {
			t.Errorf("%s: a rank writes bytes: %v", pattern, got)
		}
	}
}
