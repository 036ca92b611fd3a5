package main

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"margay/cluster/control"
)

// compile makes a program of C source.
func compile(t *testing.T, source, out string, args ...string) {
	t.Helper()
	cmd := exec.Command("gcc", append([]string{"-x", "c", "-o", out, "-"}, args...)...)
	cmd.Stdin = bytes.NewBufferString(source)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, text)
	}
}

// endJob plays serve for a job that ends at once as end says.
func endJob(end *control.JobState) func(c *control.Conn, f *control.Frame) {
	end.Job, end.Phase = 5, control.JobPhase_JOB_DONE
	return func(c *control.Conn, f *control.Frame) {
		runJob(c, f)
		if chunk := f.GetFileChunk(); chunk.GetLast() {
			_ = c.Send(end)
		}
	}
}

func TestRunRefusesMPI(t *testing.T) {
	program := filepath.Join(t.TempDir(), "solve")
	compile(t, "int MPI_Init(void) { return 0; } int main(void) { return MPI_Init(); }", program, "-static")
	m := playMachine(t, "m", endJob(&control.JobState{FirstFailed: control.None}))
	status, _, stderr := margay("", "run", "-n", "4", program)
	wants(t, status, 125, stderr, "run "+program, "MPI or PMI (MPI_Init)", "each of the 4 ranks would believe itself to be the only one", "--force")
	if sent := m.messages(); len(sent) != 0 {
		t.Errorf("serve was asked for %v", sent)
	}
	status, _, stderr = margay("", "run", "-n", "1", "--force", program)
	wants(t, status, 0, stderr)
}

// What Linux would not give to a process is refused before serve is asked, with the status that a shell has for that.
func TestRunRefusesLongStrings(t *testing.T) {
	m := playMachine(t, "m", endJob(&control.JobState{FirstFailed: control.None}))
	status, _, stderr := margay("", "run", "sh", "-c", "true", strings.Repeat("x", 128<<10))
	wants(t, status, 126, stderr, "run sh: argument list too long: argument 3 is 131072 bytes, at most 131071 fit")
	t.Setenv("BIG", strings.Repeat("x", 2<<20))
	status, _, stderr = margay("", "run", "sh")
	wants(t, status, 126, stderr, "run sh: argument list too long: variable BIG is 2097156 bytes")
	if sent := m.messages(); len(sent) != 0 {
		t.Errorf("serve was asked for %v", sent)
	}
}

// A failed interpreter is told what it may lack; Margay's own failures are not.
func TestRunNamesWhatLacks(t *testing.T) {
	for code, want := range map[int32]string{
		127: "rank 0 on node1 exited with status 127; dash finds no other programs on a node",
		1:   "rank 0 on node1 exited with status 1\n",
	} {
		playMachine(t, "m", endJob(&control.JobState{ExitCode: code, Ranks: []*control.RankState{{Node: 1, Ended: true, Exit: &control.ExitStatus{Code: code}}}}))
		status, _, stderr := margay("", "run", "--stdin", "none", "dash", "-c", "ls")
		wants(t, status, int(code), stderr, want)
	}
}
