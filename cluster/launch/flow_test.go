package launch

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWindow(10)
		passed := 0
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error)
		go func() {
			for {
				if err := w.wait(ctx, 4); err != nil {
					ended <- err
					return
				}
				passed++
			}
		}()
		for _, step := range []struct {
			taken uint64
			want  int
		}{{0, 2}, {1, 2}, {2, 3}, {1, 3}, {12, 5}, {12, 5}} {
			w.taken(step.taken)
			synctest.Wait()
			if passed != step.want {
				t.Errorf("with %d bytes taken %d pieces are sent", step.taken, passed)
			}
		}
		because := errors.New("because")
		cancel(because)
		if err := <-ended; err != because {
			t.Errorf("the wait ended with %v", err)
		}
		go func() { ended <- w.wait(t.Context(), 4) }()
		synctest.Wait()
		w.close()
		if err := <-ended; err != errNoReceiver {
			t.Errorf("the wait ended with %v", err)
		}
		if err := w.wait(t.Context(), 0); err != errNoReceiver {
			t.Errorf("a closed window says %v", err)
		}
	})
}

// A wait ends with its context however close the two come.
func TestWaitAndCancel(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			w := newWindow(0)
			ctx, cancel := context.WithCancel(t.Context())
			go cancel()
			if err := w.wait(ctx, 1); err == nil {
				t.Error("it was let through")
			}
		})
	}
}

// input collects the messages about standard input, and plays ranks that read it.
type input struct {
	*stdin
	told []*control.Stdin
}

func newInput(t *testing.T, from io.Reader, ranks int) *input {
	in := new(input)
	in.stdin = newStdin(from, ranks, func(m proto.Message) { in.told = append(in.told, m.(*control.Stdin)) })
	return in
}

// text returns what the pieces from the i-th on carry, and whether they end; each must follow the
// one before.
func (in *input) text(t *testing.T, i int) (offset uint64, text string, eof bool) {
	t.Helper()
	for n, m := range in.told[i:] {
		if n == 0 {
			offset = m.Offset
		}
		if m.Offset != offset+uint64(len(text)) || m.Job != 7 || len(m.Data) > control.StdinPiece || eof {
			t.Errorf("piece %d of %d bytes is at %d", i+n, len(m.Data), m.Offset)
		}
		text, eof = text+string(m.Data), m.Eof
	}
	return offset, text, eof
}

func TestStdin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		content := strings.Repeat("0123456789abcdef", 20<<10) // 320 KiB
		in := newInput(t, strings.NewReader(content), 2)
		done := make(chan struct{})
		go func() { in.run(t.Context(), 7); close(done) }()
		synctest.Wait()
		if _, text, eof := in.text(t, 0); len(text) != stdinFirst || eof {
			t.Errorf("%d bytes are on the way before a rank has read any", len(text))
		}
		// The slower rank counts, and an old count of it changes nothing.
		in.progress(0, 100<<10)
		in.progress(5, 1<<40)
		synctest.Wait()
		if _, text, _ := in.text(t, 0); len(text) != stdinFirst {
			t.Errorf("%d bytes are on the way, although one rank has taken none", len(text))
		}
		in.progress(1, 1000)
		in.progress(1, 500)
		synctest.Wait()
		// After a broken connection everything is sent again that one has not taken. When a node
		// has connected again, only its ranks get it.
		sent := len(in.told)
		in.rewind()
		if offset, text, _ := in.text(t, sent); offset != 1000 || text != content[1000:1000+len(text)] || len(text) != stdinFirst {
			t.Errorf("sent again: %d bytes at %d", len(text), offset)
		}
		if only := in.told[sent].Only; len(only) != 0 {
			t.Errorf("sent again to the nodes %v", only)
		}
		all := len(in.told)
		in.rewind(3)
		if offset, text, _ := in.text(t, all); offset != 1000 || text != content[1000:1000+len(text)] || len(in.told) != 2*all-sent {
			t.Errorf("sent again to a node: %d bytes at %d", len(text), offset)
		}
		for _, m := range in.told[all:] {
			if !slices.Equal(m.Only, []uint32{3}) {
				t.Errorf("sent again to the nodes %v", m.Only)
			}
		}
		in.told = in.told[:sent]
		in.ended(1)
		synctest.Wait()
		for sent := 0; sent < len(content); {
			_, text, _ := in.text(t, 0)
			if ahead := len(text) - sent; sent > 0 && (ahead > stdinWindow || ahead > max(stdinFirst, sent)) {
				t.Fatalf("%d bytes are on the way when %d were read", ahead, sent)
			}
			sent = len(text)
			in.progress(0, uint64(sent))
			synctest.Wait()
		}
		<-done
		if _, text, eof := in.text(t, 0); text != content || !eof {
			t.Errorf("%d of %d bytes came, end %v", len(text), len(content), eof)
		}
		// The end is sent again as well.
		in.progress(0, uint64(len(content)))
		sent = len(in.told)
		in.rewind()
		if offset, text, eof := in.text(t, sent); offset != uint64(len(content)) || text != "" || !eof {
			t.Errorf("sent again: %q at %d, end %v", text, offset, eof)
		}
		if len(in.held) != 0 {
			t.Errorf("%d bytes are held that all have taken", len(in.held))
		}
	})
}

func TestStdinWithoutReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newInput(t, strings.NewReader("x"), 0)
		in.run(t.Context(), 7)
		in.rewind()
		if len(in.told) != 0 {
			t.Errorf("nobody reads, and yet: %v", in.told)
		}
		// Before the ranks run there is nothing to send again.
		in = newInput(t, strings.NewReader("x"), 1)
		in.rewind()
		if len(in.told) != 0 {
			t.Errorf("sent before the beginning: %v", in.told)
		}
		// The last reader ends while the window is full.
		in = newInput(t, bytes.NewReader(make([]byte, 1<<20)), 1)
		done := make(chan struct{})
		go func() { in.run(t.Context(), 7); close(done) }()
		synctest.Wait()
		in.ended(0)
		<-done
	})
}

func TestStdinStopsWithContext(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			in := newInput(t, bytes.NewReader(make([]byte, 1<<20)), 1)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { in.run(ctx, 7); close(done) }()
			go cancel()
			select {
			case <-done:
			case <-time.After(time.Minute):
				t.Fatal("it goes on without its context")
			}
		})
	}
}

// On a terminal a line is read when all before it was, and no other.
func TestStdinByLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		typed, shell := io.Pipe()
		in := newInput(t, typed, 1)
		in.byLines = true
		go in.run(t.Context(), 7)
		go func() {
			for _, line := range []string{"first\n", "second\n", "third\n"} {
				shell.Write([]byte(line))
			}
		}()
		synctest.Wait()
		for _, read := range []string{"first\n", "first\nsecond\n"} {
			if _, text, _ := in.text(t, 0); text != read {
				t.Errorf("%q was read instead of %q", text, read)
			}
			in.progress(0, uint64(len(read)-1)) // a part of the line is not enough
			synctest.Wait()
			if _, text, _ := in.text(t, 0); text != read {
				t.Errorf("%q was read instead of %q", text, read)
			}
			in.progress(0, uint64(len(read)))
			synctest.Wait()
		}
		in.ended(0)
		typed.Close()
	})
}

// What no rank has read of a file is there for the next program that reads it.
func TestStdinIsGivenBack(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "input"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	for _, read := range [][]uint64{{0, 0}, {10, 20}, {30, 20}, {4096, 4096}, {1 << 40, 0}} {
		if _, err := f.Seek(1000, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		synctest.Test(t, func(t *testing.T) {
			in := newInput(t, f, 2)
			done := make(chan struct{})
			go func() { in.run(t.Context(), 7); close(done) }()
			synctest.Wait()
			_, text, _ := in.text(t, 0)
			for rank, offset := range read {
				in.progress(uint32(rank), offset)
				in.ended(uint32(rank))
			}
			in.giveBack()
			<-done
			at, err := f.Seek(0, io.SeekCurrent)
			if want := 1000 + int64(min(max(read[0], read[1]), uint64(len(text)))); err != nil || at != want && read[0] < 4096 {
				t.Errorf("after %v the file is at %d instead of %d, %v", read, at, want, err)
			}
		})
	}
}
