package jobinit

import (
	"sync"

	"margay/kernel/task"
)

// journalBytes is how much output a job may have unacknowledged on one node before its ranks wait.
const journalBytes = 1 << 20

// A journal holds a job's numbered records from the moment they happen until they are acknowledged. Writers wait when it is
// full; a reader goes through it in order and can be sent back to the first unacknowledged record.
type journal struct {
	mu      sync.Mutex
	changed sync.Cond
	records []task.Record // unacknowledged, in order
	bytes   int           // of data in records
	next    int           // index in records of the first one not yet read
	seq     uint64        // number of the newest record
}

func newJournal() *journal {
	j := new(journal)
	j.changed.L = &j.mu
	return j
}

// append numbers r and adds it. Output waits for room; an exit record never does.
func (j *journal) append(r task.Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for r.Stream != task.Exit && j.bytes > 0 && j.bytes+len(r.Data) > journalBytes {
		j.changed.Wait()
	}
	j.seq++
	r.Seq = j.seq
	j.records = append(j.records, r)
	j.bytes += len(r.Data)
	j.changed.Broadcast()
}

// read waits for the next record.
func (j *journal) read() task.Record {
	j.mu.Lock()
	defer j.mu.Unlock()
	for j.next == len(j.records) {
		j.changed.Wait()
	}
	r := j.records[j.next]
	j.next++
	return r
}

// ack forgets the records up to seq.
func (j *journal) ack(seq uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := 0
	for n < len(j.records) && j.records[n].Seq <= seq {
		j.bytes -= len(j.records[n].Data)
		n++
	}
	j.records = j.records[n:]
	j.next = max(0, j.next-n)
	j.changed.Broadcast()
}

// rewind makes the reader start again at the first unacknowledged record.
func (j *journal) rewind() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.next = 0
	j.changed.Broadcast()
}
