package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"margay/cluster/control"
	"margay/kernel/abi/wire"
	"margay/tools/margay/command"
)

// held prints the processes of a job whose ranks are held, and waits for Enter. Without input,
// and in the background of a terminal, something else must let the ranks go on.
func held(ctx context.Context, a *command.App, job uint32) (release bool, err error) {
	if err := printProcesses(ctx, a, job); err != nil {
		return false, err
	}
	fmt.Fprintf(a.Stderr, "margay: job %d is held before its first instruction; Enter lets it go on, and so does margay kill -s CONT %d\n", job, job)
	return awaitLine(ctx, command.Foreground(a.Stdin))
}

// printProcesses prints the processes of the ranks, with the command that attaches a debugger to
// those that are on this host.
func printProcesses(ctx context.Context, a *command.App, job uint32) error {
	status, err := command.Ask[*control.MachineStatus](ctx, a, &control.Status{})
	if err != nil {
		return err
	}
	samples, err := a.Samples(ctx)
	if err != nil {
		return err
	}
	here := processesOf("/proc", int(status.HolderPid), job)
	fmt.Fprintln(a.Stderr, "RANK  NODE    PID     DEBUGGER")
	for _, n := range samples.Nodes {
		for _, r := range n.Ranks {
			if r.Job != job {
				continue
			}
			debugger := "-"
			if pid := here[r.Rank]; pid != 0 {
				debugger = fmt.Sprintf("gdb -p %d", pid)
			}
			fmt.Fprintf(a.Stderr, "%-5d %-7s %-7d %s\n", r.Rank, fmt.Sprintf("node%d", n.Node), r.Pid, debugger)
		}
	}
	return nil
}

// awaitLine reads up to the end of a line, and nothing beyond, which the ranks may want. It reports
// whether there was one.
func awaitLine(ctx context.Context, in io.Reader) (bool, error) {
	read := make(chan error, 1)
	go func() {
		b := make([]byte, 1)
		for {
			n, err := in.Read(b)
			if n == 1 && b[0] == '\n' || err != nil {
				read <- err
				return
			}
		}
	}()
	select {
	case err := <-read:
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		return err == nil, err
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
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
