package job_test

import (
	"path/filepath"
	"strings"
	"testing"

	"margay/cluster/control"
	"margay/tools/margay/margaytest"
)

func TestRunRefusesMPI(t *testing.T) {
	program := filepath.Join(t.TempDir(), "solve")
	margaytest.Compile(t, "int MPI_Init(void) { return 0; } int main(void) { return MPI_Init(); }", program, "-static")
	m := margaytest.Play(t, "m", margaytest.EndJob(&control.JobState{FirstFailed: control.None}))
	status, _, stderr := margaytest.Margay("", "run", "-n", "4", program)
	margaytest.Wants(t, status, 125, stderr, "run "+program, "MPI or PMI (MPI_Init) that does not work here yet", "each of the 4 ranks would take itself for the only one", "--force")
	if sent := m.Messages(); len(sent) != 0 {
		t.Errorf("serve was asked for %v", sent)
	}
	status, _, stderr = margaytest.Margay("", "run", "-n", "1", "--force", program)
	margaytest.Wants(t, status, 0, stderr)
}

// What Linux would not give to a process is refused before serve is asked, with the status that a
// shell has for that.
func TestRunRefusesLongStrings(t *testing.T) {
	m := margaytest.Play(t, "m", margaytest.EndJob(&control.JobState{FirstFailed: control.None}))
	status, _, stderr := margaytest.Margay("", "run", "sh", "-c", "true", strings.Repeat("x", 128<<10))
	margaytest.Wants(t, status, 126, stderr, "run sh: argument list too long: argument 3 is 131072 bytes, at most 131071 fit")
	t.Setenv("BIG", strings.Repeat("x", 2<<20))
	status, _, stderr = margaytest.Margay("", "run", "sh")
	margaytest.Wants(t, status, 126, stderr, "run sh: argument list too long: variable BIG is 2097156 bytes")
	if sent := m.Messages(); len(sent) != 0 {
		t.Errorf("serve was asked for %v", sent)
	}
}

// The error of a failed interpreter names the files that it may lack; Margay's own failures do not.
func TestRunNamesWhatLacks(t *testing.T) {
	for code, want := range map[int32]string{
		127: "rank 0 on node1 exited with status 127; dash finds no other programs on a node",
		1:   "rank 0 on node1 exited with status 1\n",
	} {
		margaytest.Play(t, "m", margaytest.EndJob(&control.JobState{ExitCode: code, Ranks: []*control.RankState{{Node: 1, Ended: true, Exit: &control.ExitStatus{Code: code}}}}))
		status, _, stderr := margaytest.Margay("", "run", "--stdin", "none", "dash", "-c", "ls")
		margaytest.Wants(t, status, int(code), stderr, want)
	}
}
