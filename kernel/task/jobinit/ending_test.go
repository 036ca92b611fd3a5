package jobinit

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/check"
	"margay/kernel/task"
)

// A terminal gets its end when all before it is read, and again for each further reader.
func TestEnding(t *testing.T) {
	lines, keys := terminalState{lines: true, key: 4}, terminalState{key: 4}
	unread := func(s terminalState) terminalState {
		s.unread = true
		return s
	}
	for name, c := range map[string]struct {
		begun bool
		looks []terminalState
		typed []string
	}{
		"lines":              {false, []terminalState{unread(lines), lines, lines, unread(lines), lines, lines}, []string{"", "", "\x04", "", "", "\x04"}},
		"a line has begun":   {true, []terminalState{lines, lines, unread(lines), lines, lines}, []string{"", "\x04", "", "", "\x04"}},
		"keys":               {false, []terminalState{unread(keys), keys, keys, keys}, []string{"", "", "\x04", "\x04"}},
		"keys have begun":    {true, []terminalState{keys, keys, keys}, []string{"", "\r", "\x04"}},
		"lines are used now": {false, []terminalState{keys, lines, lines}, []string{"", "", "\x04"}},
	} {
		e := ending{begun: c.begun}
		for i, now := range c.looks {
			if typed := string(e.next(now)); typed != c.typed[i] {
				t.Errorf("%s: look %d types %q, not %q", name, i, typed, c.typed[i])
			}
		}
	}
}

// onTerminal gives a terminal an input, and returns its far end.
func onTerminal(t *testing.T, text string) (*pipes, *input) {
	t.Helper()
	p, err := openTerminal(task.Size{Rows: 24, Columns: 80})
	if err != nil {
		t.Fatal(err)
	}
	i := newInput(p.input, true)
	go io.Copy(io.Discard, p.output) // the echo
	ended := make(chan struct{})
	t.Cleanup(func() {
		i.end()
		<-ended
		p.closeFar()
		p.closeNear()
	})
	i.take(task.InputBody{EOF: true}, []byte(text))
	go func() {
		defer close(ended)
		i.run(func(uint64) {})
	}()
	return p, i
}

// far reads from the far end until its text satisfies done.
func far(t *testing.T, p *pipes, done func(text []byte, end bool) bool) {
	t.Helper()
	result := make(chan []byte, 1)
	go func() {
		var text []byte
		buffer := make([]byte, 100)
		for {
			n, err := p.stdin.Read(buffer)
			text = append(text, buffer[:n]...)
			if done(text, err == io.EOF) || err != nil && err != io.EOF {
				result <- text
				return
			}
		}
	}()
	select {
	case <-result:
	case <-time.After(time.Minute):
		p.closeNear() // hangs up
		t.Errorf("the input has no end after %q", <-result)
	}
}

// Readers of lines find the end behind the input, one after the other.
func TestEndOfLines(t *testing.T) {
	for _, text := range []string{"", "one\n", "one\ntwo", strings.Repeat("x\n", 5000)} {
		t.Run("", func(t *testing.T) {
			check.Leaks(t)
			p, _ := onTerminal(t, text)
			far(t, p, func(got []byte, end bool) bool {
				if end && string(got) != text {
					t.Errorf("the end comes after %d of %d bytes", len(got), len(text))
				}
				return end
			})
			far(t, p, func(_ []byte, end bool) bool { return end })
		})
	}
}

// A shell that turns lines off when the end has been typed gets it again.
func TestEndOfKeys(t *testing.T) {
	check.Leaks(t)
	p, _ := onTerminal(t, "exit")
	far(t, p, func(got []byte, end bool) bool { return string(got) == "exit" })
	for { // an end waits
		now, err := stateOf(p.input)
		if err != nil {
			t.Fatal(err)
		}
		if now.unread {
			break
		}
		time.Sleep(time.Millisecond)
	}
	settings, err := unix.IoctlGetTermios(int(p.stdin.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	settings.Lflag &^= unix.ICANON | unix.ECHO
	settings.Cc[unix.VMIN], settings.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(int(p.stdin.Fd()), unix.TCSETS, settings); err != nil {
		t.Fatal(err)
	}
	far(t, p, func(got []byte, _ bool) bool { return bytes.IndexByte(got, endKey) >= 0 })
}
