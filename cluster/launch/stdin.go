package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/internal/cond"
)

// Bounds of standard input on the way, in bytes: how far it may be ahead of the rank that has read
// the least. It is never further ahead than that rank has read already, but for the first bytes, so
// that a job that reads little leaves the rest to the shell.
const (
	stdinWindow = 128 << 10
	stdinFirst  = 4 << 10
)

// stdin passes standard input on. What not every rank has taken yet is held, to be sent again when
// it may be lost: with the connection to serve, or on the way to a node that has registered again.
type stdin struct {
	from io.Reader
	tell func(proto.Message)

	mu      sync.Mutex
	changed sync.Cond
	job     uint32
	taken   map[uint32]uint64 // by rank that reads it and has not ended: how much it has taken
	held    []byte            // data read but not yet taken by all ranks
	base    uint64            // offset of held[0]
	eof     bool              // nothing comes after held
	err     error             // why it could not be read to its end
	most    uint64            // how much the rank that has read the most has read
	over    bool              // nothing more is read

	byLines bool       // from is a terminal: a line is read when all before it was
	reading sync.Mutex // held while a file is read
}

// newStdin makes the standard input of the given ranks.
func newStdin(from io.Reader, ranks int, tell func(proto.Message)) *stdin {
	s := &stdin{from: from, tell: tell, taken: make(map[uint32]uint64)}
	s.changed.L = &s.mu
	for rank := range ranks {
		s.taken[uint32(rank)] = 0
	}
	return s
}

// run passes everything on until its end, or until no rank is left.
func (s *stdin) run(ctx context.Context, job uint32) {
	s.mu.Lock()
	s.job = job
	s.mu.Unlock()
	buf := make([]byte, control.StdinPiece)
	for {
		most := s.wanted(ctx)
		if most == 0 {
			return
		}
		n, err := s.read(buf[:most])
		if errors.Is(err, unix.EBADF) {
			err = io.EOF // it is open for writing alone, as nohup(1) leaves it at a terminal
		}
		s.mu.Lock()
		offset := s.base + uint64(len(s.held))
		s.held = append(s.held, buf[:n]...)
		s.eof = err != nil
		if s.eof && !errors.Is(err, io.EOF) {
			s.err = fmt.Errorf("read standard input: %w; the ranks were given %d bytes", err, offset+uint64(n))
		}
		s.tell(&control.Stdin{Job: job, Offset: offset, Data: append([]byte(nil), buf[:n]...), Eof: s.eof})
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// read reads a piece. Of a file nothing is read any more once it has been given back.
func (s *stdin) read(buf []byte) (int, error) {
	if fileOf(s.from) == nil {
		return s.from.Read(buf)
	}
	s.reading.Lock()
	defer s.reading.Unlock()
	s.mu.Lock()
	over := s.over
	s.mu.Unlock()
	if over {
		return 0, io.EOF
	}
	return s.from.Read(buf)
}

// fileOf returns r if it is a regular file, whose position can be set.
func fileOf(r io.Reader) *os.File {
	f, ok := r.(*os.File)
	if !ok {
		return nil
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	return f
}

// giveBack sets the position of a file to where the ranks have read, for the program that reads it
// next.
func (s *stdin) giveBack() {
	f := fileOf(s.from)
	if f == nil {
		return
	}
	s.reading.Lock()
	defer s.reading.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	if end := s.base + uint64(len(s.held)); s.most < end {
		_, _ = f.Seek(-int64(end-s.most), io.SeekCurrent)
	}
}

// wanted waits until another piece may be read, and returns how many bytes; 0 if no rank is there
// for them.
func (s *stdin) wanted(ctx context.Context) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	room := func() int {
		switch ahead := min(max(s.base, stdinFirst), stdinWindow); {
		case len(s.taken) == 0 || s.byLines && len(s.held) > 0:
			return 0
		default:
			return min(int(ahead)-len(s.held), control.StdinPiece)
		}
	}
	if cond.Wait(ctx, &s.changed, func() bool { return room() > 0 || len(s.taken) == 0 }) != nil {
		return 0
	}
	return room()
}

// unread returns why standard input could not be read to its end, nil if it could. To the ranks it
// has ended there.
func (s *stdin) unread() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// progress notes how much a rank has taken.
func (s *stdin) progress(rank uint32, offset uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, reads := s.taken[rank]; reads {
		s.taken[rank] = max(s.taken[rank], offset)
		s.most = max(s.most, min(offset, s.base+uint64(len(s.held))))
		s.release()
	}
}

// ended records that a rank takes no further input.
func (s *stdin) ended(rank uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.taken, rank)
	s.release()
}

// release lets go of what all have taken. The caller holds the lock.
func (s *stdin) release() {
	end := s.base + uint64(len(s.held))
	least := end
	for _, offset := range s.taken {
		least = min(least, offset)
	}
	if least > s.base {
		s.held = append([]byte(nil), s.held[least-s.base:]...)
		s.base = least
	}
	s.changed.Broadcast()
}

// rewind sends the held data again, to the ranks on some nodes only unless there are none.
func (s *stdin) rewind(only ...uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.job == 0 {
		return // it has not begun
	}
	for sent := 0; ; {
		n := min(len(s.held)-sent, control.StdinPiece)
		last := sent+n == len(s.held)
		if n > 0 || s.eof {
			s.tell(&control.Stdin{Job: s.job, Offset: s.base + uint64(sent), Data: append([]byte(nil), s.held[sent:sent+n]...), Eof: s.eof && last, Only: only})
		}
		if sent += n; last {
			return
		}
	}
}
