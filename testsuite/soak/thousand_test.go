//go:build soak

package soak

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// environment returns a number from the environment.
func environment(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%s: want a number from 1 on", name, text)
	}
	return n
}

// nodesEach is how many nodes a processor of this host carries without making the test last.
const nodesEach = 32

// usualNodes bounds the number of nodes unless MARGAY_NODES sets it.
const usualNodes = 250

// A machine of MARGAY_NODES hosted nodes, by default nodesEach for each processor and at most
// usualNodes, runs a program of 8 MiB on each, and then jobs while MARGAY_KILLS nodes, node kernels
// and serves are killed at random. Each job ends well, or because of the end of a node; no line is
// lost or doubled, no job hangs and no core is kept. Nothing is left of the machine.
func TestThousandNodes(t *testing.T) {
	rng := random(t)
	nodes, kills := environment(t, "MARGAY_NODES", min(usualNodes, nodesEach*runtime.NumCPU())), environment(t, "MARGAY_KILLS", 100)
	begun := time.Now()
	m := up(t, "-q", "--substrate", "hosted", "--nodes", strconv.Itoa(nodes), "--cores", "1")
	t.Logf("%d nodes are up after %v", nodes, time.Since(begun).Round(100*time.Millisecond))
	probe := build(t, m.dir, "probe")
	m.everyRank(nodes, probe)
	m.everyRank(nodes, enlarged(t, m.dir, probe, rng))

	storm := &storm{machine: m, probe: probe, killed: make(map[string]int)}
	over := make(chan struct{})
	var jobs sync.WaitGroup
	stop := sync.OnceFunc(func() { close(over); jobs.Wait() })
	defer stop() // also when the test fails before
	for range 4 {
		seed := rng.Uint64()
		jobs.Go(func() { storm.load(rand.New(rand.NewPCG(seed, 0)), nodes, over) })
	}
	for range kills {
		storm.kill(rng, nodes)
		time.Sleep(time.Duration(rng.IntN(500)) * time.Millisecond)
	}
	stop()
	t.Logf("%d kills; %d jobs ended well, %d with a node", kills, storm.well, storm.lost)
	if storm.well == 0 {
		t.Error("no job ended well")
	}
	m.awaitUp(nodes)
	m.idle()
	m.everyRank(nodes, probe)

	holder, _ := m.pids()
	all := family(holder)
	begun = time.Now()
	m.ended = true
	if r := m.margay("machine", "down"); r.code != 0 {
		t.Errorf("machine down: %v", r)
	}
	t.Logf("the machine is down after %v", time.Since(begun).Round(100*time.Millisecond))
	left := all
	for begun := time.Now(); len(left) > 0 && time.Since(begun) < 10*time.Second; time.Sleep(100 * time.Millisecond) {
		left = slices.DeleteFunc(left, func(pid int) bool { return commandLine(pid) == "" }) // also a zombie
	}
	if len(left) > 0 {
		t.Errorf("processes of the machine are left: %v", left)
	}
	if entries, err := filepath.Glob(filepath.Join(m.dir, "default*")); err != nil || len(entries) > 0 {
		t.Errorf("files of the machine are left: %v, %v", entries, err)
	}
	if mounts, err := os.ReadFile("/proc/self/mounts"); err != nil || strings.Contains(string(mounts), m.dir) {
		t.Errorf("mounts of the machine are left, or %v:\n%s", err, mounts)
	}
}

// enlarged returns a copy of a program with so many random bytes that it has 8 MiB.
func enlarged(t *testing.T, dir, program string, rng *rand.Rand) string {
	t.Helper()
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	for len(text) < 8<<20 {
		text = append(text, byte(rng.Uint32()))
	}
	large := filepath.Join(dir, "large")
	if err := os.WriteFile(large, text, 0o755); err != nil {
		t.Fatal(err)
	}
	return large
}

// everyRank runs a rank on each node.
func (m *machine) everyRank(nodes int, probe string) {
	m.t.Helper()
	begun := time.Now()
	r := m.margay("run", "--wait=2m", "-n", strconv.Itoa(nodes), probe, "hello")
	if r.code != 0 || strings.Count(string(r.stdout), "\n") != nodes {
		m.t.Fatalf("%d ranks: %v", nodes, r)
	}
	for rank := range nodes {
		if line := fmt.Sprintf("rank %d of %d on node%d ", rank, nodes, rank); strings.Count(string(r.stdout), line) != 1 {
			m.t.Fatalf("%d ranks: %q is there %d times", nodes, line, strings.Count(string(r.stdout), line))
		}
	}
	m.t.Logf("%d ranks in %v", nodes, time.Since(begun).Round(10*time.Millisecond))
}

// awaitUp waits until all nodes are up.
func (m *machine) awaitUp(nodes int) {
	m.t.Helper()
	var last result
	for begun := time.Now(); time.Since(begun) < commandTimeout; time.Sleep(200 * time.Millisecond) {
		var list struct {
			Nodes []struct {
				State string `json:"state"`
			} `json:"nodes"`
		}
		last = m.margay("nodes", "--json")
		if last.code == 0 && json.Unmarshal(last.stdout, &list) == nil && len(list.Nodes) == nodes && strings.Count(string(last.stdout), `"health": "up"`) == nodes {
			return
		}
	}
	m.t.Errorf("not all nodes are up again after %v: %v", commandTimeout, m.margay("nodes"))
}

// mostKills is how often the PID 1 of a node is killed: one that ends more often stays dead.
const mostKills = 3

// storm is load on a machine whose processes are killed.
type storm struct {
	*machine
	probe string

	mu         sync.Mutex
	killed     map[string]int // how often, by node
	well, lost int            // jobs
}

// load runs jobs, one after the other, until over is closed.
func (s *storm) load(rng *rand.Rand, nodes int, over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		default:
		}
		s.job(1+rng.IntN(max(1, nodes>>(2+rng.IntN(6)))), 1+rng.IntN(60))
	}
}

// job runs a job that prints lines, and checks its end.
func (s *storm) job(ranks, lines int) {
	r := s.margay("run", "--wait=4m", "--stdin", "none", "-n", strconv.Itoa(ranks), s.probe, "count", strconv.Itoa(lines), "20")
	next := make([]int, ranks)
	for text := range strings.Lines(string(r.stdout)) {
		var rank, line int
		if n, err := fmt.Sscanf(text, "out %d %d\n", &rank, &line); n != 2 || err != nil || rank >= ranks || line != next[rank] {
			s.t.Errorf("%d ranks, %d lines: %q follows line %d: %v", ranks, lines, text, next[min(rank, ranks-1)]-1, r)
			return
		}
		next[rank]++
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case r.code == 0:
		s.well++
		if i := slices.IndexFunc(next, func(n int) bool { return n != lines }); i >= 0 {
			s.t.Errorf("%d ranks: %d of %d lines of rank %d: %v", ranks, next[i], lines, i, r)
		}
	case r.code == 125 && s.blamed(string(r.stderr)):
		s.lost++
	default:
		s.t.Errorf("%d ranks, %d lines: %v", ranks, lines, r)
	}
}

// blamed reports whether a killed node is the reason for the end of a job. The caller holds s.mu.
func (s *storm) blamed(text string) bool {
	for line := range strings.Lines(text) {
		node, why, _ := strings.Cut(strings.TrimPrefix(line, "margay: "), ": ")
		if s.killed[node] > 0 && (strings.HasPrefix(why, "its PID 1 ended") || strings.HasPrefix(why, "it was restarted and has lost the job")) {
			return true
		}
	}
	return false
}

// kill kills all processes of a random node, a node kernel, or serve.
func (s *storm) kill(rng *rand.Rand, nodes int) {
	holder, serve := s.pids()
	if rng.IntN(10) == 0 && serve > 1 {
		_ = unix.Kill(serve, unix.SIGKILL)
		return
	}
	node := rng.IntN(nodes)
	config := fmt.Sprintf("/node%d.json", node)
	for _, pid1 := range children(holder) {
		if !strings.Contains(commandLine(pid1), config) {
			continue
		}
		if rng.IntN(2) == 0 {
			s.mu.Lock()
			name := fmt.Sprintf("node%d", node)
			dies := s.killed[name] == mostKills // once more, and it would stay dead
			if !dies {
				s.killed[name]++
			}
			s.mu.Unlock()
			if dies {
				return
			}
			_ = unix.Kill(pid1, unix.SIGKILL) // and with it Linux kills all in its namespace
			return
		}
		for _, kernel := range children(pid1) {
			if strings.HasSuffix(commandLine(kernel), " kernel ") {
				_ = unix.Kill(kernel, unix.SIGKILL)
			}
		}
	}
}

// pids returns the processes of the holder and of serve, 0 if serve does not answer.
func (m *machine) pids() (holder, serve int) {
	m.t.Helper()
	text, err := os.ReadFile(filepath.Join(m.dir, "default", "lock"))
	if err != nil {
		m.t.Fatal(err)
	}
	if holder, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
		m.t.Fatal(err)
	}
	for _, pid := range children(holder) {
		if strings.Contains(commandLine(pid), " serve ") {
			serve = pid
		}
	}
	return holder, serve
}

// commandLine returns the words of a process, with a blank after each.
func commandLine(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.ReplaceAll(string(text), "\x00", " ")
}

// children returns the children of a process.
func children(pid int) (found []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, task := range tasks {
		text, _ := os.ReadFile(task)
		for word := range strings.FieldsSeq(string(text)) {
			child, _ := strconv.Atoi(word)
			found = append(found, child)
		}
	}
	return found
}

// family returns a process and all below it.
func family(pid int) []int {
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		all = append(all, children(all[i])...)
	}
	return all
}
