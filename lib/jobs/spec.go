package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"margay/cluster/control"
	"margay/cluster/launch"
	"margay/kernel/abi/wire"
)

// rankVariable is in the environment of ranks only.
const rankVariable = wire.EnvRank

// Program is a program with all that goes along to the nodes, as it was when it was loaded: it must
// be loaded again when its files change. It may be used for any number of jobs, at the same time.
type Program struct {
	files *launch.Files
	name  string
}

// Load finds a program as a shell does, and the libraries that it needs. with are files and folders
// to copy as well; they keep their names.
func Load(program string, with ...string) (*Program, error) {
	files, err := launch.Collect(program, with)
	if err != nil {
		return nil, err
	}
	if files.Parallel != "" && !files.PMI1 {
		return nil, fmt.Errorf("%s is linked with an MPI or PMI (%s) that does not work here; MPICH does", program, files.Parallel)
	}
	_, _, err = files.Pack()
	return &Program{files, program}, err
}

// Forever waits for cores without a limit.
const Forever time.Duration = -1

// Spec is what a job shall be. Its zero value, but for the Program, is a job of one rank.
type Spec struct {
	Program *Program
	Args    []string // after the name of the program
	Env     []string // NAME=VALUE; nil: the environment of this process
	Dir     string   // working directory of the ranks; empty: the one of this process

	Ranks     int   // 0: 1, or one on each of the Nodes
	Nodes     int   // spread the ranks over exactly so many; 0: on as few as it takes
	PerNode   int   // ranks on each node but the last; 0: one for each free core
	CoresEach int   // cores of each rank, all for itself; 0: 1
	Only      []int // the nodes that may be used; nil: all
	Without   []int // nodes that may not be used
	Beside    int   // one rank on each node of this job, which must be running, on cores that are free; it excludes Ranks to Without, and Wait

	Memory    int64         // bytes on each node; 0: the share of the job's cores
	Limit     time.Duration // how long the ranks may run; 0: without a limit
	Wait      time.Duration // how long the job may wait for cores, in order of arrival; 0: it does not, Forever: without a limit
	KeepGoing bool          // a rank that fails does not end the others
	Detach    bool          // the job does not end with this program; its output is for margay logs, and it has no input

	Stdin io.Reader // of rank 0; nil: nothing

	// Stdout and Stderr get the output of all ranks, lines of several ranks whole; nil: it is
	// dropped. They are written to by one goroutine of the job, so jobs that share a Writer need
	// one that is safe for concurrent use. One that does not take output holds up the ranks; its
	// error ends the job.
	Stdout, Stderr io.Writer

	// Output returns what gets the output of a rank as it comes, instead of Stdout and Stderr; nil:
	// these do. It is called for each piece.
	Output func(rank int, stderr bool) io.Writer

	// Warnings gets lines about the job besides errors, such as a launch that is repeated
	// because a node was lost; nil: they are dropped.
	Warnings io.Writer
}

// check refuses a Spec that makes no sense.
func (s *Spec) check() error {
	switch {
	case s.Program == nil:
		return errors.New("a job needs a Program (jobs.Load)")
	case min(s.Ranks, s.Nodes, s.PerNode, s.CoresEach, s.Beside) < 0 || s.Memory < 0 || s.Limit < 0 || s.Wait < Forever:
		return errors.New("a number of the job's Spec is negative")
	case s.Beside > 0 && (s.Ranks+s.Nodes+s.PerNode+len(s.Only)+len(s.Without) > 0 || s.Wait != 0):
		return errors.New("a job beside another one has a rank on each of its nodes, now: Beside excludes Ranks, Nodes, PerNode, Only, Without and Wait")
	case s.Detach && (s.Stdin != nil || s.Stdout != nil || s.Stderr != nil || s.Output != nil):
		return errors.New("a detached job has no input, and its output is kept on the machine (margay logs)")
	}
	for _, node := range slices.Concat(s.Only, s.Without) {
		if node < 0 || int64(node) != int64(uint32(node)) {
			return fmt.Errorf("there is no node %d", node)
		}
	}
	return nil
}

// options returns the job that a Spec describes.
func (m *Machine) options(ctx context.Context, s Spec) (o launch.Options, err error) {
	if err := s.check(); err != nil {
		return o, err
	}
	if s.Beside > 0 {
		if err := m.beside(ctx, &s); err != nil {
			return o, err
		}
	}
	dir, err := filepath.Abs(s.Dir)
	if err != nil {
		return o, err
	}
	argv := append([]string{s.Program.name}, s.Args...)
	env := s.Env
	if env == nil {
		env = os.Environ()
	}
	if err := launch.CheckStrings(argv, env); err != nil {
		return o, err
	}
	files := s.Program.files
	spec := &control.JobSpec{
		Ranks: uint32(cmp.Or(s.Ranks, s.Nodes, 1)), Nodes: uint32(s.Nodes), PerNode: uint32(s.PerNode), CoresEach: uint32(s.CoresEach),
		Only: numbers(s.Only), Without: numbers(s.Without), Dir: []byte(dir), Memory: s.Memory, KeepGoing: s.KeepGoing, Detach: s.Detach,
		LimitMs: milliseconds(s.Limit), WaitMs: milliseconds(s.Wait),
	}
	if files.PMI1 {
		spec.Mpi = control.MPI_MPI_PMI1
	}
	if err := files.Describe(spec); err != nil {
		return o, err
	}
	o = launch.Options{
		Link: m.link, Spec: spec, Exec: &control.Exec{Argv: launch.Bytes(argv), Env: launch.Bytes(env)}, Files: files,
		Stdin: s.Stdin, Stdout: orDiscard(s.Stdout), Stderr: orDiscard(s.Stderr), Status: &launch.Status{W: orDiscard(s.Warnings)},
	}
	if s.Stdin != nil {
		spec.Stdin = control.StdinMode_STDIN_FIRST
	}
	if s.Output != nil {
		o.RankOutput = func(rank uint32, stream control.Stream) io.Writer {
			return orDiscard(s.Output(int(rank), stream == control.Stream_STREAM_STDERR))
		}
	}
	return o, nil
}

func orDiscard(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

// beside puts a job on the nodes of another one.
func (m *Machine) beside(ctx context.Context, s *Spec) error {
	other, err := m.Job(ctx, s.Beside)
	if err == nil {
		s.Only, err = other.besides()
	}
	s.Nodes = len(s.Only)
	return err
}

// milliseconds rounds up, so that no time becomes none.
func milliseconds(d time.Duration) int64 {
	if d == Forever {
		return -1
	}
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

func numbers(nodes []int) (list []uint32) {
	for _, node := range nodes {
		list = append(list, uint32(node))
	}
	return list
}
