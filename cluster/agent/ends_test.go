package agent

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/cluster/records"
	"margay/internal/check"
	"margay/kernel/abi/id"
	"margay/kernel/task"
)

// The ends of a node's ranks reach serve in one message, each with its own status, without a wait
// for the last one. Ends that others do not follow reach it a little later, or before a fault.
func TestEndsTravelTogether(t *testing.T) {
	check.Leaks(t)
	s := newServe(t)
	a, _ := s.run(new(playedKernel))
	s.next()
	check.AwaitFor(t, patience, "connection", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.conn != nil
	})
	const ranks = 64
	ends := func(job id.Job, signal unix.Signal, n int) {
		for i := range n {
			a.Record(job, task.Record{
				Seq: uint64(i + 1), Rank: id.Rank(2 * i), Stream: task.Exit, Last: i == ranks-1, Unkept: task.Unkept{Files: 7},
				Status: task.Status{Signal: signal, Time: time.Duration(i), Usage: task.Usage{User: time.Duration(10 * i)}},
			})
		}
	}
	pause := func(d time.Duration) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.pause = d
	}
	pause(time.Hour)
	ends(5, 0, ranks)
	ends(6, unix.SIGTERM, ranks)
	pause(time.Millisecond)
	ends(7, 0, 1)
	check.AwaitFor(t, patience, "ends of three jobs", func() bool { return len(all[*control.Record](&s.recorder)) >= 4 })
	pause(time.Hour)
	ends(8, 0, 2)
	a.Fault(8, errors.New("its end"))
	check.AwaitFor(t, patience, "all ends", func() bool {
		return len(all[*control.Record](&s.recorder)) >= 5 && len(all[*control.JobFault](&s.recorder)) == 1
	})
	got := all[*control.Record](&s.recorder)
	for i, want := range []struct {
		job, first uint64
		ends       int
	}{{5, 1, ranks}, {6, 1, 1}, {6, 2, ranks - 1}, {7, 1, 1}, {8, 1, 2}} {
		m := got[i]
		if whole := i < 3 && i != 1; uint64(m.Job) != want.job || m.Seq != want.first || len(m.More) != want.ends-1 || m.Last != whole || (m.Unkept.GetFiles() == 7) != whole {
			t.Errorf("message %d is of job %d, from record %d on, with %d ends, the last: %v, %v", i, m.Job, m.Seq, len(m.More)+1, m.Last, m.Unkept)
		}
		for r := range records.Each(m) {
			if n := int64(r.Seq - 1); int64(r.Rank) != 2*n || r.Exit.TimeNs != n || r.Exit.Usage.UserNs != 10*n || m.Node != 3 {
				t.Errorf("record %d is %v", r.Seq, r)
			}
		}
	}
	if len(got) != 5 {
		t.Errorf("%d messages were sent", len(got))
	}
}
