// Package cgroup makes the control groups (cgroup v2) that bound and end what runs on a node.
//
// A node's tree is flat: <base>/system for PID 1 and the node kernel, and one group per job with
// two groups, "init" for the job's init and "ranks" for everything the application starts, with a
// group below it for each of its ranks, so that one can be frozen. Memory is limited in the job's
// group, so that the RAM disk, which the init fills, counts as the job's; out-of-memory kills the
// whole "ranks" leaf and nothing else. Cores and the number of processes are limited in "ranks", so
// that an application that takes all of them leaves its init alone.
package cgroup

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/id"
)

// ErrUnavailable reports that no cgroup v2 tree with the wanted controllers can be used here.
var ErrUnavailable = errors.New("cgroup v2 with the controllers cpuset, memory and pids is not available")

// controllers are what a job's limits need.
var controllers = []string{"cpuset", "memory", "pids"}

// systemLeaf is the group of PID 1 and the node kernel.
const systemLeaf = "system"

// Tree is the part of the hierarchy that belongs to one node.
type Tree struct {
	base string // absolute path of the group that holds everything of the node
}

// Open takes the cgroup v2 group at base as a node's own, creates its "system" leaf, moves the
// calling process and the given others there, and turns on the controllers. It returns an error
// that wraps ErrUnavailable when that cannot be had.
func Open(base string, pids ...int) (*Tree, error) {
	have, err := os.ReadFile(filepath.Join(base, "cgroup.controllers"))
	if err != nil {
		return nil, fmt.Errorf("cgroup: %s: %w: %w", base, ErrUnavailable, err)
	}
	for _, c := range controllers {
		if !slices.Contains(strings.Fields(string(have)), c) {
			return nil, fmt.Errorf("cgroup: %s has no controller %s: %w", base, c, ErrUnavailable)
		}
	}
	t := &Tree{base: base}
	system := filepath.Join(base, systemLeaf)
	if err := os.Mkdir(system, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("cgroup: %w: %w", ErrUnavailable, err)
	}
	for _, pid := range append(pids, os.Getpid()) {
		if err := write(system, "cgroup.procs", strconv.Itoa(pid)); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
	}
	if err := write(base, "cgroup.subtree_control", "+"+strings.Join(controllers, " +")); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return t, nil
}

// Limits bound a job on one node. A zero field sets no bound.
type Limits struct {
	Memory int64     // bytes, page cache and RAM disk included
	Pids   int       // processes and threads of the application
	Cores  []id.CPU  // the only CPUs the application's processes may run on
	Ranks  []id.Rank // the application's ranks, each in a group of its own
}

// Job is the group of one job.
type Job struct{ path string }

// Create makes the group of the job called name. A leftover group is emptied and created again.
func (t *Tree) Create(name string, l Limits) (*Job, error) {
	if name == systemLeaf || name == "." || !filepath.IsLocal(name) || strings.Contains(name, "/") {
		return nil, fmt.Errorf("cgroup: %q is not the name of a job", name)
	}
	j := t.Job(name)
	if _, err := os.Stat(j.path); err == nil {
		if err := j.Remove(time.Second); err != nil {
			return nil, err
		}
	}
	if err := os.Mkdir(j.path, 0o755); err != nil {
		return nil, fmt.Errorf("cgroup: make group: %w", err)
	}
	if err := cmp.Or(j.divide(), j.Limit(l)); err != nil {
		return nil, errors.Join(err, j.Remove(time.Second))
	}
	return j, nil
}

// Sweep removes the groups without processes whose names have the given prefix.
func (t *Tree) Sweep(prefix string) {
	groups, _ := filepath.Glob(filepath.Join(t.base, prefix+"*"))
	for _, group := range groups {
		events, err := os.ReadFile(filepath.Join(group, "cgroup.events"))
		if err == nil && strings.Contains(string(events), "populated 0") {
			_ = t.Job(filepath.Base(group)).remove() // processes may have come
		}
	}
}

// Job returns the group of the job called name, which Create made, in this process or an earlier
// one.
func (t *Tree) Job(name string) *Job { return &Job{path: filepath.Join(t.base, name)} }

// divide makes the leaves of the job's group.
func (j *Job) divide() error {
	if err := write(j.path, "cgroup.subtree_control", "+"+strings.Join(controllers, " +")); err != nil {
		return err
	}
	for _, leaf := range []string{"init", "ranks"} {
		if err := os.Mkdir(filepath.Join(j.path, leaf), 0o755); err != nil {
			return fmt.Errorf("cgroup: make group: %w", err)
		}
	}
	ranks := filepath.Join(j.path, "ranks")
	return write(ranks, "memory.oom.group", "1")
}

// Limit sets the limits of a group that has none yet, and makes the groups of its ranks.
func (j *Job) Limit(l Limits) error {
	if l.Memory < 0 || l.Pids < 0 {
		return fmt.Errorf("cgroup: limits %+v are negative", l)
	}
	if l.Memory > 0 {
		if err := write(j.path, "memory.max", strconv.FormatInt(l.Memory, 10)); err != nil {
			return err
		}
		if err := write(j.path, "memory.swap.max", "0"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	ranks := filepath.Join(j.path, "ranks")
	if l.Pids > 0 {
		if err := write(ranks, "pids.max", strconv.Itoa(l.Pids)); err != nil {
			return err
		}
	}
	if len(l.Cores) > 0 {
		if err := write(ranks, "cpuset.cpus", list(l.Cores)); err != nil {
			return err
		}
	}
	for _, rank := range l.Ranks {
		if err := os.Mkdir(j.Rank(rank), 0o755); err != nil {
			return fmt.Errorf("cgroup: make group: %w", err)
		}
	}
	return nil
}

// Clear removes the groups of the job's ranks, which must have ended, and the limits, as of a group
// that was just created.
func (j *Job) Clear() error {
	groups, _ := filepath.Glob(filepath.Join(j.path, "ranks", rankPrefix+"*"))
	for _, group := range groups {
		if err := os.Remove(group); err != nil {
			return fmt.Errorf("cgroup: remove group: %w", err)
		}
	}
	for _, limit := range []struct{ leaf, file, none string }{{"", "memory.max", "max"}, {"ranks", "pids.max", "max"}, {"ranks", "cpuset.cpus", "\n"}} {
		if err := write(filepath.Join(j.path, limit.leaf), limit.file, limit.none); err != nil {
			return err
		}
	}
	return nil
}

// rankPrefix begins the names of the groups of ranks.
const rankPrefix = "rank-"

// RankName is the name of a rank's group below the group of Ranks.
func RankName(rank id.Rank) string { return rankPrefix + strconv.FormatUint(uint64(rank), 10) }

// Rank returns the path of a rank's group.
func (j *Job) Rank(rank id.Rank) string { return filepath.Join(j.path, "ranks", RankName(rank)) }

// Init opens the leaf for the job's init, to be given to clone (SysProcAttr.CgroupFD).
func (j *Job) Init() (*os.File, error) { return j.open("init") }

// Ranks opens the group for the application's processes.
func (j *Job) Ranks() (*os.File, error) { return j.open("ranks") }

func (j *Job) open(leaf string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(j.path, leaf), unix.O_DIRECTORY|unix.O_PATH, 0)
	if err != nil {
		return nil, fmt.Errorf("cgroup: open group: %w", err)
	}
	return f, nil
}

// OOMKills returns how many of the job's processes, its init included, the kernel has killed for
// want of memory.
func (j *Job) OOMKills() int {
	text, err := os.ReadFile(filepath.Join(j.path, "memory.events"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
			kills, _ := strconv.Atoi(strings.TrimSpace(n))
			return kills
		}
	}
	return 0
}

// Kill ends every process of the job at once.
func (j *Job) Kill() error {
	err := write(j.path, "cgroup.kill", "1")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Remove kills the remaining processes of the job's group and removes it, waiting at most for the
// given time.
func (j *Job) Remove(wait time.Duration) error {
	deadline := time.Now().Add(wait)
	for {
		if err := j.Kill(); err != nil {
			return err
		}
		err := j.remove()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("cgroup: remove group: %w", err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// remove removes the job's groups, which must be empty for that.
func (j *Job) remove() (err error) {
	groups, _ := filepath.Glob(filepath.Join(j.path, "ranks", rankPrefix+"*"))
	for _, leaf := range []string{"init", "ranks", ""} {
		groups = append(groups, filepath.Join(j.path, leaf))
	}
	for _, group := range groups {
		if e := os.Remove(group); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = e
		}
	}
	return err
}

func write(dir, file, text string) error {
	if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0); err != nil {
		return fmt.Errorf("cgroup: write %q: %w", text, err)
	}
	return nil
}

func list(cpus []id.CPU) string {
	words := make([]string, len(cpus))
	for i, c := range cpus {
		words[i] = strconv.Itoa(int(c))
	}
	return strings.Join(words, ",")
}
