// Command margay is the one command for users of a Margay machine: it makes machines, runs jobs on them, and shows and
// changes what goes on there. margay help lists its commands.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"margay/cluster/launch"
	"margay/internal/printable"
)

// version is the version of this build, set by the linker.
var version = "unknown"

func main() {
	keepIgnored()
	status := command(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	if status.signal != 0 {
		dieOf(status.signal)
	}
	os.Exit(status.code)
}

// run carries out one command and returns the exit status.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return command(ctx, args, stdin, stdout, stderr).code
}

// command carries out one command, says what is wrong and returns how to end.
func command(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) *exitStatus {
	out := &output{Writer: stdout}
	root := newRoot(stdin, out, stderr)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		err = out.failed()
	}
	if err == nil {
		return new(exitStatus)
	}
	status := new(exitStatus)
	if !errors.As(err, &status) {
		status = &exitStatus{code: launch.ExitMargay, err: err}
	}
	if status.err != nil {
		fmt.Fprintf(stderr, "margay: %s\n", printable.Lines(err.Error()))
	}
	return status
}

// output is the standard output. It remembers the first error of writing: nothing that it has lost is a success, whoever has not looked.
type output struct {
	io.Writer
	mu  sync.Mutex
	err error
}

func (o *output) Write(text []byte) (int, error) {
	n, err := o.Writer.Write(text)
	if err != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.err = cmp.Or(o.err, err)
	}
	return n, err
}

func (o *output) failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// fileOf returns the file that a standard stream is.
func fileOf(stream any) (f *os.File, ok bool) {
	if o, ours := stream.(*output); ours {
		stream = o.Writer
	}
	f, ok = stream.(*os.File)
	return f, ok
}

// exitStatus is an error that decides the exit status.
type exitStatus struct {
	code   int
	err    error          // nil when everything has been said
	signal syscall.Signal // that has ended the command, or 0
}

// failed makes an exit status of an error, and sees whether a signal is its reason.
func failed(code int, err error) *exitStatus {
	status := &exitStatus{code: code, err: err}
	if interrupted := (*launch.Interrupted)(nil); errors.As(err, &interrupted) && code == 128+int(interrupted.Signal) {
		status.signal = interrupted.Signal
	}
	return status
}

func (e *exitStatus) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}
func (e *exitStatus) Unwrap() error { return e.err }
