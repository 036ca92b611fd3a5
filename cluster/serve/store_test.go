package serve

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

func open(t *testing.T, dir string) *store {
	t.Helper()
	s, err := openStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.close() })
	return s
}

// processorTime returns the time of processors that this process has taken.
func processorTime(b *testing.B) time.Duration {
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// The record of a job with a rank on each of many nodes, which have ended: while ranks end it is
// written again and again (recordSoon).
func BenchmarkSaveJob(b *testing.B) {
	const ranks = 10_000
	s, err := openStore(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer s.close()
	var places []*control.Place
	for n := range uint32(ranks) {
		places = append(places, &control.Place{Rank: n, Node: n, Core: 1})
	}
	j := newJob(1, &control.JobSpec{Path: []byte("/bin/true"), Ranks: ranks, PerNode: 1}, places)
	for n := range uint32(ranks) {
		j.members = append(j.members, &control.Member{Node: n, Address: "10.66.39.16:7118"})
		j.ranks[n].exit = new(control.ExitStatus)
		j.records.RestoreComplete(n)
	}
	begin := processorTime(b)
	for range b.N {
		if err := s.saveJob(j, 0); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(processorTime(b)-begin)/float64(b.N*ranks), "processor-ns/rank")
}

func TestStore(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	for want := range uint32(3) {
		if number, err := s.nextJob(); err != nil || number != want+1 {
			t.Errorf("job %d, %v", number, err)
		}
	}
	j := newJob(1, &control.JobSpec{Path: []byte("/x"), Command: "x y", User: "u", Ranks: 2, Detach: true}, []*control.Place{{Node: 3, Core: 1}, {Rank: 1, Node: 3, Core: 2}})
	j.members = []*control.Member{{Node: 3, Address: "10.0.0.3:1"}}
	j.phase = control.JobPhase_JOB_RUNNING
	if err := s.saveJob(j, 0); err != nil {
		t.Fatal(err)
	}
	n := newNode(3, 1, t.Logf)
	n.info, n.boots = &control.NodeInfo{Hostname: "node3", Cores: []uint32{1, 2}}, 2
	if err := s.saveNode(n); err != nil {
		t.Fatal(err)
	}
	if starts, err := s.countStart(); err != nil || starts != 1 {
		t.Errorf("start %d, %v", starts, err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}

	s = open(t, dir)
	var jobs []*control.StoredJob
	if err := s.each(0, func(j *control.StoredJob) { jobs = append(jobs, j) }); err != nil || len(jobs) != 1 {
		t.Fatal(jobs, err)
	}
	if got := jobs[0]; !proto.Equal(got.Spec, j.spec) || !samePlaces(got.Places, j.places) || len(got.Members) != 1 ||
		got.State.Phase != j.phase || got.Summary.Command != "x y" || got.Summary.StartNs != j.created.UnixNano() || !got.Summary.Detached {
		t.Errorf("the job is stored as %v", got)
	}
	nodes, err := s.nodes()
	if err != nil || len(nodes) != 1 || nodes[0].Node != 3 || nodes[0].Boots != 2 || !proto.Equal(nodes[0].Info, n.info) {
		t.Errorf("the nodes are stored as %v, %v", nodes, err)
	}
	if number, err := s.nextJob(); err != nil || number != 4 {
		t.Errorf("job %d, %v", number, err)
	}
	if starts, err := s.countStart(); err != nil || starts != 2 {
		t.Errorf("start %d, %v", starts, err)
	}
	if _, err := s.jobState(2); !errors.Is(err, &control.Failure{Code: control.Code_CODE_NOT_FOUND}) {
		t.Errorf("state of an unknown job: %v", err)
	}
}

// Recording a job can delete another one.
func TestStoreForgets(t *testing.T) {
	s := open(t, t.TempDir())
	save := func(number, forget uint32) {
		t.Helper()
		j := newJob(number, new(control.JobSpec), nil)
		j.phase = control.JobPhase_JOB_DONE
		if err := s.saveJob(j, forget); err != nil {
			t.Fatal(err)
		}
	}
	save(1, 0)
	save(2, 0)
	save(3, 1)
	list, err := s.summaries(0)
	if err != nil || len(list) != 2 || list[0].Job != 2 {
		t.Errorf("remembered are %v, %v", list, err)
	}
}

// A serve that is killed leaves a store that was not closed. No number of a recorded job is given
// out again.
func TestJobNumbersKept(t *testing.T) {
	dir, copied := t.TempDir(), t.TempDir()
	s := open(t, dir)
	for range 3 {
		number, err := s.nextJob()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.saveJob(newJob(number, new(control.JobSpec), nil), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.forgetJobs([]uint32{3}); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if number, err := open(t, copied).nextJob(); err != nil || number != 4 {
		t.Errorf("after three jobs comes job %d, %v", number, err)
	}
}

func TestJobNumbersRunOut(t *testing.T) {
	s := open(t, t.TempDir())
	err := s.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketJobs).SetSequence(1<<32 - 2) })
	if err != nil {
		t.Fatal(err)
	}
	if number, err := s.nextJob(); err != nil || number != 1<<32-1 {
		t.Errorf("job %d, %v", number, err)
	}
	if number, err := s.nextJob(); err == nil {
		t.Errorf("after the last number comes %d", number)
	}
}

// The error for a store that cannot be used names the store and the reason.
func TestBadStore(t *testing.T) {
	cases := []struct {
		name  string
		spoil func(path string) error
		want  string
	}{
		{"garbage", func(path string) error { return os.WriteFile(path, []byte(strings.Repeat("no store ", 5000)), 0o600) }, "invalid database"},
		{"folder", func(path string) error { return os.Mkdir(path, 0o700) }, "is a directory"},
		{"link", func(path string) error { return os.Symlink("elsewhere", path) }, "too many levels of symbolic links"},
	}
	for _, k := range cases {
		t.Run(k.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "state.db")
			if err := k.spoil(path); err != nil {
				t.Fatal(err)
			}
			s, err := openStore(dir)
			if err == nil {
				s.close()
			}
			if err == nil || !strings.HasPrefix(err.Error(), "serve: open store "+path+": ") || !strings.HasSuffix(err.Error(), k.want) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// Another serve may still be ending. This one waits for its store, and then the error states the
// problem.
func TestLockedStore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dir := t.TempDir()
		open(t, dir)
		if s, err := openStore(dir); err == nil {
			s.close()
			t.Error("two have the store open")
		} else if !strings.Contains(err.Error(), "state.db: timeout") {
			t.Errorf("error %v", err)
		}
	})
}

func TestBadRecord(t *testing.T) {
	s := open(t, t.TempDir())
	err := s.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketJobs).Put(key(7), []byte("garbage")) })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.summaries(0); err == nil || !strings.HasPrefix(err.Error(), "serve: record of job 7: ") {
		t.Errorf("error %v", err)
	}
}
