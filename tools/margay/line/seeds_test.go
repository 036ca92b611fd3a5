package line

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSeeds(t *testing.T) {
	loadfile := filepath.Join(t.TempDir(), "load")
	if err := os.WriteFile(loadfile, []byte("-sz 2 a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		line     string
		terminal bool
		want     string
	}{
		{"margay run -n 2 a", false, "run -n 2 a"},
		{"yod a -size 3", false, "run -- a -size 3"},
		{"yod -size 4 -l 1..4,10 a x", false, "run -n 4 -w 1..4,10 -- a x"},
		{"yod -sz a", false, "run -n 1 -- a"},
		{"yod -interactive -D -sz 2 a", false, "run --keep-going --verbose --timing -n 2 -- a"},
		{"yod -batch -d load a", false, "run --timing -- a"},
		{"yod " + loadfile, false, "run -f " + loadfile},
		{"yod -d io a", false, "run --files . --trace-io -- a"},
		{"yod -d kill a", false, "error: yod: -d kill: there is nothing to show of it"},
		{"yod -attach a", false, "run --attach -- a"},
		{"yod -file x a", false, "run --messages x -- a"},
		{"yod -n 2 a", false, "error: yod has no -n"},
		{"yod -l", false, "error: yod: -l needs a value"},
		{"yod -sz 4", false, "error: yod: the program is missing"},
		{"glurun -8 a x", false, "run -n 8 --stdin all -- a x"},
		{"glurun -n 8 a", true, "run -n 8 --stdin all -- a"},
		{"glurun vi x", true, "run -n 1 --pty -- vi x"},
		{"glurun cat", false, "run -n 1 --stdin all -- cat"},
		{"glurun -x cat", false, `error: glurun: "x" is not a number of processes`},
		{"glurun -0 cat", false, `error: glurun: "0" is not a number of processes`},
		{"glurun -n", false, `error: glurun: "n" is not a number of processes`},
		{"glurun", false, "error: glurun: the program is missing"},
	} {
		words := strings.Fields(test.line)
		args, err := fromSeed(words[0], words[1:], test.terminal)
		got := strings.Join(args, " ")
		if err != nil {
			got = "error: " + err.Error()
		}
		if got != test.want && (err == nil || !strings.HasPrefix(got, test.want)) {
			t.Errorf("%s: %s instead of %s", test.line, got, test.want)
		}
	}
}
