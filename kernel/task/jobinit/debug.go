package jobinit

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/throwaway"
	"margay/kernel/abi/gdb"
	"margay/kernel/abi/id"
	"margay/kernel/link"
	"margay/kernel/stack"
	"margay/kernel/task"
)

// Bounds of a debugger's session.
const (
	filesWait  = time.Minute            // for the archive
	attachWait = 20 * time.Second       // for gdbserver to attach
	replyWait  = 200 * time.Millisecond // for a reply that is under way when gdb is gone
	leaveWait  = 10 * time.Second       // for the rank to stop then, for gdbserver to end, and for it to take bytes
	wordsWait  = time.Second            // for the last words of a gdbserver that has ended
	debugPause = 5 * time.Millisecond   // between two looks
)

// A rank that was killed is still there while gdbserver has not looked at it, which it does not
// while gdb waits for its user. The init looks each deadPause, and ends such a gdbserver when it
// has seen the rank dead deadLooks times: one that looks reports the end to gdb before.
const (
	deadPause = 250 * time.Millisecond
	deadLooks = 4
)

// debugger is a gdbserver beside a rank.
type debugger struct {
	rank *rank
	child
	near   net.Conn      // the init's end of its standard input and output
	errors *os.File      // the init's end of its standard error
	gone   chan struct{} // closed when it has ended
	killed bool          // by a signal; valid when it has ended

	mu   sync.Mutex
	talk gdb.Talk // guarded by mu
}

// debug begins the session of a debugger over the stream that comes with a message.
func (in *initProcess) debug(m *link.Message) error {
	var b task.DebugBody
	if err := m.Decode(&b); err != nil {
		return err
	}
	if len(m.Files) != 1 {
		return fmt.Errorf("job init: %d streams for a debugger", len(m.Files))
	}
	stream, err := net.FileConn(m.Files[0])
	if err != nil {
		return err
	}
	go in.debugRank(b.Rank, stream)
	return in.tell(task.Debug, nil)
}

// debugRank runs a session. At its end there is no gdbserver, and the rank is as it was.
func (in *initProcess) debugRank(number id.Rank, stream net.Conn) {
	defer stream.Close()
	d, err := in.attach(number, stream)
	if err != nil {
		_ = gdb.WriteAnswer(stream, err) // its reader may be gone
		// A connection that is closed with bytes in it can lose the answer, so the rest is taken.
		_ = stream.SetReadDeadline(time.Now().Add(leaveWait))
		_, _ = io.Copy(io.Discard, stream)
		return
	}
	defer in.endDebugger(d)
	if gdb.WriteAnswer(stream, nil) == nil {
		in.carry(d, stream)
	}
}

// attach starts the gdbserver that a stream brings, and waits until it has attached to a rank.
func (in *initProcess) attach(number id.Rank, stream net.Conn) (*debugger, error) {
	d, err := in.newDebugger(number)
	if err != nil {
		return nil, err
	}
	report, err := in.bring(d, stream)
	if err != nil {
		in.forgetDebugger(d)
		return nil, err
	}
	if err := d.awaitAttached(report); err != nil {
		in.endDebugger(d)
		return nil, err
	}
	return d, nil
}

// newDebugger notes the debugger of a rank that runs and has none.
func (in *initProcess) newDebugger(number id.Rank) (*debugger, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	r := in.ranks[number]
	switch {
	case r == nil:
		return nil, fmt.Errorf("rank %d is not on this node, or has not begun", number)
	case in.pids[r.pid] != r:
		return nil, fmt.Errorf("rank %d has ended", number)
	case in.debuggers[number] != nil:
		return nil, fmt.Errorf("a debugger has rank %d", number)
	}
	d := &debugger{rank: r, gone: make(chan struct{})}
	in.debuggers[number] = d
	return d, nil
}

// forgetDebugger lets the rank have another debugger.
func (in *initProcess) forgetDebugger(d *debugger) {
	in.mu.Lock()
	defer in.mu.Unlock()
	delete(in.debuggers, d.rank.Rank.Rank)
}

// bring receives gdbserver and starts it. The channel gets what it has said when it has ended.
func (in *initProcess) bring(d *debugger, stream net.Conn) (report <-chan string, err error) {
	files, err := newFolder(gdb.MaxSize)
	if err != nil {
		return nil, err
	}
	defer files.Close()
	if err := stream.SetReadDeadline(time.Now().Add(filesWait)); err != nil {
		return nil, err
	}
	received := make(chan struct{})
	defer close(received)
	go func() {
		select {
		case <-d.rank.gone:
			_ = stream.SetReadDeadline(time.Now())
		case <-received:
		}
	}()
	argv := []string{folderAt + gdb.Server}
	err = gdb.ReadFiles(stream, func(name string, content io.Reader) error {
		if name == gdb.Loader {
			argv = []string{folderAt + gdb.Loader, "--library-path", folderAt, folderAt + gdb.Server}
		}
		return createIn(files, name, content)
	})
	select {
	case <-d.rank.gone:
		return nil, fmt.Errorf("rank %d has ended", d.rank.Rank.Rank)
	default:
	}
	if err != nil {
		return nil, fmt.Errorf("bring gdbserver: %w", err)
	}
	argv = append(argv, "--once", "--attach", "-", strconv.Itoa(d.rank.pid))
	return in.startServer(d, files, argv)
}

// folderFD is the descriptor of the folder with gdbserver, which no other process can open, and
// folderAt is its path.
const (
	folderFD = 3
	folderAt = "/proc/self/fd/3/"
)

// newFolder makes a RAM disk without a name: it is mounted nowhere, and gone with its last
// descriptor.
func newFolder(size int64) (*os.File, error) {
	config, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a RAM disk: %w", err)
	}
	defer unix.Close(config)
	err = errors.Join(
		unix.FsconfigSetString(config, "size", strconv.FormatInt(size, 10)),
		unix.FsconfigSetString(config, "nr_inodes", strconv.Itoa(gdb.MaxFiles+1)), // and the folder
		unix.FsconfigSetString(config, "mode", "0755"), unix.FsconfigCreate(config))
	if err != nil {
		return nil, fmt.Errorf("make a RAM disk: %w", err)
	}
	fd, err := unix.Fsmount(config, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return nil, fmt.Errorf("make a RAM disk: %w", err)
	}
	return os.NewFile(uintptr(fd), "RAM disk"), nil
}

// createIn makes a file that all may execute.
func createIn(folder *os.File, name string, content io.Reader) error {
	fd, err := unix.Openat(int(folder.Fd()), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o555)
	if err != nil {
		return fmt.Errorf("make %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Chmod(0o555), f.Close()) // whatever the umask says
}

// startServer starts gdbserver with the rights and within the limits of the rank: it is a program
// of the user.
func (in *initProcess) startServer(d *debugger, files *os.File, argv []string) (<-chan string, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	own, far := os.NewFile(uintptr(fds[0]), "gdbserver"), os.NewFile(uintptr(fds[1]), "gdbserver")
	defer own.Close() // net.FileConn has a descriptor of its own
	defer far.Close()
	errorsOut, errorsIn, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer errorsIn.Close()
	near, err := net.FileConn(own)
	if err != nil {
		errorsOut.Close()
		return nil, err
	}
	d.near, d.errors = near, errorsOut
	failed := make(chan error)
	throwaway.Go(func() {
		err := dropPrivileges()
		if err == nil {
			err = pin(d.rank.Cores)
		}
		if err == nil {
			err = in.forkServer(d, argv, []uintptr{far.Fd(), far.Fd(), errorsIn.Fd(), folderFD: files.Fd()})
		}
		failed <- err
	})
	if err := <-failed; err != nil {
		d.close()
		return nil, fmt.Errorf("start gdbserver: %w", err)
	}
	report := make(chan string, 1)
	go func() { report <- lastLine(errorsOut) }()
	return report, nil
}

// close closes what the init has of a gdbserver.
func (d *debugger) close() {
	d.near.Close()
	d.errors.Close()
}

// forkServer starts the process of a debugger. Rank groups stand still at times, so it is in the
// group that has them all, which has the limits of the job.
func (in *initProcess) forkServer(d *debugger, argv []string, files []uintptr) error {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() != in.spec.UID {
		attr.Credential = &syscall.Credential{Uid: uint32(in.spec.UID), Gid: uint32(in.spec.GID)}
	}
	if in.group != nil {
		attr.UseCgroupFD, attr.CgroupFD = true, int(in.group.Fd())
	}
	in.mu.Lock()
	defer in.mu.Unlock() // the reaper waits until the pid is known
	if in.pids[d.rank.pid] != d.rank {
		return fmt.Errorf("rank %d has ended", d.rank.Rank.Rank)
	}
	// Like a rank, it goes when memory runs out. Without the right to it, the init stays so, too.
	_ = writeOOMScore(oomScore)
	defer writeOOMScore(-1000)
	var err error
	if d.child, err = in.startChild(argv[0], argv, &syscall.ProcAttr{Dir: "/", Files: files, Sys: attr}, in.limitsData()); err != nil {
		return err
	}
	defer d.process.Close() // gone says when it has ended
	in.servers[d.pid] = d
	if in.limitsData() {
		d.awaitStop()
		if err := limitData(d.pid, in.spec); err != nil {
			_ = unix.Kill(d.pid, unix.SIGKILL)
			return err
		}
		d.release()
	}
	return nil
}

// serverEnded notes that a gdbserver has ended, and ends what it has started. The caller holds
// initProcess.mu.
func (in *initProcess) serverEnded(d *debugger, status unix.WaitStatus) {
	_ = unix.Kill(-d.pid, unix.SIGKILL) // it has led a process group of its own
	delete(in.servers, d.pid)
	d.killed = status.Signaled()
	close(d.gone)
}

// lastLine reads to the end, and returns the last line.
func lastLine(r io.Reader) (last string) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if text := strings.TrimSpace(lines.Text()); text != "" && text != "Exiting" {
			last = text
		}
	}
	_, _ = io.Copy(io.Discard, r) // a line that is too long ends the scan, and gdbserver must not wait
	return last
}

// awaitAttached waits until gdbserver traces the rank, and says why not if it has ended.
func (d *debugger) awaitAttached(report <-chan string) error {
	deadline := time.After(attachWait)
	for {
		select {
		case <-d.gone:
			_ = d.errors.SetReadDeadline(time.Now().Add(wordsWait)) // another process may have it open
			return whyNot(<-report)
		case <-d.rank.gone:
			return fmt.Errorf("rank %d has ended", d.rank.Rank.Rank)
		case <-deadline:
			return fmt.Errorf("gdbserver has not attached after %v: this node is too busy", attachWait)
		case <-time.After(debugPause):
		}
		if tracer(d.rank.pid) == d.pid {
			return nil
		}
	}
}

// yama is where Linux says whether processes may trace those that they have not started.
const yama = "/proc/sys/kernel/yama/ptrace_scope"

// whyNot is the error for what gdbserver has said before it ended.
func whyNot(said string) error {
	if said == "" {
		said = "gdbserver has ended without a word"
	}
	if scope, err := os.ReadFile(yama); err == nil && strings.TrimSpace(string(scope)) != "0" {
		said += " (sysctl kernel.yama.ptrace_scope=0 on its host lets processes of one user trace each other)"
	}
	return errors.New(said)
}

// tracer returns the process that traces another, 0 if none does.
func tracer(pid int) int {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "TracerPid:"); ok {
			tracer, _ := strconv.Atoi(strings.TrimSpace(value))
			return tracer
		}
	}
	return 0
}

// carry passes bytes between gdb and gdbserver until one of them ends, and closes the stream.
func (in *initProcess) carry(d *debugger, stream net.Conn) {
	defer stream.Close()
	_ = stream.SetReadDeadline(time.Time{})
	left, drained := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(left)
		d.pass(d.near, stream, leaveWait, d.fromGDB)
	}()
	go func() {
		d.pass(stream, d.near, 0, d.fromServer)
		close(drained)
		d.pass(nil, d.near, 0, d.fromServer) // gdb is gone, and gdbserver must not wait
	}()
	look := time.NewTicker(deadPause)
	defer look.Stop()
	for dead := 0; ; {
		select {
		case <-left:
			return
		case <-drained:
			return
		case <-d.gone:
			select {
			case <-drained: // with the last reply
			case <-time.After(wordsWait):
			}
			return
		case <-look.C:
			if !dying(d.rank.pid) {
				dead = 0
			} else if dead++; dead >= deadLooks {
				in.endServer(d)
			}
		}
	}
}

// pass passes on what note returns for bytes, until note returns an error. Without a receiver it
// drops them. The receiver must take each piece within a time, if that is not 0.
func (d *debugger) pass(to net.Conn, from io.Reader, within time.Duration, note func([]byte) ([]byte, error)) {
	b := make([]byte, 16<<10)
	for {
		n, readErr := from.Read(b)
		d.mu.Lock()
		out, err := note(b[:n])
		d.mu.Unlock()
		if to != nil && len(out) > 0 {
			if within > 0 {
				_ = to.SetWriteDeadline(time.Now().Add(within))
			}
			if _, err := to.Write(out); err != nil {
				return
			}
		}
		if readErr != nil || err != nil {
			return
		}
	}
}

// fromGDB takes bytes of gdb, and returns those that are for gdbserver. The caller holds mu; only
// one goroutine may call it.
func (d *debugger) fromGDB(p []byte) ([]byte, error) { return d.talk.FromGDB(p) }

// fromServer takes bytes of gdbserver, and returns those that are for gdb. The caller holds mu.
func (d *debugger) fromServer(p []byte) ([]byte, error) { return p, d.talk.FromServer(p) }

// dying reports whether a process is dead, and waits for its tracer to look: each of its threads is
// a zombie.
func dying(pid int) bool {
	threads, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task"))
	if err != nil {
		return false // it is no longer there
	}
	for _, thread := range threads {
		if tid, err := strconv.Atoi(thread.Name()); err != nil || !stack.Ended(pid, tid) {
			return false
		}
	}
	return len(threads) > 0
}

// waits reports whether gdbserver owes gdb a reply.
func (d *debugger) waits() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.talk.Waits()
}

// endDebugger ends a session: it has gdbserver remove gdb's breakpoints and detach from the rank.
// Gdbserver listens only while the rank is stopped.
func (in *initProcess) endDebugger(d *debugger) {
	defer in.forgetDebugger(d)
	defer d.close()
	stopped := !d.listens(replyWait)
	if stopped {
		in.stopDebugged(d)
		d.listens(leaveWait)
	}
	d.mu.Lock()
	farewell := d.talk.Farewell()
	d.mu.Unlock()
	_ = d.near.SetWriteDeadline(time.Now().Add(leaveWait))
	_, _ = d.near.Write(farewell) // it may have ended
	_ = d.near.(*net.UnixConn).CloseWrite()
	select {
	case <-d.gone:
	case <-time.After(leaveWait):
		in.endServer(d)
		<-d.gone
	}
	in.settleDebugged(d, stopped || d.killed) // one that was killed may have left the rank stopped
}

// endServer kills gdbserver unless it has ended.
func (in *initProcess) endServer(d *debugger) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.servers[d.pid] == d {
		_ = unix.Kill(d.pid, unix.SIGKILL)
	}
}

// continueServers continues all gdbservers, which were stopped with the job: their gdbs decide when
// the ranks go on.
func (in *initProcess) continueServers() {
	in.mu.Lock()
	defer in.mu.Unlock()
	for pid := range in.servers {
		_ = unix.Kill(pid, unix.SIGCONT)
	}
}

// killServer ends the gdbserver of a rank that has one. The caller holds initProcess.mu.
func (in *initProcess) killServer(r *rank) {
	if d := in.debuggers[r.Rank.Rank]; d != nil && in.servers[d.pid] == d {
		_ = unix.Kill(d.pid, unix.SIGKILL)
	}
}

// stopDebugged stops the rank of a debugger unless it has ended.
func (in *initProcess) stopDebugged(d *debugger) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.pids[d.rank.pid] == d.rank {
		_ = unix.Kill(d.rank.pid, unix.SIGSTOP)
	}
}

// settleDebugged stops a rank whose debugger has ended if its job is stopped: gdb may have let it
// go on. Otherwise it continues a rank that may have been left stopped.
func (in *initProcess) settleDebugged(d *debugger, left bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case in.pids[d.rank.pid] != d.rank:
	case in.halted:
		_ = unix.Kill(d.rank.pid, unix.SIGSTOP)
	case left:
		_ = unix.Kill(d.rank.pid, unix.SIGCONT)
	}
}

// listens waits until gdbserver has replied, or has ended.
func (d *debugger) listens(wait time.Duration) bool {
	for deadline := time.Now().Add(wait); ; {
		if !d.waits() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		select {
		case <-d.gone:
			return true
		case <-time.After(debugPause):
		}
	}
}
