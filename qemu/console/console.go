// Package console keeps the output of a machine or a process: the last lines in memory, all lines
// in a file of bounded size.
//
// The writer is not trusted. It cannot fill the disk (the file is rotated, one older file is kept)
// or memory (lines are cut, few are kept), and its control characters do not reach the reader's
// terminal. It never blocks: a full disk or a slow reader loses lines, which are counted.
package console

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"sync"

	"margay/internal/printable"
)

// Bounds of the log.
const (
	// KeepLines is how many of the last lines are in memory by default.
	KeepLines = 512
	// MaxLine is the length in bytes at which a line is cut; the rest becomes another line.
	MaxLine = 1024
	// DefaultMaxBytes is the size of the file, in bytes, at which it is rotated.
	DefaultMaxBytes = 4 << 20
	// OldSuffix is appended to the name of the file that was rotated last.
	OldSuffix = ".old"
)

// A Config describes the file of a log. The zero value keeps lines in memory only.
type Config struct {
	Path     string // file that lines are appended to; empty means none
	MaxBytes int64  // size at which it is rotated; zero means DefaultMaxBytes
	Keep     int    // how many of the last lines are in memory; zero means KeepLines
}

// A Log splits a stream of text into lines and keeps them. Its methods may be called from several
// goroutines.
type Log struct {
	keep int

	mu      sync.Mutex
	file    *file // nil: none
	lines   []string
	next    uint64        // number of the line after the last of lines
	partial []byte        // the unfinished line
	changed chan struct{} // closed when there is more to read
	closed  bool
}

// New returns an empty log. It opens or creates the file, so that errors are reported at once.
func New(cfg Config) (*Log, error) {
	l := &Log{keep: cmp.Or(cfg.Keep, KeepLines), changed: make(chan struct{})}
	if cfg.Path != "" {
		if cfg.MaxBytes == 0 {
			cfg.MaxBytes = DefaultMaxBytes
		}
		var err error
		if l.file, err = openFile(cfg.Path, cfg.MaxBytes); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// Write takes a piece of the stream. It always reports success; see Lost. After Close it returns
// io.ErrClosedPipe.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return 0, io.ErrClosedPipe
	}
	var text []byte
	for rest := p; len(rest) > 0; {
		room := rest[:min(len(rest), MaxLine-len(l.partial))]
		end := bytes.IndexByte(room, '\n')
		if end < 0 {
			l.partial = append(l.partial, room...)
			rest = rest[len(room):]
		} else {
			l.partial = append(l.partial, room[:end]...)
			rest = rest[end+1:]
		}
		if end >= 0 || len(l.partial) == MaxLine {
			text = l.finishLine(text)
		}
	}
	l.publish(text)
	return len(p), nil
}

// finishLine moves the partial line to the lines, and appends it to the text for the file.
func (l *Log) finishLine(text []byte) []byte {
	line := clean(l.partial)
	l.partial = l.partial[:0]
	if len(l.lines) == l.keep {
		copy(l.lines, l.lines[1:])
		l.lines = l.lines[:l.keep-1]
	}
	l.lines = append(l.lines, line)
	l.next++
	return append(append(text, line...), '\n')
}

// publish writes finished lines to the file and wakes the readers.
func (l *Log) publish(text []byte) {
	if len(text) == 0 {
		return
	}
	if l.file != nil {
		l.file.write(text)
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

// clean makes untrusted bytes safe for a terminal. It keeps tabs, and drops the carriage returns
// that serial ports put before a line break.
func clean(b []byte) string { return printable.Lines(string(bytes.TrimRight(b, "\r"))) }

// Tail returns the last n lines that are kept, oldest first. An unfinished line counts.
func (l *Log) Tail(n int) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := append([]string(nil), l.lines...)
	if len(l.partial) > 0 {
		lines = append(lines, clean(l.partial))
	}
	return lines[max(0, len(lines)-n):]
}

// Follow returns the lines from number from on, counted from 0, and the number to ask for next. It
// waits for a line or the end of ctx. If lines are no longer kept, next-len(lines) exceeds from by
// the number of missed lines. The error is io.EOF after Close when all lines are read, and ctx's
// otherwise.
func (l *Log) Follow(ctx context.Context, from uint64) (lines []string, next uint64, err error) {
	for {
		l.mu.Lock()
		lines, next = l.since(from), l.next
		closed, changed := l.closed, l.changed
		l.mu.Unlock()
		switch {
		case len(lines) > 0:
			return lines, next, nil
		case closed:
			return nil, next, io.EOF
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, from, context.Cause(ctx)
		}
	}
}

func (l *Log) since(from uint64) []string {
	if from >= l.next {
		return nil
	}
	n := min(l.next-from, uint64(len(l.lines)))
	return append([]string(nil), l.lines[uint64(len(l.lines))-n:]...)
}

// Lost returns the number of bytes that could not be written to the file, and the last write error.
func (l *Log) Lost() (bytes int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return 0, nil
	}
	return l.file.lost, l.file.err
}

// Close finishes the last line, ends the readers after it and closes the file. Later calls do
// nothing.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	if len(l.partial) > 0 {
		l.publish(l.finishLine(nil))
	}
	close(l.changed)
	if l.file == nil {
		return nil
	}
	return l.file.close()
}
