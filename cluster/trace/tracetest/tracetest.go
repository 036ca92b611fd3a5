// Package tracetest checks that a text is a trace in the trace-event format, as strictly as we read
// its description ("Trace Event Format", the document that chrome://tracing goes by): which fields
// an event of each phase has, and how events fit together.
package tracetest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// Event is an event of a trace.
type Event struct {
	Name  *string        `json:"name"`
	Cat   string         `json:"cat"`
	Phase string         `json:"ph"`
	Time  *float64       `json:"ts"` // microseconds
	Took  *float64       `json:"dur"`
	PID   *int64         `json:"pid"`
	TID   *int64         `json:"tid"`
	ID    string         `json:"id"`
	Bind  string         `json:"bp"`
	Scope string         `json:"s"`
	Args  map[string]any `json:"args"`
}

// Node is what the trace says about a node in general.
type Node struct {
	Node       uint32 `json:"node"`
	Events     uint64 `json:"events"`
	Lost       uint64 `json:"lost"`
	ClockAhead int64  `json:"clock_ahead_ns"`
	ClockError int64  `json:"clock_error_ns"`
	ClockDrift int64  `json:"clock_drift_ns"`
	Gaps       []struct {
		From float64 `json:"from_us"`
		To   float64 `json:"to_us"`
		Why  string  `json:"why"`
	} `json:"gaps"`
}

// Trace is a trace that has been checked.
type Trace struct {
	Unit   string  `json:"displayTimeUnit"`
	Events []Event `json:"traceEvents"`
	Other  struct {
		Begun string `json:"begun"`
		Clock string `json:"clock"`
		Nodes []Node `json:"nodes"`
	} `json:"otherData"`

	threads map[[2]int64]string
}

// Thread names the thread of an event.
func (t *Trace) Thread(e Event) string { return t.threads[[2]int64{*e.PID, *e.TID}] }

// Parse checks a trace. The error joins everything that is wrong.
func Parse(text []byte) (*Trace, error) {
	t, err := decode(text)
	if err != nil {
		return nil, err
	}
	return t, errors.Join(t.names(), t.nesting(), t.arrows())
}

// Readable checks only that a text is a trace all of whose events can be read, whether or not they
// make sense together.
func Readable(text []byte) error {
	t, err := decode(text)
	if err != nil {
		return err
	}
	return t.names()
}

func decode(text []byte) (*Trace, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	t := &Trace{threads: make(map[[2]int64]string)}
	if err := d.Decode(t); err != nil {
		return nil, err
	}
	if rest := text[d.InputOffset():]; len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("behind the trace there is %.40q", rest)
	}
	if t.Unit != "ns" && t.Unit != "ms" {
		return nil, fmt.Errorf("displayTimeUnit is %q", t.Unit)
	}
	var wrong []error
	for i, e := range t.Events {
		if err := e.check(); err != nil {
			wrong = append(wrong, fmt.Errorf("event %d: %w", i, err))
		}
	}
	return t, errors.Join(wrong...)
}

// check checks the fields of one event.
func (e Event) check() error {
	switch {
	case e.Name == nil || *e.Name == "":
		return errors.New("no name")
	case e.PID == nil || e.TID == nil || *e.PID <= 0 || *e.TID < 0:
		return errors.New("no process or thread")
	case e.Time == nil || *e.Time < 0:
		return errors.New("no time, or one before the trace begins")
	case (e.Took != nil) != (e.Phase == "X"):
		return fmt.Errorf("dur in phase %q", e.Phase)
	case (e.ID != "") != (e.Phase == "s" || e.Phase == "f"):
		return fmt.Errorf("id %q in phase %q", e.ID, e.Phase)
	case (e.Bind != "") != (e.Phase == "f"):
		return fmt.Errorf("bp %q in phase %q", e.Bind, e.Phase)
	case (e.Scope != "") != (e.Phase == "i"):
		return fmt.Errorf("s %q in phase %q", e.Scope, e.Phase)
	case (e.Cat == "") != (e.Phase == "M"):
		return fmt.Errorf("cat %q in phase %q", e.Cat, e.Phase)
	}
	switch e.Phase {
	case "X":
		if *e.Took <= 0 {
			return fmt.Errorf("dur %v", *e.Took)
		}
	case "i":
		if e.Scope != "g" && e.Scope != "p" && e.Scope != "t" {
			return fmt.Errorf("scope %q", e.Scope)
		}
	case "f":
		if e.Bind != "e" {
			return fmt.Errorf("bp %q", e.Bind)
		}
	case "s":
	case "M":
		return e.checkMetadata()
	default:
		return fmt.Errorf("phase %q", e.Phase)
	}
	return nil
}

func (e Event) checkMetadata() error {
	field := "name"
	switch *e.Name {
	case "process_name", "thread_name":
		if text, ok := e.Args[field].(string); !ok || text == "" {
			return fmt.Errorf("%s without a name", *e.Name)
		}
	case "process_sort_index", "thread_sort_index":
		field = "sort_index"
		if _, ok := e.Args[field].(float64); !ok {
			return fmt.Errorf("%s without a number", *e.Name)
		}
	default:
		return fmt.Errorf("metadata %q", *e.Name)
	}
	if len(e.Args) != 1 {
		return fmt.Errorf("%s has %v", *e.Name, e.Args)
	}
	return nil
}

// names checks that every process and thread has one name, and that its name is its own.
func (t *Trace) names() error {
	processes := make(map[int64]string)
	taken := make(map[string]bool)
	for _, e := range t.Events {
		if e.Phase != "M" {
			continue
		}
		name, _ := e.Args["name"].(string)
		at := [2]int64{*e.PID, *e.TID}
		switch *e.Name {
		case "process_name":
			if processes[*e.PID] != "" {
				return fmt.Errorf("process %d has two names", *e.PID)
			}
			processes[*e.PID] = name
		case "thread_name":
			if key := fmt.Sprint(*e.PID, name); t.threads[at] != "" || taken[key] {
				return fmt.Errorf("thread %v has two names, or %q is two threads", at, name)
			} else {
				t.threads[at], taken[key] = name, true
			}
		}
	}
	for _, e := range t.Events {
		if processes[*e.PID] == "" || e.Phase != "M" && t.Thread(e) == "" {
			return fmt.Errorf("%s is on a thread or process without a name", *e.Name)
		}
	}
	return nil
}

// nesting checks that slices of a thread lie within each other or apart.
func (t *Trace) nesting() error {
	slicesOf := make(map[[2]int64][]Event)
	for _, e := range t.Events {
		if e.Phase == "X" {
			at := [2]int64{*e.PID, *e.TID}
			slicesOf[at] = append(slicesOf[at], e)
		}
	}
	for at, list := range slicesOf {
		slices.SortStableFunc(list, func(a, b Event) int {
			return cmp.Or(cmp.Compare(*a.Time, *b.Time), cmp.Compare(*b.Took, *a.Took))
		})
		var open []Event
		for _, e := range list {
			for len(open) > 0 && ends(open[len(open)-1]) <= *e.Time+tiny {
				open = open[:len(open)-1]
			}
			if len(open) > 0 && ends(e) > ends(open[len(open)-1])+tiny {
				outer := open[len(open)-1]
				return fmt.Errorf("%s: %s [%.3f, %.3f) ends after %s [%.3f, %.3f), in which it begins",
					t.threads[at], *e.Name, *e.Time, ends(e), *outer.Name, *outer.Time, ends(outer))
			}
			open = append(open, e)
		}
	}
	return nil
}

// tiny is less than the nanosecond to which times are given; sums of them are not exact. In
// microseconds.
const tiny = 0.0005

func ends(e Event) float64 { return *e.Time + *e.Took }

// arrows checks that each arrow has one end and one beginning at most, that they are attached to
// slices which begin then, and that none goes back in time further than the clocks can be wrong.
func (t *Trace) arrows() error {
	var slack float64
	for _, n := range t.Other.Nodes {
		slack = max(slack, 2*float64(n.ClockError+abs(n.ClockDrift))/1000)
	}
	type place struct {
		pid, tid int64
		at       float64
	}
	begins := make(map[place]bool)
	for _, e := range t.Events {
		if e.Phase == "X" {
			begins[place{*e.PID, *e.TID, *e.Time}] = true
		}
	}
	from, to := make(map[string]float64), make(map[string]float64)
	for _, e := range t.Events {
		side := from
		switch e.Phase {
		case "f":
			side = to
		case "s":
		default:
			continue
		}
		if _, ok := side[e.ID]; ok {
			return fmt.Errorf("there are two %q of arrow %q", e.Phase, e.ID)
		}
		if !begins[place{*e.PID, *e.TID, *e.Time}] {
			return fmt.Errorf("%q of arrow %q is attached to nothing", e.Phase, e.ID)
		}
		side[e.ID] = *e.Time
	}
	for id, start := range from {
		if end, ok := to[id]; ok && end < start-slack-tiny {
			return fmt.Errorf("arrow %q ends %.3f us before it begins, and clocks are wrong by %.3f us", id, start-end, slack)
		}
	}
	return nil
}

func abs(n int64) int64 { return max(n, -n) }
