package jobinit

import (
	"errors"
	"io"
	"sync"
	"time"

	"margay/kernel/abi/id"
	"margay/kernel/task"
	"margay/kernel/task/journal"
)

// outputGrace is how long the end of a rank is held back while its own children hold its standard
// output or error open. Time in which its output waits for room in the journal does not count.
const outputGrace = 500 * time.Millisecond

// graceSteps is how often in a grace it is looked whether the output waits.
const graceSteps = 25

// output moves the output of this node's ranks into the journal, and reports its end.
//
// The end of a rank comes after all that the rank itself has written. What its children write while
// other ranks run follows it. The last record of the node, marked as such, is the end of a rank
// where no child holds a stream open then, and a record of its own otherwise.
type output struct {
	journal *journal.Journal
	search  func() task.Unkept // looks for the files that vanish with the job
	work    sync.WaitGroup     // the goroutines that copy

	mu      sync.Mutex // held while an end is recorded, so that the last record is the last
	ranks   int        // ends of ranks that are not recorded yet
	streams int        // streams of ranks that are open
	whole   bool       // the last record is there
	unkept  task.Unkept
}

// streams are the standard output and error of a rank as output sees them.
type streams struct {
	rank   id.Rank
	closed chan struct{} // gets a value for each stream that has come to its end

	// Guarded by output.mu.
	open  int // how many have not come to their end
	waits int // how many wait for room in the journal
}

// follow copies the standard output and error of a rank into the journal until their end.
func (o *output) follow(rank id.Rank, stdout, stderr io.ReadCloser) *streams {
	s := &streams{rank: rank, closed: make(chan struct{}, 2), open: 2}
	o.mu.Lock()
	o.streams += s.open
	o.mu.Unlock()
	o.work.Go(func() { o.copy(s, task.Stdout, stdout) })
	o.work.Go(func() { o.copy(s, task.Stderr, stderr) })
	return s
}

func (o *output) copy(s *streams, stream task.Stream, from io.ReadCloser) {
	defer from.Close()
	buf := make([]byte, outputPiece)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			o.add(s, task.Record{Rank: s.rank, Stream: stream, Data: append([]byte(nil), buf[:n]...)})
		}
		if err != nil {
			o.closed(s)
			return
		}
	}
}

// add records output, and marks the stream as waiting while there is no room.
func (o *output) add(s *streams, r task.Record) {
	if o.journal.TryAppend(r) {
		return
	}
	o.wait(s, 1)
	o.journal.Append(r)
	o.wait(s, -1)
}

func (o *output) wait(s *streams, change int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.waits += change
}

func (o *output) waits(s *streams) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return s.waits > 0
}

// closed notes that a stream has come to its end.
func (o *output) closed(s *streams) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.open--
	o.streams--
	if o.complete() {
		o.append(task.Record{Rank: s.rank, Stream: task.End, Last: true})
	}
	s.closed <- struct{}{}
}

// complete reports whether nothing more can be written.
func (o *output) complete() bool { return o.ranks == 0 && o.streams == 0 }

// drain waits until the streams of a rank that has ended are empty, or only children of it may
// still write to them.
func (o *output) drain(s *streams) {
	tick := time.NewTicker(outputGrace / graceSteps)
	defer tick.Stop()
	open := 2
	for left := graceSteps; open > 0 && left > 0; {
		select {
		case <-s.closed:
			open--
		case <-tick.C:
			if !o.waits(s) {
				left--
			}
		}
	}
}

// ended records the end of a rank.
func (o *output) ended(s *streams, status task.Status) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ranks--
	o.append(task.Record{Rank: s.rank, Stream: task.Exit, Status: status, Open: s.open > 0, Last: o.complete()})
}

// append records an end, and with the last one the files that vanish with the job. The caller holds
// output.mu.
func (o *output) append(r task.Record) {
	if r.Last {
		o.whole, o.unkept = true, o.search()
		r.Unkept = o.unkept
	}
	o.journal.Append(r)
}

// travelled notes that files have travelled back, which do not vanish any more.
func (o *output) travelled() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.whole = false
}

// left returns the files that vanish with the job.
func (o *output) left() task.Unkept {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.whole {
		return o.unkept
	}
	return o.search()
}

// finish ends whatever may still write: processes that ranks have left behind. It must come when no
// rank runs any more.
func (in *initProcess) finish() error {
	in.mu.Lock()
	running := len(in.pids)
	in.mu.Unlock()
	if !in.started || running > 0 {
		return errors.New("end what ranks have left behind: ranks still run")
	}
	in.work.Go(in.killAll) // acknowledgements must not wait for it
	return nil
}
