package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"unicode/utf8"
)

func newLog(t *testing.T, cfg Config) *Log {
	t.Helper()
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestLines(t *testing.T) {
	long := strings.Repeat("x", MaxLine)
	cases := []struct {
		name   string
		pieces []string
		want   []string
	}{
		{"nothing", nil, nil},
		{"lines", []string{"a\nb\n", "\n", "c\n"}, []string{"a", "b", "", "c"}},
		{"pieces of a line", []string{"he", "ll", "o\nwo", "rld\n"}, []string{"hello", "world"}},
		{"an unfinished line", []string{"login: "}, []string{"login: "}},
		{"line ends of a serial port", []string{"a\r\nb\r\r\n"}, []string{"a", "b"}},
		{"control characters", []string{"\x1b[2Ja\tb\x00\u009b\xffé\n"}, []string{"?[2Ja\tb???é"}},
		{"long lines are cut", []string{long + "yz\n", long + "\n"}, []string{long, "yz", long, ""}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			l := newLog(t, Config{})
			for _, p := range c.pieces {
				if n, err := io.WriteString(l, p); n != len(p) || err != nil {
					t.Fatal(n, err)
				}
			}
			if got := l.Tail(100); !slices.Equal(got, c.want) {
				t.Errorf("before Close: got %q, want %q", got, c.want)
			}
			l.Close()
			if got := l.Tail(100); !slices.Equal(got, c.want) {
				t.Errorf("after Close: got %q, want %q", got, c.want)
			}
			if got := l.Tail(1); len(c.want) > 0 && (len(got) != 1 || got[0] != c.want[len(c.want)-1]) {
				t.Errorf("last line: got %q", got)
			}
		})
	}
}

func TestFewLinesAreKept(t *testing.T) {
	l := newLog(t, Config{})
	const all = 3*KeepLines + 7
	for i := range all {
		fmt.Fprintln(l, i)
	}
	got := l.Tail(all)
	if len(got) != KeepLines || got[0] != fmt.Sprint(all-KeepLines) || got[KeepLines-1] != fmt.Sprint(all-1) {
		t.Errorf("%d lines, %q to %q", len(got), got[0], got[len(got)-1])
	}
	lines, next, err := l.Follow(t.Context(), 5)
	if err != nil || next != all || !slices.Equal(lines, got) {
		t.Errorf("a late reader got %d lines, next %d, %v", len(lines), next, err)
	}
}

func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(t, Config{})
		var got []string
		end := make(chan error, 1)
		go func() {
			for from := uint64(0); ; {
				lines, next, err := l.Follow(context.Background(), from)
				if err != nil {
					end <- err
					return
				}
				got = append(got, lines...)
				from = next
			}
		}()
		for _, p := range []string{"a\nb\n", "c", "d\ne"} {
			io.WriteString(l, p)
			synctest.Wait()
		}
		if want := []string{"a", "b", "cd"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		l.Close()
		if err := <-end; err != io.EOF || len(got) != 4 || got[3] != "e" {
			t.Errorf("at the end: %v, %q", err, got)
		}
		if _, err := l.Write([]byte("f\n")); err != io.ErrClosedPipe {
			t.Errorf("write after Close: %v", err)
		}
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("enough")
	cancel(reason)
	if _, next, err := newLog(t, Config{}).Follow(ctx, 3); err != reason || next != 3 {
		t.Errorf("cancelled: %d, %v", next, err)
	}
}

func TestConcurrentUse(t *testing.T) {
	l := newLog(t, Config{Path: filepath.Join(t.TempDir(), "log"), MaxBytes: 2000})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for from := uint64(0); ; {
				_, next, err := l.Follow(context.Background(), from)
				if err != nil {
					return
				}
				from = next
				l.Tail(10)
			}
		})
	}
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for i := range 500 {
				fmt.Fprintln(l, "line", i)
			}
		})
	}
	writers.Wait()
	l.Close()
	wg.Wait()
	if lost, err := l.Lost(); lost != 0 {
		t.Errorf("%d bytes lost: %v", lost, err)
	}
}

func TestFileIsBounded(t *testing.T) {
	const limit = 1000
	path := filepath.Join(t.TempDir(), "log")
	l := newLog(t, Config{Path: path, MaxBytes: limit})
	var want strings.Builder
	for i := range 400 {
		line := fmt.Sprintf("line %d\n", i)
		want.WriteString(line)
		io.WriteString(l, line)
	}
	l.Close()
	old, err1 := os.ReadFile(path + OldSuffix)
	young, err2 := os.ReadFile(path)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if len(old) > limit || len(young) > limit || !strings.HasSuffix(want.String(), string(old)+string(young)) {
		t.Errorf("%d and %d bytes:\n%s---\n%s", len(old), len(young), old, young)
	}
	// A later log appends to the same file.
	l = newLog(t, Config{Path: path, MaxBytes: limit})
	io.WriteString(l, "next boot\n")
	l.Close()
	if b, _ := os.ReadFile(path); string(b) != string(young)+"next boot\n" {
		t.Errorf("after another start: %q", b)
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
}

func TestFileThatCannotBeWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	path := filepath.Join(dir, "log")
	if _, err := New(Config{Path: path}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l := newLog(t, Config{Path: path, MaxBytes: 10})
	io.WriteString(l, "12345678\n")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	io.WriteString(l, "lost one\n")
	if lost, err := l.Lost(); lost != 9 || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("lost %d, %v", lost, err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	io.WriteString(l, "it works again\n")
	if b, err := os.ReadFile(path); string(b) != "it works again\n" {
		t.Errorf("%q, %v", b, err)
	}
	if got := l.Tail(2); !slices.Equal(got, []string{"lost one", "it works again"}) {
		t.Errorf("in memory: %q", got)
	}
}

// A log is not written through a link.
func TestFileIsLink(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	if err := os.Symlink("elsewhere", path); err != nil {
		t.Fatal(err)
	}
	if l, err := New(Config{Path: path}); err == nil {
		l.Close()
		t.Error("a link was opened")
	}
	if _, err := os.Lstat(filepath.Join(dir, "elsewhere")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file was created through the link: %v", err)
	}
}

// FuzzLog checks that lines are clean, bounded, and the same however the stream is cut.
func FuzzLog(f *testing.F) {
	f.Add([]byte("a\r\nb"), uint16(1))
	f.Add([]byte(strings.Repeat("x", 3*MaxLine)+"\n\n\x1b[0m"), uint16(700))
	f.Fuzz(func(t *testing.T, stream []byte, cut uint16) {
		whole, pieces := newLog(t, Config{}), newLog(t, Config{})
		whole.Write(stream)
		for piece := range slices.Chunk(stream, int(cut)+1) {
			pieces.Write(piece)
		}
		lines := whole.Tail(KeepLines)
		if !slices.Equal(lines, pieces.Tail(KeepLines)) {
			t.Error("the lines depend on how the stream is cut")
		}
		for _, line := range lines {
			if !utf8.ValidString(line) || strings.ContainsAny(line, "\x00\x1b\r\n") || utf8.RuneCountInString(line) > MaxLine {
				t.Errorf("line %q", line)
			}
		}
	})
}
