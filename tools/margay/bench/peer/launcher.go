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

// FindLauncher returns a launcher that runs program. Files that it needs are in dir.
func FindLauncher(name, dir, program string) (c launches.Contender, err error) {
	if name == forkName {
		return launches.Contender{Name: name, Run: func(ctx context.Context, nodes int) (time.Duration, error) { return fork(ctx, nodes, program) }}, nil
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
		return launches.Contender{Name: name, Peer: true, Run: func(ctx context.Context, nodes int) (time.Duration, error) {
			begun := time.Now()
			_, err := run(command(ctx, append(l.argv(dir, nodes), program)...))
			return time.Since(begun), err
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

// fork runs so many processes of a program at the same time.
func fork(ctx context.Context, n int, program string) (time.Duration, error) {
	begun := time.Now()
	errs := make(chan error, n)
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			if err := exec.CommandContext(ctx, program).Run(); err != nil {
				errs <- fmt.Errorf("%s: %w", program, err)
			}
		})
	}
	all.Wait()
	close(errs)
	return time.Since(begun), <-errs
}
