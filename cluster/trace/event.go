package trace

import (
	"cmp"
	"fmt"
	"slices"

	"margay/kernel/record"
	"margay/kernel/slot"
)

// event writes one event. The caller holds the lock.
func (t *Writer) event(n *node, e *record.Event) {
	end := e.Time + record.Time(e.Took)
	if n.before(end) && e.Kind != record.Start && e.Kind != record.Switch {
		return // somebody else has had it recorded
	}
	r := rank{e.Job, e.Rank}
	switch e.Kind {
	case record.Switch:
		t.coreTo(n, e)
	case record.Start:
		if _, ok := n.ranks[r]; !ok {
			n.ranks[r] = e.Time
		}
	case record.End:
		t.rankEnds(n, r, e.Time, map[string]any{"end": e.Text, "ran_s": e.Took.Seconds()})
	case record.Sent:
		tid := t.rankThread(n, r)
		t.slice(n, tid, fmt.Sprintf("send to rank %d", e.Peer), "message", e.Time, e.Time, map[string]any{"bytes": e.Size})
		t.flow(n, tid, phaseFlow, e, n.number, e.Node)
	case record.Forwarded:
		tid := t.messageThread(n, e.Job)
		t.slice(n, tid, fmt.Sprintf("forward to rank %d", e.Peer), "message", e.Time, e.Time, map[string]any{"bytes": e.Size})
		t.flow(n, tid, phaseFlow, e, n.number, e.Node)
	case record.Arrived:
		tid := t.messageThread(n, e.Job)
		name := fmt.Sprintf("message for rank %d: %s", e.Rank, verdict(slot.Message, e.What))
		t.slice(n, tid, name, "message", e.Time, end, map[string]any{"from_rank": e.Peer, "from_node": e.Node, "bytes": e.Size})
		t.flow(n, tid, phaseFlowEnd, e, e.Node, n.number)
	case record.Delivered:
		t.instant(n, t.rankThread(n, r), "delivered late", "message", end, map[string]any{"from_rank": e.Peer, "waited_us": float64(e.Took) / 1000})
	case record.Run:
		t.run(n, e, end)
	case record.Fault:
		t.fault(n, e)
	case record.Barrier:
		t.slice(n, t.rankThread(n, r), fmt.Sprintf("barrier %d", e.Number), "barrier", e.Time, end, nil)
	}
}

// coreTo ends the turn of who has a core and begins the next one's.
func (t *Writer) coreTo(n *node, e *record.Event) {
	had, ok := n.cores[e.Core]
	if ok && had.Job == e.Job && had.Rank == e.Rank {
		return
	}
	t.turnEnds(n, e.Core, e.Time)
	if e.Job != 0 {
		n.cores[e.Core] = *e
	}
}

func (t *Writer) turnEnds(n *node, core uint16, at record.Time) {
	had, ok := n.cores[core]
	if !ok {
		return
	}
	delete(n.cores, core)
	t.slice(n, t.coreThread(n, core), fmt.Sprintf("job %d rank %d", had.Job, had.Rank), "core", had.Time, at, map[string]any{"why": had.Text})
}

func (t *Writer) rankEnds(n *node, r rank, at record.Time, args map[string]any) {
	since, ok := n.ranks[r]
	if !ok {
		return // its beginning was lost
	}
	delete(n.ranks, r)
	t.slice(n, t.rankThread(n, r), "runs", "rank", since, at, args)
}

// closeAll ends what is open on a node.
func (t *Writer) closeAll(n *node, at record.Time) {
	for core := range n.cores {
		t.turnEnds(n, core, at)
	}
	for r := range n.ranks {
		t.rankEnds(n, r, at, nil)
	}
}

// run writes a run of an extension. It began when the one before it was over, however long it has waited for that.
func (t *Writer) run(n *node, e *record.Event, end record.Time) {
	begin := max(e.Time, min(n.busy[e.Number], end))
	n.busy[e.Number] = end
	where := slotName(e.Slot)
	args := map[string]any{"slot": where, "answer": verdict(where, e.What), "core": e.Core}
	t.slice(n, t.extensionThread(n, e.Number), cmp.Or(e.Text, "run"), "extension", begin, end, args)
}

func (t *Writer) extensionThread(n *node, handle uint64) int {
	return t.thread(n, sortExtension+int(handle&0xffff), fmt.Sprintf("extension %d.%d", n.number, handle))
}

func (t *Writer) messageThread(n *node, job uint32) int {
	return t.thread(n, sortMessages+int(job&0xffff), fmt.Sprintf("messages of job %d", job))
}

func (t *Writer) fault(n *node, e *record.Event) {
	tid, args := 0, map[string]any{"job": e.Job, "text": e.Text}
	if e.Number != 0 {
		tid = t.extensionThread(n, e.Number)
	} else {
		tid = t.thread(n, sortNode, nodeThread)
	}
	t.instant(n, tid, "fault", "fault", e.Time, args)
}

func (t *Writer) instant(n *node, tid int, name, cat string, at record.Time, args map[string]any) {
	t.put(&entry{Name: name, Cat: cat, Phase: phaseInstant, Time: n.at(at), PID: n.pid(), TID: tid, Scope: "t", Args: args})
}

// flow writes one end of the arrow of a message; it is attached to the slice that begins then. Both ends know the message by its
// number among those of its job from one node to the other.
func (t *Writer) flow(n *node, tid int, phase string, e *record.Event, from, to uint32) {
	arrow := &entry{
		Name: "message", Cat: "message", Phase: phase, Time: n.at(e.Time), PID: n.pid(), TID: tid,
		ID: fmt.Sprintf("%d:%d>%d:%d", e.Job, from, to, e.Number),
	}
	if phase == phaseFlowEnd {
		arrow.Bind = "e"
	}
	t.put(arrow)
}

// before reports whether a time of the node was before the trace began.
func (n *node) before(t record.Time) bool { return micros(t) < micros(n.clock.Ahead) }

func slotName(place uint8) slot.Name {
	if int(place) < len(slot.Table) {
		return slot.Table[place].Name
	}
	return "unknown"
}

// verdict names an answer of an extension in a slot.
func verdict(name slot.Name, v uint64) string {
	for _, row := range slot.Table {
		if text := row.Verdicts[slot.Verdict(v)]; row.Name == name && text != "" {
			return text
		}
	}
	return fmt.Sprint(v)
}

func sortSummaries(s []Summary) {
	slices.SortFunc(s, func(a, b Summary) int { return cmp.Compare(a.Node, b.Node) })
}
