package line_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"margay/tools/margay/line"
)

// A client carries out lines of its own commands, wherever their flags are, and nothing else.
func TestElse(t *testing.T) {
	t.Setenv("MARGAY_DIR", t.TempDir())
	elsewhere := errors.New("another program has it")
	for text, own := range map[string]bool{
		"version":                 true,
		"run --help":              true,
		"run true":                true,
		"run machine up":          true,
		"-m none run true":        true,
		"-mnone run true":         true,
		"--machine none run true": true,
		"--machine=none run true": true,
		"run -m none true":        true,
		"ps":                      true,
		"-m machine ps":           true,
		"nodes --bad":             true,
		"ext list":                true,
		"alloc --help":            true,
		"":                        false,
		"--help":                  false,
		"--version":               false,
		"-m run":                  false,
		"help run":                false,
		"completion bash":         false,
		"__complete run --":       false,
		"ext":                     false,
		"ext --help":              false,
		"ext ls":                  false,
		"machine up":              false,
		"-m run machine up":       false,
		"machine run":             false,
		"node drain 0":            false,
		"serve":                   false,
		"holder m":                false,
		"bench launch":            false,
		"nimble run x":            false,
		"image list":              false,
		"man /":                   false,
		"frobnicate":              false,
		"--frobnicate":            false,
		"-- run true":             false,
	} {
		asked := 0
		p := &line.Program{Version: "v", Groups: line.Clients, Else: func() error { asked++; return elsewhere }}
		var stdout, stderr bytes.Buffer
		status := p.Run(t.Context(), strings.Fields(text), strings.NewReader(""), &stdout, &stderr)
		if own != (asked == 0) {
			t.Errorf("%q: another program was asked %d times; status %d, %s%s", text, asked, status, &stdout, &stderr)
		}
		if !own && (status != 125 || stdout.Len() > 0 || stderr.String() != "margay: another program has it\n") {
			t.Errorf("%q: status %d, %s, %s", text, status, &stdout, &stderr)
		}
	}
}

// Where margayd is missing, the error says which file that is.
func TestDaemonsMissing(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	want := filepath.Join(filepath.Dir(self), "margayd") + ": no such file or directory; make build makes it"
	if err := line.Daemons(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}
