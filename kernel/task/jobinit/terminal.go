package jobinit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/link"
	"margay/kernel/task"
)

// terminals bounds the pseudo-terminals of a job on this node. Linux bounds the sum of all jobs.
const terminals = 64

// mountTerminals gives the job pseudo-terminals of its own, in the folder that becomes its /dev.
func mountTerminals() error {
	pts := filepath.Join(mountPoint, "pts")
	if err := os.Mkdir(pts, 0o755); err != nil {
		return failure("make /dev", err)
	}
	options := fmt.Sprintf("newinstance,ptmxmode=0666,mode=0620,max=%d", terminals)
	if err := unix.Mount("devpts", pts, "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, options); err != nil {
		return failure("mount /dev/pts", err)
	}
	return wrap("make /dev", os.Symlink("pts/ptmx", filepath.Join(mountPoint, "ptmx")))
}

// openTerminal makes a terminal for the standard streams of a rank.
func openTerminal(size task.Size) (p *pipes, err error) {
	p = new(pipes)
	defer func() {
		if err != nil {
			p.closeFar()
			p.closeNear()
		}
	}()
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	fd, err := unix.Open("/dev/ptmx", flags|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("open /dev/ptmx", err)
	}
	p.output = os.NewFile(uintptr(fd), "ptmx")
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return nil, os.NewSyscallError("number of the terminal", err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, os.NewSyscallError("unlock the terminal", err)
	}
	if err := setSize(fd, size); err != nil {
		return nil, err
	}
	if p.stdin, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), flags, 0); err != nil {
		return nil, err
	}
	p.stdout, p.stderr = p.stdin, p.stdin
	input, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("duplicate the terminal", err)
	}
	p.input = os.NewFile(uintptr(input), "ptmx")
	// There is no second stream.
	var none *os.File
	if p.errors, none, err = os.Pipe(); err != nil {
		return nil, err
	}
	none.Close()
	return p, nil
}

// terminalOutput reads what a rank writes to its terminal. It ends with the rank: one that closes
// its streams can open the terminal again, and closing our end would hang up, which kills it.
type terminalOutput struct {
	*os.File
	gone <-chan struct{} // closed when the rank has ended
}

// reopenPause is how often it is looked whether a rank has opened its terminal again.
const reopenPause = 50 * time.Millisecond

func (t *terminalOutput) Read(p []byte) (int, error) {
	for {
		ended := false
		select {
		case <-t.gone:
			ended = true
		default:
		}
		n, err := t.File.Read(p)
		if n > 0 || !errors.Is(err, unix.EIO) || ended { // EIO: no process has it open
			return n, err
		}
		select {
		case <-t.gone:
		case <-time.After(reopenPause):
		}
	}
}

func setSize(fd int, size task.Size) error {
	w := unix.Winsize{Row: size.Rows, Col: size.Columns}
	return os.NewSyscallError("set the size of the terminal", unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &w))
}

// resize gives the terminal of a rank another size. Linux sends its foreground SIGWINCH.
func (in *initProcess) resize(m link.Message) error {
	var size task.Size
	if err := m.Decode(&size); err != nil {
		return err
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, r := range in.pids {
		if r.terminal == nil {
			continue
		}
		raw, err := r.terminal.SyscallConn()
		if err != nil {
			return err
		}
		_ = raw.Control(func(fd uintptr) { err = setSize(int(fd), size) }) // an error: it is closed
		return err
	}
	return nil
}
