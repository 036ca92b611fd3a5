package command

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"

	"margay/cluster/launch"
)

// Output is the standard output. It keeps the first write error, so that a command whose output was
// lost does not succeed.
type Output struct {
	io.Writer
	mu  sync.Mutex
	err error
}

// Below returns what Output writes to.
func (o *Output) Below() io.Writer { return o.Writer }

func (o *Output) Write(text []byte) (int, error) {
	n, err := o.Writer.Write(text)
	if err != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.err = cmp.Or(o.err, err)
	}
	return n, err
}

// Failed returns the first error of writing, or nil.
func (o *Output) Failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// ExitStatus is an error that decides the exit status.
type ExitStatus struct {
	Code   int
	Err    error          // nil when nothing remains to print
	Signal syscall.Signal // the signal that ended the command, or 0
}

// Failed makes an exit status of an error, and sees whether a signal is its reason.
func Failed(code int, err error) *ExitStatus {
	status := &ExitStatus{Code: code, Err: err}
	if interrupted := (*launch.Interrupted)(nil); errors.As(err, &interrupted) && code == 128+int(interrupted.Signal) {
		status.Signal = interrupted.Signal
	}
	return status
}

func (e *ExitStatus) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit status %d", e.Code)
	}
	return e.Err.Error()
}

func (e *ExitStatus) Unwrap() error { return e.Err }
