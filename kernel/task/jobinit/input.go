package jobinit

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

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
	unread  uint64 // of these, what lies in the pipe: the rank has not read it
	eof     bool   // nothing comes after pending
	closed  bool   // the rank takes no further input
	ended   bool   // because it has ended: its position is final
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
	if i.ended {
		return 0, false
	}
	if i.closed {
		i.written, i.unread = max(i.written, end), 0
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

// position returns how far the rank has read.
func (i *input) position() uint64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.written - i.unread
}

// look asks Linux how much of the input the rank has not read. A terminal has it at once. The
// caller holds the lock.
func (i *input) look() {
	if i.closed || i.terminal {
		return
	}
	raw, err := i.pipe.SyscallConn()
	if err != nil {
		return // it is closed
	}
	left := 0
	_ = raw.Control(func(fd uintptr) { left, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	if err == nil {
		i.unread = min(uint64(left), i.written)
	}
}

// end notes that the rank has ended, and returns how far it has read: input in the pipe and pending
// input stay unread.
func (i *input) end() (position uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.look()
	i.ended = true
	i.shut()
	return i.written - i.unread
}

// close discards the pending input: the rank has closed its own end.
func (i *input) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.unread = 0
	i.shut()
}

// shut lets the rank get no further input. The caller holds the lock.
func (i *input) shut() {
	i.closed = true
	i.pipe.Close() // ends a write without a reader
	i.changed.Broadcast()
}

// The pauses after which it is looked again whether the rank has read its input: from the first,
// each twice the one before.
const (
	firstLook = time.Millisecond
	lastLook  = 50 * time.Millisecond
)

// run writes the input to the rank until its end, and reports each new position. The rank gets the
// end when it has read all before it, because nothing can be asked about a closed pipe.
func (i *input) run(tell func(position uint64)) {
	pause, begun := firstLook, false // begun: the last line has no end
	for told := uint64(0); ; {
		piece, looks := i.next(pause)
		if len(piece) > 0 {
			begun = piece[len(piece)-1] != '\n'
			if _, err := i.pipe.Write(piece); err != nil {
				i.broken()
			}
		}
		position, over := i.wrote(len(piece))
		if position != told || over {
			tell(position)
		}
		if looks && position == told {
			pause = min(2*pause, lastLook)
		} else {
			pause = firstLook
		}
		told = position
		if over {
			if i.terminal {
				i.typeEnd(begun)
			}
			i.pipe.Close()
			return
		}
	}
}

// next waits for input, for the end, or, while some is unread, for a pause.
func (i *input) next(pause time.Duration) (piece []byte, looks bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if looks = i.unread > 0 && len(i.pending) == 0 && !i.closed; looks {
		i.waitFor(pause)
	}
	for len(i.pending) == 0 && i.unread == 0 && !i.eof && !i.closed {
		i.changed.Wait()
	}
	if !i.closed {
		piece, i.pending = i.pending, nil
	}
	return piece, looks
}

// waitFor waits for a change, at most for the given time. The caller holds the lock.
func (i *input) waitFor(most time.Duration) {
	again := time.AfterFunc(most, func() {
		i.mu.Lock() // so that it does not come before the wait
		defer i.mu.Unlock()
		i.changed.Broadcast()
	})
	defer again.Stop()
	i.changed.Wait()
}

// broken notes that the pipe has no reader: the rank has closed its standard input, unless it has
// ended.
func (i *input) broken() {
	i.mu.Lock()
	ended := i.ended
	i.mu.Unlock()
	if !ended {
		i.close()
	}
}

// wrote notes that a piece was written, and returns how far the rank has read, and whether the
// input is over.
func (i *input) wrote(n int) (position uint64, over bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.ended {
		i.written += uint64(n)
	}
	i.look()
	return i.written - i.unread, i.closed || i.eof && len(i.pending) == 0 && i.unread == 0
}
