package command

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"margay/tools/margay/show"
)

// IsTerminal reports whether r is a terminal.
func IsTerminal(r io.Reader) bool {
	f, ok := show.FileOf(r)
	return ok && term.IsTerminal(int(f.Fd()))
}

// foregroundPause is how often a process in the background looks whether it is in the foreground.
const foregroundPause = 100 * time.Millisecond

// foregroundReader reads a terminal while this process is in its foreground, and waits otherwise.
// Linux would stop the process for a read in the background.
type foregroundReader struct{ terminal *os.File }

// Foreground returns r, or if r is a terminal, a reader that does not stop the process in the
// background.
func Foreground(r io.Reader) io.Reader {
	f, ok := show.FileOf(r)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return r
	}
	signal.Ignore(unix.SIGTTIN) // a read in the background fails with EIO then
	return &foregroundReader{f}
}

func (r *foregroundReader) Read(p []byte) (int, error) {
	for {
		if r.background() {
			time.Sleep(foregroundPause)
			continue
		}
		n, err := r.terminal.Read(p)
		// The process can go to the background before the read and during it.
		if n == 0 && errors.Is(err, unix.EIO) && r.background() {
			continue
		}
		if errors.Is(err, unix.EIO) {
			err = io.EOF // the terminal is gone
		}
		return n, err
	}
}

// AwaitEnter takes a line that the user types at r while this process is in the foreground, and
// reports whether there was one before the end. If ctx ends first, it takes nothing, and returns
// the cause. It takes nothing either of an r that is not a terminal: no user is there. Nothing else
// may read r at the same time.
func AwaitEnter(ctx context.Context, r io.Reader) (bool, error) {
	in, ok := Foreground(r).(*foregroundReader)
	if !ok {
		return false, nil
	}
	for key := make([]byte, 1); ; {
		if err := in.await(ctx); err != nil {
			return false, err
		}
		switch _, err := in.Read(key); {
		case errors.Is(err, io.EOF):
			return false, nil
		case err != nil:
			return false, err
		case key[0] == '\n':
			return true, nil
		}
	}
}

// await waits until something can be read in the foreground.
func (r *foregroundReader) await(ctx context.Context) error {
	for ctx.Err() == nil {
		if r.background() {
			time.Sleep(foregroundPause)
			continue
		}
		ready := []unix.PollFd{{Fd: int32(r.terminal.Fd()), Events: unix.POLLIN}}
		switch n, err := unix.Poll(ready, int(foregroundPause.Milliseconds())); {
		case err != nil && !errors.Is(err, unix.EINTR):
			return err
		case n > 0 && ctx.Err() == nil:
			return nil
		}
	}
	return context.Cause(ctx)
}

// background reports whether this process is in the background of the terminal.
func (r *foregroundReader) background() bool { return background(r.terminal) }

// background reports whether this process has a terminal and another process group is in its
// foreground.
func background(terminal *os.File) bool {
	group, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPGRP)
	return err == nil && group != unix.Getpgrp()
}
