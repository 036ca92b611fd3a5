package job_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/ledger"
	"margay/tools/margay/margaytest"
)

// at is when jobs of these tests began.
var at = time.Date(2026, 11, 25, 13, 40, 5, 0, time.Local)

// histories makes the histories of machines m and n.
func histories(t *testing.T) (base string) {
	t.Helper()
	state := t.TempDir()
	t.Setenv("MARGAY_STATE", state)
	t.Setenv("MARGAY_DIR", t.TempDir())
	t.Setenv("MARGAY_MACHINE", "m")
	base = filepath.Join(state, "history")
	write := func(machine string, records ...*ledger.Record) {
		for _, r := range records {
			r.Machine, r.Run = machine, "r"
		}
		if err := ledger.New(base, machine, ledger.MinSize).Append(records...); err != nil {
			t.Fatal(err)
		}
	}
	record := func(job uint32, began time.Duration, r ledger.Record) *ledger.Record {
		r.Job, r.Ranks = job, 2
		r.Submitted, r.Started, r.Ended = at.Add(began), at.Add(began), at.Add(began+90*time.Second)
		return &r
	}
	write("m",
		record(1, 0, ledger.Record{User: "ada", Nodes: "0-1", State: ledger.Completed, Command: "./app <1>", Usage: ledger.Usage{UserNs: 1e9, SystemNs: 5e8}}),
		record(2, time.Minute, ledger.Record{
			User: "bob", UID: 1007, Nodes: "3", State: ledger.Failure, Status: 3, Command: "./app \x1b", Ends: []ledger.End{{Ranks: "0-1", Status: 3, Ended: true}},
		}),
		record(3, time.Hour, ledger.Record{User: "ada", Nodes: "0,2-3", State: ledger.Killed, Status: 137, Command: "./b", Reason: "job 3 was killed by its user", Ends: []ledger.End{{Ranks: "0"}}}),
		record(4, 25*time.Hour, ledger.Record{User: "ada", Nodes: "4", State: ledger.NodeLost, Status: 125, Command: "./b", Ends: []ledger.End{{Ranks: "0"}}}),
	)
	write("n", record(1, 30*time.Minute, ledger.Record{User: "ada", Nodes: "0", State: ledger.Down, Status: 125, Command: "./c", Ends: []ledger.End{{Ranks: "0-1", Signal: 9, Ended: true}}}))
	return base
}

func TestHistory(t *testing.T) {
	histories(t)
	for line, want := range map[string]string{
		"history": `JOB  USER  RANKS  NODES  STATE            ENDED                TIME   COMMAND
1    ada   2      0-1    completed        2026-11-25 13:41:35  1m30s  ./app <1>
2    bob   2      3      failed (3)       2026-11-25 13:42:35  1m30s  ./app ?
3    ada   2      0,2-3  killed (137)     2026-11-25 14:41:35  1m30s  ./b
4    ada   2      4      node-lost (125)  2026-11-26 14:41:35  1m30s  ./b
`,
		"history --all -n 3": `MACHINE  JOB  USER  RANKS  NODES  STATE            ENDED                TIME   COMMAND
n        1    ada   2      0      down (125)       2026-11-25 14:11:35  1m30s  ./c
m        3    ada   2      0,2-3  killed (137)     2026-11-25 14:41:35  1m30s  ./b
m        4    ada   2      4      node-lost (125)  2026-11-26 14:41:35  1m30s  ./b
`,
		"history --wide -n 3 --until 2026-11-26": `MACHINE  JOB  USER  RANKS  NODES  STATE         SUBMITTED            STARTED              ENDED                TIME   CPU TIME  REASON                            COMMAND
m        1    ada   2      0-1    completed     2026-11-25 13:40:05  2026-11-25 13:40:05  2026-11-25 13:41:35  1m30s  1.5s      -                                 ./app <1>
m        2    bob   2      3      failed (3)    2026-11-25 13:41:05  2026-11-25 13:41:05  2026-11-25 13:42:35  1m30s  0s        ranks 0-1 exited with status 3    ./app ?
m        3    ada   2      0,2-3  killed (137)  2026-11-25 14:40:05  2026-11-25 14:40:05  2026-11-25 14:41:35  1m30s  0s        job 3 was killed by its user      ./b
`,
		"history --wide -m n": `MACHINE  JOB  USER  RANKS  NODES  STATE       SUBMITTED            STARTED              ENDED                TIME   CPU TIME  REASON                            COMMAND
n        1    ada   2      0      down (125)  2026-11-25 14:10:05  2026-11-25 14:10:05  2026-11-25 14:11:35  1m30s  0s        ranks 0-1 were killed by SIGKILL  ./c
`,
	} {
		status, stdout, stderr := margaytest.Margay("", strings.Fields(line)...)
		if status != 0 || stderr != "" || squeezed(stdout) != squeezed(want) {
			t.Errorf("%s: status %d, %s\n%s", line, status, stderr, stdout)
		}
	}
}

// squeezed is a table without the width of its columns.
func squeezed(table string) string {
	var lines []string
	for line := range strings.Lines(table) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

// Each flag selects, and all of them together.
func TestHistorySelects(t *testing.T) {
	histories(t)
	for line, want := range map[string]string{
		"--user ada":                             "1 3 4",
		"--user nobody":                          "",
		"--user 1007":                            "2",
		"--user 0":                               "1 3 4",
		"--state failed,killed":                  "2 3",
		"--node node3":                           "2 3",
		"--node 1..2":                            "1 3",
		"--node 5-65000":                         "",
		"--job 3":                                "3",
		"-n 1":                                   "4",
		"-n 9":                                   "1 2 3 4",
		"--user ada -n 2":                        "3 4",
		"--since 2026-11-26":                     "4",
		"--since 2026-11-25T13:41:35":            "1 2 3 4",
		"--since 2026-11-25T13:41:36":            "2 3 4",
		"--until 2026-11-25T13:41:35":            "",
		"--until 2026-11-25T13:41:36":            "1",
		"--since 2026-11-25 --until 2026-11-26":  "1 2 3",
		"--user ada --node 3 --since 2026-11-25": "3",
		"-m n":                                   "1",
		"--all --node 0 --until 2026-11-25T14:30:00": "1 1",
	} {
		status, stdout, stderr := margaytest.Margay("", strings.Fields("history --json "+line)...)
		var jobs []string
		for text := range strings.Lines(stdout) {
			_, rest, _ := strings.Cut(text, `"job":`)
			job, _, _ := strings.Cut(rest, ",")
			jobs = append(jobs, job)
		}
		if got := strings.Join(jobs, " "); status != 0 || stderr != "" || got != want {
			t.Errorf("%s: status %d, %s; it has %s, not %s", line, status, stderr, got, want)
		}
	}
}

// The list of a machine that is up reports what its serve could not write so far.
func TestHistoryUnwritten(t *testing.T) {
	for unwritten, want := range map[uint32]string{0: "", 3: "margay: the history of machine m lacks jobs that are not yet written: 3\n"} {
		base := filepath.Join(t.TempDir(), "history")
		t.Setenv("MARGAY_STATE", filepath.Dir(base))
		if err := ledger.New(base, "m", ledger.MinSize).Append(&ledger.Record{Machine: "m", Run: "r", Job: 1}); err != nil {
			t.Fatal(err)
		}
		status, stdout, stderr := margaytest.Played(t, func(proto.Message) (proto.Message, error) {
			return &control.MachineStatus{Unwritten: unwritten}, nil
		}, "history", "--json")
		if status != 0 || stderr != want || strings.Count(stdout, "\n") != 1 {
			t.Errorf("%d unwritten: status %d, %q\n%s", unwritten, status, stderr, stdout)
		}
	}
}

func TestHistoryRefuses(t *testing.T) {
	base := histories(t)
	for line, want := range map[string]string{
		"--since soon":       "history: --since soon: it is a time before now such as 90m, 2h or 7d, or a date such as 2026-11-25",
		"--since -1h":        "history: --since -1h: it is a time before now",
		"--until 2026-13-01": "history: --until 2026-13-01: it is a time before now",
		"--state bad":        `history: --state bad: there is no state "bad": they are completed failed killed timeout node-lost down`,
		"--node rack":        `history: --node rack: "rack" is not a node`,
		"--job 0":            `history: --job 0: "0" is not a job`,
		"--user=":            "history: --user is empty",
		"-n 0":               "history: -n 0: it must be more than 0",
		"--all -m n":         "history: --all and -m exclude each other",
		"-m nosuch":          "machine nosuch: it has no history in " + base + "; margay history --all shows the jobs of other machines",
		"-m root:m":          "machine root:m: its history is for root alone, as margay history -m m; margay ps -m root:m --all shows its last jobs",
		"-m ../m":            "machine ../m: it has no history",
		"7":                  `history takes no arguments, but is given "7"`,
	} {
		status, stdout, stderr := margaytest.Margay("", strings.Fields("history "+line)...)
		margaytest.Wants(t, status, 125, stderr, want)
		if stdout != "" {
			t.Errorf("%s prints %q", line, stdout)
		}
	}
}

// What a history lacks is said.
func TestHistoryLacks(t *testing.T) {
	base := histories(t)
	f, err := os.OpenFile(filepath.Join(base, "n", "jobs.jsonl"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("{\"crc32c\":\"0"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := ledger.New(base, "n", ledger.MinSize).Append(&ledger.Record{Machine: "n", Run: "s", Job: 9, Lost: 7}); err != nil {
		t.Fatal(err)
	}
	status, stdout, stderr := margaytest.Margay("", "history", "-m", "n", "--json")
	want := "margay: the history of machine n has damaged lines, which are skipped: 1\nmargay: the history of machine n lacks jobs that could not be written: 7\n"
	if status != 0 || strings.Count(stdout, "\n") != 2 || stderr != want {
		t.Errorf("status %d, %s\n%s", status, stdout, stderr)
	}
}

// A history that cannot be read does not hide the others.
func TestHistoryUnreadable(t *testing.T) {
	base := histories(t)
	if err := os.Chmod(filepath.Join(base, "m"), 0o777); err != nil {
		t.Fatal(err)
	}
	status, stdout, stderr := margaytest.Margay("", "history", "--all", "--json")
	const want = "margay: the history of machine m is not complete: history: "
	if status != 0 || strings.Count(stdout, "\n") != 1 || !strings.HasPrefix(stderr, want) {
		t.Errorf("status %d, %s\n%s", status, stdout, stderr)
	}
	status, _, stderr = margaytest.Margay("", "history")
	margaytest.Wants(t, status, 125, stderr, "can be written by others")
}
