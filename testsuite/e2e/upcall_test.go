package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// upcallProgram compiles the program that is interrupted in the middle of all that a program does.
func upcallProgram(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "upcall")
	out, err := exec.Command("gcc", "-O2", "-static", "-I", "../../lib/c", "../../lib/c/ctest/testdata/upcall.c", filepath.Join(bin, "libmargay.a"),
		"-lm", "-lpthread", "-o", program).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// upcallJob runs the program with n upcalls for each of 3 ranks.
func upcallJob(t *testing.T, m *machine, program string, n, microseconds int) *command {
	t.Helper()
	upcall := object(t, "message/upcall")
	return m.start("run", "-n", "4", "--with", upcall, program, "job", fmt.Sprint(n), upcall, fmt.Sprint(microseconds))
}

// isWhole reports whether each upcall came once to each rank.
func isWhole(r result, n int) bool {
	for rank := 1; rank < 4; rank++ {
		if !strings.Contains(r.stdout, fmt.Sprintf("rank %d: %d upcalls, sum %d\n", rank, n, n*(n-1)/2)) {
			return false
		}
	}
	return r.code == 0
}

// Upcalls come, each once, into processes that compute with all registers that there are and use malloc, whose results are the same
// bit for bit.
func TestUpcalls(t *testing.T) {
	program := upcallProgram(t)
	onBoth(t, func(t *testing.T, m *machine) {
		n := 20_000
		if m.hosted() {
			n = 1_000_000
		}
		r := upcallJob(t, m, program, n, 0).wait()
		if !isWhole(r, n) {
			t.Fatal(r)
		}
		t.Log(r.stdout)
	})
}

// When a node kernel is killed meanwhile, its job goes on with each upcall handled once, or it ends and says why. In every other job
// messages are hardly ever under way, so that not all of these can be lost.
func TestNodeKernelKilledUnderUpcalls(t *testing.T) {
	program := upcallProgram(t)
	m := use(t, "hosted")
	lost, whole := 0, 0
	for i := range 6 {
		n, pause := 1000, 1000
		if i%2 == 1 {
			n, pause = 10, 300_000
		}
		m.awaitUp()
		c := upcallJob(t, m, program, n, pause)
		c.awaitOutput("sending\n")
		time.Sleep(200 * time.Millisecond)
		kernels := m.nodeKernels()
		kill(t, kernels[i%len(kernels)])
		r := c.wait()
		switch {
		case isWhole(r, n):
			whole++
		case r.code == 125 && strings.Contains(r.stderr, "lost when"):
			lost++
		default:
			t.Fatal(r)
		}
	}
	t.Logf("%d jobs went on, %d lost a message and were ended", whole, lost)
	if whole == 0 {
		t.Error("no job went on")
	}
	m.usable()
}

// Messages go on to their owners, from whichever rank they were sent to and with their true source, before a barrier is passed; and
// a Go program takes upcalls while it computes.
func TestForwardAndUpcallInGo(t *testing.T) {
	onBoth(t, func(t *testing.T, m *machine) {
		spread := object(t, "message/spread")
		ranks := m.nodes * m.cores
		r := m.run(0, "-n", m.all(), "--with", spread, probe(), "spread", spread, "2000")
		for rank := range ranks {
			if !strings.Contains(r.stdout, fmt.Sprintf("rank %d owns 2000 messages, %d of each rank\n", rank, 2000/ranks)) {
				t.Fatal(r)
			}
		}
		upcall := object(t, "message/upcall")
		r = m.run(0, "-n", m.all(), "--with", upcall, probe(), "upcalls", upcall, "2000")
		for rank := 1; rank < ranks; rank++ {
			if !strings.Contains(r.stdout, fmt.Sprintf("rank %d was interrupted for 2000 messages\n", rank)) {
				t.Fatal(r)
			}
		}
	})
}
