package jobinit

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/gdb"
	"margay/kernel/abi/id"
	"margay/kernel/link"
	"margay/kernel/task"
)

// Bounds of a debugger's session.
const (
	filesWait  = time.Minute            // for the archive
	attachWait = 20 * time.Second       // for gdbserver to attach
	replyWait  = 200 * time.Millisecond // for a reply that is under way when gdb is gone
	leaveWait  = 10 * time.Second       // for the rank to stop then, and for gdbserver to end
	debugPause = 5 * time.Millisecond   // between two looks
)

// debugger is a gdbserver beside a rank.
type debugger struct {
	rank *rank
	pid  int
	near net.Conn      // the init's end of its standard streams
	gone chan struct{} // closed when it has ended

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
		return
	}
	defer in.endDebugger(d)
	if gdb.WriteAnswer(stream, nil) == nil {
		d.carry(stream)
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
	argv := []string{folderAt + gdb.Server}
	err = gdb.ReadFiles(stream, func(name string, content io.Reader) error {
		if name == gdb.Loader {
			argv = []string{folderAt + gdb.Loader, "--library-path", folderAt, folderAt + gdb.Server}
		}
		return createIn(files, name, content)
	})
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
		unix.FsconfigSetString(config, "size", strconv.FormatInt(size, 10)), unix.FsconfigSetString(config, "mode", "0755"),
		unix.FsconfigCreate(config))
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

// startServer starts gdbserver with the rights of the ranks, on the cores of the init.
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
	if d.near, err = net.FileConn(own); err != nil {
		errorsOut.Close()
		return nil, err
	}
	failed := make(chan error)
	go func() {
		// The thread gives up its privileges, so it is never unlocked: it ends with this goroutine.
		runtime.LockOSThread()
		if err := dropPrivileges(); err != nil {
			failed <- err
			return
		}
		failed <- in.forkServer(d, argv, []uintptr{far.Fd(), far.Fd(), errorsIn.Fd(), folderFD: files.Fd()})
	}()
	if err := <-failed; err != nil {
		d.near.Close()
		errorsOut.Close()
		return nil, fmt.Errorf("start gdbserver: %w", err)
	}
	report := make(chan string, 1)
	go func() {
		defer errorsOut.Close()
		report <- lastLine(errorsOut)
	}()
	return report, nil
}

// forkServer starts the process of a debugger.
func (in *initProcess) forkServer(d *debugger, argv []string, files []uintptr) error {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() != in.spec.UID {
		attr.Credential = &syscall.Credential{Uid: uint32(in.spec.UID), Gid: uint32(in.spec.GID)}
	}
	in.mu.Lock()
	defer in.mu.Unlock() // the reaper waits until the pid is known
	pid, err := syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{Dir: "/", Files: files, Sys: attr})
	if err != nil {
		return err
	}
	d.pid = pid
	in.servers[pid] = d
	// Like a rank, it goes when memory runs out. Without the right it stays what the init is.
	_ = os.WriteFile(filepath.Join("/proc", strconv.Itoa(pid), "oom_score_adj"), []byte(strconv.Itoa(oomScore)), 0)
	return nil
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

// carry passes bytes between gdb and gdbserver until one of them ends.
func (d *debugger) carry(stream net.Conn) {
	_ = stream.SetReadDeadline(time.Time{})
	left := make(chan struct{})
	go func() {
		defer close(left)
		d.pass(d.near, stream, d.talk.FromGDB)
	}()
	go func() {
		d.pass(stream, d.near, d.talk.FromServer)
		stream.Close()
		d.pass(nil, d.near, d.talk.FromServer) // gdb is gone, and gdbserver must not wait
	}()
	select {
	case <-left:
	case <-d.gone:
	}
}

// pass passes bytes on, and shows them to note. Without a receiver it drops them.
func (d *debugger) pass(to io.Writer, from io.Reader, note func([]byte)) {
	b := make([]byte, 16<<10)
	for {
		n, err := from.Read(b)
		d.mu.Lock()
		note(b[:n])
		d.mu.Unlock()
		if err != nil {
			return
		}
		if to == nil {
			continue
		}
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
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
	defer d.near.Close()
	in.signalServer(d, unix.SIGCONT) // it may have been stopped with the job
	stopped := !d.listens(replyWait)
	if stopped {
		in.signalDebugged(d, unix.SIGSTOP)
		d.listens(leaveWait)
	}
	d.mu.Lock()
	farewell := d.talk.Farewell()
	d.mu.Unlock()
	_, _ = d.near.Write(farewell) // it may have ended
	_ = d.near.(*net.UnixConn).CloseWrite()
	select {
	case <-d.gone:
	case <-time.After(leaveWait):
		in.signalServer(d, unix.SIGKILL)
		<-d.gone
	}
	if stopped {
		in.signalDebugged(d, unix.SIGCONT)
	}
}

// signalServer sends a signal to gdbserver unless it has ended.
func (in *initProcess) signalServer(d *debugger, signal unix.Signal) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.servers[d.pid] == d {
		_ = unix.Kill(d.pid, signal)
	}
}

// signalDebugged stops or continues the rank of a debugger unless it has ended. A job that is
// stopped is not continued.
func (in *initProcess) signalDebugged(d *debugger, signal unix.Signal) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.pids[d.rank.pid] == d.rank && (signal != unix.SIGCONT || !in.halted) {
		_ = unix.Kill(d.rank.pid, signal)
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
