// Package jobinit is the init of one job at a time on one node: PID 1 of the job's namespaces. See
// package task for its part.
//
// The init builds the job's root, unpacks its files, starts its ranks, reaps them, keeps their
// records and whatever the node kernel leaves with it. It obeys one link; when every copy of the
// link's other end is gone, it ends the job. After a job that has left nothing behind it can wait
// for another one of the same owner.
//
// Locks: initProcess.mu guards the tables of ranks and is held while a rank is started, so that the
// reaper, whose own lock is taken before, finds it there. The others are taken after it, and no
// other lock is taken under them but the journal's: debugger.mu for what gdb and gdbserver have
// said, input.mu for the input of a rank, output.mu for what the ranks write, brought.mu for the
// files that are unpacked, pmiServer.mu for the process management interface.
package jobinit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/archive"
	"margay/kernel/abi/id"
	"margay/kernel/descriptor"
	"margay/kernel/keep"
	"margay/kernel/link"
	"margay/kernel/reap"
	"margay/kernel/task"
	"margay/kernel/task/journal"
)

// outputPiece is the most output that one record holds, in bytes.
const outputPiece = 32 << 10

// killWait bounds how long the init waits for killed processes before it ends, and the kernel with
// it them.
const killWait = 2 * time.Second

// orphansWait is how long processes whose parents have ended stay unreaped at the begin, and count
// as processes of the job. The ends of ranks are noticed at once (rank.whenEnded). A job that does
// nothing has ended by then, and its init has spared the threads and the wake-ups for SIGCHLD.
const orphansWait = 200 * time.Millisecond

// tellWait bounds how long the init, when it ends, waits for room to say what vanishes with it.
const tellWait = time.Second

// Descriptors that the node kernel gives to a job init.
const (
	LinkFD  = 3 // its end of the link
	GroupFD = 4 // the control group of the job's ranks, where there is one
)

// initProcess is the init of one job.
type initProcess struct {
	*sandbox
	strings []byte // of the job's Exec, until its specification comes
	spec    task.Spec
	loaded  bool // the files are unpacked, all of them
	started bool
	halted  bool // the job's processes were sent SIGSTOP, and no SIGCONT since; written with mu held
	special bool // the job has had more than ranks with output and input: see reset
	kept    keep.Store
	work    sync.WaitGroup // the goroutines of a job that is not special
	reaper  *reap.Reaper
	reaping *time.Timer   // starts the reaper
	over    chan struct{} // closed to end it
	output  output
	pmi     *pmiServer    // nil: the ranks do without
	dumps   *dumps        // of ranks that a fault ends; nil: there are none
	reading chan struct{} // has a value while the stacks of the ranks are read

	mu    sync.Mutex
	ranks map[id.Rank]*rank
	pids  map[int]*rank // those still running
	relay int           // the pid of the relay of shared folders; 0: there is none

	debuggers map[id.Rank]*debugger // by the rank that they have
	servers   map[int]*debugger     // by the pid of gdbserver: those whose gdbserver runs

	first *link.Message // received by awaitJob; nil when it is handled, or there was none

	brought   brought
	held      map[archive.Digest]heldFile // that the node had already
	unpacking *io.PipeWriter              // nil when no archive is being unpacked
	unpacked  chan error
}

// Main runs the init of a job, and of further ones. It returns when the init is of no use any more;
// the process must end then. Words are task.WithGroup and task.Ahead, as they apply.
func Main(words ...string) error {
	if err := outliveSignals(); err != nil {
		return err
	}
	// Ranks have their standard streams and their socket, whatever has come here.
	if err := descriptor.CloseOnExec(3); err != nil {
		return err
	}
	conn, err := link.NewConn(os.NewFile(LinkFD, "link"))
	if err != nil {
		return err
	}
	s := &sandbox{conn: conn, device: fuseDevice()}
	if slices.Contains(words, task.WithGroup) {
		s.group = os.NewFile(GroupFD, "group")
	}
	s.stage = s.setUp()
	var first *link.Message
	if slices.Contains(words, task.Ahead) {
		if err := errors.Join(s.stage, rehearse()); err != nil {
			return err
		}
		if first, err = s.awaitJob(); err != nil {
			return unlessOver(err)
		}
	}
	growStack()
	for {
		in := newInit(s, first)
		again, err := in.run()
		if err != nil || !again || in.reset() != nil {
			return err
		}
		if first, err = s.awaitJob(); err != nil {
			return unlessOver(err)
		}
	}
}

// unlessOver returns the error of awaitJob, unless it is that no job will come: the node kernel has
// ended, or does not need this init.
func unlessOver(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// newInit makes the init of a job. The first message about it may have been received.
func newInit(s *sandbox, first *link.Message) *initProcess {
	in := &initProcess{
		sandbox:   s,
		first:     first,
		output:    output{journal: journal.New()},
		ranks:     make(map[id.Rank]*rank),
		pids:      make(map[int]*rank),
		debuggers: make(map[id.Rank]*debugger),
		servers:   make(map[int]*debugger),
		held:      make(map[archive.Digest]heldFile),

		reading: make(chan struct{}, 1),
		over:    make(chan struct{}),
	}
	in.output.search = func() task.Unkept { return in.brought.unkept("", in.spec.Dir) }
	in.reaper = reap.New(in.ended)
	return in
}

// run runs a job until its end, and reports whether the init should wait for another one.
func (in *initProcess) run() (again bool, err error) {
	in.work.Go(in.report)
	again, err = in.obey()
	in.killAll()
	if in.started {
		left := in.output.left()
		// A dead node kernel needs no message. PID 1 may hold its end of the link, and does not
		// read it.
		in.conn.SetWriteDeadline(time.Now().Add(tellWait))
		_ = in.tell(task.Left, left)
		in.conn.SetWriteDeadline(time.Time{})
	}
	return again, errors.Join(err, forgetKeys(in.spec.UID))
}

// stackRoom is how much of a stack the requests of a launch take, in bytes.
const stackRoom = 12 << 10

// growStack makes room on the stack of the calling goroutine. Otherwise Go's runtime doubles the
// stack several times, and each time looks for the callers in tables that are not in memory yet.
//
//go:noinline
func growStack() {
	var room [stackRoom]byte
	touch(&room)
}

//go:noinline
func touch(*[stackRoom]byte) {}

// obey carries out the node kernel's requests until the request to end, or until the node kernel
// and all keepers of its link have ended. It reports whether the init should wait for another job.
func (in *initProcess) obey() (again bool, err error) {
	for {
		m, err := in.next()
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if m.Kind == task.Quit || m.Kind == task.Reset {
			return m.Kind == task.Reset, nil
		}
		if err := in.do(m); err != nil {
			var start *task.StartError
			if !errors.As(err, &start) {
				start = &task.StartError{Rank: task.AllRanks, Op: m.Kind, Text: err.Error()}
			}
			in.tell(task.Failed, start)
		}
	}
}

// do carries out one request. Nothing keeps its payload.
func (in *initProcess) do(m link.Message) error {
	if mine, err := in.kept.Handle(m); mine {
		return err
	}
	defer func() { m.CloseFiles() }()
	switch m.Kind {
	case task.Strings:
		in.strings = append(in.strings, m.Payload...)
		return nil
	case task.Create:
		return in.create(m)
	case task.Contents:
		return in.hold(&m)
	case task.Unpack:
		return in.unpackPiece(m.Payload)
	case task.Unpacked:
		return in.unpackEnd()
	case task.Start:
		return in.start()
	case task.Signal:
		return in.signal(m)
	case task.Resize:
		return in.resize(m)
	case task.Input:
		return in.input(m)
	case task.Ack:
		var b task.AckBody
		if err := m.Decode(&b); err != nil {
			return err
		}
		in.output.journal.Ack(b.Seq)
		return nil
	case task.Exchange:
		if in.pmi == nil {
			return nil
		}
		return in.pmi.receive(m)
	case task.Rewind:
		in.rewind()
		return nil
	case task.Finish:
		return in.finish()
	}
	in.special = true
	switch m.Kind {
	case task.Collect:
		return in.collect(&m)
	case task.Stacks:
		return in.readStacks(&m)
	case task.Debug:
		return in.debug(&m)
	case task.Resync:
		return in.resync()
	}
	return fmt.Errorf("job init: unknown request %q", m.Kind)
}

func (in *initProcess) create(m link.Message) error {
	var b task.CreateBody
	if err := m.Decode(&b); err != nil {
		return err
	}
	var err error
	if in.spec, err = b.Unpack(in.strings); err != nil {
		return err
	}
	in.strings = nil
	if in.spec.PMI != nil {
		in.pmi = newPMIServer(in, *in.spec.PMI)
	}
	if err := unix.Sethostname([]byte(in.spec.Hostname)); err != nil {
		return failure("set host name", err)
	}
	if in.stage != nil {
		return in.stage
	}
	if in.limit > 0 && in.spec.Pids != in.limit {
		return failure("limit processes", fmt.Errorf("this job init has had a job with another limit, of %d", in.limit))
	}
	if err := makeRoot(in.spec); err != nil {
		return err
	}
	return in.tell(task.Create, nil)
}

// hold keeps the files that come with a message for the archive.
func (in *initProcess) hold(m *link.Message) error {
	var b task.ContentsBody
	if err := m.Decode(&b); err != nil {
		return err
	}
	if len(b.Digests) != len(m.Files) {
		return fmt.Errorf("job init: %d digests with %d files", len(b.Digests), len(m.Files))
	}
	for i, digest := range b.Digests {
		if had, is := in.held[digest]; is {
			had.Close()
		}
		in.held[digest] = heldFile{m.Files[i], b.Folder}
	}
	m.Files = nil
	return nil
}

// unpackPiece passes a piece of the archive to the unpacker. An error of the unpacker is reported
// at the archive's end, when the node kernel waits for it.
func (in *initProcess) unpackPiece(data []byte) error {
	if in.unpacking == nil {
		r, w := io.Pipe()
		in.unpacking, in.unpacked = w, make(chan error, 1)
		go func() {
			err := unpack(r, unpacker{spec: in.spec, brought: &in.brought, held: in.held, added: in.tellContent})
			r.CloseWithError(io.ErrClosedPipe)
			in.unpacked <- err
		}()
	}
	_, _ = in.unpacking.Write(data)
	return nil
}

func (in *initProcess) unpackEnd() error {
	if in.unpacking != nil {
		in.unpacking.Close()
		in.unpacking = nil
		if err := <-in.unpacked; err != nil {
			return err
		}
	}
	for digest, f := range in.held {
		// While a file that other jobs execute, too, is open, Linux gives no rank a write lease on
		// it. That would hold up their start.
		if f.mounted == "" {
			f.Close()
			delete(in.held, digest)
		}
	}
	in.loaded = true
	return in.tell(task.Unpacked, nil)
}

func (in *initProcess) start() error {
	wait := orphansWait
	if len(in.spec.Shared) > 0 {
		wait = 0 // the end of the relay must end the ranks before they take their writes for done
	}
	in.work.Add(1)
	in.reaping = time.AfterFunc(wait, func() {
		defer in.work.Done()
		in.reaper.Follow(in.over)
	})
	if err := enterStage(in.spec); err != nil {
		return err
	}
	if err := in.shareFolders(); err != nil {
		return err
	}
	if err := in.spawn(); err != nil {
		return err
	}
	in.started = true
	in.setHalted(in.spec.Hold)
	in.spec.Argv, in.spec.Env, in.spec.Parts = nil, nil, nil // the ranks have them
	return in.tell(task.Start, nil)
}

// setHalted notes whether the job's processes are stopped.
func (in *initProcess) setHalted(halted bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.halted = halted
}

// signal sends a signal to the process group that a rank leads. Stopping and continuing all ranks
// is for everything of the job on this node: processes in other groups of a rank's session would go
// on.
func (in *initProcess) signal(m link.Message) error {
	var b task.SignalBody
	if err := m.Decode(&b); err != nil {
		return err
	}
	if b.Rank == task.AllRanks && (b.Signal == unix.SIGSTOP || b.Signal == unix.SIGCONT) {
		in.setHalted(b.Signal == unix.SIGSTOP)
		_ = unix.Kill(-1, b.Signal) // ESRCH: everything has ended
		in.continueServers()
		return nil
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, r := range in.pids {
		if b.Rank == task.AllRanks || b.Rank == int(r.Rank.Rank) {
			// It may have ended a moment ago.
			_ = unix.Kill(-r.pid, b.Signal)
			if b.Signal == unix.SIGKILL {
				in.killServer(r) // which might not look at the rank, and that is there until then
			}
		}
	}
	return nil
}

func (in *initProcess) input(m link.Message) error {
	var b task.InputBody
	if err := m.Decode(&b); err != nil {
		return err
	}
	in.mu.Lock()
	r := in.ranks[b.Rank]
	in.mu.Unlock()
	if r == nil {
		return nil
	}
	if position, gone := r.input.take(b, m.Payload); gone {
		return in.tell(task.Input, task.InputBody{Rank: b.Rank, Offset: position})
	}
	return nil
}

func (in *initProcess) rewind() {
	in.output.journal.Rewind()
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, r := range in.ranks {
		if r.Stdin {
			in.tell(task.Input, task.InputBody{Rank: r.Rank.Rank, Offset: r.input.position()})
		}
	}
}

// resync brings a new node kernel up to date.
func (in *initProcess) resync() error {
	if err := in.kept.Replay(in.conn); err != nil {
		return err
	}
	state := task.State{Spec: in.spec, Loaded: in.loaded, Started: in.started, Halted: in.halted}
	in.mu.Lock()
	for _, r := range in.pids {
		state.Running = append(state.Running, r.Rank.Rank)
	}
	in.mu.Unlock()
	if err := in.tell(task.Resync, state); err != nil {
		return err
	}
	if err := in.tellProcesses(); err != nil {
		return err
	}
	in.rewind()
	return nil
}

// tellProcesses reports all running ranks.
func (in *initProcess) tellProcesses() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, r := range in.pids {
		if err := in.tellProcess(r); err != nil {
			return err
		}
	}
	return nil
}

// report sends the records as they come.
func (in *initProcess) report() {
	for {
		r, ok := in.output.journal.Read()
		if !ok {
			return // the job is over
		}
		m := link.New(task.Output, r)
		m.Payload = r.Data
		if err := in.conn.Send(m); err != nil {
			return // the link is gone, and obey sees it too
		}
	}
}

func (in *initProcess) tell(kind string, body any) error {
	return in.conn.Send(link.New(kind, body))
}

// tellContent passes a file that was unpacked to the node kernel. If that has ended, the job still
// has the file.
func (in *initProcess) tellContent(digest archive.Digest, f *os.File) {
	m := link.New(task.Content, task.ContentsBody{Digests: []archive.Digest{digest}})
	m.Files = []*os.File{f}
	_ = in.conn.Send(m)
}

// ended is called for each process that ends in the job's PID namespace.
func (in *initProcess) ended(pid int, status unix.WaitStatus, used *unix.Rusage) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.relay != 0 && pid == in.relay {
		// With it went writes that ranks take for done. Many would not notice that.
		in.relay = 0
		_ = unix.Kill(-1, unix.SIGKILL)
	}
	if d := in.servers[pid]; d != nil {
		in.serverEnded(d, status)
	}
	if r := in.pids[pid]; r != nil {
		delete(in.pids, pid)
		r.faulted = status.Signaled()
		r.process.Close()
		in.work.Go(func() {
			in.rankEnded(r, task.Status{Time: time.Since(r.started), Usage: usage(used)}, status)
		})
	}
}

// killAll ends every process of the job but this one.
func (in *initProcess) killAll() {
	deadline := time.Now().Add(killWait)
	for time.Now().Before(deadline) {
		in.reaper.Collect() // orphans, at the begin
		if alone() {
			return
		}
		if err := unix.Kill(-1, unix.SIGKILL); err == unix.ESRCH {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// alone reports whether this process, the init of a PID namespace, is the only one in it: all
// others descend from it. For kill(2), Linux would look at each process of the host.
func alone() bool {
	return unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil) == unix.ECHILD
}
