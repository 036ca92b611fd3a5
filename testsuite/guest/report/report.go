// Package report is what the init of a guest tells the test outside of it, and in which form.
//
// The only way out of a guest is its console, which Linux writes to as well and whose reader cuts long lines and replaces
// what is not text. So each event is one short line with a mark before it, and its number shows when one is missing.
package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// PlanPath is where a guest finds its Plan.
const PlanPath = "/tests/plan.json"

// Plan is what a guest has to do. It is plain data.
type Plan struct {
	Runs []Run
}

// Run is one test binary to be run.
type Run struct {
	Argv    []string // the binary, an absolute path, and its arguments
	Profile string   // the file the binary writes its coverage profile to; may be empty
}

// Kind says what an event is about.
type Kind string

// The kinds of events. Up is the first and Done the last; between them come Output, Exit and Profile of one run after the
// other.
const (
	Up      Kind = "up"      // the guest has mounted everything
	Output  Kind = "output"  // Data: a piece of a run's output
	Exit    Kind = "exit"    // Text: how a run ended, empty if its status was 0
	Profile Kind = "profile" // Data: a piece of a run's compressed coverage profile
	Failed  Kind = "failed"  // Text: why the guest cannot go on
	Done    Kind = "done"    // all runs have ended
)

// Event is one thing that a guest tells.
type Event struct {
	Seq  int // 1, 2, 3 ...
	Kind Kind
	Run  int    `json:",omitempty"` // index in Plan.Runs
	Data []byte `json:",omitempty"`
	Text string `json:",omitempty"`
}

// mark begins each line that is an event.
const mark = "margay-guest "

// maxPiece is the most Data in one line, in bytes. As text it must stay below what a console keeps of a line.
const maxPiece = 600

// Writer writes events. It is not safe for concurrent use.
type Writer struct {
	to  io.Writer
	seq int
}

// NewWriter returns a writer of events to a console.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to} }

// Tell writes an event. Data may be of any length, Text should be short.
func (w *Writer) Tell(e Event) error {
	for {
		piece := e
		piece.Data = e.Data[:min(len(e.Data), maxPiece)]
		e.Data = e.Data[len(piece.Data):]
		w.seq++
		piece.Seq = w.seq
		text, err := json.Marshal(piece)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w.to, "%s%s\n", mark, text); err != nil {
			return err
		}
		if len(e.Data) == 0 {
			return nil
		}
	}
}

// ErrDamaged reports that an event was lost or came in pieces.
var ErrDamaged = errors.New("the guest's console is damaged")

// Reader reads events. The zero value is ready.
type Reader struct{ seq int }

// Read takes a line of a console. It returns nil when the line is no event.
func (r *Reader) Read(line string) (*Event, error) {
	_, text, ok := strings.Cut(line, mark)
	if !ok {
		return nil, nil
	}
	e := new(Event)
	if err := json.Unmarshal([]byte(text), e); err != nil {
		return nil, fmt.Errorf("%w: line %q: %w", ErrDamaged, line, err)
	}
	if e.Seq != r.seq+1 {
		return nil, fmt.Errorf("%w: event %d comes after event %d", ErrDamaged, e.Seq, r.seq)
	}
	r.seq = e.Seq
	return e, nil
}
