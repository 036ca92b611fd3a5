// Package journal holds the numbered records of a job on one node from the moment they happen until
// they are acknowledged.
//
// Writers wait when it is full. A reader goes through it in order and can be sent back to the first
// unacknowledged record.
package journal

import (
	"sync"

	"margay/kernel/task"
)

// Limit is how much output, in bytes, a job may have unacknowledged on one node before its ranks
// wait.
const Limit = 1 << 20

// A Journal is safe for concurrent use. There must be one reader.
type Journal struct {
	mu      sync.Mutex
	changed sync.Cond
	records []task.Record // unacknowledged, in order
	bytes   int           // of data in records
	next    int           // index in records of the first one not yet read
	seq     uint64        // number of the newest record
	acked   uint64        // number of the newest acknowledged record
	closed  bool
}

// New makes an empty journal.
func New() *Journal {
	j := new(Journal)
	j.changed.L = &j.mu
	return j
}

// Append numbers r and adds it. Output waits for room; records of an end never do.
func (j *Journal) Append(r task.Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for !j.fits(r) {
		j.changed.Wait()
	}
	j.add(r)
}

// TryAppend is Append for a writer that does not wait. It reports whether there was room.
func (j *Journal) TryAppend(r task.Record) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.fits(r) {
		return false
	}
	j.add(r)
	return true
}

func (j *Journal) fits(r task.Record) bool {
	return len(r.Data) == 0 || j.bytes == 0 || j.bytes+len(r.Data) <= Limit
}

func (j *Journal) add(r task.Record) {
	j.seq++
	r.Seq = j.seq
	j.records = append(j.records, r)
	j.bytes += len(r.Data)
	j.changed.Broadcast()
}

// Read waits for the next record. It returns none once the journal is closed.
func (j *Journal) Read() (r task.Record, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for j.next == len(j.records) && !j.closed {
		j.changed.Wait()
	}
	if j.closed {
		return task.Record{}, false
	}
	return j.take(), true
}

// Close ends the reader: the records are of no use any more.
func (j *Journal) Close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closed = true
	j.changed.Broadcast()
}

// TryRead is Read for a reader that does not wait. It reports whether there was a record.
func (j *Journal) TryRead() (task.Record, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.next == len(j.records) {
		return task.Record{}, false
	}
	return j.take(), true
}

func (j *Journal) take() task.Record {
	r := j.records[j.next]
	r.Acked = j.acked
	j.next++
	return r
}

// Ack forgets the records up to seq.
func (j *Journal) Ack(seq uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := 0
	for n < len(j.records) && j.records[n].Seq <= seq {
		j.bytes -= len(j.records[n].Data)
		n++
	}
	if n > 0 {
		j.acked = j.records[n-1].Seq
	}
	j.records = j.records[n:]
	j.next = max(0, j.next-n)
	j.changed.Broadcast()
}

// Rewind makes the reader start again at the first unacknowledged record.
func (j *Journal) Rewind() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.next = 0
	j.changed.Broadcast()
}
