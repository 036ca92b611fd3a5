//go:build soak

package soak

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// runs is the number of runs in a round: MARGAY_RUNS, or the given number.
func runs(t *testing.T, otherwise int) int {
	t.Helper()
	text := os.Getenv("MARGAY_RUNS")
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("MARGAY_RUNS=%s: %v", text, err)
	}
	return n
}

// No output of a rank is lost when its reader stalls around the end of the rank. With these sizes
// the journal of the node is just full at that time.
func TestReaderStandsStill(t *testing.T) {
	readersStandStill(t, runs(t, 40), "--substrate", "hosted", "--nodes", "2", "--cores", "4")
}

// The same on virtual nodes.
func TestReaderStandsStillVirtual(t *testing.T) {
	readersStandStill(t, runs(t, 4), "--substrate", "qemu", "--nodes", "2", "--cores", "2")
}

func readersStandStill(t *testing.T, runs int, flags ...string) {
	rng := random(t)
	m := up(t, flags...)
	probe := build(t, m.dir, "probe")
	const together = 4
	begun := time.Now()
	for left := runs; left > 0 && !t.Failed(); left -= together {
		var jobs sync.WaitGroup
		for range min(left, together) {
			size := 1_000_000 + rng.IntN(300_000)
			stall := time.Duration(rng.IntN(3000)) * time.Millisecond
			jobs.Go(func() { m.stalled(probe, size, stall) })
		}
		jobs.Wait()
	}
	m.idle()
	t.Logf("%d runs in %v", runs, time.Since(begun).Round(time.Second))
}

// stalled runs a job that prints size bytes, and begins to read them after some time.
func (m *machine) stalled(probe string, size int, stall time.Duration) {
	cmd, cancel := m.command("run", "-n", "1", "--stdin", "none", probe, "spew", strconv.Itoa(size))
	defer cancel()
	reader, writer, err := os.Pipe()
	if err != nil {
		m.t.Error(err)
		return
	}
	defer reader.Close()
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = writer, &stderr
	err = cmd.Start()
	writer.Close()
	if err != nil {
		m.t.Error(err)
		return
	}
	time.Sleep(stall)
	var got bytes.Buffer
	_, readErr := got.ReadFrom(reader)
	if err := cmd.Wait(); err != nil || readErr != nil || stderr.Len() > 0 {
		m.t.Errorf("%d bytes, reader stands still for %v: %v, %v\n%s", size, stall, err, readErr, &stderr)
	}
	var want bytes.Buffer
	for i := 0; want.Len() < size; i++ {
		fmt.Fprintf(&want, "%015d\n", i)
	}
	if !bytes.Equal(got.Bytes(), want.Bytes()[:size]) {
		m.t.Errorf("%d bytes, reader stands still for %v: %d bytes came", size, stall, got.Len())
	}
}

// idle fails the test unless all cores of the machine are free.
func (m *machine) idle() {
	m.t.Helper()
	var status struct {
		Cores     int `json:"cores"`
		FreeCores int `json:"free_cores"`
	}
	if r := m.margay("machine", "status", "--json"); r.code != 0 || json.Unmarshal(r.stdout, &status) != nil || status.Cores == 0 || status.FreeCores != status.Cores {
		m.t.Errorf("cores are taken: %v", r)
	}
}

// No line is lost or doubled, no job hangs and no core is kept when serve is killed just before the
// last of a job's output is printed.
func TestServeKilledAtTheEnd(t *testing.T) {
	rng := random(t)
	m := up(t, "--substrate", "hosted", "--nodes", "4", "--cores", "2")
	probe := build(t, m.dir, "probe")
	const ranks, lines = 8, 3000
	want := make(map[string]int)
	total := 0
	for rank := range ranks {
		for i := range lines {
			line := countLine(rank, i)
			want[line]++
			total += len(line)
		}
	}
	begun := time.Now()
	n := runs(t, 20)
	for job := 0; job < n && !t.Failed(); job++ {
		m.killedAt(job, probe, want, total-rng.IntN(total/10), lines)
	}
	m.idle()
	t.Logf("%d runs in %v", n, time.Since(begun).Round(time.Second))
}

// countLine is a line of probe wide.
func countLine(rank, i int) string {
	return fmt.Sprintf("out %d %d %s\n", rank, i, strings.Repeat(".", 30))
}

// killedAt runs a job, and kills serve after a number of bytes of its output.
func (m *machine) killedAt(job int, probe string, want map[string]int, at, lines int) {
	m.t.Helper()
	serve := m.servePID()
	if serve == 0 {
		m.t.Errorf("job %d: serve does not answer", job)
		return
	}
	cmd, cancel := m.command("run", "-n", "8", "--stdin", "none", probe, "wide", strconv.Itoa(lines))
	defer cancel()
	var stderr bytes.Buffer
	out := &trigger{at: at, do: func() { _ = unix.Kill(serve, unix.SIGKILL) }}
	cmd.Stdout, cmd.Stderr = out, &stderr
	if err := cmd.Run(); err != nil {
		m.t.Errorf("job %d, serve killed at byte %d: %v\n%s", job, at, err, &stderr)
		return
	}
	got := make(map[string]int)
	for line := range strings.Lines(out.got.String()) {
		got[line]++
	}
	for line := range want {
		if got[line] != 1 {
			m.t.Errorf("job %d, serve killed at byte %d: %q is there %d times", job, at, line, got[line])
			return
		}
	}
	if len(got) != len(want) {
		m.t.Errorf("job %d, serve killed at byte %d: %d lines that no rank has written", job, at, len(got)-len(want))
	}
	// The next kill is for the next serve.
	begun := time.Now()
	for pid := serve; pid == serve || pid == 0; pid = m.servePID() {
		if time.Since(begun) > commandTimeout {
			m.t.Errorf("job %d, serve killed at byte %d: no other serve came within %v", job, at, commandTimeout)
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// trigger is a buffer that calls a function once, after a number of bytes.
type trigger struct {
	got bytes.Buffer
	at  int
	do  func()
}

func (w *trigger) Write(p []byte) (int, error) {
	n, err := w.got.Write(p)
	if w.do != nil && w.got.Len() >= w.at {
		w.do()
		w.do = nil
	}
	return n, err
}
