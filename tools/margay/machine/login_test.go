package machine

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"margay/cluster/trust"
	"margay/tools/margay/command"
)

func TestLife(t *testing.T) {
	for text, want := range map[string]time.Duration{"30d": 30 * day, "8h": 8 * time.Hour, "1h30m": 90 * time.Minute, "24h": day} {
		var f lifeFlag
		if err := f.Set(text); err != nil || time.Duration(f) != want {
			t.Errorf("%s: %v, %v", text, time.Duration(f), err)
		}
		again := f
		if err := again.Set(f.String()); err != nil || again != f {
			t.Errorf("%s is printed as %s", text, f.String())
		}
	}
	for _, text := range []string{"", "d", "0d", "-1d", "0h", "-8h", "7", "99999d", "soon"} {
		if f := lifeFlag(day); f.Set(text) == nil || time.Duration(f) != day {
			t.Errorf("%q is %v", text, time.Duration(f))
		}
	}
}

func TestReachable(t *testing.T) {
	here := func() (string, error) { return "here", nil }
	for listen, want := range map[string]string{"[::]:7118": "here:7118", "0.0.0.0:7118": "here:7118", "10.0.0.1:7118": "10.0.0.1:7118", "": ""} {
		if got := reachable(listen, here); got != want {
			t.Errorf("%s: %s", listen, got)
		}
	}
	if got := reachable("[::]:7118", func() (string, error) { return "", errors.New("none") }); got != "HOST:7118" {
		t.Error(got)
	}
}

// A token that is given as an argument is not repeated.
func TestTokenAsArgument(t *testing.T) {
	c := commands{new(command.App)}.loginCommand()
	secret := trust.UserToken{Secret: trust.NewSecret()}.String()
	for _, args := range [][]string{{secret}, {secret[:20]}, {"here:7118", secret}} {
		if err := c.Args(c, args); err == nil || strings.Contains(err.Error(), secret[:20]) {
			t.Errorf("%v", err)
		}
	}
	if err := c.Args(c, []string{"here:7118"}); err != nil {
		t.Error(err)
	}
}

// A token comes from a file or from standard input, with blanks around it. Errors do not repeat
// other texts.
func TestReadToken(t *testing.T) {
	want := trust.UserToken{Number: 3, Secret: trust.NewSecret()}.String()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(want+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	read := func(stdin, file string) (string, error) {
		return commands{&command.App{Stdin: strings.NewReader(stdin), Stderr: new(bytes.Buffer)}}.readToken(t.Context(), file)
	}
	for what, c := range map[string][2]string{"a file": {"", file}, "standard input": {" " + want + "\r\n", ""}} {
		if got, err := read(c[0], c[1]); got != want || err != nil {
			t.Errorf("%s: %s, %v", what, got, err)
		}
	}
	for _, stdin := range []string{"", "x", want[:len(want)-1], want + want, strings.Repeat("y", 1<<20)} {
		if _, err := read(stdin, ""); !errors.Is(err, trust.ErrNoToken) || len(stdin) > 9 && strings.Contains(err.Error(), stdin[7:]) {
			t.Errorf("%.9s...: %v", stdin, err)
		}
	}
	if _, err := read(want, filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such file: %v", err)
	}
}
