package peer

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"margay/tools/margay/bench/launches"
)

// Launcher is an installed program that runs a process on each of some hosts. The hosts are
// pretended: all processes are on this one.
type Launcher struct {
	kind *launcher
	dir  string // for its files
}

// Hosts are pretended hosts.
type Hosts struct {
	Count int
	CPUs  int // of each: so many processes may run there at the same time
}

// Session is a launcher on some hosts, with the daemons that it needs there.
type Session struct {
	launches.Contender
	Note string // what people must know about it; may be empty
	end  func() error
}

// Close ends the daemons.
func (s *Session) Close() error { return s.end() }

// launcher is what differs between launchers.
type launcher struct {
	name, packages string
	programs       []string
	// begin prepares hosts, and returns the job that runs one process of a program on each.
	begin func(ctx context.Context, dir string, h Hosts) (*site, error)
}

// site is what a launcher has prepared for some hosts.
type site struct {
	job  func(ctx context.Context, program string) error
	note string
	end  func() error // nil: nothing is to do
}

var launchers = []*launcher{
	{"MPICH hydra", "mpich", []string{"mpiexec.mpich"}, beginHydra},
	{"pdsh", "pdsh", []string{"pdsh"}, beginPdsh},
	{"Slurm", "slurmctld, slurmd, slurm-client and munge", []string{"slurmctld", "slurmd", "srun", "sinfo", "munged"}, beginSlurm},
	{forkName, "", nil, beginFork},
}

// forkName is the contender that uses no launcher.
const forkName = "fork and exec"

// LauncherNames are the names of the contenders that launch.
func LauncherNames() []string {
	var names []string
	for _, l := range launchers {
		names = append(names, l.name)
	}
	return names
}

// FindLauncher returns a launcher. Files that it needs will be in dir.
func FindLauncher(name, dir string) (*Launcher, error) {
	i := slices.IndexFunc(launchers, func(l *launcher) bool { return l.name == name })
	if i < 0 {
		return nil, fmt.Errorf("there is no launcher %q", name)
	}
	if err := needs(launchers[i].packages, launchers[i].programs...); err != nil {
		return nil, err
	}
	return &Launcher{launchers[i], dir}, nil
}

// Name is the contender's name.
func (l *Launcher) Name() string { return l.kind.name }

// Begin prepares hosts, and starts the daemons of the launcher there. They end with Close of the
// session, and with this process, however it ends. ctx bounds only the start.
func (l *Launcher) Begin(ctx context.Context, h Hosts) (*Session, error) {
	p, err := l.kind.begin(ctx, l.dir, h)
	if err != nil {
		return nil, err
	}
	if p.end == nil {
		p.end = func() error { return nil }
	}
	run := func(ctx context.Context, w launches.Work) (time.Duration, error) {
		return many(w, func() error { return p.job(ctx, w.Program) })
	}
	return &Session{launches.Contender{Name: l.kind.name, Peer: l.kind.name != forkName, Run: run}, p.note, p.end}, nil
}

// remoteScript takes the place of ssh: it runs the command on this host.
const remoteScript = `#!/bin/sh
while [ "${1#-}" != "$1" ]; do
	shift
done
shift
exec sh -c "$*"
`

// beginHydra implements launcher.begin. Hydra refuses long lists of hosts in its arguments.
func beginHydra(_ context.Context, dir string, h Hosts) (*site, error) {
	remote, file := filepath.Join(dir, "remote"), filepath.Join(dir, fmt.Sprintf("hosts-%d", h.Count))
	if err := os.WriteFile(remote, []byte(remoteScript), 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(file, []byte(strings.Join(hosts(h.Count), "\n")+"\n"), 0o644); err != nil {
		return nil, err
	}
	return &site{job: func(ctx context.Context, program string) error {
		_, err := run(command(ctx, "mpiexec.mpich", "-launcher", "ssh", "-launcher-exec", remote, "-f", file, "-ppn", "1", "-n", fmt.Sprint(h.Count), program))
		return err
	}}, nil
}

// beginPdsh implements launcher.begin.
func beginPdsh(_ context.Context, _ string, h Hosts) (*site, error) {
	return &site{job: func(ctx context.Context, program string) error {
		_, err := run(command(ctx, "pdsh", "-R", "exec", "-f", fmt.Sprint(h.Count), "-w", strings.Join(hosts(h.Count), ","), program))
		return err
	}}, nil
}

// beginFork implements launcher.begin.
func beginFork(_ context.Context, _ string, h Hosts) (*site, error) {
	return &site{job: func(ctx context.Context, program string) error { return fork(ctx, h.Count, program) }}, nil
}

// hosts are the names of hosts.
func hosts(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("n%d", i))
	}
	return names
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
