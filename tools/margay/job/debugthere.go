package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/client"
	"margay/cluster/launch/ldso"
	"margay/internal/printable"
	"margay/internal/slack"
	"margay/internal/splice"
	"margay/kernel/abi/gdb"
	"margay/tools/margay/command"
)

// Bounds of the begin of a session.
const (
	streamTimeout = 20 * time.Second // for serve and the node to open a stream
	attachTimeout = 2 * time.Minute  // for gdbserver to get to the node and attach; the node's own bounds are shorter
)

// Commands of gdb. SIGSTOP and SIGCONT hold, stop and continue whole jobs, so gdb reports neither,
// nor does it give SIGSTOP to the rank again.
const (
	handleStop = "handle SIGSTOP nostop noprint nopass"
	handleCont = "handle SIGCONT nostop noprint pass"
)

// settings are gdb's first commands: programs and libraries are files of this host, and a busy node
// may take longer for an answer than gdb's own 2 s.
const settings = "set sysroot /\nset remotetimeout 60\n" + handleStop + "\n" + handleCont + "\n"

// debugThere debugs a rank that is not a process of this host: gdb here speaks with gdbserver on
// the node.
func (a commands) debugThere(ctx context.Context, job, rank uint32, args []string) error {
	program, err := exec.LookPath("gdb")
	if err != nil {
		return errNoGDB
	}
	files, err := serverFiles()
	if err != nil {
		return err
	}
	stream, err := a.attachThere(ctx, job, rank, files)
	if err != nil {
		return fmt.Errorf("debug: rank %d of job %d: %w", rank, job, err)
	}
	defer stream.Close()
	return runGDB(program, args, stream)
}

// serverFiles returns gdbserver and what it loads.
func serverFiles() ([]gdb.File, error) {
	path, err := exec.LookPath(gdb.Server)
	if err != nil {
		return nil, errors.New("debug: this rank is not a process of this host, so gdb needs gdbserver beside it, which is not installed on this host: its package is gdbserver (margay backtrace works without it)")
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	needs, err := new(ldso.Search).Needs(path, "")
	if err == nil && len(needs.Missing) > 0 {
		err = needs.Missing[0]
	}
	if err != nil {
		return nil, fmt.Errorf("debug: %s: %w", path, err)
	}
	files := []gdb.File{{Name: gdb.Server, Path: path}}
	if needs.Loader != "" {
		files = append(files, gdb.File{Name: gdb.Loader, Path: needs.Loader})
	}
	for _, library := range needs.Libraries {
		files = append(files, gdb.File{Name: filepath.Base(library), Path: library})
		if threads := filepath.Join(filepath.Dir(library), threadsLibrary); filepath.Base(library) == "libc.so.6" && isFile(threads) {
			files = append(files, gdb.File{Name: threadsLibrary, Path: threads})
		}
	}
	return files, nil
}

// threadsLibrary is what gdbserver opens by name to find the variables of threads.
const threadsLibrary = "libthread_db.so.1"

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// attachThere has gdbserver started beside a rank, and returns the stream to it.
func (a commands) attachThere(ctx context.Context, job, rank uint32, files []gdb.File) (net.Conn, error) {
	socket, err := a.Socket()
	if err != nil {
		return nil, err
	}
	opening, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	stream, err := client.DialDebug(opening, socket, job, rank)
	if err != nil {
		return nil, err
	}
	if err := sendServer(stream, files); err != nil {
		stream.Close()
		return nil, err
	}
	return stream, nil
}

// sendServer sends gdbserver, and waits until it has attached. The node may refuse before it has
// all of it.
func sendServer(stream net.Conn, files []gdb.File) error {
	if err := stream.SetDeadline(time.Now().Add(attachTimeout)); err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() { sent <- gdb.WriteFiles(stream, files) }()
	refusal, err := gdb.ReadAnswer(stream)
	switch {
	case err == nil && refusal != "":
		return errors.New(printable.Line(refusal))
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("gdbserver has not attached after %v: the node is too busy", attachTimeout)
	case errors.Is(err, io.EOF):
		return errors.New("the connection to the node has ended: the rank has ended, or its node")
	case err != nil:
		return err
	}
	if err := <-sent; err != nil {
		return err
	}
	return stream.SetDeadline(time.Time{})
}

// screened is a stream whose bytes go through a screen.
type screened struct {
	net.Conn
	screen *screen
}

func (s screened) Read(p []byte) (int, error) { return s.screen.Read(p) }

// endWait is how long gdb may take to end after a signal that asks for its end.
const endWait = 5 * time.Second

// runGDB runs gdb with the other end of a stream. gdb takes the signals of the terminal, and gets
// those that ask this process to end, which only lives as long as gdb.
func runGDB(program string, args []string, stream net.Conn) error {
	folder, err := os.MkdirTemp("", "margay-debug-")
	if err != nil {
		return fmt.Errorf("debug: %w", err)
	}
	defer os.RemoveAll(folder)
	script := filepath.Join(folder, "settings")
	if err := os.WriteFile(script, []byte(settings), 0o600); err != nil {
		return fmt.Errorf("debug: %w", err)
	}
	listener, err := net.Listen("unix", filepath.Join(folder, "gdb"))
	if err != nil {
		return fmt.Errorf("debug: %w", err)
	}
	defer listener.Close()
	checked := screened{stream, newScreen(stream)}
	go func() {
		if conn, err := listener.Accept(); err == nil {
			os.RemoveAll(folder) // gdb has read its commands, and nothing is left if this process is killed
			splice.Join(conn, checked)
		}
	}()
	_, stop := command.Catch(1, unix.SIGINT, unix.SIGQUIT)
	defer stop()
	ends, stopEnds := command.Catch(1, unix.SIGTERM, unix.SIGHUP)
	defer stopEnds()
	gdb := exec.Command(program, append([]string{"-q", "-ix", script, "-ex", "target remote " + listener.Addr().String()}, args...)...)
	gdb.Stdin, gdb.Stdout, gdb.Stderr = os.Stdin, os.Stdout, os.Stderr
	runtime.LockOSThread() // the signal comes when this thread ends
	defer runtime.UnlockOSThread()
	gdb.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := slack.Start(slack.Application, gdb.Start); err != nil {
		return fmt.Errorf("debug: start gdb: %w", err)
	}
	over, asked := make(chan struct{}), make(chan os.Signal, 1)
	go passEnd(gdb.Process, ends, over, asked)
	err = gdb.Wait()
	close(over)
	if s, ok := <-asked; ok {
		return &command.ExitStatus{Code: 128 + int(s.(syscall.Signal)), Signal: s.(syscall.Signal)}
	}
	if refused := checked.screen.Refused(); refused != nil {
		return fmt.Errorf("debug: %w", refused)
	}
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		code := ended.ExitCode()
		if code < 0 {
			code = 128 + int(ended.Sys().(syscall.WaitStatus).Signal())
		}
		return &command.ExitStatus{Code: code}
	} else if err != nil {
		return fmt.Errorf("debug: %w", err)
	}
	return nil
}

// passEnd passes a signal that asks for the end on to gdb, which lets the rank go on then, and ends
// gdb if that takes it too long. It reports the signal in asked, which it closes.
func passEnd(gdb *os.Process, ends <-chan os.Signal, over <-chan struct{}, asked chan<- os.Signal) {
	defer close(asked)
	select {
	case s := <-ends:
		asked <- s
		_ = gdb.Signal(s) // it may just have ended
	case <-over:
		return
	}
	select {
	case <-time.After(endWait):
		_ = gdb.Kill()
	case <-over:
	}
}
