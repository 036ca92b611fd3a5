package job_test

import (
	"path/filepath"
	"testing"

	"margay/cluster/control"
	"margay/tools/margay/margaytest"
)

// A program of MPICH, or one that the user says is one, is run with PMI 1; a flag that is written
// with one dash is explained.
func TestRunMPI(t *testing.T) {
	program := filepath.Join(t.TempDir(), "solve")
	margaytest.Compile(t, "int PMI_Init(void) { return 0; } int MPI_Init(void) { return PMI_Init(); } int main(void) { return MPI_Init(); }", program, "-static")
	for _, test := range []struct {
		flag    string
		program string
		mpi     control.MPI
	}{
		{"--mpi=auto", program, control.MPI_MPI_PMI1},
		{"--mpi=none", program, control.MPI_MPI_NONE},
		{"--mpi=pmi1", "/bin/true", control.MPI_MPI_PMI1},
		{"--mpi=auto", "/bin/true", control.MPI_MPI_NONE},
	} {
		m := margaytest.Play(t, "m", margaytest.EndJob(&control.JobState{FirstFailed: control.None}))
		status, _, stderr := margaytest.Margay("", "run", test.flag, test.program)
		margaytest.Wants(t, status, 0, stderr)
		for _, sent := range m.Messages() {
			if r, ok := sent.(*control.RunRequest); ok && r.Spec.Mpi != test.mpi {
				t.Errorf("%s %s: %v", test.flag, test.program, r.Spec.Mpi)
			}
		}
	}
	status, _, stderr := margaytest.Margay("", "run", "--mpi=ompi", "/bin/true")
	margaytest.Wants(t, status, 125, stderr, "--mpi=ompi: it is pmi1, none or auto")
	status, _, stderr = margaytest.Margay("", "run", "-mpi=none", "/bin/true")
	margaytest.Wants(t, status, 125, stderr, `"pi=none" is not a name for a machine`, "two dashes: --mpi=none")
}
