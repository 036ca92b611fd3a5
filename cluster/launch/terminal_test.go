package launch

import (
	"bytes"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"golang.org/x/sys/unix"
)

var typedCases = []struct {
	typed, passed string
	asked         []syscall.Signal
}{
	{"ls\r", "ls\r", nil},
	{"~.", "", []syscall.Signal{endKey}},
	{"ls\r~.", "ls\r", []syscall.Signal{endKey}},
	{"cd ~.\r", "cd ~.\r", nil},
	{"~~.\r", "~.\r", nil},
	{"~/bin/x\r~\x1als\r", "~/bin/x\rls\r", []syscall.Signal{unix.SIGTSTP}},
	{"~\r~.", "~\r", []syscall.Signal{endKey}},
	{"\r~", "\r", nil},
}

// Escapes are found wherever the reads cut the input.
func TestEscapes(t *testing.T) {
	for _, test := range typedCases {
		for name, cut := range map[string]func(io.Reader) io.Reader{
			"whole": func(r io.Reader) io.Reader { return r }, "keys": iotest.OneByteReader, "halves": iotest.HalfReader,
		} {
			asked := make(chan os.Signal, 4)
			passed, err := io.ReadAll(&escapeReader{from: cut(strings.NewReader(test.typed)), asked: asked})
			close(asked)
			var got []syscall.Signal
			for sig := range asked {
				got = append(got, sig.(syscall.Signal))
			}
			if err != nil || string(passed) != test.passed || !slices.Equal(got, test.asked) {
				t.Errorf("%q by %s: %q, %v, %v", test.typed, name, passed, got, err)
			}
		}
	}
}

// Nothing typed is lost but escapes, and nothing is added.
func FuzzEscapes(f *testing.F) {
	for _, test := range typedCases {
		f.Add([]byte(test.typed), 3)
	}
	f.Fuzz(func(t *testing.T, typed []byte, cut int) {
		var e escapes
		cut = max(0, min(cut, len(typed)))
		first, asked := e.filter(typed[:cut])
		rest, more := e.filter(typed[cut:])
		passed := append(slices.Clone(first), rest...)
		var whole escapes
		same, all := whole.filter(typed)
		if !bytes.Equal(passed, same) || len(asked)+len(more) != len(all) || whole != e {
			t.Fatalf("%q cut at %d: %q and %q", typed, cut, passed, same)
		}
		if len(passed) > len(typed) || len(all) == 0 && len(typed)-len(passed) > 1+bytes.Count(typed, []byte("~~")) {
			t.Fatalf("%q: %q", typed, passed)
		}
	})
}
