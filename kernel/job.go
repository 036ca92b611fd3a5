package kernel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"margay/internal/rights"
	"margay/kernel/abi/archive"
	"margay/kernel/abi/id"
	"margay/kernel/abi/layout"
	"margay/kernel/abi/node"
	"margay/kernel/abi/slot"
	"margay/kernel/abi/wire"
	"margay/kernel/content"
	"margay/kernel/extension"
	"margay/kernel/keep"
	"margay/kernel/message"
	"margay/kernel/pmi"
	"margay/kernel/task"
)

// JobSpec describes a job to a node kernel.
type JobSpec struct {
	task.Exec `json:"-"` // not in the notes for the next node kernel, which does not need it

	Job    id.Job
	Umask  int
	User   string // name of the submitting user
	UserID uint32 // and its number, where it submitted the job

	Layout layout.Layout // where its ranks are
	Stdin  StdinMode

	// Terminal gives rank 0 a terminal of this size; nil: it has pipes, as the others.
	Terminal *task.Size `json:",omitempty"`

	Files    int64            // bytes that the job's files need in its RAM disk
	Contents []archive.Digest `json:"-"` // of some of them, which the node may have already
	Memory   int64            // bytes for the job on this node; 0: the share of its cores
	Pids     int              // processes and threads on this node; 0: DefaultPids

	PMI     bool    `json:",omitempty"` // its ranks find each other by PMI 1
	Network bool    `json:",omitempty"` // a network of its own, which it also gets with PMI on several nodes
	Joined  *Joined `json:",omitempty"` // the network that it has instead of its own; nil: none

	HostRoot bool `json:",omitempty"` // the ranks see the programs and the configuration of the node's host

	Shared []task.SharedFolder `json:",omitempty"` // folders of its client that the ranks see

	Hold bool `json:",omitempty"` // the ranks are stopped before their first instruction, until SIGCONT

	Collects bool `json:"-"` // ReadFiles follows when the ranks have ended

	HugePages bool `json:",omitempty"` // memory in huge pages, without a request by the program

	Secret []byte `json:",omitempty"`

	// InitTimeout bounds how long ranks that use messages wait for one that does not; 0:
	// message.DefaultInitTimeout.
	InitTimeout time.Duration `json:",omitempty"`
}

// DefaultPids is the number of processes and threads that a job may have on a node unless it
// requests another number.
const DefaultPids = 1024

// StdinMode says which ranks have a standard input.
type StdinMode int

// The modes.
const (
	StdinNone StdinMode = iota
	StdinFirst
	StdinAll
)

// Phase is how far a job has come on a node.
type Phase int

// The phases.
const (
	Prepared Phase = iota + 1
	Running
	Ended  // all its ranks here
	Ending // the node kernel is ending it
)

// JobInfo is a line of Jobs.
type JobInfo struct {
	Job    id.Job
	Phase  Phase
	Shared bool // it has folders that its client shares
}

// job is a job on this node.
type job struct {
	node       *Node
	spec       JobSpec
	uid        int // of its ranks; guarded by Node.mu
	container  *task.Container
	messages   *message.Job
	extensions *extension.Set
	halts      halts
	adopted    bool                // an earlier node kernel made it, and may have scheduled its ranks
	offered    bool                // a scheduler has had its ranks, if only for a moment; guarded by Node.handing
	scheduled  atomic.Bool         // the scheduler has its ranks and is notified of their messages; written under Node.handing
	phase      Phase               // guarded by Node.mu
	running    map[id.Rank]bool    // ranks that have not ended; guarded by Node.mu
	tasks      map[id.Rank]process // by rank: those that run; guarded by Node.mu
	files      collection          // the part of its files that its client reads
	held       content.Holding     // files of the node's store; guarded by Node.mu
	ready      chan struct{}       // closed when Prepare or adoption is over
	starting   sync.Mutex          // taken before Node.mu
	notStarted error               // why its ranks did not start; guarded by starting
	forgetting sync.Once
	forgotten  error
}

func (n *Node) newJob() *job {
	return &job{node: n, running: make(map[id.Rank]bool), tasks: make(map[id.Rank]process), ready: make(chan struct{})}
}

// Prepare makes a place for a job's ranks on this node. It refuses cores that are taken and files
// that do not fit. It returns the indexes of the job's contents that the node lacks; the others
// need no data in the job's archive.
func (n *Node) Prepare(ctx context.Context, s JobSpec) (lacking []int, err error) {
	lent := n.openLent(&s, node.Lent)
	defer rights.Close(lent.files)
	if err := n.prepare(ctx, s); err != nil {
		return nil, err
	}
	return n.giveContents(s, lent)
}

func (n *Node) prepare(ctx context.Context, s JobSpec) error {
	t, err := n.taskSpec(s)
	if err != nil {
		return fmt.Errorf("job %d: %w", s.Job, err)
	}
	j := n.newJob()
	j.spec, j.phase = s, Prepared
	j.spec.Exec = task.Exec{} // the job's init has it
	defer close(j.ready)
	for _, r := range t.Ranks {
		j.running[r.Rank] = true
	}
	if err := n.claim(j); err != nil {
		return fmt.Errorf("job %d: %w", s.Job, err)
	}
	t.UID, t.GID = j.uid, j.uid
	if j.container, err = n.inits.New(ctx, t, j); err != nil {
		n.remove(s.Job)
		return fmt.Errorf("job %d: %w", s.Job, err)
	}
	n.mu.Lock()
	j.uid = j.container.Spec().UID
	n.mu.Unlock()
	if err := n.keepJob(j); err != nil {
		return errors.Join(err, j.end())
	}
	if len(s.Shared) > 0 {
		if err := j.container.OpenShare(); err != nil {
			return errors.Join(fmt.Errorf("job %d: %w", s.Job, err), j.end())
		}
	}
	if err := n.openJobNetwork(ctx, j); err != nil {
		return errors.Join(fmt.Errorf("job %d: %w", s.Job, err), j.end())
	}
	j.openExtensions(t.Memory)
	if j.messages, err = n.messages.Open(j.messageConfig()); err != nil {
		return errors.Join(err, j.end())
	}
	return nil
}

// stateShare is a divisor: in addition to its memory, a job may have 1/stateShare of it in the node
// kernel, for the state of its extensions and for its regions.
const stateShare = 4

// openExtensions makes the set of extensions of a job with so many bytes of memory.
func (j *job) openExtensions(memory int64) {
	j.extensions = j.node.extensions.Open(j.spec.Job, memory/stateShare)
	if j.node.remote(j.spec) != nil {
		j.extensions.Cross()
	}
}

// messageConfig describes the job to the engine that carries its messages.
func (j *job) messageConfig() message.JobConfig {
	c := message.JobConfig{
		Job: j.spec.Job, Secret: j.spec.Secret, Set: j.extensions, Keeper: j.container, InitTimeout: j.spec.InitTimeout,
	}
	c.Nodes, c.Members = make([]id.Node, 0, j.spec.Layout.Ranks()), make([]id.Node, 0, j.spec.Layout.Nodes())
	for p := range j.spec.Layout.All() {
		c.Nodes = append(c.Nodes, p.Node)
		if p.Node == j.node.config.Boot.Node {
			c.Local = append(c.Local, p.Rank)
			c.Cores = append(c.Cores, p.Core)
		}
	}
	for place := range j.spec.Layout.Nodes() {
		c.Members = append(c.Members, j.spec.Layout.Node(place))
	}
	j.schedule() // the machine may have an extension, or events may be recorded
	c.Crowd = j.node.crowd(j.spec)
	c.Remote = j.node.remote(j.spec)
	c.Meets = j.node.meets(j.spec)
	c.Halts = j.halts.count
	c.Arrived, c.Woken, c.Scheduled = j.arrived, j.woken, j.scheduled.Load
	return c
}

// leastMemory is the least memory that a job may request. With a memory of a few bytes, the bound
// of a RAM disk would round to 0, which means no bound.
const leastMemory = 1 << 20

// taskSpec returns the task.Spec of a job on this node, without the user.
func (n *Node) taskSpec(s JobSpec) (task.Spec, error) {
	words, err := json.Marshal(s)
	if err != nil {
		return task.Spec{}, err
	}
	if s.HugePages && n.hugePages != nil {
		return task.Spec{}, n.hugePages
	}
	if s.HostRoot && n.ownLinux() {
		return task.Spec{}, fmt.Errorf("%w: --root host: this node has a Linux of its own, and no files of the host; name a folder or a tar file with a root (--root DIR), "+
			"or start a machine of hosted nodes (margay machine up --substrate %s)", ErrLacks, node.Hosted)
	}
	info := n.Info()
	t := task.Spec{
		Exec: s.Exec, Job: s.Job, Hostname: n.config.Boot.Hostname(), Owner: fmt.Sprintf("%d %s", s.UserID, s.User), User: s.User, Umask: s.Umask,
		Pids: s.Pids, Host: s.HostRoot, Hold: s.Hold, Collects: s.Collects, Shared: s.Shared, Rlimits: n.host.Cgroups == nil, Small: (n.ownLinux() || n.declined) && !s.HugePages, Rest: n.restOf(s), Words: words,
	}
	if t.Pids == 0 {
		t.Pids = DefaultPids
	}
	if err := n.checkJobNetwork(s); err != nil {
		return t, err
	}
	t.Hosts = n.hosts(s)
	if t.PMI, err = n.pmiConfig(s); err != nil {
		return t, err
	}
	if s.PMI {
		t.Env = s.withMPI(t.Env)
		t.Interfaces = s.interfaces()
	}
	for p := range s.Layout.On(n.config.Boot.Node) {
		var cpus []id.CPU
		for _, core := range p.Cores() {
			if !has(info.Cores, core) {
				return t, fmt.Errorf("there is no application core %d", core)
			}
			cpus = append(cpus, n.cores[core].CPU)
		}
		var terminal *task.Size
		if p.Rank == 0 {
			terminal = s.Terminal
		}
		t.Ranks = append(t.Ranks, task.Rank{
			Terminal: terminal,
			Rank:     p.Rank,
			Cores:    cpus,
			Env:      rankEnv(s, p, len(t.Ranks), t.PMI),
			Stdin:    s.Stdin == StdinAll || s.Stdin == StdinFirst && p.Rank == 0,
		})
	}
	if len(t.Ranks) == 0 {
		return t, fmt.Errorf("no rank of it is for this node")
	}
	if s.Files < 0 || s.Memory < 0 || s.Memory > 0 && s.Memory < leastMemory {
		return t, fmt.Errorf("%w: files of %d bytes in a memory of %d; a job's memory has at least 1 MiB", ErrRoom, s.Files, s.Memory)
	}
	t.Memory = s.Memory
	if t.Memory == 0 {
		t.Memory = info.Memory * int64(len(n.coresOf(s))) / int64(len(info.Cores))
	}
	if t.Memory > n.info.Memory {
		return t, fmt.Errorf("%w: %d MiB asked for, the node has %d MiB for jobs", ErrRoom, t.Memory>>20, n.info.Memory>>20)
	}
	t.RAMDisk = t.Memory / 4 * 3
	if s.Files > t.RAMDisk {
		return t, fmt.Errorf("%w: the files need %d MiB, the job's RAM disk has %d MiB here, three quarters of its memory (--memory of margay run gives it more of the node's, and of margay machine up the node)",
			ErrRoom, (s.Files-1)>>20+1, t.RAMDisk>>20)
	}
	return t, nil
}

// rankEnv returns the environment variables that describe a rank's place in the job. c is nil
// without PMI.
func rankEnv(s JobSpec, p layout.Place, local int, c *pmi.Config) []string {
	env := []string{
		fmt.Sprintf("%s=%d", wire.EnvJob, s.Job),
		fmt.Sprintf("%s=%d", wire.EnvRank, p.Rank),
		fmt.Sprintf("%s=%d", wire.EnvSize, s.Layout.Ranks()),
		fmt.Sprintf("%s=%d", wire.EnvNode, p.Node),
		fmt.Sprintf("MARGAY_CORE=%d", p.Core),
		fmt.Sprintf("MARGAY_LOCAL_RANK=%d", local),
		fmt.Sprintf("%s=%d", wire.EnvFD, wire.FD),
	}
	if c != nil {
		env = append(env, pmiEnv(s, p, local, len(c.Ranks))...)
	}
	return env
}

// claim enters a job in the table if its cores are free, and registers its nodes with the
// transport. A core belongs to one job; up to slot.MaxTasks of its ranks share it.
func (n *Node) claim(j *job) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.jobs[j.spec.Job] != nil {
		return fmt.Errorf("%w: it is here already", ErrPhase)
	}
	taken := make(map[id.Core]id.Job)
	for number, other := range n.jobs {
		for core := range n.coresOf(other.spec) {
			taken[core] = number
		}
	}
	for core, ranks := range n.coresOf(j.spec) {
		if !has(n.info.Cores, core) { // it was one when the job came
			return fmt.Errorf("core %d: %w: it has another duty now", core, ErrBusy)
		}
		if by, ok := taken[core]; ok {
			return fmt.Errorf("core %d: %w: job %d has it", core, ErrBusy, by)
		}
		if ranks > slot.MaxTasks {
			return fmt.Errorf("core %d: %w for %d ranks: %d can share it", core, ErrBusy, ranks, slot.MaxTasks)
		}
	}
	n.jobs[j.spec.Job] = j
	n.chooseUser(j)
	n.meet(j.spec.Layout)
	return nil
}

// coresOf returns the cores of this node that a job has, with how many of its ranks are on each.
func (n *Node) coresOf(s JobSpec) map[id.Core]int {
	cores := make(map[id.Core]int)
	for p := range s.Layout.On(n.config.Boot.Node) {
		for _, core := range p.Cores() {
			cores[core]++
		}
	}
	return cores
}

func (n *Node) remove(number id.Job) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if j := n.jobs[number]; j != nil {
		n.release(j.held)
	}
	delete(n.jobs, number)
	if n.resting == nil {
		n.resting = time.AfterFunc(restPause, n.rest)
	} else {
		n.resting.Reset(restPause)
	}
}

// restPause is how long a node has no job before it gives memory back. It is longer than between
// jobs that follow each other at some distance: the collection takes 2 ms of a processor, and the
// next job would get the memory from Linux again.
const restPause = 10 * time.Second

// rest gives the memory back that the node kernel has needed for jobs, unless it has one: a host
// may have a thousand node kernels, and Go's runtime would keep most of the memory.
func (n *Node) rest() {
	n.mu.Lock()
	idle := len(n.jobs) == 0
	n.mu.Unlock()
	if idle {
		debug.FreeOSMemory()
	}
}

// jobItem is the name under which PID 1 keeps the link to a job's init.
func jobItem(number id.Job) string { return fmt.Sprintf("job/%d", number) }

// keepJob leaves the link to the job's init with PID 1.
func (n *Node) keepJob(j *job) error {
	item, err := j.container.Kept(jobItem(j.spec.Job))
	if err != nil {
		return err
	}
	defer item.Files[0].Close()
	return keep.Keep(n.config.Link, item)
}

// adoptJob takes over a job that an earlier node kernel left. A job that has all its files can
// still be started: serve may have requested the start while there was no node kernel. A job that
// waits for files is ended, because the files in transit are lost.
func (n *Node) adoptJob(item *keep.Item) error {
	ctx, cancel := context.WithTimeout(context.Background(), adoptTimeout)
	defer cancel()
	c, items, err := task.Adopt(ctx, n.host, item)
	if err != nil {
		return errors.Join(err, keep.Drop(n.config.Link, item.Name))
	}
	j := n.newJob()
	j.adopted = true
	j.container, j.phase, j.uid = c, Running, c.Spec().UID
	j.halts.set(c.Adopted().Halted)
	defer close(j.ready)
	if err := json.Unmarshal(c.Spec().Words, &j.spec); err != nil {
		c.Follow(j)
		return errors.Join(fmt.Errorf("adopt %s: %w", item.Name, err), j.end())
	}
	n.mu.Lock()
	for _, r := range c.Adopted().Running {
		j.running[r] = true
	}
	if !c.Adopted().Started {
		j.phase = Prepared
		for _, r := range c.Spec().Ranks {
			j.running[r.Rank] = true
		}
	}
	n.jobs[j.spec.Job] = j
	n.mu.Unlock()
	if !c.Adopted().Loaded {
		n.config.Log("job %d did not have all its files, ending it", j.spec.Job)
		c.Follow(j)
		return j.end()
	}
	j.openExtensions(c.Spec().Memory)
	if j.messages, err = n.messages.Adopt(j.messageConfig(), items); err != nil {
		c.Follow(j)
		return errors.Join(err, j.end())
	}
	for _, r := range c.Spec().Ranks {
		if !j.running[r.Rank] {
			j.messages.Ended(r.Rank)
		}
	}
	c.Follow(j)
	n.config.Log("adopted job %d", j.spec.Job)
	return nil
}

// start runs the ranks, once. A further call returns the result of the first: serve asks again when
// its connection was lost before the answer.
func (j *job) start(ctx context.Context) error {
	j.starting.Lock()
	defer j.starting.Unlock()
	j.node.mu.Lock()
	phase := j.phase
	if phase == Prepared {
		j.phase = Running
	}
	j.node.mu.Unlock()
	switch phase {
	case Prepared:
		if j.spec.Hold {
			j.halts.set(true) // before a scheduler gets the ranks
		}
		j.notStarted = j.container.Start(ctx)
		return j.notStarted
	case Running, Ended:
		return j.notStarted
	}
	return fmt.Errorf("start job %d: %w", j.spec.Job, ErrPhase)
}

// forget ends the job as soon as it has been prepared.
func (j *job) forget() error {
	<-j.ready
	if j.container == nil {
		return nil // that has failed
	}
	return j.end()
}

// end ends the job and cleans up, once.
func (j *job) end() error {
	j.forgetting.Do(func() {
		j.node.mu.Lock()
		j.phase = Ending
		j.node.mu.Unlock()
		err := j.container.End()
		j.files.close()
		j.leaveAll()
		if j.messages != nil {
			j.messages.Close()
		}
		if j.extensions != nil {
			err = errors.Join(err, j.extensions.Close())
		}
		j.forgotten = errors.Join(err, keep.Drop(j.node.config.Link, jobItem(j.spec.Job)))
		j.container.Release()
		j.node.remove(j.spec.Job)
	})
	return j.forgotten
}

// Record implements task.Handler.
func (j *job) Record(r task.Record) {
	if r.Stream == task.Exit {
		j.node.mu.Lock()
		news := j.running[r.Rank] // the record may come again
		delete(j.running, r.Rank)
		left := len(j.running)
		if left == 0 && j.phase == Running {
			j.phase = Ended
		}
		j.node.mu.Unlock()
		told := j.leave(r.Rank)
		if news {
			j.recordEnd(r.Rank, r.Status, told)
		}
		if j.messages != nil { // none when its adoption has failed
			j.messages.Ended(r.Rank)
		}
		if news {
			j.processEnded(r.Rank, r.Status, left)
		}
	}
	j.node.config.Sink.Record(j.spec.Job, r)
}

// InputTaken implements task.Handler.
func (j *job) InputTaken(rank id.Rank, position uint64) {
	j.node.config.Sink.InputTaken(j.spec.Job, rank, position)
}

// Gone implements task.Handler.
func (j *job) Gone() {
	j.node.mu.Lock()
	lost := j.phase == Running || j.phase == Ended
	j.node.mu.Unlock()
	if lost {
		j.node.config.Sink.Fault(j.spec.Job, j.container.Why())
	}
}

var _ task.Handler = (*job)(nil)
