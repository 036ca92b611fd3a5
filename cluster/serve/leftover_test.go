package serve

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"margay/cluster/ledger"
)

// choosyLedger is a history that has no room for some jobs.
type choosyLedger struct {
	playedLedger
	refuses []uint32
}

func (l *choosyLedger) Append(records ...*ledger.Record) error {
	for _, r := range records {
		if slices.Contains(l.refuses, r.Job) {
			return unix.ENOSPC
		}
	}
	return l.playedLedger.Append(records...)
}

// leaves ends the serve of a machine whose history takes none of its jobs. It returns the machine's
// folder. folder.
func leaves(t *testing.T, jobs uint32) (dir string) {
	t.Helper()
	dir = t.TempDir()
	st, err := openStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	ch, err := newChronicle(Config{History: &playedLedger{fails: unix.ENOSPC}, Log: t.Logf}, st)
	if err != nil {
		t.Fatal(err)
	}
	ch.begin()
	for job := range jobs {
		_ = ch.write(&ledger.Record{Job: job + 1})
	}
	ch.close()
	if err := st.close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Records that the last serve could not write are written when the machine ends, or counted.
func TestSettleHistory(t *testing.T) {
	for name, test := range map[string]struct {
		jobs    uint32
		refuses []uint32
		lacking uint64
		why     error
		first   uint64 // the number of lost records in the first record
		counted uint64 // for the next life
	}{
		"nothing is left":         {},
		"all is written":          {jobs: 3},
		"nothing is written":      {jobs: 3, refuses: []uint32{1, 2, 3}, lacking: 3, why: unix.ENOSPC, counted: 3},
		"a part is written":       {jobs: 4, refuses: []uint32{1, 4}, lacking: 2, why: unix.ENOSPC, first: 1, counted: 1},
		"some were lost before":   {jobs: mostUnwritten + 7, lacking: 7, why: errNoRoom, first: 7},
		"and another one is lost": {jobs: mostUnwritten + 7, refuses: []uint32{1}, lacking: 8, why: unix.ENOSPC, first: 8},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				dir := leaves(t, test.jobs)
				l := &choosyLedger{refuses: test.refuses}
				lacking, why := SettleHistory(dir, l)
				if lacking != test.lacking || !errors.Is(why, test.why) || l.lost != test.counted {
					t.Errorf("the history lacks %d jobs, %v; %d are counted", lacking, why, l.lost)
				}
				written := min(int(test.jobs), mostUnwritten) - len(test.refuses)
				if got := l.jobs(); len(got) != written || !slices.IsSorted(got) || written > 0 && l.records[0].Lost != test.first {
					t.Errorf("%d jobs are written, not %d", len(got), written)
				}
			})
		})
	}
}

// A history that hangs does not keep a machine from ending.
func TestSettleHistoryHangs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dir := leaves(t, 3)
		l := &playedLedger{hangs: make(chan struct{})}
		if lacking, why := SettleHistory(dir, l); lacking != 3 || !errors.Is(why, errSlow) {
			t.Errorf("it lacks %d jobs, %v", lacking, why)
		}
		l.takes()
		synctest.Wait()
		if got := l.jobs(); len(got) != 1 {
			t.Errorf("afterwards, jobs %v are written", got)
		}
	})
}

// A folder without a store has no leftover records.
func TestSettleHistoryOfNoServe(t *testing.T) {
	if lacking, why := SettleHistory(t.TempDir(), new(playedLedger)); lacking != 0 || why != nil {
		t.Errorf("it lacks %d jobs, %v", lacking, why)
	}
}
