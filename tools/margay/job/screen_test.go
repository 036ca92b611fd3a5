package job

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"margay/kernel/abi/gdb"
)

// gdb gets what gdbserver says. It gets no request for a file of its host, whatever that is hidden
// in, and no text that is more than text.
func TestScreen(t *testing.T) {
	packet := func(body string) string { return string(gdb.AppendPacket(nil, []byte(body))) }
	for name, k := range map[string]struct {
		from, want string
		err        error
	}{
		"replies":               {"+$OK#9a+$T05thread:p1.1;#00-", "+$OK#9a+" + packet("T05thread:p1.1;") + "-", nil},
		"nothing supported":     {"$#00", "$#00", nil},
		"a notification":        {"%Stop:T05#00", "%Stop:T05#99", nil},
		"run-length encoding":   {"$E0* 1#00", packet("E00001"), nil},
		"a file of the node":    {packet("F3") + packet("F-1,2"), packet("F3") + packet("F-1,2"), nil},
		"its content":           {packet("F2a;open,}\x04") + packet("F0"), packet("F2a;open,}\x04") + packet("F0"), nil},
		"a long result":         {"$F10*!;x#00", packet("F100000;x"), nil},
		"a console":             {packet("O48690a1b5d"), packet("O48690a3f5d"), nil},
		"half a text":           {packet("O4"), "", errOdd},
		"an error":              {packet("E.no\x1b[2J way\n"), packet("E.no?[2J way?"), nil},
		"open":                  {packet("OK") + packet("Fopen,401136/b,241,1a4"), packet("OK"), errFileRequest},
		"close":                 {packet("Fclose,3"), "", errFileRequest},
		"system":                {packet("Fsystem,401136/3"), "", errFileRequest},
		"fstat":                 {packet("Ffstat,3,401136"), "", errFileRequest},
		"no number":             {packet("F"), "", errFileRequest},
		"no number before data": {packet("F;x"), "", errFileRequest},
		"a name, encoded":       {"$Ffstat*\x1d,3,1#00", "", errOdd},
		"in a packet":           {"$O$Fopen,1/1,0,0#00", "", errOdd},
		"behind an odd count":   {"$O4*#$Fopen,1/1,0,0#00", "", errOdd},
		"behind an odd end":     {"$m#$F$Fopen,1/1,0,0#00", "$m#6d", errFileRequest},
		"between packets":       {"\x1b[2J", "", errOdd},
		"a long packet":         {"$" + strings.Repeat("0", 2*maxReply) + "#00", "", errOdd},
		"a long run":            {"$0" + strings.Repeat("*~", maxReply/64) + "#00", "", errOdd},
		"cut":                   {"$F3;xy", "", nil},
	} {
		for _, from := range []io.Reader{strings.NewReader(k.from), iotest.OneByteReader(strings.NewReader(k.from))} {
			s := newScreen(from)
			got, err := io.ReadAll(s)
			if string(got) != k.want || !errors.Is(err, k.err) || !errors.Is(s.Refused(), k.err) {
				t.Errorf("%s: gdb gets %.100q, not %q: %v, %v", name, got, k.want, err, s.Refused())
			}
		}
	}
}

// Whatever comes, gdb gets packets without requests, that a screen leaves as they are.
func FuzzScreen(f *testing.F) {
	for _, text := range []string{"$OK#9a", "$Fopen,1/1,0,0#00", "$O4869#00", "$E0* 1#00", "%Stop:#00", "$E.x#00", "$F-1,2#00"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, from []byte) {
		got, _ := io.ReadAll(newScreen(strings.NewReader(string(from))))
		again, err := io.ReadAll(newScreen(strings.NewReader(string(got))))
		if err != nil || string(again) != string(got) {
			t.Errorf("%q becomes %q and then %q: %v", from, got, again, err)
		}
		for _, call := range []string{"$Fopen", "$Fclose", "$Fread", "$Fwrite", "$Flseek", "$Frename", "$Funlink", "$Fstat", "$Ffstat", "$Fgettimeofday", "$Fisatty", "$Fsystem"} {
			if strings.Contains(string(got), call) {
				t.Errorf("%q becomes %q", from, got)
			}
		}
	})
}
