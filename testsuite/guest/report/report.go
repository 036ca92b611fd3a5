// Package report is the protocol between the init of a guest and the test outside.
//
// The only output of a guest is its console. Linux writes to it as well, and its reader cuts long
// lines and replaces unprintable characters. So each event is one short line after a mark, and has
// a sequence number.
package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Folder is the folder in a guest with the test binaries and the programs that they start, and
// PlanPath the path of the Plan in it.
const (
	Folder   = "/tests"
	PlanPath = Folder + "/plan.json"
)

// Plan lists the runs of a guest. It is plain data.
type Plan struct {
	Runs []Run
}

// Run is one run of a test binary.
type Run struct {
	Argv    []string // the binary, an absolute path, and its arguments
	Env     []string // more variables than every run has
	Profile string   // the file the binary writes its coverage profile to; may be empty
}

// Kind is the kind of an event.
type Kind string

// The kinds of events. Up is the first and Done the last; between them come Output, Exit and
// Profile of one run after the other.
const (
	Up      Kind = "up"      // the guest has mounted everything
	Output  Kind = "output"  // Data: a piece of a run's output
	Exit    Kind = "exit"    // Text: how a run ended, empty if its status was 0
	Profile Kind = "profile" // Data: a piece of a run's compressed coverage profile
	Failed  Kind = "failed"  // Text: why the guest cannot continue
	Done    Kind = "done"    // all runs have ended
)

// Event is one message of a guest.
type Event struct {
	Seq  int // 1, 2, 3 ...
	Kind Kind
	Run  int    `json:",omitempty"` // index in Plan.Runs
	Data []byte `json:",omitempty"`
	Text string `json:",omitempty"`
}

// mark begins the line of an event.
const mark = "margay-guest "

// maxPiece bounds the Data in one line, in bytes. As text it must be shorter than the longest line
// of a console.
const maxPiece = 600

// Writer writes events. It is not safe for concurrent use.
type Writer struct {
	to  io.Writer
	seq int
}

// NewWriter returns a writer of events to a console.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to} }

// Write writes an event. Data may have any length; Text should be short.
func (w *Writer) Write(e Event) error {
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

// Read takes a line of a console. It returns nil if the line is not an event.
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
