package job_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/tools/margay/margaytest"
)

// ps JOB shows what ranks that run have used so far, as top does.
func TestPsOfRunningJob(t *testing.T) {
	status, stdout, stderr := margaytest.Played(t, func(question proto.Message) (proto.Message, error) {
		switch question.(type) {
		case *control.ListJobs:
			return &control.Jobs{Jobs: []*control.JobSummary{{Job: 5, User: "ada", Command: "./app", Phase: control.JobPhase_JOB_RUNNING, RankStates: []*control.RankState{
				{Rank: 0, Node: 1, Core: 2},
				{Rank: 1, Node: 2, Core: 1, Ended: true, Exit: &control.ExitStatus{Code: 3, Usage: &control.Usage{UserNs: 2e9, MajorFaults: 7, Preemptions: 8}}},
				{Rank: 2, Node: 3, Core: 1},
			}}}}, nil
		case *control.TakeSamples:
			return &control.Samples{Nodes: []*control.NodeSample{{Node: 1, Ranks: []*control.RankSample{
				{Job: 4, Rank: 0, CpuNs: 9e9}, {Job: 5, Rank: 0, CpuNs: 1_234_567_890, MajorFaults: 3, Involuntary: 42},
			}}}}, nil
		}
		return nil, nil
	}, "ps", "5")
	want := `job 5 of ada: ./app, running
RANK  NODE   CORE  CPU TIME  MAJOR FAULTS  PREEMPTED  STATE
0     node1  2     1.235s    3             42         running
1     node2  1     2s        7             8          exited with status 3
2     node3  1     -         -             -          running
`
	if status != 0 || stdout != want {
		t.Errorf("status %d, %s\n%s", status, stderr, stdout)
	}
}

// No rank of a job that has ended is said to run, also when how it ended has not been reported, as
// when its margay run was killed.
func TestPsOfEndedJob(t *testing.T) {
	status, stdout, stderr := margaytest.Played(t, func(question proto.Message) (proto.Message, error) {
		return &control.Jobs{Jobs: []*control.JobSummary{{
			Job: 5, User: "ada", Command: "./app", Phase: control.JobPhase_JOB_DONE, ExitCode: 125, Error: "its margay run is gone",
			RankStates: []*control.RankState{{Rank: 0, Node: 1, Core: 2}},
		}}}, nil
	}, "ps", "5")
	want := `job 5 of ada: ./app, ended (125)
its margay run is gone
RANK  NODE   CORE  CPU TIME  MAJOR FAULTS  PREEMPTED  STATE
0     node1  2     -         -             -          ended with the job
`
	if status != 0 || stdout != want {
		t.Errorf("status %d, %s\n%s", status, stderr, stdout)
	}
}

// Jobs that wait come after the others, with their reasons below.
func TestPsOfQueue(t *testing.T) {
	waiting := func(ranks uint32, command, why string) *control.WaitingJob {
		return &control.WaitingJob{User: "ada", Command: command, Ranks: ranks, SinceNs: time.Now().Add(-time.Minute).UnixNano(), Why: why}
	}
	status, stdout, stderr := margaytest.Played(t, func(proto.Message) (proto.Message, error) {
		return &control.Jobs{
			Jobs: []*control.JobSummary{{Job: 5, User: "ada", Command: "./app", Ranks: 2, Nodes: []uint32{0}, Phase: control.JobPhase_JOB_RUNNING, StartNs: time.Now().UnixNano()}},
			Waiting: []*control.WaitingJob{
				waiting(9, "./large", "waiting for cores: 9 ranks need 9"), waiting(1, "./small \x1b", "waiting for cores, behind 1 job"), waiting(1, "./odd", "why"), waiting(1, "./new", ""),
			},
		}, nil
	}, "ps")
	want := `JOB  USER  RANKS  NODES  STATE    TIME  COMMAND
5    ada   2      0      running  0s    ./app
-    ada   9      -      waiting  1m0s  ./large
-    ada   1      -      waiting  1m0s  ./small ?
-    ada   1      -      waiting  1m0s  ./odd
-    ada   1      -      waiting  1m0s  ./new
./large waits for cores: 9 ranks need 9
./small ? waits for cores, behind 1 job
./odd: why
`
	if status != 0 || stdout != want {
		t.Errorf("status %d, %s\n%s", status, stderr, stdout)
	}
}

// Commands that say nothing when all is well say with -v what they have done.
func TestVerbose(t *testing.T) {
	for line, want := range map[string]string{
		"kill 5":                          "margay: SIGTERM is sent to all ranks of job 5\n",
		"kill 5 -s 10 --rank 3":           "margay: SIGUSR1 is sent to rank 3 of job 5\n",
		"kill --force 5":                  "margay: job 5 is ended\n",
		"machine restart 2":               "margay: the kernel of node2 was started again\n",
		"machine cores --all on --node 1": "margay: core 0 computes for applications, on node1: on\n",
		"machine cores --message-core on": "margay: the last core handles messages and nothing else, on all nodes: on\n",
	} {
		for flags, want := range map[string]string{"": "", " -v": want} {
			done := func(proto.Message) (proto.Message, error) { return &control.Done{}, nil }
			if status, stdout, stderr := margaytest.Played(t, done, strings.Fields(line+flags)...); status != 0 || stdout != "" || stderr != want {
				t.Errorf("%s%s: status %d, %q, %q", line, flags, status, stdout, stderr)
			}
		}
	}
}

// margay logs prints at the end why the job failed. Its own status is about the output only.
func TestLogsOfFailedJob(t *testing.T) {
	margaytest.Play(t, "m", func(c *control.Conn, f *control.Frame) {
		switch f.Message().(type) {
		case *control.ListJobs:
			c.Answer(f, &control.Jobs{Jobs: []*control.JobSummary{{
				Job: 5, Ranks: 1, Detached: true, Phase: control.JobPhase_JOB_DONE, ExitCode: 3,
				RankStates: []*control.RankState{{Node: 1, Ended: true, Exit: &control.ExitStatus{Code: 3}}},
			}}}, nil)
		case *control.Attach:
			_ = c.Send(&control.Record{Job: 5, Seq: 1, Stream: control.Stream_STREAM_STDOUT, Data: []byte("hello\n")})
			c.Answer(f, &control.Done{}, nil)
		}
	})
	status, stdout, stderr := margaytest.Margay("", "logs", "5")
	if want := "margay: job 5 ended with status 3: rank 0 on node1 exited with status 3\n"; status != 0 || stdout != "hello\n" || stderr != want {
		t.Errorf("status %d, %q, %q", status, stdout, stderr)
	}
	if status, stdout, stderr := margaytest.Margay("", "logs", "-q", "5"); status != 0 || stdout != "hello\n" || stderr != "" {
		t.Errorf("-q: status %d, %q, %q", status, stdout, stderr)
	}
}

func TestLogsRemove(t *testing.T) {
	for line, want := range map[string]string{
		"logs --remove 5":           "",
		"logs --remove -q 5":        "",
		"logs --remove -v -q 5":     "margay: logs: -q and -v exclude each other\n",
		"logs --remove -v 5":        "margay: the output of job 5 is removed, 2 KiB\n",
		"logs --remove --all -v":    "margay: the output of jobs 5,7-8 is removed, 2 KiB\n",
		"logs --remove -v 8 99":     "margay: there is no job 99\n",
		"logs --remove":             "margay: logs: JOB is missing: margay logs JOB [flags]\n",
		"logs --all":                "margay: logs: --all is for --remove: margay logs --remove --all\n",
		"logs --remove -l 5":        "margay: logs: --label is for output that is shown, and --remove shows none\n",
		"logs --remove --all 5":     "margay: logs takes no arguments, but is given \"5\": margay logs JOB [flags]\n",
		"logs 5 6":                  "margay: logs: \"6\" is one argument too many: margay logs JOB [flags]\n",
		"logs --remove 5 something": "margay: \"something\" is not a job: jobs have numbers (margay ps)\n",
	} {
		status, stdout, stderr := margaytest.Played(t, func(question proto.Message) (proto.Message, error) {
			switch jobs := question.(*control.RemoveOutput).Jobs; len(jobs) {
			case 0:
				return &control.OutputRemoved{Jobs: []uint32{5, 7, 8}, Bytes: 2048}, nil
			case 1:
				return &control.OutputRemoved{Jobs: jobs, Bytes: 2048}, nil
			}
			return nil, control.Failf(control.Code_CODE_NOT_FOUND, "there is no job 99")
		}, strings.Fields(line)...)
		if ok := want == "" || strings.HasSuffix(want, "KiB\n"); (status == 0) != ok || stdout != "" || stderr != want {
			t.Errorf("%s: status %d, %q, %q", line, status, stdout, stderr)
		}
	}
}

// margay logs goes on where it was when serve is started again, in the middle of a line and of a
// frame, and prints nothing twice.
func TestLogsGoOn(t *testing.T) {
	says := func(seq uint64, text string) *control.Record {
		return &control.Record{Job: 5, Rank: uint32(seq % 2), Seq: seq, Stream: control.Stream_STREAM_STDOUT, Data: []byte(text)}
	}
	records := []*control.Record{says(1, "a\n"), says(2, "b"), says(7, "c\n"), says(8, "B\n"), says(9, "d\n")}
	attached := 0
	margaytest.Play(t, "m", func(c *control.Conn, f *control.Frame) {
		switch f.Message().(type) {
		case *control.ListJobs:
			c.Answer(f, &control.Jobs{Jobs: []*control.JobSummary{{Job: 5, Ranks: 2, Detached: true, Phase: control.JobPhase_JOB_DONE}}}, nil)
		case *control.Attach:
			attached++
			last := attached == 3
			for _, r := range records[:min(attached*3-1, len(records))] {
				_ = c.Send(r)
			}
			if last {
				c.Answer(f, &control.Done{}, nil)
				return
			}
			c.Flush(margaytest.Patience)
			_, _ = c.NetConn().Write([]byte{0, 0, 16, 0, 1}) // a frame of 4 KiB begins
			go c.Close()
		}
	})
	status, stdout, stderr := margaytest.Margay("", "logs", "5")
	if status != 0 || stdout != "a\nc\nbB\nd\n" || strings.Count(stderr, "margay: the connection to serve is lost; looking for it\n") != 2 {
		t.Errorf("status %d, %q, %q", status, stdout, stderr)
	}
}

// What a job and its nodes say does not reach the terminal as it is.
func TestPsIsPrintable(t *testing.T) {
	lie := "\x1b[31mESC\x1b]0;pwned\x07\r\x1b[2J\u202e"
	answer := func(question proto.Message) (proto.Message, error) {
		switch question.(type) {
		case *control.ListJobs:
			return &control.Jobs{Jobs: []*control.JobSummary{{Job: 5, User: lie, Command: lie + "\n", Error: "why:\n    " + lie, Missing: lie, Phase: control.JobPhase_JOB_DONE,
				RankStates: []*control.RankState{{Ended: true, Exit: &control.ExitStatus{Reason: lie}}}, Unkept: []*control.Unkept{{Files: 1, Names: []string{lie}}}}}}, nil
		case *control.ListNodes:
			return &control.Nodes{Nodes: []*control.NodeState{{Reason: lie + "\n    " + lie, Remedy: lie, Info: &control.NodeInfo{Kernel: lie, Profile: lie, Lacks: []string{lie}}}}}, nil
		}
		return nil, control.Failf(control.Code_CODE_FAILED, "%s", lie)
	}
	for _, line := range []string{"ps 5", "ps --all", "nodes", "kill 5", "ext list", "nodes --noise=1s"} {
		_, stdout, stderr := margaytest.Played(t, answer, strings.Fields(line)...)
		if text := stdout + stderr; strings.ContainsAny(text, "\x1b\x07\r\u202e") || !strings.Contains(text, "ESC") && line != "ps 5" {
			t.Errorf("%s: %q", line, text)
		}
		if line == "ps 5" && (!strings.HasPrefix(stdout, "job 5 of ?[31mESC") || !strings.Contains(stdout, "why:\n    ?[31m")) {
			t.Errorf("%s: %q", line, stdout)
		}
	}
}
