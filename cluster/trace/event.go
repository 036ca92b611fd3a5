package trace

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/record"
)

// event writes one event. The caller holds the lock.
func (t *Writer) event(n *node, e *record.Event) {
	end := e.Time.Add(e.Took)
	if n.before(end) && e.Kind != record.Start && e.Kind != record.Switch {
		return // recorded for another reader
	}
	r := rank{e.Job, e.Rank}
	switch e.Kind {
	case record.Switch:
		t.coreTo(n, e)
	case record.Start:
		if _, ok := n.ranks[r]; !ok {
			n.ranks[r] = max(e.Time, n.since)
		}
	case record.End:
		t.rankEnds(n, r, e.Time, text("end", e.Text), number("ran_s", e.Took.Seconds()))
	case record.Sent:
		tid := t.rankThread(n, r)
		t.slice(n, tid, "send to rank "+decimal(e.Peer), "message", e.Time, e.Time, count("bytes", uint64(e.Size)))
		t.flow(n, tid, phaseFlow, e, n.number, e.Node)
	case record.Forwarded:
		tid := t.messageThread(n, e.Job)
		t.slice(n, tid, "forward to rank "+decimal(e.Peer), "message", e.Time, e.Time, count("bytes", uint64(e.Size)))
		t.flow(n, tid, phaseFlow, e, n.number, e.Node)
	case record.Arrived:
		tid := t.messageThread(n, e.Job)
		name := "message for rank " + decimal(uint32(e.Rank)) + ": " + verdict(slot.Message, e.What)
		t.slice(n, tid, name, "message", e.Time, end,
			count("from_rank", uint64(e.Peer)), count("from_node", uint64(e.Node)), count("bytes", uint64(e.Size)))
		t.flow(n, tid, phaseFlowEnd, e, e.Node, n.number)
	case record.Delivered:
		t.instant(n, t.rankThread(n, r), "delivered late", "message", end, count("from_rank", uint64(e.Peer)), number("waited_us", float64(e.Took)/1000))
	case record.Run:
		t.run(n, e, end)
	case record.Called:
		t.run(n, e, end, text("called_by", fmt.Sprintf("extension %d.%d", n.number, e.Peer)))
	case record.Fault:
		t.fault(n, e)
	case record.Barrier:
		t.slice(n, t.rankThread(n, r), fmt.Sprintf("barrier %d", e.Number), "barrier", e.Time, end)
	}
}

// coreTo ends the current turn on a core and begins the next one.
func (t *Writer) coreTo(n *node, e *record.Event) {
	r := rank{e.Job, e.Rank}
	if n.cores[e.Core].rank == r {
		return
	}
	t.turnEnds(n, e.Core, e.Time)
	if r.job != 0 {
		n.cores[e.Core] = turn{r, max(e.Time, n.since), e.Text}
	}
}

func (t *Writer) turnEnds(n *node, core uint16, at id.Time) {
	had, ok := n.cores[core]
	if !ok {
		return
	}
	delete(n.cores, core)
	tid := t.thread(n, thread{of: ofCore, number: uint64(core)})
	t.slice(n, tid, fmt.Sprintf("job %d rank %d", had.job, had.rank.rank), "core", had.since, at, text("why", had.why))
}

func (t *Writer) rankEnds(n *node, r rank, at id.Time, args ...arg) {
	since, ok := n.ranks[r]
	if !ok {
		return // its beginning was lost
	}
	delete(n.ranks, r)
	t.slice(n, t.rankThread(n, r), "runs", "rank", since, at, args...)
}

// closeAll ends the open intervals of a node.
func (t *Writer) closeAll(n *node, at id.Time) {
	for core := range n.cores {
		t.turnEnds(n, core, at)
	}
	for r := range n.ranks {
		t.rankEnds(n, r, at)
	}
}

// run writes a run of an extension. It began when the one before it was over, however long it has
// waited for that.
func (t *Writer) run(n *node, e *record.Event, end id.Time, args ...arg) {
	begin := max(e.Time, min(n.busy[e.Number], end))
	n.busy[e.Number] = end
	where := slotName(e.Slot)
	args = append(args, text("slot", string(where)), text("answer", verdict(where, e.What)), count("core", uint64(e.Core)))
	t.slice(n, t.extensionThread(n, e.Number), cmp.Or(e.Text, "run"), "extension", begin, end, args...)
}

func (t *Writer) extensionThread(n *node, handle uint64) int {
	return t.thread(n, thread{of: ofExtension, number: handle})
}

func (t *Writer) rankThread(n *node, r rank) int {
	return t.thread(n, thread{of: ofRank, number: uint64(r.rank), job: r.job})
}

func (t *Writer) messageThread(n *node, job id.Job) int {
	return t.thread(n, thread{of: ofMessages, job: job})
}

func (t *Writer) fault(n *node, e *record.Event) {
	where := thread{of: ofNode}
	if e.Number != 0 {
		where = thread{of: ofExtension, number: e.Number}
	}
	t.instant(n, t.thread(n, where), "fault", "fault", e.Time, count("job", uint64(e.Job)), text("text", e.Text))
}

func (t *Writer) instant(n *node, tid int, name, cat string, at id.Time, args ...arg) {
	t.put(&entry{name: name, cat: cat, phase: phaseInstant, time: n.at(at), pid: n.pid(), tid: tid, args: args})
}

// flow writes one end of the arrow of a message; it is attached to the slice that begins then. Both
// ends know the message by its number.
func (t *Writer) flow(n *node, tid int, phase string, e *record.Event, from, to id.Node) {
	t.put(&entry{
		name: "message", cat: "message", phase: phase, time: n.at(e.Time), pid: n.pid(), tid: tid, flow: flowID{e.Job, from, to, e.Number},
	})
}

// before reports whether a time of the node was before the trace began.
func (n *node) before(t id.Time) bool { return micros(t) < micros(n.clock.Ahead) }

func slotName(place uint8) slot.Name {
	if int(place) < len(slot.Table) {
		return slot.Table[place].Name
	}
	return "unknown"
}

// verdict names an answer of an extension in a slot.
func verdict(name slot.Name, v uint64) string {
	for i := range slot.Table {
		if slot.Table[i].Name != name {
			continue
		}
		if text := slot.Table[i].Verdicts[slot.Verdict(v)]; text != "" {
			return text
		}
	}
	return strconv.FormatUint(v, 10)
}

func decimal(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

func sortSummaries(s []Summary) {
	slices.SortFunc(s, func(a, b Summary) int { return cmp.Compare(a.Node, b.Node) })
}
