package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"margay/cluster/control"
	"margay/cluster/launch"
)

// All stands for all ranks of a job.
const All = control.None

// Result is how a job has ended.
type Result struct {
	Job    int
	Status int    // the exit status of margay run for it; 0: every rank has exited with 0
	Ranks  []Rank // in order; nil if the job was given up
}

// Rank is how a rank has ended.
type Rank struct {
	Node, Core int
	Ended      bool           // false: it was lost with its node, for example
	Status     int            // exit status, if there is no Signal
	Signal     syscall.Signal // that has ended it; 0: none
	Reason     string         // more about it; empty: nothing
	Time       time.Duration  // that it has run
	Processor  time.Duration  // processor time that it has used; 0: not known
}

// Job is a job that this program has started.
type Job struct {
	machine *Machine
	number  int
	detach  bool
	done    chan struct{} // closed when result and err are valid
	result  Result
	err     error
}

// Start starts a job. It returns when the ranks run, so it waits as long as Spec.Wait permits. If
// they cannot run, the error says why; it is ErrNoCores if there is no room for them.
//
// When ctx ends, so does the job, also when it runs already, unless it is detached.
func (m *Machine) Start(ctx context.Context, s Spec) (*Job, error) {
	o, err := m.options(ctx, s)
	if err != nil {
		return nil, err
	}
	j := &Job{machine: m, detach: s.Detach, done: make(chan struct{})}
	runs := make(chan struct{})
	o.Started = func(number uint32) error {
		j.number = int(number)
		close(runs)
		return nil
	}
	var last *control.JobState
	o.Ended = func(state *control.JobState) { last = state }
	go func() {
		defer close(j.done)
		status, err := launch.Run(ctx, o)
		j.result, j.err = resultOf(last, status), known(err)
		if j.err == nil && status != 0 {
			j.err = fmt.Errorf("status %d", status)
		}
	}()
	select {
	case <-runs:
	case <-j.done:
		select {
		case <-runs:
		default:
			return nil, fmt.Errorf("start %s: %w", s.Program.name, j.err)
		}
	}
	return j, nil
}

// Run starts a job and waits for its end.
func (m *Machine) Run(ctx context.Context, s Spec) (Result, error) {
	j, err := m.Start(ctx, s)
	if err != nil {
		return Result{}, err
	}
	return j.Wait()
}

// Number is the number of the job, which no other job of the machine has or will have.
func (j *Job) Number() int { return j.number }

// Done is closed when the job has ended and its output is written. A detached job has no output
// here: for it, Done is closed at once.
func (j *Job) Done() <-chan struct{} { return j.done }

// Wait waits until the job has ended and its output is written. The error describes any failure,
// also of a rank. Of a detached job, it waits for the end only.
func (j *Job) Wait() (Result, error) {
	<-j.done
	if j.detach && j.err == nil {
		return j.machine.Wait(context.Background(), j.number)
	}
	return j.result, j.err
}

// Signal sends a signal to a rank of the job, or to All.
func (j *Job) Signal(ctx context.Context, rank int, sig syscall.Signal) error {
	return j.machine.Signal(ctx, j.number, rank, sig)
}

// End ends the job, whatever its ranks do.
func (j *Job) End(ctx context.Context) error { return j.machine.End(ctx, j.number) }

// resultOf reads the last state of a job; it may be nil.
func resultOf(state *control.JobState, status int) Result {
	r := Result{Status: status}
	if state == nil {
		return r
	}
	r.Job, r.Ranks = int(state.Job), ranksOf(state.Ranks)
	return r
}

func ranksOf(states []*control.RankState) (list []Rank) {
	for _, s := range states {
		e := s.Exit
		list = append(list, Rank{
			Node: int(s.Node), Core: int(s.Core), Ended: s.Ended, Status: int(e.GetCode()), Signal: syscall.Signal(e.GetSignal()), Reason: e.GetReason(),
			Time: time.Duration(e.GetTimeNs()), Processor: time.Duration(e.GetUsage().GetUserNs() + e.GetUsage().GetSystemNs()),
		})
	}
	return list
}

// State is where a job is.
type State int

// The states of jobs.
const (
	Starting State = iota
	Running
	Stopped // its ranks were sent SIGSTOP
	Ended
)

func (s State) String() string { return [...]string{"starting", "running", "stopped", "ended"}[s] }

// Info describes a job.
type Info struct {
	Job      int
	User     string
	Command  string
	Nodes    []int
	State    State
	Detached bool
	Start    time.Time
	End      time.Time // zero while it has not ended
	Status   int       // when it has ended
	Error    string    // why it has failed; empty: it has not, or because of its ranks
	Size     int       // ranks
	Ranks    []Rank    // of Job, not of Jobs
}

// Jobs lists the jobs of the machine that have not ended or, with all, those that have ended, too.
func (m *Machine) Jobs(ctx context.Context, all bool) ([]Info, error) {
	jobs, err := look[*control.Jobs](ctx, m, &control.ListJobs{All: all})
	var list []Info
	for _, j := range jobs.GetJobs() {
		list = append(list, infoOf(j))
	}
	return list, err
}

// Job describes a job of this program or another one, running or ended.
func (m *Machine) Job(ctx context.Context, number int) (Info, error) {
	job, err := jobNumber(number)
	if err != nil {
		return Info{}, err
	}
	jobs, err := look[*control.Jobs](ctx, m, &control.ListJobs{Job: job})
	if err != nil {
		return Info{}, err
	}
	if len(jobs.Jobs) != 1 {
		return Info{}, fmt.Errorf("serve has answered with %d jobs for job %d", len(jobs.Jobs), number)
	}
	return infoOf(jobs.Jobs[0]), nil
}

func infoOf(j *control.JobSummary) Info {
	info := Info{
		Job: int(j.Job), User: j.User, Command: j.Command, Detached: j.Detached, Start: time.Unix(0, j.StartNs), Status: int(j.ExitCode), Error: j.Error,
		Size: int(j.Ranks), Ranks: ranksOf(j.RankStates),
	}
	for _, node := range j.Nodes {
		info.Nodes = append(info.Nodes, int(node))
	}
	switch {
	case j.Phase == control.JobPhase_JOB_DONE:
		info.State, info.End = Ended, time.Unix(0, j.EndNs)
	case j.Stopped:
		info.State = Stopped
	case j.Phase != control.JobPhase_JOB_PREPARED:
		info.State = Running
	}
	return info
}

// besides returns the nodes for a job that runs beside this one.
func (i Info) besides() ([]int, error) {
	if i.State == Ended {
		return nil, fmt.Errorf("no job can run beside job %d: %w", i.Job, coded{errors.New("it has ended"), ErrNoJob})
	}
	return i.Nodes, nil
}

// Signal sends a signal to a rank of any job, or to All. It returns when the signal is on its way.
func (m *Machine) Signal(ctx context.Context, number, rank int, sig syscall.Signal) error {
	if rank < All || int64(rank) != int64(int32(rank)) {
		return fmt.Errorf("there is no rank %d", rank)
	}
	return m.kill(ctx, number, &control.Kill{Rank: int32(rank), Signal: int32(sig)})
}

// End ends any job, whatever its ranks do.
func (m *Machine) End(ctx context.Context, number int) error {
	return m.kill(ctx, number, &control.Kill{Rank: control.None, Force: true})
}

func (m *Machine) kill(ctx context.Context, number int, request *control.Kill) (err error) {
	if request.Job, err = jobNumber(number); err != nil {
		return err
	}
	_, err = ask[*control.Done](ctx, m, request)
	return err
}

// jobNumber refuses numbers that no job can have.
func jobNumber(number int) (uint32, error) {
	if number <= 0 || int64(number) != int64(uint32(number)) {
		return 0, coded{fmt.Errorf("there is no job %d", number), ErrNoJob}
	}
	return uint32(number), nil
}

// waitPause is the time between two looks at a job of another program.
const waitPause = 300 * time.Millisecond

// Wait waits until a job has ended, which any program may have started, also while serve is
// restarted. Its output is not for this program.
func (m *Machine) Wait(ctx context.Context, number int) (Result, error) {
	for {
		info, err := m.Job(ctx, number)
		switch {
		case ctx.Err() != nil:
			return Result{}, context.Cause(ctx)
		case err != nil:
			return Result{}, err
		case info.State == Ended:
			return info.result()
		}
		select {
		case <-time.After(waitPause):
		case <-ctx.Done():
		}
	}
}

func (i Info) result() (Result, error) {
	r := Result{Job: i.Job, Status: i.Status, Ranks: i.Ranks}
	if i.Status == 0 {
		return r, nil
	}
	return r, errors.New(cmp.Or(i.Error, fmt.Sprintf("job %d ended with status %d", i.Job, i.Status)))
}

// Node is a node of the machine.
type Node struct {
	Number  int
	Up      bool
	Drained bool   // it gets no jobs, by order of an operator
	Why     string // it is not up, or ill; empty: it gets jobs
	Host    string // its name
	Cores   int    // for applications
	Free    int    // of these
	Memory  int64  // bytes that are free for jobs
	Jobs    []int  // on it
}

// Nodes lists the nodes of the machine.
func (m *Machine) Nodes(ctx context.Context) ([]Node, error) {
	nodes, err := look[*control.Nodes](ctx, m, &control.ListNodes{})
	var list []Node
	for _, n := range nodes.GetNodes() {
		node := Node{
			Number: int(n.Node), Up: n.Health == control.NodeHealth_NODE_UP, Drained: n.Drain != nil, Why: cmp.Or(n.Reason, n.Ill),
			Host: n.Info.GetHostname(), Cores: len(n.Cores), Memory: n.FreeMemory,
		}
		for _, c := range n.Cores {
			switch last := len(node.Jobs) - 1; {
			case c.Job == 0:
				node.Free++
			case last < 0 || node.Jobs[last] != int(c.Job):
				node.Jobs = append(node.Jobs, int(c.Job))
			}
		}
		list = append(list, node)
	}
	return list, err
}
