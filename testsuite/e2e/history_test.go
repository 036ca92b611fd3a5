package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"margay/cluster/ledger"
)

// past returns the jobs of the machine's history.
func (m *machine) past(flags ...string) (records []ledger.Record) {
	m.t.Helper()
	r := m.margay(append([]string{"history", "--json"}, flags...)...)
	if r.code != 0 || r.stderr != "" {
		m.t.Fatalf("history: %v", r)
	}
	for line := range strings.Lines(r.stdout) {
		var record ledger.Record
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			m.t.Fatalf("%v: %s", err, line)
		}
		records = append(records, record)
	}
	return records
}

// The history has each job that was reported ended, and how it ended, while serve is killed and
// after the machine is gone.
func TestHistory(t *testing.T) {
	ownMachine(t, "own")
	m := up(t, "hosted", 2, 2)
	hello := filepath.Join(bin, "hello-c")
	m.run(0, "-n", "3", hello)
	m.run(3, "-n", "4", "--keep-going", probe(), "exit", "3")
	m.run(124, "-t", "100ms", probe(), "sleep")
	job := strings.TrimSpace(m.run(0, "--detach", "-w", "node1", probe(), "sleep").stdout)
	m.margay("kill", "--force", job)
	m.margay("wait", job)

	const jobs, kills = 12, 3
	for i := range jobs {
		c := m.start("run", hello, fmt.Sprint("job", i))
		if i%(jobs/kills) == 0 {
			_, serve := m.status()
			kill(t, serve)
		}
		if r := c.wait(); r.code != 0 {
			t.Fatalf("job %d beside kills of serve: %v", i, r)
		}
		completed := 0
		for _, r := range m.past("--state", "completed") {
			if strings.HasSuffix(r.Command, fmt.Sprint(" job", i)) {
				completed++
			}
		}
		if completed != 1 {
			t.Errorf("job %d is in the history %d times: %+v", i, completed, m.past())
		}
	}
	last := strings.TrimSpace(m.run(0, "--detach", probe(), "sleep").stdout)
	all := len(m.past())
	if r := m.margay("machine", "down"); r.code != 0 {
		t.Fatal(r)
	}

	records := m.past()
	if len(records) != all+1 || fmt.Sprint(records[all].Job) != last || records[all].State != ledger.Down {
		t.Errorf("there are %d jobs after %d, and the last one is %+v", len(records), all, records[all])
	}
	for i, want := range []ledger.Record{
		{Ranks: 3, Nodes: "0-1", Places: "0*2,1", State: ledger.Completed, Command: hello},
		{Ranks: 4, Nodes: "0-1", Places: "0-1*2", State: ledger.Failure, Status: 3, Failed: 4, Command: probe() + " exit 3"},
		{Ranks: 1, Nodes: "0", Places: "0", State: ledger.TimedOut, Status: 124, Failed: 1, Command: probe() + " sleep"},
		{Ranks: 1, Nodes: "1", Places: "1", State: ledger.Killed, Status: 137, Failed: 1, Command: probe() + " sleep", Detached: true},
	} {
		got := records[i]
		if got.Job != uint32(i+1) || got.Ranks != want.Ranks || got.Nodes != want.Nodes || got.Places != want.Places || got.State != want.State ||
			got.Status != want.Status || got.Failed != want.Failed || got.Command != want.Command || got.Detached != want.Detached {
			t.Errorf("job %d is %+v, not %+v", i+1, got, want)
		}
		if got.Machine != m.name || got.User == "" || got.UID != uint32(os.Getuid()) || got.Submitted.After(got.Started) || got.Started.After(got.Ended) || len(got.Phases) < 6 {
			t.Errorf("job %d is %+v", i+1, got)
		}
	}
	if u := records[0].Usage; u.Ranks != 3 || u.UserNs+u.SystemNs <= 0 {
		t.Errorf("job 1 has used %+v", u)
	}
	if got := m.past("--node", "node1", "--state", "killed,timeout", "-n", "1"); len(got) != 1 || got[0].Job != 4 {
		t.Errorf("the last job on node1 that was killed is %+v", got)
	}
}

// margay run and machine down report jobs that the history cannot take, and the next life of the
// machine counts them.
func TestHistoryLacks(t *testing.T) {
	ownMachine(t, "own")
	m := up(t, "hosted", 1, 1)
	jobs := filepath.Join(os.Getenv("MARGAY_STATE"), "history", m.name, "jobs.jsonl")
	if err := os.Mkdir(jobs, 0o700); err != nil { // in its place, not even root can write
		t.Fatal(err)
	}
	for job := range 2 {
		r := m.run(0, "-q", probe(), "exit", "0")
		if want := fmt.Sprintf("margay: job %d is not yet in the history, which lacks", job+1); !strings.HasPrefix(r.stderr, want) {
			t.Errorf("job %d: %v", job+1, r)
		}
	}
	r := m.margay("machine", "down", "-q")
	if want := "margay: the history of machine " + m.name + " lacks 2 jobs: open " + jobs + ": is a directory\n"; r.code != 0 || r.stderr != want {
		t.Errorf("%v; it should say %q", r, want)
	}
	if err := os.Remove(jobs); err != nil {
		t.Fatal(err)
	}
	if r := m.margay("history"); r.code != 0 || !strings.HasSuffix(r.stderr, "lacks jobs that could not be written: 2\n") {
		t.Errorf("before the next job: %v", r)
	}
	if r := m.margay("machine", "up", "--substrate", "hosted", "--nodes", "1"); r.code != 0 {
		t.Fatal(r)
	}
	m.run(0, probe(), "exit", "0")
	if r := m.margay("history", "--json"); r.code != 0 || strings.Count(r.stdout, "\n") != 1 || !strings.HasSuffix(r.stdout, "\"lost\":2}\n") {
		t.Errorf("after the next job: %v", r)
	}
}
