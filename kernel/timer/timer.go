// Package timer runs the extensions in slot timer, each by a clock of its own (timerfd_create(2))
// on the system core.
package timer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/clock"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/extension"
	"margay/nimble"
	"margay/nimble/memory"
)

// firstInterval is the interval of an extension that does not choose one.
const firstInterval = uint64(time.Second)

// Timers runs the extensions of a node. It is safe for concurrent use.
type Timers struct {
	node    id.Node
	manager *extension.Manager
	log     func(format string, args ...any)

	mu      sync.Mutex
	running map[id.Handle]*timer
	closed  bool
	all     sync.WaitGroup
}

// New starts running the extensions in slot timer.
func New(node id.Node, m *extension.Manager, log func(format string, args ...any)) *Timers {
	t := &Timers{node: node, manager: m, log: log, running: make(map[id.Handle]*timer)}
	m.Watch(slot.Timer, t.changed)
	return t
}

// Close stops all. It waits until no extension runs.
func (t *Timers) Close() {
	t.mu.Lock()
	t.closed = true
	for _, r := range t.running {
		r.clock.Close()
	}
	t.mu.Unlock()
	t.all.Wait()
}

// timer is an extension that is run.
type timer struct {
	extension *extension.Extension
	clock     *os.File // a timerfd
	event     *memory.Memory
	context   slot.TimerContext
	interval  uint64 // that the clock is set to
}

// changed starts extensions that are new in the slot and stops removed ones.
func (t *Timers) changed(job id.Job) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	there := make(map[id.Handle]bool)
	for _, x := range t.manager.Chain(job, slot.Timer) {
		there[x.Handle()] = true
		if t.running[x.Handle()] == nil {
			if err := t.start(x); err != nil {
				t.log("%v", err)
			}
		}
	}
	for handle, r := range t.running {
		if r.extension.Job() == job && !there[handle] {
			r.clock.Close() // which ends it
			delete(t.running, handle)
		}
	}
}

// start runs an extension at intervals. The caller holds the lock.
func (t *Timers) start(x *extension.Extension) error {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("timer of extension %d: %w", x.Handle(), err)
	}
	r := &timer{extension: x, clock: os.NewFile(uintptr(fd), "timer")}
	if r.event, err = memory.Map(string(slot.Timer), slot.TimerSize); err != nil {
		return errors.Join(err, r.clock.Close())
	}
	r.context = slot.TimerContext{Node: uint32(t.node), Job: uint32(x.Job()), Interval: firstInterval}
	t.running[x.Handle()] = r
	t.all.Go(func() {
		defer r.event.Close()
		defer r.clock.Close()
		if err := r.run(); err != nil {
			t.log("timer of extension %d: %v", x.Handle(), err)
		}
	})
	return nil
}

// run runs the extension until it stops, or is removed.
func (r *timer) run() error {
	for {
		goOn, err := r.tick()
		if err != nil || !goOn {
			return err
		}
		if r.context.Missed, err = r.wait(); err != nil {
			if errors.Is(err, os.ErrClosed) {
				return nil
			}
			return err
		}
	}
}

// tick runs the extension once. It reports whether to run it again.
func (r *timer) tick() (bool, error) {
	c := &r.context
	c.Now = clock.Monotonic()
	if _, err := binary.Encode(r.event.Bytes(), binary.LittleEndian, c); err != nil {
		return false, err
	}
	verdict, err := r.extension.Ask(nimble.Event{Context: r.event.Region(true)})
	if errors.Is(err, nimble.ErrClosed) {
		return false, nil
	}
	c.Runs++
	if err == nil {
		if verdict == slot.Stop {
			return false, nil
		}
		var left slot.TimerContext
		if _, err := binary.Decode(r.event.Bytes(), binary.LittleEndian, &left); err != nil {
			return false, err
		}
		// Longer than a clock can be set to is never.
		c.Interval = min(max(left.Interval, slot.MinInterval), 1<<62)
	}
	return true, r.set()
}

// set sets the clock to the interval that the extension wants.
func (r *timer) set() error {
	if r.interval == r.context.Interval {
		return nil
	}
	r.interval = r.context.Interval
	every := unix.NsecToTimespec(int64(r.interval))
	conn, err := r.clock.SyscallConn()
	if err != nil {
		return err
	}
	var setErr error
	err = conn.Control(func(fd uintptr) {
		setErr = unix.TimerfdSettime(int(fd), 0, &unix.ItimerSpec{Interval: every, Value: every}, nil)
	})
	if errors.Is(err, os.ErrClosed) {
		return nil // the wait will say so
	}
	return errors.Join(err, setErr)
}

// wait waits for the clock and returns how many intervals were missed.
func (r *timer) wait() (missed uint64, err error) {
	var expirations [8]byte
	if _, err := r.clock.Read(expirations[:]); err != nil {
		return 0, err
	}
	return binary.NativeEndian.Uint64(expirations[:]) - 1, nil
}
