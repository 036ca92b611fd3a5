//go:build soak

package soak

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"margay/cluster/ledger"
)

// usualJobs is how many jobs TestManyJobs runs unless MARGAY_JOBS sets it.
const usualJobs = 1500

// Bounds on what the processes of a machine may take more at the end of many jobs than after the
// first tenth. A leak of 1 KiB for each job passes the bound of memory after 5,200 jobs in serve,
// and after 21,000 in a process of a node, which has a quarter of the jobs. With usualJobs, it must
// be 4 KiB in serve, and 14 KiB in a node. One descriptor for each job passes its bound in both.
const (
	mayGrowKiB  = 4 << 10
	mayGrowFDs  = 48 // of the jobs that run or end at a moment, a dozen each
	mayGrowRuns = 8  // threads
	mostStore   = 8 << 20
	mostLog     = 1 << 20 // of serve, in bytes: it has a line for each job that fails
)

// slowest is the lowest rate, in jobs a second, at which TestManyJobs ends in time.
const slowest = 2

// MARGAY_JOBS jobs of one rank, by default usualJobs, that one client submits in one go: each ends
// as its program does, and has a record that says so. The processes of the machine take hardly more
// at the end than after the first tenth, and its store and the log of serve stay small.
func TestManyJobs(t *testing.T) {
	jobs := environment(t, "MARGAY_JOBS", usualJobs)
	m := up(t, "-q", "--substrate", "hosted", "--nodes", "4", "--cores", "4", "--history", strconv.Itoa(min(max(64, jobs/500), 1024)))
	watched := m.watch()
	if r := m.margay("run", "-n", "16", "true"); r.code != 0 {
		t.Fatalf("first job: %v", r)
	}
	begun := time.Now()
	ends := m.array(jobs, watched)
	took := time.Since(begun)
	t.Logf("%d jobs in %v: %.1f a second", jobs, took.Round(time.Second), float64(jobs)/took.Seconds())
	for task, end := range ends {
		if want := statusOf(task); end == nil || end.Status != want || end.Error == "" != (want == 0) {
			t.Fatalf("task %d: %+v, want status %d", task, end, want)
		}
	}
	m.recorded(ends)
	watched.report()
	m.idle()
	for file, most := range map[string]int64{"state.db": mostStore, "log/serve.log": mostLog} {
		info, err := os.Stat(filepath.Join(m.dir, "default", file))
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > most {
			t.Errorf("%s has %d bytes", file, info.Size())
		}
	}
}

// program exits with the status of statusOf: one job in 32 fails.
const program = "s=$((MARGAY_ARRAY_TASK_ID % 64 - 61)); exit $((s > 0 ? s : 0))"

// statusOf returns the exit status of a task.
func statusOf(task int) int { return max(0, task%64-61) }

// taskEnd is a line of margay run --array --json.
type taskEnd struct {
	Task   int    `json:"task"`
	Job    uint32 `json:"job"`
	Nodes  string `json:"nodes"`
	Status int    `json:"status"`
	Error  string `json:"error"`
}

// array runs an array and returns the end of each task. It has the processes looked at a hundred
// times on the way.
func (m *machine) array(jobs int, watched *watched) []*taskEnd {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), commandTimeout+time.Duration(jobs)*time.Second/slowest)
	defer cancel()
	cmd := m.commandFor(ctx, "run", "-q", "--array", fmt.Sprintf("0-%d", jobs-1), "--keep-going", "--json", "-o", filepath.Join(m.state, "out"),
		"sh", "-c", program)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	lines, err := cmd.StdoutPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	ends := make([]*taskEnd, jobs)
	seen := 0
	for in := json.NewDecoder(bufio.NewReader(lines)); ; seen++ {
		end := new(taskEnd)
		if err := in.Decode(end); err == io.EOF {
			break
		} else if err != nil {
			m.t.Errorf("line %d: %v", seen, err)
			cancel()
			break
		}
		if end.Task < 0 || end.Task >= jobs || ends[end.Task] != nil {
			m.t.Errorf("line %d: task %d is unknown, or has ended before", seen, end.Task)
			continue
		}
		ends[end.Task] = end
		if seen%max(1, jobs/100) == 0 {
			watched.look(100 * seen / jobs)
		}
	}
	err = cmd.Wait()
	worst := 0
	for task := range jobs {
		worst = max(worst, statusOf(task))
	}
	if cmd.ProcessState.ExitCode() != worst {
		m.t.Fatalf("status %d (%v), want %d: the highest of all tasks; %d of %d have ended\n%s", cmd.ProcessState.ExitCode(), err, worst, seen, jobs, stderr.Bytes())
	}
	return ends
}

// recorded checks the record of each task.
func (m *machine) recorded(ends []*taskEnd) {
	m.t.Helper()
	cmd, cancel := m.command("history", "--tasks", "--json")
	defer cancel()
	text, err := cmd.Output()
	if err != nil {
		m.t.Fatalf("history: %v", err)
	}
	found := make([]bool, len(ends))
	for line := range bytes.Lines(text) {
		var r ledger.Record
		if err := json.Unmarshal(line, &r); err != nil {
			m.t.Fatalf("history: %v: %s", err, line)
		}
		if r.Task == nil {
			continue // the first job
		}
		if err := agrees(r, ends, found); err != nil {
			m.t.Fatalf("history: %v: %s", err, line)
		}
		found[*r.Task] = true
	}
	if i := slices.Index(found, false); i >= 0 {
		m.t.Errorf("the history lacks task %d", i)
	}
}

// agrees returns an error unless a record agrees with the end of its task.
func agrees(r ledger.Record, ends []*taskEnd, found []bool) error {
	task := int(*r.Task)
	if task >= len(ends) || found[task] {
		return fmt.Errorf("task %d is unknown, or has another record", task)
	}
	end := ends[task]
	var failed uint32
	state := ledger.Completed
	if end.Status != 0 {
		failed, state = 1, ledger.Failure
	}
	switch {
	case r.Job != end.Job || r.Nodes != end.Nodes || r.Places != end.Nodes || int(r.Status) != end.Status:
		return fmt.Errorf("want %+v", *end)
	case r.State != state || r.Failed != failed || len(r.Ends) != int(failed) || failed == 1 && int(r.Ends[0].Status) != end.Status:
		return fmt.Errorf("want state %s, %d failed ranks", state, failed)
	case r.Ranks != 1 || r.Usage.Ranks != 1 || r.Usage.MinorFaults == 0:
		return fmt.Errorf("want the usage of one rank")
	case r.Submitted.After(r.Started) || !r.Started.Before(r.Ended) || r.Lost != 0:
		return fmt.Errorf("want times in order and no lost record")
	}
	return nil
}

// watched are the processes of a machine that live as long as it does.
type watched struct {
	m     *machine
	names map[int]string // by pid
	early map[int]take   // the most that was seen from 10 % to 20 % of the jobs
	late  map[int]take   // and from 90 % on
}

// take is what a process takes: memory of its own in KiB, threads, and descriptors.
type take struct{ memory, threads, files int }

func (a take) most(b take) take {
	return take{max(a.memory, b.memory), max(a.threads, b.threads), max(a.files, b.files)}
}

func (a take) String() string {
	return fmt.Sprintf("%d KiB, %d threads, %d descriptors", a.memory, a.threads, a.files)
}

// watch finds the processes of the machine: the holder, serve, and PID 1 and node kernel of each
// node.
func (m *machine) watch() *watched {
	m.t.Helper()
	holder, serve := m.pids()
	w := &watched{m: m, names: map[int]string{holder: "holder", serve: "serve"}, early: make(map[int]take), late: make(map[int]take)}
	for _, pid1 := range children(holder) {
		if pid1 == serve {
			continue
		}
		w.names[pid1] = "PID 1"
		for _, kernel := range children(pid1) {
			if strings.HasSuffix(commandLine(kernel), " kernel ") {
				w.names[kernel] = "node kernel"
			}
		}
	}
	if len(w.names) != 2+2*4 {
		m.t.Fatalf("processes of 4 nodes: %v", w.names)
	}
	return w
}

// look notes what the processes take when so many per cent of the jobs have ended.
func (w *watched) look(percent int) {
	for pid := range w.names {
		now, err := takes(pid)
		if err != nil {
			w.m.t.Errorf("%s: %v", w.names[pid], err)
			continue
		}
		switch {
		case percent >= 10 && percent < 20:
			w.early[pid] = w.early[pid].most(now)
		case percent >= 90:
			w.late[pid] = w.late[pid].most(now)
		}
	}
}

// report prints what the processes took, and fails the test if one took more at the end.
func (w *watched) report() {
	for pid, name := range w.names {
		early, late := w.early[pid], w.late[pid]
		if early.threads == 0 || late.threads == 0 {
			w.m.t.Errorf("%s was not looked at: there must be 10 jobs at least", name)
		}
		w.m.t.Logf("%-11s after a tenth %v; at the end %v", name, early, late)
		if late.memory > early.memory+mayGrowKiB || late.threads > early.threads+mayGrowRuns || late.files > early.files+mayGrowFDs {
			w.m.t.Errorf("%s has grown", name)
		}
	}
}

// takes returns what a process takes.
func takes(pid int) (now take, err error) {
	rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return now, err
	}
	for line := range strings.Lines(string(rollup)) {
		if kib, found := strings.CutPrefix(line, "Private_Dirty:"); found {
			if _, err := fmt.Sscan(kib, &now.memory); err != nil {
				return now, err
			}
		}
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return now, err
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	now.threads, now.files = len(threads), len(files)
	return now, err
}
