//go:build soak

package soak

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Jobs end well and no line is lost or doubled when serve is killed once in each, at a random
// moment.
func TestServeKilled(t *testing.T) {
	rng := random(t)
	m := up(t, "--substrate", "hosted", "--nodes", "4", "--cores", "2")
	probe := build(t, m.dir, "probe")
	const ranks, lines = 8, 20
	var kills atomic.Int32
	for job := range 10 {
		killed := make(chan struct{})
		after := time.Duration(rng.IntN(1200)) * time.Millisecond
		go func() {
			defer close(killed)
			time.Sleep(after)
			if m.killServe() {
				kills.Add(1)
			}
		}()
		r := m.margay("run", "-n", strconv.Itoa(ranks), probe, "count", strconv.Itoa(lines), "50")
		<-killed
		if r.code != 0 {
			t.Fatalf("job %d, serve killed after %v: %v", job, after, r)
		}
		for i := range ranks * lines {
			line := fmt.Sprintf("out %d %d\n", i/lines, i%lines)
			if got := strings.Count("\n"+string(r.stdout), "\n"+line); got != 1 {
				t.Fatalf("job %d, serve killed after %v: %q is there %d times: %v", job, after, line, got, r)
			}
		}
	}
	if kills.Load() == 0 {
		t.Error("serve was never killed")
	}
}

// killServe kills the serve of the machine if it answers, and reports whether it did. The holder
// starts another.
func (m *machine) killServe() bool {
	pid := m.servePID()
	return pid > 1 && unix.Kill(pid, unix.SIGKILL) == nil
}

// servePID returns the PID of the machine's serve, 0 if it does not answer.
func (m *machine) servePID() int {
	var status struct {
		ServePid int `json:"serve_pid"`
	}
	if r := m.margay("machine", "status", "--json"); r.code != 0 || json.Unmarshal(r.stdout, &status) != nil {
		return 0
	}
	return status.ServePid
}
