package serve

import (
	"fmt"

	"margay/cluster/control"
	"margay/cluster/records"
)

// The ends in the records of a job so far. Each end is accepted only once. Otherwise a node could
// store more than the limit of a spool, because ends of ranks are kept beyond that limit.
type told struct {
	exits map[uint32]bool // ranks that have ended
	last  map[uint32]bool // nodes whose last record has arrived
}

func newTold() told { return told{exits: make(map[uint32]bool), last: make(map[uint32]bool)} }

// take notes the records of a message, which have not come before. It returns an error for an
// invalid record.
func (t told) take(m *control.Record) error {
	for r := range records.Each(m) {
		if err := t.takeOne(r); err != nil {
			return err
		}
	}
	return nil
}

func (t told) takeOne(m *control.Record) error {
	if t.last[m.Node] {
		return fmt.Errorf("record %d follows the last one", m.Seq)
	}
	switch m.Stream {
	case control.Stream_STREAM_STDOUT, control.Stream_STREAM_STDERR:
		if m.Exit != nil || m.Last {
			return fmt.Errorf("record %d is output and an end", m.Seq)
		}
	case control.Stream_STREAM_EXIT:
		switch {
		case t.exits[m.Rank]:
			return fmt.Errorf("record %d is another end of rank %d", m.Seq, m.Rank)
		case m.Exit == nil || len(m.Data) > 0:
			return fmt.Errorf("record %d is the end of rank %d and does not say how it ended, or more", m.Seq, m.Rank)
		}
		t.exits[m.Rank] = true
	case control.Stream_STREAM_END:
		if !m.Last || m.Exit != nil || len(m.Data) > 0 {
			return fmt.Errorf("record %d is the end and not the last one, or more", m.Seq)
		}
	default:
		return fmt.Errorf("record %d is of stream %d, which there is not", m.Seq, m.Stream)
	}
	t.last[m.Node] = m.Last
	return nil
}
