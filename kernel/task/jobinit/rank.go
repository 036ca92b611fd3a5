package jobinit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/clock"
	"margay/internal/slack"
	"margay/internal/throwaway"
	"margay/kernel/abi/id"
	"margay/kernel/cgroup"
	"margay/kernel/hardware"
	"margay/kernel/link"
	"margay/kernel/task"
)

// oomScore makes an application the first to go when memory runs out anywhere on the node.
const oomScore = 500

// rank is one running process of the job.
type rank struct {
	task.Rank
	child
	started  time.Time
	since    id.Time // the same by the clock of the node
	input    *input
	streams  *streams
	terminal *os.File      // the init's end of its terminal, or nil
	gone     chan struct{} // closed when it has ended
	stuck    bool          // it was killed because it has aborted and did not end
	faulted  bool          // a signal has ended it; written with initProcess.mu held
	pmi      *os.File      // the init's end of its connection to the process management interface, or nil
}

// spawn starts every rank of the job. It must be called once, and blocks signals to the ranks until
// all have been started.
func (in *initProcess) spawn() error {
	unix.Umask(in.spec.Umask)
	if in.spec.Rlimits && in.spec.Pids > 0 {
		limit := unix.Rlimit{Cur: uint64(in.spec.Pids), Max: uint64(in.spec.Pids)}
		if err := unix.Setrlimit(unix.RLIMIT_NPROC, &limit); err != nil {
			return failure("limit processes", err)
		}
		in.limit, in.traits.limits[unix.RLIMIT_NPROC] = in.spec.Pids, limit
	}
	if in.spec.Small {
		if err := hardware.DeclineHugePages(); err != nil {
			return failure("start", err)
		}
	}
	if err := writeOOMScore(oomScore); err != nil {
		return failure("set out-of-memory score", err)
	}
	_ = in.wantDumps() // without them, the report of a fault is shorter
	in.output.ranks = len(in.spec.Ranks)
	failed := make(chan error)
	throwaway.Go(func() {
		growStack()
		failed <- in.spawnAll() // it gives up its privileges
	})
	err := <-failed
	// Only root may lower the score again; elsewhere the init stays what its ranks are.
	_ = writeOOMScore(-1000)
	return err
}

func (in *initProcess) spawnAll() error {
	if err := dropPrivileges(); err != nil {
		return failure("give up privileges", err)
	}
	slack.Set(slack.Application)
	for _, r := range in.spec.Ranks {
		if err := in.spawnRank(r); err != nil {
			path, _, _ := in.spec.Program(r.Rank)
			e := failure("start "+path, err)
			if e.Errno == unix.EAGAIN && in.spec.Pids > 0 {
				e.Text += fmt.Sprintf(" (the job may have %d processes and threads on this node: --pids)", in.spec.Pids)
			}
			if e.Errno == unix.E2BIG {
				e.Text += " (one argument or variable is longer than Linux takes, or all together are more than a quarter of the stack limit on this node)"
			}
			e.Rank = int(r.Rank)
			return e
		}
	}
	return nil
}

// dropPrivileges makes sure that what this thread starts can never gain a privilege: no capability
// by any way, no set-uid.
func dropPrivileges() error {
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && err != unix.EINVAL {
			return err
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData // 32 capabilities each
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return err
	}
	caps[0].Inheritable, caps[1].Inheritable = 0, 0
	if err := unix.Capset(&header, &caps[0]); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}

// setRealIDs changes the real ids of this thread alone. It stays what it is otherwise.
func setRealIDs(uid, gid int) error {
	const same = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), same, same); errno != 0 {
		return errno
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), same, same); errno != 0 {
		return errno
	}
	return nil
}

// pin binds this thread, and what it starts, to cores. None means that they are left as they are.
func pin(cores []id.CPU) error {
	if len(cores) == 0 {
		return nil
	}
	var set unix.CPUSet
	for _, c := range cores {
		set.Set(int(c))
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("pin to cores %v: %w", cores, err)
	}
	return nil
}

func (in *initProcess) spawnRank(r task.Rank) error {
	if err := pin(r.Cores); err != nil {
		return err
	}
	pipes, err := openStreams(r)
	if err != nil {
		return err
	}
	defer pipes.closeFar()
	if err := pipes.give(in.spec.UID, in.spec.GID); err != nil {
		pipes.closeNear()
		return err
	}
	files := []uintptr{pipes.stdin.Fd(), pipes.stdout.Fd(), pipes.stderr.Fd()}
	if app := in.kept.Files(task.AppFile(r.Rank)); len(app) > 0 {
		files = append(files, app[0].Fd())
	}
	started := &rank{Rank: r, started: time.Now(), since: id.Time(clock.Monotonic()), input: newInput(pipes.input, r.Terminal != nil), gone: make(chan struct{})}
	if r.Terminal != nil {
		started.terminal = pipes.output
	}
	if in.pmi != nil {
		near, far, err := pmiPair()
		if err != nil {
			pipes.closeNear()
			return err
		}
		defer far.Close()
		for len(files) < task.PMIFD {
			files = append(files, ^uintptr(0)) // no file
		}
		files, started.pmi = append(files, far.Fd()), near
	}
	in.mu.Lock()
	defer in.mu.Unlock() // the reaper waits until the pid is known
	if err := in.fork(started, files); err != nil {
		pipes.closeNear()
		started.pmi.Close()
		return err
	}
	in.ranks[r.Rank] = started
	in.pids[started.pid] = started
	in.follow(started, pipes)
	in.work.Go(func() { started.whenEnded(in.reaper.Collect) })
	if in.stopsFirst() {
		started.awaitStop()
		if in.limitsData() {
			if err := limitData(started.pid, in.spec); err != nil {
				return err
			}
		}
		if in.spec.Hold {
			_ = unix.Kill(started.pid, unix.SIGSTOP) // which it gets when it is released
		}
		started.release()
	}
	return in.tellProcess(started)
}

// stopsFirst reports whether ranks stop before their first instruction: to be held there, or until
// a resource limit bounds their memory.
func (in *initProcess) stopsFirst() bool { return in.spec.Hold || in.limitsData() }

// errNoRelay reports that the relay of shared folders has ended before a rank was started. Its end
// kills the ranks that run then.
var errNoRelay = errors.New("the relay of shared folders has ended")

// fork starts the process of a rank. The caller holds initProcess.mu.
func (in *initProcess) fork(r *rank, files []uintptr) error {
	if len(in.spec.Shared) > 0 && in.relay == 0 {
		return errNoRelay
	}
	// The ranks stay in the init's session, which Linux may schedule as a group (autogroup): a rank
	// yields only to its own group. One that has a terminal leads a session.
	attr := &syscall.SysProcAttr{Setpgid: true}
	if r.Terminal != nil {
		attr.Setpgid, attr.Setsid, attr.Setctty = false, true, true // descriptor 0
	}
	if os.Geteuid() != in.spec.UID {
		attr.Credential = &syscall.Credential{Uid: uint32(in.spec.UID), Gid: uint32(in.spec.GID)}
	}
	if in.group != nil {
		name := cgroup.RankName(r.Rank.Rank)
		group, err := unix.Openat(int(in.group.Fd()), name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("control group %s: %w", name, err)
		}
		defer unix.Close(group)
		attr.UseCgroupFD, attr.CgroupFD = true, group
	}
	path, argv, env := in.spec.Program(r.Rank.Rank)
	how := &syscall.ProcAttr{Dir: in.spec.Dir, Env: overlay(overlay(in.spec.Env, env), r.Env), Files: files, Sys: attr}
	var err error
	r.child, err = in.startChild(path, argv, how, in.stopsFirst())
	return err
}

// child is a process that the init has started.
type child struct {
	pid     int
	process *os.File // a pidfd of it
	traced  bool     // waits for release
}

// startChild starts a program. One that stops before its first instruction is traced by this thread
// until release.
func (in *initProcess) startChild(path string, argv []string, how *syscall.ProcAttr, stops bool) (child, error) {
	pidfd := -1
	how.Sys.PidFD, how.Sys.Ptrace = &pidfd, stops
	pid, err := in.forkExec(path, argv, how)
	if err == unix.EPERM && stops {
		// Some hosts let no process be traced. There a limit and a stop come a moment after the
		// program has begun.
		how.Sys.Ptrace = false
		pid, err = in.forkExec(path, argv, how)
	}
	if err != nil {
		return child{}, err
	}
	return child{pid: pid, process: newProcess(pidfd), traced: how.Sys.Ptrace}, nil
}

// forkExec starts a program. Unlike the init (task.Host.spawn), it has huge pages if the node's
// processes have them.
func (in *initProcess) forkExec(path string, argv []string, how *syscall.ProcAttr) (pid int, err error) {
	if !in.spec.Small && hardware.HugePagesDeclined() { // some hosts let no process decline them
		if err := hardware.AcceptHugePages(); err != nil {
			return 0, err
		}
		defer hardware.DeclineHugePages() // without, only the init is slower
	}
	return syscall.ForkExec(path, argv, how)
}

// newProcess returns a pidfd that Go waits for without a thread. The node kernel gets a copy, which
// shares the mode with it and would wake the node kernel, too.
func newProcess(pidfd int) *os.File {
	_ = unix.SetNonblock(pidfd, true)
	defer unix.SetNonblock(pidfd, false) // nothing reads it
	return os.NewFile(uintptr(pidfd), "pidfd")
}

// whenEnded calls do when the process has ended. It may be called earlier, too.
func (r *rank) whenEnded(do func()) {
	if conn, err := r.process.SyscallConn(); err == nil {
		_ = conn.Read(func(fd uintptr) (ended bool) {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return n > 0 || err != nil && err != unix.EINTR
		})
	}
	do()
}

// awaitStop waits until a traced process has stopped, or was killed. Before, its execve is not
// over, at whose end Linux sets the limit of the stack to what it was at the begin. Like release it
// must be called by the thread that started the process.
func (c *child) awaitStop() {
	ended := []unix.PollFd{{Fd: int32(c.process.Fd()), Events: unix.POLLIN}}
	for pause := 10 * time.Microsecond; c.traced && unix.PtraceSetOptions(c.pid, 0) == unix.ESRCH; pause *= 2 {
		if n, _ := unix.Poll(ended, 0); n > 0 {
			return
		}
		look := unix.NsecToTimespec(int64(min(pause, time.Millisecond)))
		_ = unix.Nanosleep(&look, nil) // this thread has the slack of a rank, and the others of the process have more
	}
}

// release lets a traced process begin.
func (c *child) release() {
	if c.traced {
		_ = unix.PtraceDetach(c.pid) // ESRCH: it was killed
	}
}

// tellProcess gives the node kernel a pidfd of a rank that runs.
func (in *initProcess) tellProcess(r *rank) error {
	m := link.New(task.Process, task.ProcessBody{Rank: r.Rank.Rank, Since: r.since})
	m.Files = []*os.File{r.process}
	return in.conn.Send(m)
}

// overlay returns the environment base with the variables of more set or replaced.
func overlay(base, more []string) []string {
	replaced := make(map[string]bool)
	for _, variable := range more {
		name, _, _ := strings.Cut(variable, "=")
		replaced[name] = true
	}
	env := make([]string, 0, len(base)+len(more))
	for _, variable := range base {
		if name, _, _ := strings.Cut(variable, "="); !replaced[name] {
			env = append(env, variable)
		}
	}
	return append(env, more...)
}

// follow copies the rank's output into the journal and feeds its standard input.
func (in *initProcess) follow(r *rank, p *pipes) {
	var output io.ReadCloser = p.output
	if r.terminal != nil {
		output = &terminalOutput{p.output, r.gone}
	}
	r.streams = in.output.follow(r.Rank.Rank, output, p.errors)
	if in.pmi != nil {
		go in.pmi.serve(r)
	}
	in.work.Go(func() {
		r.input.run(func(offset uint64) {
			in.tell(task.Input, task.InputBody{Rank: r.Rank.Rank, Offset: offset})
		})
	})
}

// rankEnded records the end of a rank once its output is complete.
func (in *initProcess) rankEnded(r *rank, status task.Status, w unix.WaitStatus) {
	if w.Signaled() {
		status.Signal = w.Signal()
		if w.CoreDump() {
			status.Fault = in.fault(r.pid)
		}
	} else {
		status.Code = w.ExitStatus()
	}
	close(r.gone)
	if position := r.input.end(); r.Stdin {
		in.tell(task.Input, task.InputBody{Rank: r.Rank.Rank, Offset: position}) // before the record of its end
	}
	if in.pmi != nil {
		in.pmi.ended(r, &status)
	}
	in.output.drain(r.streams)
	in.output.ended(r.streams, status)
}

// usage is the reported resource usage of a process.
func usage(u *unix.Rusage) task.Usage {
	return task.Usage{
		User: time.Duration(u.Utime.Nano()), System: time.Duration(u.Stime.Nano()), MajorFaults: u.Majflt, MinorFaults: u.Minflt,
		Yields: u.Nvcsw, Preemptions: u.Nivcsw,
	}
}

// pipes are the standard streams of a rank: the far ends are the rank's.
type pipes struct {
	stdin, stdout, stderr *os.File // far
	input, output, errors *os.File // near; input is nil when the rank reads /dev/null
}

// openStreams makes the standard streams of a rank.
func openStreams(r task.Rank) (*pipes, error) {
	if r.Terminal != nil {
		return openTerminal(*r.Terminal)
	}
	return openPipes(r.Stdin)
}

func openPipes(stdin bool) (*pipes, error) {
	p := new(pipes)
	var err, err1, err2 error
	if stdin {
		p.stdin, p.input, err = os.Pipe()
	} else {
		p.stdin, err = os.Open(os.DevNull)
	}
	p.output, p.stdout, err1 = os.Pipe()
	p.errors, p.stderr, err2 = os.Pipe()
	if err := errors.Join(err, err1, err2); err != nil {
		p.closeFar()
		p.closeNear()
		return nil, err
	}
	return p, nil
}

// give makes the pipes the user's. Linux asks for that when a rank opens its streams by name, as
// /dev/stdout or /proc/self/fd/1.
func (p *pipes) give(uid, gid int) error {
	if uid == os.Geteuid() {
		return nil
	}
	far := []*os.File{p.stdout, p.stderr}
	if p.input != nil { // else it is /dev/null
		far = append(far, p.stdin)
	}
	for _, f := range far {
		if err := f.Chown(uid, gid); err != nil {
			return fmt.Errorf("give the rank its standard streams: %w", err)
		}
	}
	return nil
}

func (p *pipes) closeFar() {
	p.stdin.Close()
	p.stdout.Close()
	p.stderr.Close()
}

func (p *pipes) closeNear() {
	p.input.Close()
	p.output.Close()
	p.errors.Close()
}

// limitsData reports whether a resource limit bounds the memory of each rank.
func (in *initProcess) limitsData() bool { return in.spec.Rlimits && in.spec.Memory > 0 }

// limitData bounds the private memory of a process to a rank's part of the job's, and its stack,
// which Linux counts separately. It is used without control groups.
func limitData(pid int, s task.Spec) error {
	bytes := uint64(s.Memory / int64(len(s.Ranks)))
	limit := func() error {
		var stack unix.Rlimit
		if err := unix.Prlimit(pid, unix.RLIMIT_STACK, nil, &stack); err != nil {
			return err
		}
		stack.Cur, stack.Max = min(stack.Cur, bytes), min(stack.Max, bytes)
		if err := unix.Prlimit(pid, unix.RLIMIT_STACK, &stack, nil); err != nil {
			return err
		}
		return unix.Prlimit(pid, unix.RLIMIT_DATA, &unix.Rlimit{Cur: bytes, Max: bytes}, nil)
	}
	err := limit()
	if err == unix.EPERM {
		// If root may not limit other users' processes, the job's user may limit its own. Only for
		// this moment, because Linux lets a process signal others with the same real user.
		uid, gid := os.Getuid(), os.Getgid()
		if err = setRealIDs(s.UID, s.GID); err == nil {
			err = limit()
		}
		err = errors.Join(err, setRealIDs(uid, gid))
	}
	if err != nil && !errors.Is(err, unix.ESRCH) { // it may have ended already
		return fmt.Errorf("limit memory: %w", err)
	}
	return nil
}

func writeOOMScore(score int) error {
	return os.WriteFile(filepath.Join("/proc/self", "oom_score_adj"), []byte(strconv.Itoa(score)), 0)
}
