package peer

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"margay/tools/margay/bench/launches"
)

// launcher is a program that runs a process on each of some hosts, which are all this one.
type launcher struct {
	name, program, packages string
	argv                    func(dir string, nodes int) []string // without the program that it runs
}

var launchers = []launcher{
	{"MPICH hydra", "mpiexec.mpich", "mpich", func(dir string, nodes int) []string {
		return []string{"mpiexec.mpich", "-launcher", "ssh", "-launcher-exec", filepath.Join(dir, "remote"), "-hosts", hosts(nodes), "-ppn", "1", "-n", fmt.Sprint(nodes)}
	}},
	{"pdsh", "pdsh", "pdsh", func(_ string, nodes int) []string {
		return []string{"pdsh", "-R", "exec", "-f", fmt.Sprint(nodes), "-w", hosts(nodes)}
	}},
}

// forkName is the contender that uses no launcher.
const forkName = "fork and exec"

// LauncherNames are the names of the contenders that launch.
func LauncherNames() []string {
	var names []string
	for _, l := range launchers {
		names = append(names, l.name)
	}
	return append(names, forkName)
}

// remoteScript takes the place of ssh: it runs the command on this host.
const remoteScript = `#!/bin/sh
while [ "${1#-}" != "$1" ]; do
	shift
done
shift
exec sh -c "$*"
`

// FindLauncher returns a launcher. Files that it needs are in dir.
func FindLauncher(name, dir string) (c launches.Contender, err error) {
	if name == forkName {
		return launches.Contender{Name: name, Run: func(ctx context.Context, w launches.Work) (time.Duration, error) {
			return many(w, func() error { return fork(ctx, w.Nodes, w.Program) })
		}}, nil
	}
	for _, l := range launchers {
		if l.name != name {
			continue
		}
		if err := needs(l.packages, l.program); err != nil {
			return c, err
		}
		if err := os.WriteFile(filepath.Join(dir, "remote"), []byte(remoteScript), 0o755); err != nil {
			return c, err
		}
		return launches.Contender{Name: name, Peer: true, Run: func(ctx context.Context, w launches.Work) (time.Duration, error) {
			return many(w, func() error {
				_, err := run(command(ctx, append(l.argv(dir, w.Nodes), w.Program)...))
				return err
			})
		}}, nil
	}
	return c, fmt.Errorf("there is no launcher %q", name)
}

// hosts names hosts, with commas between.
func hosts(n int) string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("n%d", i))
	}
	return strings.Join(names, ",")
}

// many runs one job as often as the work has it, and returns how long that has taken.
func many(w launches.Work, job func() error) (time.Duration, error) {
	begun := time.Now()
	err := repeat(max(1, w.Jobs), max(1, w.AtOnce), job)
	return time.Since(begun), err
}

// fork runs so many processes of a program at the same time.
func fork(ctx context.Context, n int, program string) error {
	return repeat(n, n, func() error {
		if err := exec.CommandContext(ctx, program).Run(); err != nil {
			return fmt.Errorf("%s: %w", program, err)
		}
		return nil
	})
}

// repeat calls do n times, so many at the same time, and returns the first error.
func repeat(n, atOnce int, do func() error) error {
	errs := make(chan error, n)
	places := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for range n {
		places <- struct{}{}
		all.Go(func() {
			if err := do(); err != nil {
				errs <- err
			}
			<-places
		})
	}
	all.Wait()
	close(errs)
	return <-errs
}
