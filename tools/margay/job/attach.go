package job

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"margay/kernel/abi/wire"
	"margay/tools/margay/command"
	"margay/tools/margay/job/mpir"
)

// held gives the ranks of a job, which are held, to a debugger of margay run. With attach it prints
// their processes, and waits for Enter. Where standard input is not a terminal, it is all for the
// ranks, and something else must let them go on; so it must in the background of a terminal.
// programs are the programs of the ranks.
func held(ctx context.Context, a *command.App, job uint32, programs []string, attach bool) (release bool, err error) {
	ranks, err := heldRanks(ctx, a, job)
	if err != nil {
		return false, err
	}
	if attach {
		printHeld(a.Stderr, ranks)
		way := fmt.Sprintf("margay kill -s CONT %d lets it go on", job)
		if command.IsTerminal(a.Stdin) {
			way = fmt.Sprintf("Enter lets it go on, and so does margay kill -s CONT %d", job)
		}
		fmt.Fprintf(a.Stderr, "margay: job %d is held before its first instruction; %s\n", job, way)
	}
	table, err := debuggerTable(ranks, programs)
	switch {
	case err == nil:
		mpir.Publish(table)
	case mpir.Debugged():
		return false, fmt.Errorf("run: a debugger waits for all ranks: %w", err)
	}
	if !attach {
		return true, nil
	}
	return command.AwaitEnter(ctx, a.Stdin)
}

// heldRank is the process of a rank that is held.
type heldRank struct {
	rank, node uint32
	pid        int64 // on its node
	here       int   // on this host; 0: it is not on this host, or this user may not trace it
}

// heldRanks returns the processes of a job.
func heldRanks(ctx context.Context, a *command.App, job uint32) (ranks []heldRank, err error) {
	samples, err := a.Samples(ctx)
	if err != nil {
		return nil, err
	}
	here := processesHere(a, job)
	for _, n := range samples.Nodes {
		for _, r := range n.Ranks {
			if r.Job == job {
				ranks = append(ranks, heldRank{r.Rank, n.Node, r.Pid, here[r.Rank]})
			}
		}
	}
	return ranks, nil
}

// printHeld prints processes, with the command that attaches a debugger to those that are on this
// host.
func printHeld(w io.Writer, ranks []heldRank) {
	fmt.Fprintln(w, "RANK  NODE    PID     DEBUGGER")
	for _, r := range ranks {
		debugger := "-"
		if r.here != 0 {
			debugger = fmt.Sprintf("gdb -p %d", r.here)
		}
		fmt.Fprintf(w, "%-5d %-7s %-7d %s\n", r.rank, fmt.Sprintf("node%d", r.node), r.pid, debugger)
	}
}

// debuggerTable returns the ranks as a debugger finds them: ranks of hosted nodes as processes of
// this host, others as processes of their nodes. A debugger needs all of them.
func debuggerTable(ranks []heldRank, programs []string) ([]mpir.Process, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	table := make([]mpir.Process, len(programs))
	for _, r := range ranks {
		switch {
		case uint64(r.rank) >= uint64(len(table)):
			return nil, fmt.Errorf("node%d reports rank %d of %d", r.node, r.rank, len(table))
		case r.here != 0:
			table[r.rank] = mpir.Process{Host: host, Program: programs[r.rank], PID: r.here}
		default:
			table[r.rank] = mpir.Process{Host: fmt.Sprintf("node%d", r.node), Program: programs[r.rank], PID: int(r.pid)}
		}
	}
	if i := slices.IndexFunc(table, func(p mpir.Process) bool { return p.PID == 0 }); i >= 0 {
		return nil, fmt.Errorf("the process of rank %d is not known: its node has not answered", i)
	}
	return table, nil
}

// processesHere finds the processes of a job's ranks on this host, by rank: none where another user
// is the owner of the machine.
func processesHere(a *command.App, job uint32) map[uint32]int {
	d, err := a.Dir()
	if err != nil {
		return nil
	}
	holder, alive := d.Holder()
	if !alive || holder <= 0 {
		return nil
	}
	return processesOf("/proc", holder, job)
}

// processesOf finds the processes of a job's ranks on this host, by rank: those below the holder of
// its machine whose environment names the job and a rank, and whose parent's does not.
func processesOf(proc string, holder int, job uint32) map[uint32]int {
	type process struct {
		parent int
		rank   uint32
		ok     bool // it has the environment of a rank
	}
	all := make(map[int]process)
	entries, _ := os.ReadDir(proc)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		p := process{parent: parentOf(proc, pid)}
		p.rank, p.ok = rankOf(proc, pid, job)
		all[pid] = p
	}
	below := func(pid int) bool {
		for range len(all) {
			if pid == holder {
				return true
			}
			pid = all[pid].parent
		}
		return false
	}
	found := make(map[uint32]int)
	for pid, p := range all {
		if p.ok && !all[p.parent].ok && below(pid) {
			found[p.rank] = pid
		}
	}
	return found
}

// parentOf returns the parent of a process, 0 if it has ended.
func parentOf(proc string, pid int) int {
	text, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "status"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "PPid:"); ok {
			parent, _ := strconv.Atoi(strings.TrimSpace(value))
			return parent
		}
	}
	return 0
}

// rankOf returns the rank that a process is, by its environment.
func rankOf(proc string, pid int, job uint32) (rank uint32, ok bool) {
	text, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "environ"))
	if err != nil {
		return 0, false
	}
	ofJob := false
	for variable := range strings.SplitSeq(string(text), "\x00") {
		name, value, _ := strings.Cut(variable, "=")
		number, err := strconv.ParseUint(value, 10, 32)
		switch {
		case err != nil:
		case name == wire.EnvJob:
			ofJob = uint32(number) == job
		case name == wire.EnvRank:
			rank, ok = uint32(number), true
		}
	}
	return rank, ok && ofJob
}
