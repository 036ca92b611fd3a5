package launch

import (
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
)

// Terminal is the terminal of this process when rank 0 has one as well (JobSpec.Terminal). Each key
// goes to the rank then, and the rank's terminal gives it its meaning.
type Terminal interface {
	// Take has all keys passed on as they are, until Restore, if this process is in the foreground.
	Take() error
	// Restore gives the terminal back as it was. It may be called at any time.
	Restore()
	// Size returns the present size.
	Size() *control.Terminal
}

// takeTerminal takes the terminal, and gives the rank's terminal the same size: it may have
// changed.
func (s *session) takeTerminal() error {
	if s.Terminal == nil {
		return nil
	}
	s.resize()
	return s.Terminal.Take()
}

// resize gives the rank's terminal the size of the one here.
func (s *session) resize() {
	if s.Terminal != nil {
		s.send(&control.Resize{Job: s.job, Size: s.Terminal.Size()})
	}
}

// forTerminal carries out a signal that is for the terminal and not for the ranks.
func (s *session) forTerminal(sig syscall.Signal) bool {
	switch {
	case s.Terminal == nil:
		return false
	case sig == endKey:
		s.insist()
		return true
	case sig == unix.SIGWINCH:
		s.resize()
		return true
	case sig == unix.SIGCONT: // fg, of a job that was in the background
		if err := s.takeTerminal(); err != nil {
			s.Status.Warnf("%v", err)
		}
	}
	return false
}

// The escapes of a terminal, at the begin of a line: escape and another key.
const (
	escape     = '~'
	escapeEnd  = '.'    // end the job
	escapeStop = '\x1a' // Ctrl-Z: stop the job and margay run
)

// endKey asks for the end of the job. It is not a signal.
const endKey = syscall.Signal(0)

// escapes finds the escapes among the keys.
type escapes struct {
	within bool // the line has begun
	begun  bool // an escape has: it is held back
}

// filter returns the keys for the rank, and the requests of escapes.
func (e *escapes) filter(typed []byte) (passed []byte, asked []syscall.Signal) {
	for _, key := range typed {
		if e.begun {
			e.begun = false
			switch key {
			case escapeEnd:
				asked = append(asked, endKey)
				continue
			case escapeStop:
				asked = append(asked, unix.SIGTSTP)
				continue
			case escape: // one of two is for the rank
			default:
				passed = append(passed, escape)
			}
			e.within = true
		} else if key == escape && !e.within {
			e.begun = true
			continue
		}
		passed = append(passed, key)
		e.within = key != '\r' && key != '\n'
	}
	return passed, asked
}

// escapeReader reads the keys without the escapes.
type escapeReader struct {
	from    io.Reader
	escapes escapes
	asked   chan<- os.Signal // gets the requests of escapes
}

func (r *escapeReader) Read(p []byte) (int, error) {
	for {
		// Each read may release an escape key that was held back.
		n, err := r.from.Read(p[:max(1, len(p)-1)])
		passed, asked := r.escapes.filter(p[:n])
		for _, sig := range asked {
			select {
			case r.asked <- sig:
			default: // one is being carried out
			}
		}
		if len(passed) > 0 || err != nil {
			return copy(p, passed), err
		}
	}
}
