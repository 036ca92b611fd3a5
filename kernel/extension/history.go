package extension

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"margay/internal/printable"
	"margay/kernel/abi/id"
)

// Note is an entry of the log of extensions.
type Note struct {
	Seq    uint64 // sequence number on the node, which also grows across restarts of the node kernel
	Time   time.Time
	Job    id.Job
	Handle id.Handle // 0: not about one extension
	Name   string
	Text   string // an insertion, a removal with its reason, a fault, a printed line, a refused request of a rank
}

// keptNotes is the number of notes that a node remembers.
const keptNotes = 1024

// history remembers the last keptNotes notes. It is safe for concurrent use.
type history struct {
	mu    sync.Mutex
	last  uint64
	notes []Note // the newest last
}

// newHistory returns an empty history. Its sequence numbers start at the time in microseconds,
// above the numbers of a previous node kernel, which made less than one note per microsecond.
func newHistory() *history { return &history{last: uint64(time.Now().UnixMicro())} }

func (h *history) add(n Note) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last++
	n.Seq = h.last
	h.notes = append(h.notes, n)
	if len(h.notes) > keptNotes {
		h.notes = slices.Delete(h.notes, 0, len(h.notes)-keptNotes)
	}
}

// after returns the remembered notes after sequence number seq. A number above the last is from a
// previous node kernel, before the clock was set back: then after returns all notes.
func (h *history) after(seq uint64) []Note {
	h.mu.Lock()
	defer h.mu.Unlock()
	if seq > h.last {
		seq = 0
	}
	at, _ := slices.BinarySearchFunc(h.notes, seq+1, func(n Note, seq uint64) int {
		if n.Seq < seq {
			return -1
		}
		return 1
	})
	return slices.Clone(h.notes[at:])
}

// Notes returns the node's notes after sequence number seq, as far as they are still remembered.
func (m *Manager) Notes(seq uint64) []Note { return m.history.after(seq) }

// Limits of the notes of one set, so that one job cannot flood the log.
const (
	notesAtOnce    = 256
	notesPerSecond = 4
)

// pace limits the rate of a set's notes.
type pace struct {
	limit *rate.Limiter

	mu      sync.Mutex
	omitted int // since the last note
}

func newPace() *pace { return &pace{limit: rate.NewLimiter(notesPerSecond, notesAtOnce)} }

// next reports whether another note is allowed, and how many were omitted before it.
func (p *pace) next() (omitted int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.limit.Allow() {
		p.omitted++
		return 0, false
	}
	omitted, p.omitted = p.omitted, 0
	return omitted, true
}

// note logs and remembers an event of an extension of a set, or of the set itself if name is empty.
func (m *Manager) note(s *Set, handle id.Handle, name, format string, args ...any) {
	omitted, ok := s.pace.next()
	if !ok {
		return
	}
	if omitted > 0 {
		m.tell(s, 0, "", fmt.Sprintf("%d notes before this were left out: it has too many", omitted))
	}
	m.tell(s, handle, name, fmt.Sprintf(format, args...))
}

func (m *Manager) tell(s *Set, handle id.Handle, name, text string) {
	name, text = printable.Line(name), printable.Line(text)
	if name == "" {
		m.log("%v: %s", s, text)
	} else {
		m.log("%v: extension %d (%s): %s", s, handle, name, text)
	}
	m.history.add(Note{Time: time.Now(), Job: s.job, Handle: handle, Name: name, Text: text})
}

// Refuse notes that a request of a rank was invalid or not permitted.
func (s *Set) Refuse(rank id.Rank, err error) {
	s.manager.note(s, 0, "", "rank %d is refused: %v", rank, err)
}

// Stray returns an error for a handle that the set does not have and cannot have had: it belongs to
// another job's extension, or was never assigned.
func (s *Set) Stray(handle id.Handle) error {
	m := s.manager
	m.mu.Lock()
	never := handle == 0 || handle > m.last
	sets := slices.Collect(maps.Values(m.sets))
	m.mu.Unlock()
	if never {
		return fmt.Errorf("there has never been an extension %d", handle)
	}
	for _, other := range sets {
		if _, err := other.Find(handle); err == nil && other != s {
			return fmt.Errorf("extension %d is one of %v", handle, other)
		}
	}
	return nil
}
