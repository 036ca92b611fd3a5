// Package trace writes the recorded events of nodes as a time line that the trace viewers of browsers open (Perfetto,
// chrome://tracing): a JSON object of the trace-event format, in which every node is a process with a thread for each core, each
// rank, each extension and the messages of each job.
//
// The times of a trace are those of one clock, which begins with it. Each node's own times are shifted by what its clock is
// ahead; how well that is known is in the trace's otherData. A message is an arrow from its sending to its handling.
package trace

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"margay/kernel/record"
)

// Clock relates the clock of a node to that of a trace.
type Clock struct {
	Ahead time.Duration // what the node's clock shows when the trace begins
	Error time.Duration // Ahead is that, plus or minus this
}

// Writer writes a trace. It is safe for concurrent use. It remembers what is still open and names of threads, not events.
type Writer struct {
	mu    sync.Mutex
	out   *bufio.Writer
	first bool
	err   error // the first of writing
	begun time.Time
	nodes map[uint32]*node
}

// node is what a writer knows of a node.
type node struct {
	number  uint32
	clock   Clock
	threads map[string]int          // by name
	cores   map[uint16]record.Event // who has each core: its Switch
	ranks   map[rank]record.Time    // those that run, and since when
	busy    map[uint64]record.Time  // by extension: until when it ran
	now     record.Time             // until when its events are known
	summary Summary
}

type rank struct{ job, rank uint32 }

// Summary is what otherData says of a node.
type Summary struct {
	Node       uint32 `json:"node"`
	Events     uint64 `json:"events"`
	Lost       uint64 `json:"lost"`           // events that were overwritten before they could be fetched
	ClockAhead int64  `json:"clock_ahead_ns"` // what its clock showed when the trace began
	ClockError int64  `json:"clock_error_ns"` // and by how much that may be wrong
	ClockDrift int64  `json:"clock_drift_ns"` // by how much more it was ahead when the trace ended
	Gaps       []Gap  `json:"gaps,omitempty"`
}

// Gap is a time of which nothing is known.
type Gap struct {
	From float64 `json:"from_us"` // since the trace began
	To   float64 `json:"to_us"`
	Why  string  `json:"why"`
}

// entry is an event of the trace-event format.
type entry struct {
	Name  string         `json:"name"`
	Cat   string         `json:"cat,omitempty"`
	Phase string         `json:"ph"`
	Time  micros         `json:"ts"`
	Took  *micros        `json:"dur,omitempty"`
	PID   uint32         `json:"pid"`
	TID   int            `json:"tid"`
	ID    string         `json:"id,omitempty"`
	Bind  string         `json:"bp,omitempty"`
	Scope string         `json:"s,omitempty"`
	Args  map[string]any `json:"args,omitempty"`
}

// micros are nanoseconds that are written as microseconds.
type micros int64

// MarshalJSON implements json.Marshaler.
func (m micros) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%d.%03d", int64(m)/1000, int64(m)%1000), nil
}

// The phases of the trace-event format that are used.
const (
	phaseComplete = "X"
	phaseInstant  = "i"
	phaseFlow     = "s"
	phaseFlowEnd  = "f"
	phaseMetadata = "M"
)

// NewWriter begins a trace. Close completes it.
func NewWriter(w io.Writer, begun time.Time) *Writer {
	t := &Writer{out: bufio.NewWriterSize(w, 1<<16), first: true, begun: begun, nodes: make(map[uint32]*node)}
	_, t.err = t.out.WriteString(`{"displayTimeUnit":"ns","traceEvents":[`)
	return t
}

// SetClock says how a node's times are to be understood from now on. It is to be called before a node's first events.
func (t *Writer) SetClock(number uint32, c Clock) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.nodes[number]
	if n == nil {
		n = &node{
			number: number, threads: make(map[string]int), cores: make(map[uint16]record.Event), ranks: make(map[rank]record.Time),
			busy: make(map[uint64]record.Time), summary: Summary{Node: number},
		}
		t.nodes[number] = n
		t.put(&entry{Name: "process_name", Phase: phaseMetadata, PID: n.pid(), Args: map[string]any{"name": fmt.Sprintf("node%d", number)}})
		t.put(&entry{Name: "process_sort_index", Phase: phaseMetadata, PID: n.pid(), Args: map[string]any{"sort_index": number}})
	}
	n.clock = c
	n.summary.ClockAhead, n.summary.ClockError = int64(c.Ahead), int64(c.Error)
}

// SetDrift notes by how much more a node's clock was ahead at the end.
func (t *Writer) SetDrift(number uint32, drift time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.nodes[number].summary.ClockDrift = int64(drift)
}

// Events writes what a node has recorded until now, and notes how many events were lost. The error is the first of all writing.
func (t *Writer) Events(number uint32, now record.Time, events []record.Event, lost uint64) error {
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

// Gap writes that nothing is known of a node in some time. What was open then is closed where the gap begins.
func (t *Writer) Gap(number uint32, from, to record.Time, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.nodes[number]
	t.closeAll(n, from)
	g := Gap{From: n.at(from).float(), To: n.at(to).float(), Why: why}
	n.summary.Gaps = append(n.summary.Gaps, g)
	t.slice(n, t.thread(n, sortNode, nodeThread), "nothing is known", "lost", from, to, map[string]any{"why": why})
}

// Close completes the trace; what is open then ends when the node's events were read last. It does not close the writer below.
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
		"clock": "of whoever recorded; the time of a node is exact to clock_error_ns, two nodes to the sum of theirs",
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
func (n *node) pid() uint32 { return n.number + 1 }

// at turns a node's time into one of the trace, which has none before it began.
func (n *node) at(t record.Time) micros { return max(0, micros(t)-micros(n.clock.Ahead)) }

func (m micros) float() float64 { return float64(m) / 1000 }

// put writes an entry. The caller holds the lock.
func (t *Writer) put(e *entry) {
	if t.err != nil {
		return
	}
	text, err := json.Marshal(e)
	if err != nil {
		t.err = err
		return
	}
	separator := ",\n"
	if t.first {
		separator, t.first = "\n", false
	}
	if _, t.err = t.out.WriteString(separator); t.err == nil {
		_, t.err = t.out.Write(text)
	}
}

// The order of a node's threads: by what they are for, then by number.
const (
	sortNode = (1 + iota) << 24
	sortCore
	sortExtension
	sortMessages
	sortRank
)

const nodeThread = "node kernel"

// thread returns the number of a thread, which it introduces when it is new.
func (t *Writer) thread(n *node, order int, name string) int {
	tid, ok := n.threads[name]
	if !ok {
		tid = len(n.threads) + 1
		n.threads[name] = tid
		t.put(&entry{Name: "thread_name", Phase: phaseMetadata, PID: n.pid(), TID: tid, Args: map[string]any{"name": name}})
		t.put(&entry{Name: "thread_sort_index", Phase: phaseMetadata, PID: n.pid(), TID: tid, Args: map[string]any{"sort_index": order}})
	}
	return tid
}

func (t *Writer) coreThread(n *node, core uint16) int {
	return t.thread(n, sortCore+int(core), "core "+strconv.Itoa(int(core)))
}

func (t *Writer) rankThread(n *node, r rank) int {
	return t.thread(n, sortRank+int(r.rank&0xffff), fmt.Sprintf("job %d rank %d", r.job, r.rank))
}

// slice writes something that takes time. Viewers see nothing of, and attach no arrow to, what takes none.
func (t *Writer) slice(n *node, tid int, name, cat string, from, to record.Time, args map[string]any) {
	start := n.at(from)
	took := max(1, n.at(to)-start)
	t.put(&entry{Name: name, Cat: cat, Phase: phaseComplete, Time: start, Took: &took, PID: n.pid(), TID: tid, Args: args})
}
