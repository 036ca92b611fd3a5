package jobinit

import (
	"os"
	"sync"

	"margay/kernel/task"
)

// inputBytes bounds the standard input held for a rank that does not read. The sender learns from
// the reported positions when to pause.
const inputBytes = 256 << 10

// input is the standard input of one rank. Pieces carry their offset, so that data sent again after
// a broken connection is taken once.
type input struct {
	pipe     *os.File // nil when the rank reads /dev/null
	terminal bool     // pipe is a terminal, which ends by a character

	mu      sync.Mutex
	changed sync.Cond
	pending []byte
	taken   uint64 // offset after the last byte in pending
	written uint64 // offset after the last byte given to the rank, or thrown away
	eof     bool   // nothing comes after pending
	closed  bool   // the rank takes no further input
}

func newInput(pipe *os.File, terminal bool) *input {
	i := &input{pipe: pipe, terminal: terminal, closed: pipe == nil}
	i.changed.L = &i.mu
	return i
}

// take accepts a piece. If the rank no longer reads, it discards the piece and returns the position
// to report.
func (i *input) take(b task.InputBody, data []byte) (position uint64, gone bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	end := b.Offset + uint64(len(data))
	if i.closed {
		i.written = max(i.written, end)
		return i.written, true
	}
	if b.Offset > i.taken || end < i.taken || i.eof {
		return 0, false // a gap, which the sender fills after a rewind, or a repetition
	}
	fresh := data[i.taken-b.Offset:]
	if len(i.pending)+len(fresh) > inputBytes {
		return 0, false // more than was allowed: the sender will send it again
	}
	i.pending = append(i.pending, fresh...)
	i.taken = end
	i.eof = b.EOF
	i.changed.Broadcast()
	return 0, false
}

// position returns how far the input has got.
func (i *input) position() uint64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.written
}

// close discards the pending input: the rank has ended.
func (i *input) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	i.pipe.Close() // ends a write without a reader
	i.changed.Broadcast()
}

// run writes the input to the rank until its end, and reports each new position.
func (i *input) run(tell func(position uint64)) {
	for {
		i.mu.Lock()
		for len(i.pending) == 0 && !i.eof && !i.closed {
			i.changed.Wait()
		}
		piece, last, closed := i.pending, i.eof, i.closed
		i.pending = nil
		i.mu.Unlock()
		if len(piece) > 0 && !closed {
			if _, err := i.pipe.Write(piece); err != nil {
				i.close() // the rank has closed its standard input
			}
		}
		i.mu.Lock()
		i.written += uint64(len(piece))
		position := i.written
		i.mu.Unlock()
		tell(position)
		if closed || last {
			if last && i.terminal {
				_, _ = i.pipe.WriteString(endOfFile)
			}
			i.pipe.Close()
			return
		}
	}
}
