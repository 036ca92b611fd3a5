package command

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"margay/cluster/control"
	"margay/tools/margay/show"
)

// guardName is the hidden command that gives a terminal back when margay cannot.
const guardName = "guard"

// guardDone is what the guard is sent when there is nothing left to do for it.
const guardDone = 1

// RawTerminal is the terminal of this process, which can be taken for a program elsewhere: every
// key is passed on then. It implements launch.Terminal.
//
// However this process ends, the terminal is given back: a second process, the guard, waits until
// the pipe to it is closed, which Linux does at the latest, and then restores the terminal if this
// process has not.
type RawTerminal struct {
	file  *os.File
	guard io.WriteCloser // nil: there is none yet

	mu    sync.Mutex
	taken bool
	state unix.Termios // when it was taken last
}

// ErrNoTerminal reports that a standard stream is not a terminal.
var ErrNoTerminal = errors.New("standard input is not a terminal")

// NewRawTerminal returns the terminal that r is.
func NewRawTerminal(r io.Reader) (*RawTerminal, error) {
	f, ok := show.FileOf(r)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil, ErrNoTerminal
	}
	return &RawTerminal{file: f}, nil
}

// Size returns its size in characters.
func (t *RawTerminal) Size() *control.Terminal {
	columns, rows, err := term.GetSize(int(t.file.Fd()))
	if err != nil || columns <= 0 || rows <= 0 {
		return &control.Terminal{Rows: 24, Columns: 80}
	}
	return &control.Terminal{Rows: uint32(rows), Columns: uint32(columns)}
}

// Take has every key passed on, if this process is in the foreground.
func (t *RawTerminal) Take() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.taken || background(t.file) {
		return nil
	}
	state, err := unix.IoctlGetTermios(int(t.file.Fd()), unix.TCGETS)
	if err != nil {
		return fmt.Errorf("state of the terminal: %w", err)
	}
	t.state = *state
	if err := t.watch(); err != nil {
		return fmt.Errorf("guard of the terminal: %w", err)
	}
	if _, err := term.MakeRaw(int(t.file.Fd())); err != nil {
		return fmt.Errorf("take the terminal: %w", err)
	}
	t.taken = true
	return nil
}

// Restore gives the terminal back.
func (t *RawTerminal) Restore() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.taken {
		return
	}
	t.taken = false
	_ = unix.IoctlSetTermios(int(t.file.Fd()), unix.TCSETSW, &t.state) // an error: it is gone
	_, _ = t.guard.Write([]byte{guardDone})
	t.guard.Close()
	t.guard = nil
}

// watch starts the guard. The caller holds the lock.
func (t *RawTerminal) watch() error {
	guard := exec.Command("/proc/self/exe", guardName)
	guard.ExtraFiles = []*os.File{t.file}
	guard.SysProcAttr = &unix.SysProcAttr{Setpgid: true} // a signal to our group is not for it
	pipe, err := guard.StdinPipe()
	if err != nil {
		return err
	}
	if err := guard.Start(); err != nil {
		return err
	}
	go guard.Wait()
	t.guard = pipe
	return binary.Write(pipe, binary.NativeEndian, t.state)
}

// Writer returns a writer for messages on the terminal, which begin their lines at the left while
// it is taken.
func (t *RawTerminal) Writer(w io.Writer) io.Writer { return &returning{w, t} }

type returning struct {
	io.Writer
	terminal *RawTerminal
}

func (r *returning) Write(p []byte) (int, error) {
	r.terminal.mu.Lock()
	taken := r.terminal.taken
	r.terminal.mu.Unlock()
	if !taken {
		return r.Writer.Write(p)
	}
	_, err := r.Writer.Write(bytes.ReplaceAll(p, []byte("\n"), []byte("\r\n")))
	return len(p), err
}

// GuardCommand is the guard's side: standard input has the state of the terminal, which is
// descriptor 3.
func GuardCommand(a *App) *cobra.Command {
	return &cobra.Command{
		Use: guardName, Short: "Restore a terminal when margay ends", Hidden: true, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			signal.Ignore(unix.SIGTTOU, unix.SIGTTIN, unix.SIGTSTP, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM)
			var state unix.Termios
			if err := binary.Read(a.Stdin, binary.NativeEndian, &state); err != nil {
				return nil // nothing was changed
			}
			if n, _ := a.Stdin.Read(make([]byte, 1)); n == guardDone {
				return nil
			}
			return os.NewSyscallError("restore the terminal", unix.IoctlSetTermios(3, unix.TCSETSW, &state))
		},
	}
}
