package jobinit

import (
	"bytes"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"margay/kernel/abi/id"
	"margay/kernel/task"
	"margay/kernel/task/journal"
)

// writers are the ends of a rank's streams that the rank and its children hold.
type writers struct{ stdout, stderr *io.PipeWriter }

func (w writers) close() {
	w.stdout.Close()
	w.stderr.Close()
}

// newOutput is the output of so many ranks, which leave a file.
func newOutput(ranks int) *output {
	return &output{journal: journal.New(), ranks: ranks, search: func() task.Unkept { return task.Unkept{Files: 1} }}
}

// follows returns the streams of a rank that o follows, and their other ends.
func follows(o *output, rank id.Rank) (*streams, writers) {
	out, stdout := io.Pipe()
	errs, stderr := io.Pipe()
	return o.follow(rank, out, errs), writers{stdout, stderr}
}

// It returns the unread records.
func told(j *journal.Journal) (list []task.Record) {
	synctest.Wait()
	for {
		r, ok := j.TryRead()
		if !ok {
			return list
		}
		list = append(list, r)
	}
}

// The end of a rank comes behind all that it has written, however long the consumer stands still.
func TestEndWaitsForOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutput(1)
		s, w := follows(o, 0)
		text := bytes.Repeat([]byte("0123456789abcde\n"), (journal.Limit+200<<10)/16)
		go func() {
			w.stdout.Write(text) // the pipe of a rank that has ended
			w.close()
		}()
		go func() {
			o.drain(s)
			o.ended(s, task.Status{Code: 3})
		}()
		var got []byte
		var end *task.Record
		for end == nil {
			time.Sleep(time.Hour)
			records := told(o.journal)
			if len(records) == 0 {
				t.Fatalf("%d of %d bytes came, and no end", len(got), len(text))
			}
			for _, r := range records {
				if end != nil {
					t.Fatalf("record %d follows the end", r.Seq)
				}
				if r.Stream == task.Exit {
					end = &r
				}
				got = append(got, r.Data...)
			}
			o.journal.Ack(records[len(records)-1].Seq)
		}
		if !bytes.Equal(got, text) {
			t.Errorf("%d bytes came, not the %d that were written", len(got), len(text))
		}
		if end.Status.Code != 3 || end.Open || !end.Last || end.Unkept.Files != 1 {
			t.Errorf("the end is %+v", *end)
		}
	})
}

// A rank has ended when its children go on. What they write while other ranks run comes, and the
// last record behind it.
func TestChildrenOutliveRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutput(2)
		first, child := follows(o, 0)
		second, other := follows(o, 1)
		o.drain(first)
		o.ended(first, task.Status{})
		if r := told(o.journal); len(r) != 1 || r[0].Stream != task.Exit || !r[0].Open || r[0].Last || r[0].Unkept.Files != 0 {
			t.Fatalf("the end of the first rank: %+v", r)
		}
		child.stdout.Write([]byte("late"))
		other.close()
		o.drain(second)
		o.ended(second, task.Status{})
		child.stderr.Write([]byte("later"))
		if r := told(o.journal); len(r) != 3 || string(r[0].Data) != "late" || r[1].Stream != task.Exit || r[1].Rank != 1 || r[1].Open ||
			r[1].Last || string(r[2].Data) != "later" {
			t.Fatalf("then: %+v", r)
		}
		child.stdout.Close()
		if r := told(o.journal); len(r) != 0 {
			t.Fatalf("a stream is open: %+v", r)
		}
		child.stderr.Close()
		if r := told(o.journal); len(r) != 1 || r[0].Stream != task.End || r[0].Rank != 0 || !r[0].Last || r[0].Unkept.Files != 1 {
			t.Fatalf("at the end: %+v", r)
		}
	})
}

// A rank that closes its streams before it ends has no record behind its end.
func TestStreamsClosedEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutput(1)
		s, w := follows(o, 0)
		w.close()
		if r := told(o.journal); len(r) != 0 {
			t.Fatalf("the rank runs: %+v", r)
		}
		o.drain(s)
		o.ended(s, task.Status{})
		if r := told(o.journal); len(r) != 1 || r[0].Stream != task.Exit || r[0].Open || !r[0].Last {
			t.Fatalf("the end: %+v", r)
		}
	})
}
