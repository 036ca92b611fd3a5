package serve

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/cluster/ledger"
	"margay/cluster/permit"
)

// playedLedger is a history in memory that can fail and hang.
type playedLedger struct {
	mu      sync.Mutex
	records []*ledger.Record
	calls   int
	lost    uint64
	fails   error
	hangs   chan struct{} // calls wait until it is closed; nil: they do not wait
}

func (l *playedLedger) Append(records ...*ledger.Record) error {
	l.mu.Lock()
	hangs := l.hangs
	l.mu.Unlock()
	if hangs != nil {
		<-hangs
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	if l.fails == nil {
		l.records = append(l.records, records...)
	}
	return l.fails
}

// Lose counts in the next record.
func (l *playedLedger) Lose(records uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost += records
	return nil
}

// successor is the history as the next serve finds it. Records that the previous serve still writes
// do not count.
func (l *playedLedger) successor() *playedLedger {
	next := new(playedLedger)
	if l != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		next.records, next.fails = slices.Clone(l.records), l.fails
	}
	return next
}

func (l *playedLedger) set(fails error, hangs chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hangs != nil {
		close(l.hangs)
	}
	l.fails, l.hangs = fails, hangs
}

// takes makes the history accept all records from now on.
func (l *playedLedger) takes() { l.set(nil, nil) }

// toggle makes the history fail, or stop failing, and reports whether it fails.
func (l *playedLedger) toggle() (fails bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fails == nil {
		l.fails = unix.ENOSPC
		return true
	}
	l.fails = nil
	return false
}

// last is the newest record of a job.
func (l *playedLedger) last(job uint32) (r *ledger.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, next := range l.records {
		if next.Job == job {
			r = next
		}
	}
	return r
}

// jobs lists the jobs of all records, in order.
func (l *playedLedger) jobs() (jobs []uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.records {
		jobs = append(jobs, r.Job)
	}
	return jobs
}

// withLedger is up with a history.
func withLedger(t *testing.T, nodes int) (*machine, *playedLedger) {
	l := new(playedLedger)
	return up(t, nodes, func(c *Config) { c.History = l }), l
}

// completes runs a job of one rank that ends with a status within a time, and returns its number.
func (c *playedClient) completes(m *machine, status int32, within time.Duration) uint32 {
	m.t.Helper()
	job := c.run(spec(1))
	m.played[0].exits(job, 1, 0, status, 0)
	c.ackAll()
	time.Sleep(within)
	if state := c.ended(); state.ExitCode != status {
		m.t.Errorf("job %d ended with status %d, not %d", job, state.ExitCode, status)
	}
	return job
}

// The record of a job states the user, the command, the nodes, the times, and the end of each rank,
// and is written before the client knows that the job has ended.
func TestHistory(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, l := withLedger(t, 2)
		began := time.Now()
		c := m.client()
		s := spec(3)
		s.KeepGoing = true
		job := c.run(s)
		time.Sleep(time.Second)
		for rank, status := range []int32{3, 0, 3} {
			n, seq := m.played[rank/2], uint64(rank%2+1)
			n.exits(job, seq, uint32(rank), status, 0)
		}
		c.ackAll()
		c.ended()
		got := l.last(job)
		if got == nil {
			t.Fatal("there is no record")
		}
		if len(got.Phases) < 4 || got.Phases[1].Phase != "allocate" || got.Run == "" {
			t.Errorf("its phases are %v, its machine's life is %q", got.Phases, got.Run)
		}
		want := &ledger.Record{
			Machine: "m", Run: got.Run, Job: job, User: s.User, UID: s.Uid, Submitted: began.UTC(), Started: began.UTC(), Ended: began.Add(time.Second).UTC(),
			Ranks: 3, Cores: 1, Nodes: "0-1", Places: "0*2,1", State: ledger.Failure, Status: 3,
			Failed: 2, Ends: []ledger.End{{Ranks: "0,2", Status: 3, Ended: true}}, Phases: got.Phases,
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("it is\n%+v, not\n%+v", got, want)
		}
	})
}

// A client's description of itself cannot make a record too long for a line.
func TestHistoryOfLongName(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, l := withLedger(t, 1)
		c := m.client()
		s := spec(1)
		s.User = strings.Repeat("\x01", ledger.MaxLine)
		job := c.run(s)
		m.played[0].exits(job, 1, 0, 0, 0)
		c.ackAll()
		c.ended()
		if _, err := ledger.AppendLine(nil, l.last(job)); err != nil {
			t.Error(err)
		}
	})
}

// Each kind of end has its state. The unreported end of a rank does not count as status 0.
func TestHistoryStates(t *testing.T) {
	for want, end := range map[ledger.State]func(m *machine, c *playedClient, job uint32){
		ledger.Completed: func(m *machine, c *playedClient, job uint32) {
			m.played[0].exits(job, 1, 0, 0, 0)
			c.ackAll()
		},
		ledger.Failure: func(m *machine, c *playedClient, job uint32) {
			m.played[0].exits(job, 1, 0, 0, 11)
			c.ackAll()
		},
		ledger.Killed: func(_ *machine, c *playedClient, job uint32) {
			must[*control.Done](c, &control.Kill{Job: job, Force: true})
		},
		ledger.NodeLost: func(m *machine, _ *playedClient, job uint32) {
			m.server.nodeExit(&control.NodeExit{Node: 0, Reason: "died"})
		},
		ledger.Down: func(m *machine, _ *playedClient, _ uint32) {
			m.stop(errors.New("the machine goes down"))
		},
		ledger.TimedOut: func(m *machine, c *playedClient, job uint32) {
			time.Sleep(time.Hour + time.Second)
			synctest.Wait()
			m.played[0].exits(job, 1, 0, 0, 15)
			c.ackAll()
		},
	} {
		for _, detach := range []bool{false, true} {
			t.Run(string(want), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					m, l := withLedger(t, 1)
					c := m.client()
					s := spec(1)
					s.LimitMs, s.Detach = time.Hour.Milliseconds(), detach
					job := c.run(s)
					end(m, c, job)
					time.Sleep(time.Minute)
					got := l.last(job)
					if got == nil || got.State != want || got.Detached != detach || (got.Status == 0) != (want == ledger.Completed) {
						t.Fatalf("detached %v: it is %+v", detach, got)
					}
					if unreported := want == ledger.Killed || want == ledger.NodeLost || want == ledger.Down; unreported && !reflect.DeepEqual(got.Ends, []ledger.End{{Ranks: "0"}}) {
						t.Errorf("detached %v: its ranks ended as %+v", detach, got.Ends)
					}
				})
			})
		}
	}
}

// The number of groups of ranks is bounded, the count of ranks is right, and the group of the rank
// that failed first comes first.
func TestBadEnds(t *testing.T) {
	j := new(job)
	for i := range 2 * ledger.MaxEnds {
		j.ranks = append(j.ranks, rank{exit: &control.ExitStatus{Code: int32(1 + i)}}, rank{exit: new(control.ExitStatus)}, rank{exit: &control.ExitStatus{Code: 1}})
	}
	ends, failed := j.badEnds()
	if len(ends) != ledger.MaxEnds || failed != 4*ledger.MaxEnds || !strings.HasPrefix(ends[0].Ranks, "0,2,5,8,") || ends[1].Ranks != "3" {
		t.Errorf("%d ranks ended badly, in %d groups: %v", failed, len(ends), ends)
	}
	j.first = 3 * (2*ledger.MaxEnds - 1)
	if ends, _ := j.badEnds(); len(ends) != ledger.MaxEnds || ends[0].Ranks != fmt.Sprint(j.first) || !strings.HasPrefix(ends[1].Ranks, "0,2,5,8,") {
		t.Errorf("after the end of rank %d the groups are %v", j.first, ends)
	}
}

// A failing history does not delay the end of a job. The job's client is notified, and the record
// is written as soon as possible: by this serve, or by the next one if this one is killed.
func TestHistoryFails(t *testing.T) {
	for _, killed := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			m, l := withLedger(t, 1)
			c := m.client()
			first := c.completes(m, 0, 0)
			l.set(unix.ENOSPC, nil)
			began := time.Now()
			lacking := []uint32{c.completes(m, 0, 0), c.completes(m, 5, 0)}
			if took := time.Since(began); took > time.Second {
				t.Errorf("two jobs took %v beside a history that fails", took)
			}
			warnings := take[*control.LogLine](&c.recorder)
			if len(warnings) != 2 || warnings[1].Text != "job 3 is not yet in the history, which lacks 2 jobs; it is tried again: no space left on device" {
				t.Errorf("the clients are told %v", warnings)
			}
			if got := m.server.status(permit.Caller{}).Unwritten; got != 2 {
				t.Errorf("serve reports %d unwritten jobs", got)
			}
			if killed {
				next := l.successor()
				m.config.History = next
				m.restart()
				l = next
			}
			time.Sleep(time.Minute)
			if got := l.jobs(); !slices.Equal(got, []uint32{first}) {
				t.Fatalf("it has jobs %v", got)
			}
			l.takes()
			time.Sleep(2 * historyPause)
			if got := l.jobs(); !slices.Equal(got, append([]uint32{first}, lacking...)) {
				t.Errorf("killed %v: it has jobs %v at last", killed, got)
			}
			if got := m.server.status(permit.Caller{}).Unwritten; got != 0 {
				t.Errorf("at last, serve reports %d unwritten jobs", got)
			}
			if left, err := m.server.store.unwritten(); len(left) != 0 || err != nil {
				t.Errorf("the store keeps %v, %v", left, err)
			}
		})
	}
}

// A history that hangs delays the end of only one job, for a moment.
func TestHistoryHangs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, l := withLedger(t, 1)
		c := m.client()
		l.set(nil, make(chan struct{}))
		began := time.Now()
		first := c.completes(m, 0, historyWait)
		second := c.completes(m, 0, 0)
		if took := time.Since(began); took > historyWait {
			t.Errorf("two jobs took %v beside a history that hangs", took)
		}
		if left, err := m.server.store.unwritten(); len(left) != 2 || err != nil {
			t.Errorf("the store keeps %v, %v", left, err)
		}
		l.takes()
		time.Sleep(2 * historyPause)
		third := c.completes(m, 0, 0)
		if got := l.jobs(); !slices.Equal(got, []uint32{first, second, third}) || l.last(second).Lost != 0 {
			t.Errorf("it has jobs %v", got)
		}
	})
}

// beginChronicle begins a chronicle with an empty store. The caller closes it.
func beginChronicle(t *testing.T, h History) *chronicle {
	t.Helper()
	st, err := openStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.close() })
	ch, err := newChronicle(Config{History: h, Log: t.Logf}, st)
	if err != nil {
		t.Fatal(err)
	}
	ch.begin()
	return ch
}

// A record that arrives while the history is about to fail does not wait for the next attempt.
func TestHistoryFailsMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := &playedLedger{hangs: make(chan struct{})}
		ch := beginChronicle(t, l)
		began := time.Now()
		var running sync.WaitGroup
		for i := range uint32(2) {
			running.Go(func() {
				if err := ch.write(&ledger.Record{Job: i + 1}); !errors.Is(err, unix.ENOSPC) {
					t.Errorf("job %d: %v", i+1, err)
				}
			})
			synctest.Wait()
		}
		l.set(unix.ENOSPC, nil)
		running.Wait()
		if took := time.Since(began); took != 0 {
			t.Errorf("they took %v", took)
		}
		ch.close()
	})
}

// Records beyond the room for them are lost, and the history counts them.
func TestHistoryOverflows(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := &playedLedger{fails: unix.ENOSPC}
		ch := beginChronicle(t, l)
		for i := range uint32(mostUnwritten + 7) {
			if err := ch.write(&ledger.Record{Job: i + 1}); !errors.Is(err, unix.ENOSPC) {
				t.Fatalf("job %d: %v", i+1, err)
			}
		}
		if kept, err := ch.store.lost(); kept != 7 || err != nil {
			t.Errorf("the store has %d lost records, %v", kept, err)
		}
		l.takes()
		time.Sleep(2 * historyPause)
		if kept, err := ch.store.lost(); kept != 0 || err != nil {
			t.Errorf("after they are counted, the store has %d lost records, %v", kept, err)
		}
		if got := l.jobs(); len(got) != mostUnwritten || l.last(1).Lost != 7 {
			t.Errorf("it has %d jobs, and the first one follows %d that are lost", len(got), l.last(1).Lost)
		}
		if err := ch.write(&ledger.Record{Job: 5000}); err != nil || l.last(5000).Lost != 0 {
			t.Errorf("%v, %v", l.last(5000), err)
		}
		ch.close()
	})
}

// More jobs than wait for a history that fails may end at once, as when the machine goes down. A
// history that only takes a moment gets the records of all.
func TestHistoryOfManyEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := &playedLedger{hangs: make(chan struct{})}
		ch := beginChronicle(t, l)
		for i := range uint32(2 * mostUnwritten) {
			ch.enter(&ledger.Record{Job: i + 1})
		}
		synctest.Wait()
		l.takes()
		ch.close()
		if got := l.jobs(); len(got) != 2*mostUnwritten {
			t.Errorf("it has %d jobs", len(got))
		}
	})
}

// Jobs that end while the history writes are written together.
func TestHistoryBatches(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := &playedLedger{hangs: make(chan struct{})}
		ch := beginChronicle(t, l)
		var running sync.WaitGroup
		write := func(job uint32) {
			running.Go(func() {
				if err := ch.write(&ledger.Record{Job: job}); err != nil {
					t.Error(err)
				}
			})
		}
		write(1)
		synctest.Wait() // the history writes job 1, and hangs
		for job := uint32(2); job <= 50; job++ {
			write(job)
		}
		synctest.Wait()
		l.takes()
		running.Wait()
		ch.close()
		if got := l.jobs(); len(got) != 50 || l.calls != 2 {
			t.Errorf("%d jobs were written in %d calls, not 2", len(got), l.calls)
		}
	})
}
