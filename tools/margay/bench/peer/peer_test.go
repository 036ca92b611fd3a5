package peer

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"margay/tools/margay/bench/fabric"
)

// limit bounds each test.
const limit = time.Minute

// runs lets a contender run a case for a moment.
func runs(t *testing.T, c fabric.Contender, operation string, bytes int) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	r, err := c.Run(ctx, fabric.Case{Operation: operation, Bytes: bytes}, time.Millisecond)
	if err == nil && (r.Repetitions < 1 || len(r.Times) == 0 || r.CPU == 0) {
		t.Errorf("%s: %s reports %+v", c.Name, operation, r)
	}
	return err
}

// Each operation that sockets have gives a report, and the others are absent.
func TestSockets(t *testing.T) {
	program := filepath.Join(t.TempDir(), "sockets")
	if text, err := exec.Command("gcc", "-O2", "-o", program, "programs/measure.c", "programs/sockets.c").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, text)
	}
	contenders := Sockets(program, nil)
	if len(contenders) != 4 {
		t.Errorf("%d contenders", len(contenders))
	}
	for _, c := range contenders {
		for _, operation := range []string{"roundtrip", "rate", "barrier"} {
			if err := runs(t, c, operation, 64); err != nil {
				t.Errorf("%s: %s: %v", c.Name, operation, err)
			}
		}
		var absent fabric.Absent
		if err := runs(t, c, "put", 64); !errors.As(err, &absent) {
			t.Errorf("%s has put: %v", c.Name, err)
		}
		if err := runs(t, c, "rate", 1<<20); errors.As(err, &absent) == strings.HasPrefix(c.Name, "TCP") {
			t.Errorf("%s: messages of 1 MiB: %v", c.Name, err)
		}
	}
}

// The error of a program that fails has its reason.
func TestSocketsFail(t *testing.T) {
	for _, program := range []string{"/bin/false", filepath.Join(t.TempDir(), "missing")} {
		for _, c := range Sockets(program, nil) {
			if err := runs(t, c, "roundtrip", 64); err == nil || !strings.Contains(err.Error(), filepath.Base(program)) {
				t.Errorf("%s: %v", c.Name, err)
			}
		}
	}
}

// An MPI that is installed measures; the error names the packages of one that is not.
func TestMPI(t *testing.T) {
	for _, name := range MPINames() {
		m, err := FindMPI(context.Background(), name, t.TempDir())
		if err != nil {
			if !strings.Contains(err.Error(), "Debian packages") {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if m.Version == "unknown" {
			t.Errorf("%s has no version", name)
		}
		c := m.Contender(fabric.Place{Nodes: 1, Ranks: 2}, nil)
		for _, operation := range []string{"roundtrip", "put", "allreduce"} {
			if err := runs(t, c, operation, 8); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %s: %v", name, operation, err)
			}
		}
	}
	if _, err := FindMPI(context.Background(), "LAM", t.TempDir()); err == nil {
		t.Error("LAM is known")
	}
	// Without its headers, an MPI is installed in part: its compiler is in another package.
	programs := t.TempDir()
	for name, text := range map[string]string{"mpicc.openmpi": "exec gcc -nostdinc \"$@\"", "mpirun.openmpi": "echo 4.1"} {
		if err := os.WriteFile(filepath.Join(programs, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", programs+":"+os.Getenv("PATH"))
	_, err := FindMPI(context.Background(), "Open MPI", t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "not installed as a whole (Debian packages openmpi-bin and libopenmpi-dev): ") {
		t.Errorf("an Open MPI without headers: %v", err)
	}
}

// A program that is not installed is named together with its packages.
func TestNeeds(t *testing.T) {
	if err := needs("some package", "sh"); err != nil {
		t.Error(err)
	}
	if err := needs("some package", "sh", "no-such-program"); err == nil || !strings.Contains(err.Error(), "no-such-program is not installed (Debian packages some package)") {
		t.Error(err)
	}
}

// A command's error has the first line that says something.
func TestFailed(t *testing.T) {
	_, err := run(command(context.Background(), "sh", "-c", "echo ---- >&2; echo; echo reason >&2; echo more >&2; exit 3"))
	if err == nil || !strings.HasSuffix(err.Error(), "exit status 3: reason") {
		t.Error(err)
	}
	if _, err := run(command(context.Background(), filepath.Join(t.TempDir(), "missing"))); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
