package kernel

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"margay/internal/check"
)

// playedCollector writes the same archive each time, or fails.
type playedCollector struct {
	archive []byte
	err     error
	opened  int
}

func (p *playedCollector) Collect(_ context.Context, _ [][]byte, pipe *os.File) error {
	p.opened++
	if p.err != nil {
		return p.err
	}
	fd, err := unix.FcntlInt(pipe.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	w := os.NewFile(uintptr(fd), "pipe")
	go func() {
		defer w.Close()
		_, _ = w.Write(p.archive) // the reader may have gone
	}()
	return nil
}

// A client that reads on, repeats requests and reaches a restarted node kernel gets each byte of
// the archive.
func TestReadFiles(t *testing.T) {
	check.Leaks(t)
	r := rand.New(rand.NewPCG(check.Seed(t), 0))
	from := &playedCollector{archive: make([]byte, 3*filesPiece+1000)}
	for i := range from.archive {
		from.archive[i] = byte(r.Uint32())
	}
	c := new(collection)
	var got []byte
	for last := false; !last; {
		switch r.IntN(4) {
		case 0: // the answer was lost
			if piece, _, err := c.read(t.Context(), from, uint64(len(got)), nil); err != nil || !bytes.HasPrefix(from.archive[len(got):], piece) {
				t.Fatalf("%d bytes at %d, %v", len(piece), len(got), err)
			}
		case 1: // the node kernel was started again
			c.close()
			c = new(collection)
		}
		piece, end, err := c.read(t.Context(), from, uint64(len(got)), nil)
		if err != nil {
			t.Fatal(err)
		}
		got, last = append(got, piece...), end
	}
	if !bytes.Equal(got, from.archive) {
		t.Errorf("%d bytes of %d came, or others", len(got), len(from.archive))
	}
	if piece, last, err := c.read(t.Context(), from, uint64(len(got)), nil); len(piece) > 0 || !last || err != nil {
		t.Errorf("behind the end: %d bytes, %v, %v", len(piece), last, err)
	}
	if _, _, err := new(collection).read(t.Context(), from, uint64(len(got))+1, nil); err == nil {
		t.Error("there is a piece beyond the end")
	}
	if piece, _, err := c.read(t.Context(), from, 0, nil); err != nil || !bytes.HasPrefix(from.archive, piece) || len(piece) == 0 {
		t.Errorf("from the beginning once more: %d bytes, %v", len(piece), err)
	}
	c.close()
}

// A job's init that has ended gives no files.
func TestReadFilesOfEnded(t *testing.T) {
	gone := &playedCollector{err: io.ErrClosedPipe}
	c := new(collection)
	for range 2 {
		if _, _, err := c.read(t.Context(), gone, 0, nil); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("error %v", err)
		}
	}
	if gone.opened != 2 {
		t.Errorf("it was asked %d times", gone.opened)
	}
}

// The init of a job gets to know that files are collected before it gets any.
func TestTaskCollects(t *testing.T) {
	n, _ := node1(t, 1)
	spec := n.prepared(t, 7, 1).spec
	for _, spec.Collects = range []bool{false, true} {
		if s, err := n.taskSpec(spec); err != nil || s.Collects != spec.Collects {
			t.Errorf("%v, not %v: %v", s.Collects, spec.Collects, err)
		}
	}
}
