// Package records is how the records of a job come from its nodes to their consumer, each once and
// in order.
//
// A node numbers the records of a job 1, 2, 3 ... and keeps each one until it is acknowledged. It
// sends them again when serve requests a rewind. The ends of several ranks, which have consecutive
// numbers, may travel in one message. Gather is the node's side: it decides which do. Relay is
// serve's side: it passes records on in order only, and acknowledges only records that it has seen.
// Reader is the consumer's side. None of them does any I/O, and none is safe for concurrent use.
package records

import "margay/cluster/control"

// Relay is what serve knows of the records of one job.
type Relay struct{ nodes map[uint32]*passed }

// passed is how far the records of one node have come.
type passed struct {
	seen  uint64 // the newest record that has passed, and all before it
	acked uint64 // the newest record that the consumer has
	last  uint64 // the one that no other follows; 0 while that is not known
	whole bool   // an earlier serve has noted that the consumer has all
}

// NewRelay makes a relay through which nothing has passed.
func NewRelay() *Relay { return &Relay{nodes: make(map[uint32]*passed)} }

func (r *Relay) node(node uint32) *passed {
	p := r.nodes[node]
	if p == nil {
		p = new(passed)
		r.nodes[node] = p
	}
	return p
}

// Restore notes that the consumer has the records of a node up to seq, from an earlier serve.
func (r *Relay) Restore(node uint32, seq uint64) {
	p := r.node(node)
	p.seen, p.acked = max(p.seen, seq), max(p.acked, seq)
}

// RestoreComplete notes that the consumer has all records of a node, from an earlier serve.
func (r *Relay) RestoreComplete(node uint32) { r.node(node).whole = true }

// Take passes the records of a message on unless an earlier one is missing: that one was lost with
// a connection, and all will be sent again. The node no longer has the records up to m.Acked,
// because an earlier serve had handled them. No record follows the last one, and none has number 0.
// Take reports whether the message passes, and returns its records that pass for the first time,
// nil if none does.
func (r *Relay) Take(m *control.Record) (passes bool, fresh *control.Record) {
	p := r.node(m.Node)
	acked, newest := min(m.Acked, max(m.Seq, 1)-1), Newest(m)
	p.seen, p.acked = max(p.seen, acked), max(p.acked, acked)
	if m.Seq == 0 || m.Seq > p.seen+1 || newest < m.Seq {
		return false, nil
	}
	if newest > p.seen {
		fresh = from(m, p.seen+1)
		p.seen = newest
	}
	if m.Last {
		p.last = newest
	}
	return true, fresh
}

// Ack notes that the consumer has the records of a node up to seq. It returns the number that may
// be acknowledged to the node: a consumer that outlived a serve can have more records than this
// serve has seen.
func (r *Relay) Ack(node uint32, seq uint64) uint64 {
	p := r.node(node)
	seq = min(seq, p.seen)
	p.acked = max(p.acked, seq)
	return seq
}

// Acked returns the newest record of a node that the consumer has.
func (r *Relay) Acked(node uint32) uint64 { return r.node(node).acked }

// Seen returns the newest record of a node that has passed.
func (r *Relay) Seen(node uint32) uint64 { return r.node(node).seen }

// Ended reports whether the last record of a node has passed.
func (r *Relay) Ended(node uint32) bool {
	p := r.node(node)
	return p.whole || p.last != 0
}

// Complete reports whether the consumer has all records of a node.
func (r *Relay) Complete(node uint32) bool {
	p := r.node(node)
	return p.whole || p.last != 0 && p.acked >= p.last
}

// Waits reports whether records of a node wait for the consumer.
func (r *Relay) Waits(node uint32) bool {
	p := r.node(node)
	return p.acked < p.seen
}

// Reader is how far a consumer has come.
type Reader struct{ seen map[uint32]uint64 }

// NewReader makes a reader that has read nothing.
func NewReader() *Reader { return &Reader{seen: make(map[uint32]uint64)} }

// Next reports whether a record is the next of its node. Any other one is a duplicate, or follows
// one that was lost with a connection and will be sent again.
func (r *Reader) Next(node uint32, seq uint64) bool { return seq == r.seen[node]+1 }

// Done notes that the next record of a node has been read.
func (r *Reader) Done(node uint32) { r.seen[node]++ }

// Seen returns the newest record of a node that has been read: all up to it may be acknowledged.
func (r *Reader) Seen(node uint32) uint64 { return r.seen[node] }
