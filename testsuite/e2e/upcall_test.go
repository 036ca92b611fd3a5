package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// upcallProgram compiles the program that upcalls interrupt in the middle of all kinds of work.
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

// isWhole reports whether each upcall reached each rank once.
func isWhole(r result, n int) bool {
	for rank := 1; rank < 4; rank++ {
		if !strings.Contains(r.stdout, fmt.Sprintf("rank %d: %d upcalls, sum %d\n", rank, n, n*(n-1)/2)) {
			return false
		}
	}
	return r.code == 0
}

// Each upcall arrives once, in processes that compute with all registers and use malloc, and their
// results stay the same bit for bit. TestManyUpcalls in lib/c/ctest interrupts more often.
func TestUpcalls(t *testing.T) {
	m := use(t, "hosted")
	program := upcallProgram(t)
	const n = 100_000
	r := upcallJob(t, m, program, n, 0).wait()
	if !isWhole(r, n) {
		t.Fatal(r)
	}
	t.Log(r.stdout)
}

// When a node kernel is killed, each upcall of its job is handled once, or the job ends with the
// reason.
func TestNodeKernelKilledUnderUpcalls(t *testing.T) {
	m := use(t, "hosted")
	program := upcallProgram(t)
	m.killUnderMessages(func(often bool) (*command, func(result) bool) {
		n, pause := 5, 300_000
		if often {
			n, pause = 1000, 1000
		}
		c := upcallJob(t, m, program, n, pause)
		c.awaitOutput("sending\n")
		return c, func(r result) bool { return isWhole(r, n) }
	})
}

// Messages are forwarded to their owners, from whichever rank they were sent to and with their true
// source, before a barrier is passed. A Go program takes upcalls while it computes.
func TestForwardAndUpcallInGo(t *testing.T) {
	onBoth(t, func(t *testing.T, m *machine) {
		messages := 2000 // to each rank
		if !m.hosted() {
			messages = 400 // an emulated processor is slow
		}
		spread := object(t, "message/spread")
		ranks := m.nodes * m.cores
		r := m.run(0, "-n", m.all(), "--with", spread, probe(), "spread", spread, fmt.Sprint(messages))
		for rank := range ranks {
			if !strings.Contains(r.stdout, fmt.Sprintf("rank %d owns %d messages, %d of each rank\n", rank, messages, messages/ranks)) {
				t.Fatal(r)
			}
		}
		upcall := object(t, "message/upcall")
		r = m.run(0, "-n", m.all(), "--with", upcall, probe(), "upcalls", upcall, fmt.Sprint(messages))
		for rank := 1; rank < ranks; rank++ {
			if !strings.Contains(r.stdout, fmt.Sprintf("rank %d was interrupted for %d messages\n", rank, messages)) {
				t.Fatal(r)
			}
		}
	})
}
