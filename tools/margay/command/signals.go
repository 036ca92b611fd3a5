package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/launch"
)

// KeepIgnored completes Go's handling of signals that were ignored when this process was started.
// nohup ignores SIGHUP, and a script's shell ignores SIGINT and SIGQUIT for what it starts with &;
// Go remembers the first two alone, and ends with a stack dump on SIGQUIT.
func KeepIgnored() {
	if signal.Ignored(unix.SIGINT) {
		signal.Ignore(unix.SIGQUIT)
	}
}

// heeded returns the signals that are not ignored.
func heeded(signals []os.Signal) []os.Signal {
	return slices.DeleteFunc(slices.Clone(signals), signal.Ignored)
}

// Catch catches signals until stop is called. A signal that was ignored when this process was
// started stays so.
func Catch(size int, signals ...os.Signal) (caught <-chan os.Signal, stop func()) {
	c := NewCatcher(size)
	c.Catch(signals...)
	return c.C, c.Stop
}

// Catcher catches signals until Stop, and more of them at any time. Each signal costs 30 us of
// processor time, because Go's runtime changes threads twice. It is safe for concurrent use.
type Catcher struct {
	C chan os.Signal // gets the signals

	mu      sync.Mutex
	stopped bool
}

// NewCatcher returns a catcher with room for so many signals.
func NewCatcher(size int) *Catcher { return &Catcher{C: make(chan os.Signal, size)} }

// Catch catches further signals, as the function Catch does.
func (c *Catcher) Catch(signals ...os.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if signals = heeded(signals); len(signals) > 0 && !c.stopped { // Notify takes none for all
		signal.Notify(c.C, signals...)
	}
}

// Stop ends catching.
func (c *Catcher) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	signal.Stop(c.C)
}

// Interruptible returns a context that ends with a signal, which is then its cause.
func Interruptible(ctx context.Context, signals ...os.Signal) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	caught, stop := Catch(1, signals...)
	go func() {
		select {
		case sig := <-caught:
			cancel(endedBy(sig.(syscall.Signal)))
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// endedBy is the error of a command that a signal has ended.
func endedBy(sig syscall.Signal) error {
	err := &launch.Interrupted{Signal: sig}
	return Failed(launch.ExitStatus(err), err)
}

// GoesOn is the error of a command whose order goes on. If a signal has ended the command, it says
// how to follow the order.
func GoesOn(ctx context.Context, err error, how string) error {
	interrupted := (*launch.Interrupted)(nil)
	if err == nil || !errors.As(context.Cause(ctx), &interrupted) {
		return err
	}
	said := &launch.Interrupted{Signal: interrupted.Signal, Err: fmt.Errorf("%w: %s", interrupted, how)}
	return Failed(launch.ExitStatus(said), said)
}

// DieOf ends this process by SIGINT, SIGTERM or SIGHUP, so that the parent sees the signal: a shell
// ends its loop, and systemd reports no failure. For other signals, and where that is not possible,
// it returns.
func DieOf(sig syscall.Signal) {
	if !slices.Contains([]syscall.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP}, sig) || os.Getpid() == 1 { // an init gets none
		return
	}
	signal.Reset(sig)
	if unix.Kill(os.Getpid(), sig) == nil {
		time.Sleep(time.Second) // another thread may take it
	}
}
