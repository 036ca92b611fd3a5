package extension

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// Note is something that happened to an extension, for people.
type Note struct {
	Seq    uint64 // counts the notes of a node, from 1
	Time   time.Time
	Job    uint32
	Handle uint32
	Name   string
	Text   string // inserted, removed and why, a fault, a line that it has printed
}

// keptNotes is how many notes a node remembers.
const keptNotes = 1024

// history remembers the last notes. The zero value is ready, and it is safe for concurrent use.
type history struct {
	mu    sync.Mutex
	last  uint64
	notes []Note // the newest last
}

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
// one of another node kernel, before this one: after it came all.
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

// note logs and remembers what happens to an extension of a set.
func (m *Manager) note(s *Set, handle uint32, name, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	m.log("%v: extension %d (%s): %s", s, handle, name, text)
	m.history.add(Note{Time: time.Now(), Job: s.job, Handle: handle, Name: name, Text: text})
}
