package launch

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Status prints messages of margay run itself.
type Status struct {
	W        io.Writer
	Verbose  bool // also print successful steps
	Quiet    bool // print nothing but losses; errors are reported elsewhere
	Terminal bool // W is one: show progress
	mu       sync.Mutex
}

// progressDelay is how long something takes before its progress is shown.
const progressDelay = time.Second

// Warnf writes a message.
func (s *Status) Warnf(format string, args ...any) {
	if !s.Quiet {
		s.Lossf(format, args...)
	}
}

// Lossf writes a message about something that is lost or may be, also if Quiet is set.
func (s *Status) Lossf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.W, "margay: "+format+"\n", args...)
}

// Logf writes a message if Verbose is set.
func (s *Status) Logf(format string, args ...any) {
	if s.Verbose {
		s.Warnf(format, args...)
	}
}

// Progress shows how far something has come, once that takes a while.
type Progress struct {
	status  *Status
	what    string
	total   int64
	started time.Time
	shown   time.Time
}

// Progress begins to show how something of the given size, in bytes, gets on. The size is 0 if it
// is not known.
func (s *Status) Progress(what string, total int64) *Progress {
	return &Progress{status: s, what: what, total: total, started: time.Now()}
}

// Set says how many bytes are done.
func (p *Progress) Set(done int64) {
	now := time.Now()
	if !p.status.Terminal || now.Sub(p.started) < progressDelay || now.Sub(p.shown) < progressDelay/5 {
		return
	}
	p.shown = now
	p.status.mu.Lock()
	defer p.status.mu.Unlock()
	of := ""
	if p.total > 0 {
		of = fmt.Sprintf(" of %d", p.total>>20)
	}
	p.status.progress(fmt.Sprintf("\r\x1b[Kmargay: %s: %d%s MiB", p.what, done>>20, of))
}

// progress writes a line that takes the place of the one before. The caller holds Status.mu.
func (s *Status) progress(line string) {
	if w, ok := s.W.(interface{ Progress([]byte) }); ok {
		w.Progress([]byte(line))
	} else {
		_, _ = io.WriteString(s.W, line)
	}
}

// Done ends the showing.
func (p *Progress) Done() {
	if !p.shown.IsZero() {
		p.status.mu.Lock()
		defer p.status.mu.Unlock()
		p.status.progress("\r\x1b[K")
	}
}
