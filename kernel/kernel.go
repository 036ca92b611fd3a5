// Package kernel is the node kernel: it owns one node of a machine, assigns its application cores
// to processes, carries their messages and runs their extensions. The caller passes on requests and
// receives events through Sink: the node kernel knows no control protocol.
//
// Locks, outermost first: Node.changingDuties (held while the duties of cores change), Node.handing
// (held while a rank comes, goes, is given to the scheduler or taken back), Node.mu. Node.mu guards
// the table of jobs, the transport, the set of application cores, and the cores of each job; it is
// not held during a request to a container. The store of contents takes its lock under it.
// job.starting (held while a job's ranks are started) is taken before Node.mu alone. Four more
// locks are held while none of the others is: Node.scheduling (while the policies of a core are
// set), jobNetworks.mu (while the packet filter changes, or the first device is made),
// neighbours.mu (while a hardware address is entered) and collection.mu (while a piece of a job's
// files is read).
package kernel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/id"
	"margay/kernel/abi/layout"
	"margay/kernel/abi/node"
	"margay/kernel/abi/slot"
	"margay/kernel/border"
	"margay/kernel/cgroup"
	"margay/kernel/content"
	"margay/kernel/extension"
	"margay/kernel/fabric"
	"margay/kernel/gate"
	"margay/kernel/hardware"
	"margay/kernel/keep"
	"margay/kernel/link"
	"margay/kernel/message"
	"margay/kernel/pid1"
	"margay/kernel/record"
	"margay/kernel/task"
	"margay/kernel/timer"
	"margay/nimble/engine"
)

// cgroupRoot is where a node with its own Linux finds its control groups.
const cgroupRoot = "/sys/fs/cgroup"

// reserve is the part of the free memory that a node keeps for itself when the node kernel starts,
// in bytes. An idle node kernel takes 42 MiB of it, huge pages included; the rest is for messages
// and connections, which no job's control group accounts for.
const reserve = 64 << 20

// forJobs returns the memory that jobs can have, of the free memory at the start of the node
// kernel. A job that takes all of it must reach the limit of its control group while Linux still
// has free pages: Linux without free pages kills an arbitrary process. A 64th is for structures
// that grow with memory, such as Linux's watermarks and lists of free pages; a small node keeps no
// more than half.
func forJobs(free int64) int64 { return max(free/2, free-free/64-reserve) }

// adoptTimeout bounds how long the adoption of one job may take.
const adoptTimeout = 10 * time.Second

// Errors of requests.
var (
	ErrNoJob = errors.New("no such job on this node")
	ErrBusy  = errors.New("core is not free")
	ErrPhase = errors.New("the job is not in the right state for that")
	ErrRoom  = errors.New("not enough memory")
	ErrLacks = errors.New("this node cannot do that")
)

// Sink receives the events of jobs. Its methods are called from several goroutines, one at a time
// for each job, and must return soon.
type Sink interface {
	// Record hands over a job's next record; one that was not acknowledged may come again.
	Record(job id.Job, r task.Record)
	// InputTaken reports how much of its standard input a rank has taken, in bytes.
	InputTaken(job id.Job, rank id.Rank, position uint64)
	// Fault reports that a job cannot continue normally. The error may be an *id.EndedError.
	Fault(job id.Job, err error)
}

// Config configures a node kernel.
type Config struct {
	Boot    node.Config
	JobInit []string      // command that becomes a job init
	Engine  engine.Engine // that runs extensions
	Link    *link.Conn
	Sink    Sink

	// Contents is where the node mounts the files that jobs have brought, so that jobs share the
	// memory of programs and libraries. Empty: nowhere, and each job has copies.
	Contents string

	// Scheduler opens the scheduler that assigns shared cores to their processes, which may take
	// long, and returns the missing features. nil: Linux schedules them.
	Scheduler func() (s Scheduler, lacks []string)
	Log       func(format string, args ...any)
}

// Node is the node kernel of one node. It is safe for concurrent use.
type Node struct {
	config  Config
	cores   []hardware.Core // all, the system's first
	allowed []id.CPU        // of all hosted nodes of the machine, if this is one
	info    Info
	host    task.Host
	inits   *task.Pool // that jobs' inits come from

	hugePages error // why there are none on request; nil: there are
	declined  bool  // the node kernel and its jobs were started without huge pages

	messages   *message.Engine
	extensions *extension.Manager
	border     *border.Border // nil: this node runs no extensions on its interface
	recorder   *record.Recorder
	contents   atomic.Pointer[content.Store] // nil before Adopt, and when none could be made
	refused    *gate.Log                     // of contents that are not kept
	booted     bool                          // the extensions of the boot configuration are in their slots; of Adopt and Boot alone

	networks   jobNetworks
	neighbours neighbours

	changingDuties sync.Mutex // outermost; held while duties changes
	duties         Duties

	scheduler  atomic.Pointer[Scheduler] // nil until it is open; set once
	shared     atomic.Bool               // the scheduler has all that runs; set with mu held
	scheduling sync.Mutex                // held while the policies of a core are set; taken without mu
	handing    sync.Mutex                // held while a rank comes, goes, is given to the scheduler or taken back; taken before mu

	mu         sync.Mutex
	jobs       map[id.Job]*job
	spareUsers id.Job           // how many spareUser has chosen
	resting    *time.Timer      // calls rest; nil: there was no job
	transport  fabric.Transport // nil until Join
	met        []layout.Run     // nodes whose addresses it has
}

// Info describes a node as its node kernel found it.
type Info struct {
	Kernel string          // release of the Linux kernel
	Cores  []hardware.Core // for applications
	Memory int64           // bytes for jobs
	Limits string          // what bounds a job: "cgroup" or "rlimit"
	Lacks  []string        // the features that jobs lack here, and why

	AllCores    bool           // core 0 is for applications, too
	MessageCore *hardware.Core // that handles messages alone; nil for none

	Scheduler string // the scheduler (sched.Enforcer.Name); empty: Linux alone, maybe until it is open
}

// New takes possession of the node.
func New(c Config) (*Node, error) {
	n := &Node{config: c, jobs: make(map[id.Job]*job), refused: gate.NewLog(c.Log, 10, 1)}
	n.info.Lacks = append(n.info.Lacks, c.Boot.Lacks...)
	n.host = task.Host{JobInit: c.JobInit, Log: c.Log}
	if err := n.findCores(); err != nil {
		return nil, err
	}
	if err := n.findMemory(); err != nil {
		return nil, err
	}
	n.findPages()
	n.findLimits()
	n.inits = task.NewPool(n.host)
	n.info.Kernel = release()
	var err error
	if n.extensions, err = extension.NewManager(c.Engine, len(n.cores), c.Log); err != nil {
		return nil, err
	}
	n.recorder = record.New(len(n.cores))
	n.extensions.RecordTo(n.recorder)
	n.extensions.Watch(slot.Sched, n.reschedule)
	n.extensions.Machine().KeepWith(pid1Keeper{c.Link})
	timer.New(c.Boot.Node, n.extensions, c.Log)
	messages := message.Config{Self: c.Boot.Node, Log: c.Log, Fault: c.Sink.Fault, Recorder: n.recorder}
	if n.border = n.newBorder(); n.border != nil {
		messages.Border = n.border
	}
	n.messages = message.NewEngine(messages)
	n.recorder.Watch(func(bool) { n.messages.Repath() })
	n.extensions.Watch(slot.Message, n.followMessages)
	n.extensions.Watch(slot.Packet, n.followMessages)
	if err := n.assign(Duties{All: c.Boot.AllCores, Message: c.Boot.MessageCore}); err != nil {
		n.info.Lacks = append(n.info.Lacks, fmt.Sprintf("the core roles of its configuration: %v", err))
	}
	return n, nil
}

// Extensions describes the extensions of all jobs on the node, those that were removed last.
func (n *Node) Extensions() []extension.Info {
	if n.border != nil {
		n.border.Report()
	}
	list := n.extensions.List()
	for i := range list {
		if list[i].Slot == slot.Sched && list[i].Removed == "" && n.opening() {
			list[i].Waits = beingStarted
		}
	}
	return list
}

// InsertExtension puts an extension into a slot of a job, or of the machine (extension.Machine).
func (n *Node) InsertExtension(job id.Job, r extension.Request) (handle id.Handle, err error) {
	set := n.extensions.Machine()
	if job != extension.Machine {
		j, err := n.get(job)
		if err != nil {
			return 0, err
		}
		set = j.extensions
	}
	x, err := set.Insert(r)
	if err != nil {
		return 0, err
	}
	return x.Handle(), nil
}

// RemoveExtension takes an extension out of its slot, whichever job it belongs to.
func (n *Node) RemoveExtension(handle id.Handle, by string) error {
	return n.extensions.Remove(handle, by)
}

func (n *Node) findCores() (err error) {
	if !n.ownLinux() {
		if n.allowed, err = hardware.Allowed(0); err != nil {
			return err
		}
		n.cores = hardware.Slots(n.allowed, n.config.Boot.Cores, n.config.Boot.Node)
	} else if n.cores, err = hardware.Own(); err != nil {
		return err
	}
	n.info.Cores = n.cores[1:]
	if !n.cores[0].Shared {
		return hardware.Confine([]id.CPU{n.cores[0].CPU})
	}
	return nil
}

// keptMemory is the name under which PID 1 keeps the amount of memory for jobs. A later node kernel
// would only find the memory that its adopted jobs leave.
const keptMemory = "memory"

func (n *Node) findMemory() error {
	n.info.Memory = n.config.Boot.Memory
	if n.info.Memory > 0 {
		return nil
	}
	free, err := hardware.FreeMemory()
	n.info.Memory = forJobs(free)
	n.info.Memory -= content.DiskSize(contentBudget(n.info.Memory, 0))
	return err
}

// ownLinux reports whether the Linux kernel belongs to this node alone, so that its settings are
// the node's.
func (n *Node) ownLinux() bool { return n.config.Boot.Substrate != node.Hosted }

// findPages determines whether jobs can have huge pages, and locks the node kernel's own pages in
// memory.
func (n *Node) findPages() {
	have := true
	var err error
	n.declined = hardware.HugePagesDeclined()
	if n.ownLinux() {
		err = hardware.OfferHugePages()
	} else {
		have, err = hardware.HugePages()
	}
	if err == nil && !have {
		err = errors.New("the host's Linux gives them only to programs that ask for them (/sys/kernel/mm/transparent_hugepage/enabled)")
	}
	if err != nil {
		n.hugePages = fmt.Errorf("huge pages: %w: %w", ErrLacks, err)
		n.info.Lacks = append(n.info.Lacks, fmt.Sprintf("huge pages on request: %v", err))
	}
	swaps, err := hardware.Swaps()
	if swaps && err == nil {
		err = hardware.LockMemory()
	}
	if err != nil {
		n.info.Lacks = append(n.info.Lacks, fmt.Sprintf("a node kernel that is never swapped out: %v", err))
	}
}

// findLimits determines by which means jobs can be bounded here.
func (n *Node) findLimits() {
	n.info.Limits = "cgroup"
	var err error
	if !n.ownLinux() {
		// The host's control groups are the host's to give away.
		err = cgroup.ErrUnavailable
	} else {
		n.host.Cgroups, err = cgroup.Open(cgroupRoot, os.Getppid())
	}
	if err != nil {
		n.host.Cgroups = nil
		n.info.Limits = "rlimit"
		n.info.Lacks = append(n.info.Lacks, fmt.Sprintf("memory and process limits of whole jobs: %v; each process has resource limits, of the memory an even part", err))
	}
	n.host.UserNS, n.host.User = singleUser(), n.spareUser
	if !n.ownLinux() {
		n.info.Lacks = append(n.info.Lacks, sharedLinux)
	}
}

// sharedLinux is the entry in Info.Lacks of a node that shares its Linux with others: the features
// that it cannot withhold from jobs.
const sharedLinux = "a Linux of its own: it is up to the host whether jobs get user namespaces, perf events, io_uring, userfaultfd and vsock; " +
	"they may leave their cores, and shared memory without a file and mappings that grow downwards are not bounded"

// singleUser reports whether this process is in a user namespace that maps only one user id.
func singleUser() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	var inside, outside, count uint32
	if err == nil {
		_, err = fmt.Sscan(string(text), &inside, &outside, &count)
	}
	return err == nil && count == 1
}

func release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// Info returns the description of the node.
func (n *Node) Info() Info {
	n.mu.Lock()
	defer n.mu.Unlock()
	info := n.info
	if n.opening() {
		info.Lacks = append(slices.Clone(info.Lacks), "extensions in slot sched: "+beingStarted)
	}
	return info
}

// Adopt takes over the state that an earlier node kernel has left with PID 1: its jobs, and its
// listening socket, which it returns if there is one. From then on it keeps a job init ready for
// the next job. The caller must call it once, before any other request to the node.
func (n *Node) Adopt() (listener *os.File, err error) {
	defer n.config.Link.SetDeadline(time.Time{})
	n.config.Link.SetDeadline(time.Now().Add(adoptTimeout))
	if err := n.config.Link.Send(link.New(pid1.Resync, nil)); err != nil {
		return nil, err
	}
	var own []*keep.Item // extensions of the machine itself
	var memory int64     // that the first node kernel found
	var contents *os.File
	for {
		n.config.Link.SetDeadline(time.Now().Add(adoptTimeout)) // again for each item
		m, err := n.config.Link.Recv()
		if err != nil {
			return listener, err
		}
		item, done, err := keep.Replayed(m)
		switch {
		case err != nil:
			return listener, err
		case done:
			if err := n.extensions.Machine().Adopt(own); err != nil {
				n.config.Log("%v", err)
			}
			for _, item := range own {
				item.CloseFiles()
			}
			if n.border != nil {
				n.border.Start()
			}
			if err := n.settleMemory(memory); err != nil {
				return listener, err
			}
			n.openContents(contents)
			n.inits.Open()
			return listener, nil
		case item == nil:
			m.CloseFiles()
		case item.Name == keptListener && len(item.Files) == 1:
			listener = item.Files[0]
		case item.Name == keptBooted:
			n.booted = true
		case item.Name == keptMemory:
			if err := json.Unmarshal(item.Words, &memory); err != nil {
				n.config.Log("%s: %v", item.Name, err)
			}
		case item.Name == keptContents && len(item.Files) == 1:
			contents = item.Files[0]
		case item.Name == keptDuties:
			if err := n.adoptDuties(item); err != nil {
				n.config.Log("%v", err)
			}
		case border.Kept(item.Name) && n.border != nil:
			if err := n.border.Adopt(item); err != nil {
				n.config.Log("%v", err)
			}
		case extension.Kept(item.Name):
			own = append(own, item)
		default:
			if err := n.adoptJob(item); err != nil {
				n.config.Log("%v", err)
			}
		}
	}
}

// settleMemory adopts the amount of memory for jobs that the first node kernel of this boot found.
// If this is the first, it leaves the amount with PID 1.
func (n *Node) settleMemory(found int64) error {
	if found == 0 {
		words, err := json.Marshal(n.info.Memory)
		if err != nil {
			return err
		}
		return keep.Keep(n.config.Link, keep.Item{Name: keptMemory, Words: words})
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.info.Memory = found
	return nil
}

// pid1Keeper is PID 1 as the keeper of items that belong to no job.
type pid1Keeper struct{ link *link.Conn }

func (k pid1Keeper) Keep(item keep.Item) error { return keep.Keep(k.link, item) }
func (k pid1Keeper) Drop(name string) error    { return keep.Drop(k.link, name) }

// keptListener is the name under which PID 1 keeps the listening socket of the fabric.
const keptListener = "listener"

// KeepListener leaves the fabric's listening socket with PID 1.
func (n *Node) KeepListener(f *os.File) error {
	return keep.Keep(n.config.Link, keep.Item{Name: keptListener, Files: []*os.File{f}})
}

// PowerOff makes PID 1 turn the node off.
func (n *Node) PowerOff() error {
	return errors.Join(n.inits.Close(), n.config.Link.Send(link.New(pid1.PowerOff, nil)))
}

// Noise counts for d what interrupts each application core.
func (n *Node) Noise(ctx context.Context, d time.Duration) ([]CoreNoise, error) {
	before, err := hardware.ReadInterrupts()
	if err != nil {
		return nil, err
	}
	started := time.Now()
	select {
	case <-time.After(d):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	after, err := hardware.ReadInterrupts()
	if err != nil {
		return nil, err
	}
	elapsed := time.Since(started)
	cores := n.Info().Cores
	noise := make([]CoreNoise, len(cores))
	for i, c := range cores {
		noise[i] = CoreNoise{Core: c.ID, Elapsed: elapsed}
		noise[i].Interrupts, noise[i].Rows = after.Since(before, c.CPU)
	}
	return noise, nil
}

// CoreNoise holds the interruptions of a core during some time.
type CoreNoise struct {
	Core       id.Core
	Interrupts uint64 // sum over all rows of /proc/interrupts
	Elapsed    time.Duration
	Rows       []hardware.Row
}

// get finds a job that has been prepared.
func (n *Node) get(number id.Job) (*job, error) {
	j := n.find(number)
	if j == nil {
		return nil, fmt.Errorf("job %d: %w", number, ErrNoJob)
	}
	select {
	case <-j.ready:
		if j.container == nil { // its preparation has just failed
			return nil, fmt.Errorf("job %d: %w", number, ErrNoJob)
		}
		return j, nil
	default:
		return nil, fmt.Errorf("job %d: %w", number, ErrPhase)
	}
}

// find finds a job, nil when there is none.
func (n *Node) find(number id.Job) *job {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.jobs[number]
}

// Load unpacks a job's files from r, a zstd-compressed tar archive.
func (n *Node) Load(ctx context.Context, number id.Job, r io.Reader) error {
	j, err := n.get(number)
	if err != nil {
		return err
	}
	return j.container.Unpack(ctx, r)
}

// Start runs a job's ranks.
func (n *Node) Start(ctx context.Context, number id.Job) error {
	j, err := n.get(number)
	if err != nil {
		return err
	}
	return j.start(ctx)
}

// Signal sends a signal to one rank of a job, or to task.AllRanks.
func (n *Node) Signal(number id.Job, rank int, sig syscall.Signal) error {
	j, err := n.get(number)
	if err != nil {
		return err
	}
	if rank == task.AllRanks && (sig == unix.SIGSTOP || sig == unix.SIGCONT) {
		j.halts.set(sig == unix.SIGSTOP)
	}
	return j.container.Signal(rank, sig)
}

// Resize gives the terminal of a job's rank 0 another size, if that is on this node.
func (n *Node) Resize(number id.Job, size *task.Size) error {
	j, err := n.get(number)
	if err != nil || size == nil {
		return err
	}
	return j.container.Resize(*size)
}

// Input gives a rank a piece of its standard input (task.Container.Input).
func (n *Node) Input(number id.Job, rank id.Rank, offset uint64, data []byte, eof bool) error {
	j, err := n.get(number)
	if err != nil {
		return err
	}
	return j.container.Input(rank, offset, data, eof)
}

// Ack releases a job's records up to seq.
func (n *Node) Ack(number id.Job, seq uint64) error {
	j, err := n.get(number)
	if err != nil {
		return err
	}
	return j.container.Ack(seq)
}

// Finish ends the processes that the ranks of a job, which have all ended, have left behind. The
// rest of its output follows.
func (n *Node) Finish(number id.Job) error {
	j, err := n.get(number)
	if err != nil {
		return err
	}
	return j.container.Finish()
}

// Rewind resends every unacknowledged record of a job.
func (n *Node) Rewind(number id.Job) error {
	j, err := n.get(number)
	if err != nil {
		return err
	}
	return j.container.Rewind()
}

// Forget ends a job if it still runs and waits until the node holds nothing of it. It returns the
// files that are lost with it.
func (n *Node) Forget(number id.Job) (task.Unkept, error) {
	j := n.find(number)
	if j == nil {
		return task.Unkept{}, nil // it is gone already
	}
	if err := j.forget(); err != nil || j.container == nil {
		return task.Unkept{}, err
	}
	return j.container.Unkept(), nil
}

// Jobs lists the jobs that the node has.
func (n *Node) Jobs() []JobInfo {
	n.mu.Lock()
	defer n.mu.Unlock()
	infos := make([]JobInfo, 0, len(n.jobs))
	for number, j := range n.jobs {
		infos = append(infos, JobInfo{Job: number, Phase: j.phase, Shared: len(j.spec.Shared) > 0})
	}
	return infos
}
