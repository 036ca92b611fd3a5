package records

import (
	"iter"

	"margay/cluster/control"
)

// Gather makes the ends of a job's ranks on one node travel together. An end may wait for others if
// nothing depends on it: the rank has ended well, or not as the first on its node to fail, and is
// not the last one. The last end and the first failure go at once, and take along what waits.
// The zero value is ready for use.
type Gather struct {
	held   *control.Record // its ends wait; nil: none does
	failed bool            // a rank has failed: no later end can be the first failure
}

// Add takes the next record of a job, with a single end at most, and returns the messages to send
// now, in order. The caller calls Flush a little later if Waits says so. Records that are sent
// again begin with an earlier number; the others follow each other.
func (g *Gather) Add(m *control.Record) (send []*control.Record) {
	if g.held != nil && m.Stream == control.Stream_STREAM_EXIT && m.Seq == Newest(g.held)+1 {
		g.held.More = append(g.held.More, &control.RankEnd{Rank: m.Rank, Exit: m.Exit, Open: m.Open})
		g.held.Last, g.held.Unkept = m.Last, m.Unkept
	} else {
		send = g.Flush()
		g.held = m
	}
	if !g.mayWait(m) {
		send = append(send, g.Flush()...)
	}
	return send
}

// mayWait reports whether a record may wait for others. Only small ones may, so that the ends of
// all ranks of a node fit into a frame.
func (g *Gather) mayWait(m *control.Record) bool {
	if m.Stream != control.Stream_STREAM_EXIT {
		return false
	}
	first := !g.failed && (m.Exit.GetCode() != 0 || m.Exit.GetSignal() != 0)
	g.failed = g.failed || first
	return !first && !m.Open && !m.Last && m.Exit.GetReason() == "" && m.Exit.GetFault() == nil
}

// Waits reports whether ends wait for others.
func (g *Gather) Waits() bool { return g.held != nil }

// Flush returns the message with the ends that wait, or nothing.
func (g *Gather) Flush() (send []*control.Record) {
	if g.held != nil {
		send = []*control.Record{g.held}
	}
	g.held = nil
	return send
}

// Newest returns the number of the last record that a message brings.
func Newest(m *control.Record) uint64 { return m.Seq + uint64(len(m.More)) }

// Each yields the records that a message brings, in order: itself, or each of its ends. Files that
// are gone with the job stay with the message.
func Each(m *control.Record) iter.Seq[*control.Record] {
	return func(yield func(*control.Record) bool) {
		if len(m.More) == 0 {
			yield(m)
			return
		}
		for i := range len(m.More) + 1 {
			r := start(m, i)
			r.Last = m.Last && i == len(m.More)
			if !yield(r) {
				return
			}
		}
	}
}

// from returns the records of a message from a number on, which must be one of its numbers.
func from(m *control.Record, seq uint64) *control.Record {
	i := int(seq - m.Seq)
	if i == 0 {
		return m
	}
	r := start(m, i)
	r.Last, r.More = m.Last, m.More[i:]
	return r
}

// start returns record i of a message, without what follows it.
func start(m *control.Record, i int) *control.Record {
	r := &control.Record{Job: m.Job, Node: m.Node, Seq: m.Seq + uint64(i), Stream: m.Stream, Acked: m.Acked}
	if i == 0 {
		r.Rank, r.Data, r.Exit, r.Open = m.Rank, m.Data, m.Exit, m.Open
	} else {
		end := m.More[i-1]
		r.Rank, r.Exit, r.Open = end.Rank, end.Exit, end.Open
	}
	return r
}
