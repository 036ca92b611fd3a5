package kernel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/id"
	"margay/kernel/task"
)

// Bounds of the reading of a job's files.
const (
	filesPiece = 1 << 20          // bytes of a piece, at most
	filesWait  = 20 * time.Second // for the first byte of one
)

// ErrNoData reports that a job's init has written nothing of an archive for too long. The caller
// can request the piece again.
var ErrNoData = errors.New("no data")

// collector writes the archive of a job's files to a pipe: a *task.Container.
type collector interface {
	Collect(ctx context.Context, paths [][]byte, pipe *os.File) error
}

var _ collector = (*task.Container)(nil)

// collection is the archive of a job's files while its client reads it. It keeps the last piece,
// because the client requests it again when the reply is lost.
type collection struct {
	mu    sync.Mutex
	pipe  *os.File // from the job's init; nil: nothing is read
	piece []byte   // the last one that was read; nil: none
	end   uint64   // offset after it
	last  bool     // nothing comes after it
}

// ReadFiles ends all processes of a job. It returns a piece of the archive (package archive) of the
// files that they have written at the paths, and whether this is the last piece. offset is the
// start of the next piece, or of the last one returned. At any other offset, as after a restart of
// the node kernel, it reads the archive again up to there.
func (n *Node) ReadFiles(ctx context.Context, number id.Job, offset uint64, paths [][]byte) (piece []byte, last bool, err error) {
	j, err := n.get(number)
	if err != nil {
		return nil, false, err
	}
	piece, last, err = j.files.read(ctx, j.container, offset, paths)
	if err != nil {
		err = fmt.Errorf("read files of job %d: %w", number, err)
	}
	return piece, last, err
}

func (c *collection) read(ctx context.Context, from collector, offset uint64, paths [][]byte) ([]byte, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.piece != nil && offset == c.end-uint64(len(c.piece)) {
		return c.piece, c.last, nil
	}
	if c.last && offset == c.end {
		return nil, true, nil
	}
	if c.pipe == nil || offset < c.end {
		if err := c.open(ctx, from, paths); err != nil {
			return nil, false, err
		}
	}
	if err := c.pipe.SetReadDeadline(time.Now().Add(filesWait)); err != nil {
		return nil, false, err
	}
	if err := c.skip(offset); err != nil {
		return nil, false, err
	}
	piece := make([]byte, filesPiece)
	n, err := io.ReadFull(c.pipe, piece)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		c.last = true
	case errors.Is(err, os.ErrDeadlineExceeded) && n == 0:
		return nil, false, ErrNoData
	case errors.Is(err, os.ErrDeadlineExceeded):
	case err != nil:
		return nil, false, err
	}
	c.piece = piece[:n:n]
	c.end += uint64(n)
	return c.piece, c.last, nil
}

// open starts the archive from its beginning.
func (c *collection) open(ctx context.Context, from collector, paths [][]byte) error {
	c.closePipe()
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer w.Close()
	widen(r)
	if err := from.Collect(ctx, paths, w); err != nil {
		r.Close()
		return err
	}
	c.pipe = r
	return nil
}

// widen makes a pipe hold a whole piece, which saves wake-ups. Linux refuses this to an ordinary
// user with many large pipes; those pipes hold less.
func widen(pipe *os.File) {
	if raw, err := pipe.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, filesPiece) })
	}
}

// skip reads up to an offset. Data that it has read before a timeout stays read.
func (c *collection) skip(offset uint64) error {
	if c.end >= offset {
		return nil
	}
	n, err := io.CopyN(io.Discard, c.pipe, int64(offset-c.end))
	c.piece = nil
	c.end += uint64(n)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return ErrNoData
	case errors.Is(err, io.EOF):
		return fmt.Errorf("they have only %d bytes, and a piece at %d is asked for", c.end, offset)
	}
	return err
}

// closePipe closes the pipe with the archive.
func (c *collection) closePipe() {
	c.pipe.Close() // nothing, if there is none
	c.pipe, c.piece, c.end, c.last = nil, nil, 0, false
}

// close ends the reading for good.
func (c *collection) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closePipe()
}
