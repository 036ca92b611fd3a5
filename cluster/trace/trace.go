// Package trace writes the recorded events of nodes as a time line that the trace viewers of
// browsers open (Perfetto, chrome://tracing): a JSON object of the trace-event format, in which
// every node is a process with a thread for each core, each rank, each extension and the messages
// of each job.
//
// All times of a trace are on one clock, which begins with it. Each node's times are shifted by its
// clock's offset; the trace's otherData has the error of the offset. A message is an arrow from its
// sending to its handling.
package trace

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"margay/kernel/abi/id"
	"margay/kernel/record"
)

// Clock relates the clock of a node to the clock of a trace.
type Clock struct {
	Ahead time.Duration // what the node's clock shows when the trace begins
	Error time.Duration // Ahead is that, plus or minus this
}

// Writer writes a trace. It is safe for concurrent use. It remembers open intervals and names of
// threads, not events.
type Writer struct {
	mu    sync.Mutex
	out   *bufio.Writer
	first bool
	line  []byte
	err   error // the first of writing
	begun time.Time
	nodes map[id.Node]*node
}

// node is what a writer knows of a node.
type node struct {
	number  id.Node
	clock   Clock
	threads map[thread]int     // their numbers
	cores   map[uint16]turn    // the rank on each core
	ranks   map[rank]id.Time   // those that run, and since when
	busy    map[uint64]id.Time // by extension: until when it ran
	since   id.Time            // end of its last gap; intervals that began earlier are repeated after it
	now     id.Time            // until when its events are known
	summary Summary
}

type rank struct {
	job  id.Job
	rank id.Rank
}

// turn is a rank's time on a core.
type turn struct {
	rank
	since id.Time
	why   string
}

// Summary is what otherData says of a node.
type Summary struct {
	Node       id.Node `json:"node"`
	Events     uint64  `json:"events"`
	Lost       uint64  `json:"lost"`           // events that were overwritten before they could be fetched
	ClockAhead int64   `json:"clock_ahead_ns"` // what its clock showed when the trace began
	ClockError int64   `json:"clock_error_ns"` // and by how much that may be wrong
	ClockDrift int64   `json:"clock_drift_ns"` // by how much more it was ahead when the trace ended
	Gaps       []Gap   `json:"gaps,omitempty"`
}

// Gap is an interval without events.
type Gap struct {
	From float64 `json:"from_us"` // since the trace began
	To   float64 `json:"to_us"`
	Why  string  `json:"why"`
}

// The phases of the trace-event format that are used.
const (
	phaseComplete = "X"
	phaseInstant  = "i"
	phaseFlow     = "s"
	phaseFlowEnd  = "f"
	phaseMetadata = "M"
)

// micros are nanoseconds that are written as microseconds.
type micros int64

// NewWriter begins a trace. Close completes it.
func NewWriter(w io.Writer, begun time.Time) *Writer {
	t := &Writer{out: bufio.NewWriterSize(w, 1<<18), first: true, begun: begun, nodes: make(map[id.Node]*node)}
	_, t.err = t.out.WriteString(`{"displayTimeUnit":"ns","traceEvents":[`)
	return t
}

// SetClock sets the relation of a node's times to the trace's, for later events. It must be called
// before a node's first events.
func (t *Writer) SetClock(number id.Node, c Clock) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.nodes[number]
	if n == nil {
		n = &node{
			number: number, threads: make(map[thread]int), cores: make(map[uint16]turn), ranks: make(map[rank]id.Time),
			busy: make(map[uint64]id.Time), summary: Summary{Node: number},
		}
		t.nodes[number] = n
		t.put(&entry{name: "process_name", phase: phaseMetadata, pid: n.pid(), args: []arg{text("name", fmt.Sprintf("node%d", number))}})
		t.put(&entry{name: "process_sort_index", phase: phaseMetadata, pid: n.pid(), args: []arg{count("sort_index", uint64(number))}})
	}
	n.clock = c
	n.summary.ClockAhead, n.summary.ClockError = int64(c.Ahead), int64(c.Error)
}

// SetDrift notes by how much more a node's clock was ahead at the end.
func (t *Writer) SetDrift(number id.Node, drift time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.nodes[number].summary.ClockDrift = int64(drift)
}

// Events writes what a node has recorded until now, and notes how many events were lost. The error
// is the first of all writing.
func (t *Writer) Events(number id.Node, now id.Time, events []record.Event, lost uint64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.nodes[number]
	n.now = max(n.now, now)
	n.summary.Lost += lost
	n.summary.Events += uint64(len(events))
	for i := range events {
		t.event(n, &events[i])
	}
	return t.err
}

// Gap writes that nothing is known of a node in some time. What was open then is closed where the
// gap begins.
func (t *Writer) Gap(number id.Node, from, to id.Time, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.nodes[number]
	t.closeAll(n, from)
	n.since = to
	g := Gap{From: n.at(from).float(), To: n.at(to).float(), Why: why}
	n.summary.Gaps = append(n.summary.Gaps, g)
	t.slice(n, t.thread(n, thread{of: ofNode}), "nothing is known", "lost", from, to, text("why", why))
}

// Close completes the trace; open intervals end when the node's events were last read. It does not
// close the writer below.
func (t *Writer) Close() ([]Summary, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	summaries := make([]Summary, 0, len(t.nodes))
	for _, n := range t.nodes {
		t.closeAll(n, n.now)
		summaries = append(summaries, n.summary)
	}
	sortSummaries(summaries)
	other, err := json.Marshal(map[string]any{
		"begun": t.begun.UTC().Format(time.RFC3339Nano), "nodes": summaries,
		"clock": "of the recording host; the time of a node is exact to clock_error_ns, two nodes to the sum of their errors",
	})
	if t.err == nil {
		t.err = err
	}
	if t.err == nil {
		_, t.err = fmt.Fprintf(t.out, "\n],\"otherData\":%s}\n", other)
	}
	if t.err == nil {
		t.err = t.out.Flush()
	}
	return summaries, t.err
}

// pid is the number of the node's process; viewers take 0 for something else.
func (n *node) pid() uint32 { return uint32(n.number) + 1 }

// at turns a node's time into one of the trace, which has none before it began.
func (n *node) at(t id.Time) micros { return max(0, micros(t)-micros(n.clock.Ahead)) }

func (m micros) float() float64 { return float64(m) / 1000 }

// put writes an entry. The caller holds the lock.
func (t *Writer) put(e *entry) {
	if t.err != nil {
		return
	}
	separator := ",\n"
	if t.first {
		separator, t.first = "\n", false
	}
	t.line = e.append(append(t.line[:0], separator...))
	_, t.err = t.out.Write(t.line)
}

// thread is a thread of a node's process: its kind and number. Threads are shown in this order.
type thread struct {
	of     use
	number uint64
	job    id.Job
}

// use is what a thread is for.
type use uint32

// The uses of threads.
const (
	ofNode use = iota
	ofCore
	ofExtension
	ofMessages
	ofRank
)

// name is the name of a thread of a node.
func (h thread) name(node id.Node) string {
	switch h.of {
	case ofCore:
		return fmt.Sprintf("core %d", h.number)
	case ofExtension:
		return fmt.Sprintf("extension %d.%d", node, h.number)
	case ofMessages:
		return fmt.Sprintf("messages of job %d", h.job)
	case ofRank:
		return fmt.Sprintf("job %d rank %d", h.job, h.number)
	}
	return "node kernel"
}

// thread returns the number of a thread, which it introduces when it is new.
func (t *Writer) thread(n *node, h thread) int {
	tid, ok := n.threads[h]
	if !ok {
		tid = len(n.threads) + 1
		n.threads[h] = tid
		order := uint64(h.of)<<20 | h.number&0xfffff
		t.put(&entry{name: "thread_name", phase: phaseMetadata, pid: n.pid(), tid: tid, args: []arg{text("name", h.name(n.number))}})
		t.put(&entry{name: "thread_sort_index", phase: phaseMetadata, pid: n.pid(), tid: tid, args: []arg{count("sort_index", order)}})
	}
	return tid
}

// slice writes something that takes time. Viewers see nothing of, and attach no arrow to, what
// takes none.
func (t *Writer) slice(n *node, tid int, name, cat string, from, to id.Time, args ...arg) {
	start := n.at(from)
	t.put(&entry{name: name, cat: cat, phase: phaseComplete, time: start, took: max(1, n.at(to)-start), pid: n.pid(), tid: tid, args: args})
}
