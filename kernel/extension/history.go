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

// Note is something that happened to an extension, for people.
type Note struct {
	Seq    uint64 // grows from note to note of a node, also to those of its next node kernel
	Time   time.Time
	Job    id.Job
	Handle id.Handle // 0: it is about none in particular
	Name   string
	Text   string // inserted, removed and why, a fault, a line that it has printed, what a rank was refused
}

// keptNotes is how many notes a node remembers.
const keptNotes = 1024

// history remembers the last notes. It is safe for concurrent use.
type history struct {
	mu    sync.Mutex
	last  uint64
	notes []Note // the newest last
}

// newHistory returns an empty history. Its first number is above those of an earlier node kernel, which had less than one note per
// microsecond.
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

// after returns the notes that came after the one with number seq, and that are still known. A number that there was not yet is
// one of another node kernel, before the clock was set back: after it came all.
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

// Notes returns what happened to the node's extensions after the note with number seq, as far as it is still known.
func (m *Manager) Notes(seq uint64) []Note { return m.history.after(seq) }

// Bounds of what is noted of one set, so that a job that goes wrong again and again drowns nobody's log.
const (
	notesAtOnce    = 256
	notesPerSecond = 4
)

// pace bounds the notes of a set.
type pace struct {
	limit *rate.Limiter

	mu      sync.Mutex
	omitted int // since the last note
}

func newPace() *pace { return &pace{limit: rate.NewLimiter(notesPerSecond, notesAtOnce)} }

// next reports whether there may be another note, and how many were left out before it.
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

// note logs and remembers what happens to an extension of a set, or to the set itself when name is empty.
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

// Refuse notes that a rank has asked for what it must not have, or for what makes no sense.
func (s *Set) Refuse(rank id.Rank, err error) {
	s.manager.note(s, 0, "", "rank %d is refused: %v", rank, err)
}

// Stray returns an error when a handle that is none of the set's cannot have been one: it is that of another job's extension,
// or was never given out.
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
