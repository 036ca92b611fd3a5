package peer

import (
	"cmp"
	"context"
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"margay/tools/margay/bench/fabric"
)

//go:embed programs/measure.h programs/measure.c programs/mpi.c
var sources embed.FS

// MPI is an installed MPI with the program that measures.
type MPI struct {
	Name    string
	Version string

	dir     string // of the program and scripts
	program string
	kind    kind
}

// kind is what differs between implementations of MPI.
type kind struct {
	name, compiler, launcher, packages string
	yields                             bool // ranks that wait let others run
	// command returns a command line for the place's ranks, without the program, and variables of
	// its environment.
	command func(m *MPI, p fabric.Place, w *Network) (argv, env []string)
}

// kinds are the implementations of MPI that can be measured.
var kinds = []kind{
	{"MPICH", "mpicc.mpich", "mpiexec.mpich", "mpich and libmpich-dev", false, (*MPI).mpich},
	{"Open MPI", "mpicc.openmpi", "mpirun.openmpi", "openmpi-bin and libopenmpi-dev", true, (*MPI).openMPI},
}

// MPINames are the names of the contenders that are an MPI.
func MPINames() (names []string) {
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

// FindMPI compiles the program for the MPI of a name, in a folder of dir.
func FindMPI(ctx context.Context, name, dir string) (*MPI, error) {
	for _, k := range kinds {
		if k.name != name {
			continue
		}
		if err := needs(k.packages, k.compiler, k.launcher); err != nil {
			return nil, err
		}
		// The compiler and its header are in different packages.
		if _, err := run(command(ctx, k.compiler, "-fsyntax-only", "-include", "mpi.h", "-x", "c", os.DevNull)); err != nil {
			return nil, fmt.Errorf("%s is not installed as a whole (Debian packages %s): %w", k.name, k.packages, err)
		}
		m := &MPI{Name: k.name, kind: k, dir: filepath.Join(dir, strings.ReplaceAll(k.name, " ", ""))}
		return m, m.build(ctx)
	}
	return nil, fmt.Errorf("there is no MPI %q", name)
}

// build compiles the program and writes the scripts.
func (m *MPI) build(ctx context.Context) error {
	if err := os.CopyFS(m.dir, sources); err != nil {
		return err
	}
	m.program = filepath.Join(m.dir, "fabric-mpi")
	source := filepath.Join(m.dir, "programs")
	if _, err := run(command(ctx, m.kind.compiler, "-O2", filepath.Join(source, "measure.c"), filepath.Join(source, "mpi.c"), "-o", m.program)); err != nil {
		return err
	}
	for name, text := range map[string]string{"enter": enterScript, "agent": agentScript} {
		if err := os.WriteFile(m.script(name), []byte(text), 0o755); err != nil {
			return err
		}
	}
	text, err := run(command(ctx, m.kind.launcher, "--version"))
	if err != nil {
		return err
	}
	m.Version = cmp.Or(versionNumber().FindString(text), "unknown")
	return nil
}

// versionNumber finds the version in the answer to --version.
var versionNumber = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\d+\.\d+(\.\d+)?`) })

func (m *MPI) script(name string) string { return filepath.Join(m.dir, name) }

// enterScript runs a rank of MPICH on its node. UCX finds devices in /sys, which shows the
// devices of the namespace that mounted it.
const enterScript = `#!/bin/sh
eval "namespace=\$FABRIC_NODE_$PMI_RANK"
exec nsenter --net="$namespace" unshare --mount sh -c 'mount -t sysfs sysfs /sys && exec "$@"' sh "$@"
`

// agentScript takes the place of ssh: it runs a command of Open MPI on the node n0, n1, ....
const agentScript = `#!/bin/sh
while [ "${1#-}" != "$1" ]; do
	shift
done
eval "namespace=\$FABRIC_NODE_${1#n}"
shift
exec nsenter --net="$namespace" sh -c "$*"
`

// namespaces are the variables in which the scripts find the nodes.
func namespaces(w *Network) (env []string) {
	for i := range w.nodes {
		env = append(env, fmt.Sprintf("FABRIC_NODE_%d=%s", i, w.path(i)))
	}
	return env
}

// Contender returns the MPI as a contender on a place. network is nil for loopback.
func (m *MPI) Contender(p fabric.Place, network *Network) fabric.Contender {
	return fabric.Contender{Name: m.Name, Peer: true, Run: func(ctx context.Context, c fabric.Case, length time.Duration) (*fabric.Report, error) {
		if !m.kind.yields && p.Ranks > runtime.NumCPU() {
			return nil, fabric.Absent("its ranks do not yield, and there are more of them than CPUs")
		}
		argv, env := m.kind.command(m, p, network)
		cmd := command(ctx, append(append(argv, m.program), measurement(c, length)...)...)
		cmd.Env = append(append(os.Environ(), "TMPDIR="+m.dir), env...)
		return report(cmd)
	}}
}

// overTCP are variables with which ranks of MPICH use TCP, also on one host.
var overTCP = []string{"MPIR_CVAR_NOLOCAL=1", "UCX_TLS=tcp,self"}

// mpich implements kind.command.
func (m *MPI) mpich(p fabric.Place, w *Network) (argv, env []string) {
	argv = []string{"mpiexec.mpich", "-n", fmt.Sprint(p.Ranks)}
	if p.Nodes == 1 {
		return argv, nil
	}
	env = slices.Clip(overTCP)
	if w == nil {
		return argv, append(env, "UCX_NET_DEVICES=lo")
	}
	return append(argv, m.script("enter")), append(append(env, "UCX_NET_DEVICES="+device), namespaces(w)...)
}

// openMPI implements kind.command.
func (m *MPI) openMPI(p fabric.Place, w *Network) (argv, env []string) {
	argv = []string{"mpirun.openmpi", "--bind-to", "none", "--oversubscribe", "-n", fmt.Sprint(p.Ranks)}
	if os.Geteuid() == 0 {
		argv = append(argv, "--allow-run-as-root")
	}
	if p.Ranks > runtime.NumCPU() {
		argv = append(argv, "--mca", "mpi_yield_when_idle", "1")
	}
	if p.Nodes == 1 {
		return append(argv, "--mca", "oob_tcp_if_include", "lo"), nil
	}
	argv = append(argv, "--mca", "pml", "ob1", "--mca", "osc", "^ucx", "--mca", "btl", "tcp,self")
	if w == nil {
		return append(argv, "--mca", "oob_tcp_if_include", "lo", "--mca", "btl_tcp_if_include", "lo"), nil
	}
	var hosts []string
	for i := range p.Nodes {
		hosts = append(hosts, fmt.Sprintf("n%d", i))
	}
	argv = append(argv, "--mca", "oob_tcp_if_include", device, "--mca", "btl_tcp_if_include", device, "--mca", "plm_rsh_agent", m.script("agent"),
		"--mca", "plm_rsh_no_tree_spawn", "1", "--host", strings.Join(hosts, ","))
	return append(w.Enter(0), argv...), namespaces(w)
}
