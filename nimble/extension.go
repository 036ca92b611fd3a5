package nimble

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"margay/nimble/engine"
	"margay/nimble/memory"
	"margay/nimble/state"
	"margay/nimble/verify"
)

// ErrClosed is returned for an extension that has been closed.
var ErrClosed = errors.New("the extension is closed")

// ErrContext is wrapped by the error for an event whose context is not what was
// promised at insertion.
var ErrContext = errors.New("not the context that was promised")

// Event is what an extension is run for.
type Event struct {
	// Context is memory outside the Go heap that the caller owns and keeps
	// mapped during the run. Its address is r1 and its length r2. Without a
	// name it is called context in faults.
	Context memory.Region

	Core int // the core that the event belongs to, for per-core maps and services
	Data any // for services, see service.Call; kept until the next run
}

// Stats are what an extension has done since it was inserted. They are exact
// while no run is under way, and never go back.
type Stats struct {
	Runs         uint64
	Instructions uint64        // executed, in the sense of fuel
	Faults       uint64        // runs that were stopped
	Time         time.Duration // estimated from samples, see sampling
	LastFault    *engine.Fault // nil: none
}

// sampling is how many runs there are for each whose time is measured: reading
// the clock takes longer than a small extension. After a run of less than brief
// there are samplingBrief.
const (
	sampling      = 64
	samplingBrief = 256
	brief         = time.Microsecond
)

// Extension is an inserted program with its state. Its methods are safe for
// concurrent use: runs follow each other, and Close waits for the one under
// way.
type Extension struct {
	program *verify.Program
	engine  string
	passed  []error
	limits  Limits
	context verify.Context
	maps    []*state.Map
	code    engine.Code
	plain   func(*engine.Machine) uint64 // the code, for runs with more fuel than most
	most    uint64                       // math.MaxUint64: plain is nil

	running sync.Mutex // held during a run
	machine *engine.Machine
	ready   bool     // the machine has a context, and the extension is not closed; with running held
	done    counters // with running held; plain, because an atomic addition costs more than a small extension
	due     uint64   // the number of runs whose last one is measured; with running held
	timed   counted  // with running held

	open   sync.RWMutex // held for reading while memory is used outside a run
	closed bool         // written with running and open held

	reading   sync.Mutex                                 // held by Stats, taken before running
	published struct{ runs, instructions atomic.Uint64 } // done as it was when it was last published
	faults    atomic.Uint64
	mean      atomic.Uint64 // bits of a float64: estimated nanoseconds of a run
	lastFault atomic.Pointer[engine.Fault]
}

// counters count runs and their instructions.
type counters struct{ runs, instructions uint64 }

// counted are the runs up to the last measured one, and their estimated time in nanoseconds.
type counted struct{ runs, time uint64 }

// Run runs the extension for an event and returns its r0. An error is
// ErrClosed, wraps ErrContext if the extension was not run for that, or is a
// *engine.Fault, after which the extension can be run again. It does not
// allocate unless there is an error.
//
// A service that an extension calls must not run or close that extension, and
// must not panic: the extension would stay locked.
func (x *Extension) Run(e *Event) (r0 uint64, err error) {
	x.running.Lock()
	r0, err = x.run(e, x.limits.Fuel)
	x.running.Unlock() // not deferred, which takes a tenth of a small run
	return r0, err
}

// run runs the extension with so much fuel, its limit or less. The caller holds
// running.
func (x *Extension) run(e *Event, fuel uint64) (r0 uint64, err error) {
	m := x.machine
	m.Fuel = fuel
	if !x.ready || !m.Holds(&e.Context) {
		if err := x.prepare(e); err != nil {
			return 0, err
		}
	}
	m.ContextName, m.Call.Core, m.Call.Data = e.Context.Name, e.Core, e.Data
	x.done.runs++
	switch {
	case x.done.runs == x.due:
		r0, err = x.sample(m)
	case fuel > x.most:
		r0 = x.plain(m)
	default:
		r0, err = x.code.Run(m)
	}
	x.done.instructions += fuel - m.Fuel
	if err != nil {
		err = x.failed(err, fuel)
	}
	return r0, err
}

// Alone runs f while no run is under way, and none begins. f must not run the extension.
func (x *Extension) Alone(f func() error) error {
	x.running.Lock()
	defer x.running.Unlock()
	if x.closed {
		return ErrClosed
	}
	return f()
}

// prepare gives the machine the context of an event that is another than the last
// one's.
func (x *Extension) prepare(e *Event) error {
	if x.closed {
		return ErrClosed
	}
	c := &e.Context
	if !x.context.Kept(c) {
		return fmt.Errorf("extension %q: %w: %d bytes at %#x, readable %v, writable %v, instead of %+v",
			x.Name(), ErrContext, c.Length, c.Base, c.Readable, c.Writable, x.context)
	}
	x.machine.SetContext(*c)
	x.machine.Args[0], x.machine.Args[1] = c.Base, c.Length
	x.ready = true
	return nil
}

// sample is a run whose time is measured. It stands for all runs since the last
// sample. The counters are published before it. Stats does not wait, so it gets
// the mean, in one word, and never the time of one sample with the runs of another.
func (x *Extension) sample(m *engine.Machine) (r0 uint64, err error) {
	x.publish()
	start := time.Now()
	r0, err = x.code.Run(m)
	took := time.Since(start)
	x.timed.time += uint64(took) * (x.due - x.timed.runs)
	x.timed.runs = x.due
	x.mean.Store(math.Float64bits(float64(x.timed.time) / float64(x.timed.runs)))
	if took < brief {
		x.due += samplingBrief
	} else {
		x.due += sampling
	}
	return r0, err
}

// publish lets Stats see the counters. The caller holds running.
func (x *Extension) publish() {
	x.published.runs.Store(x.done.runs)
	x.published.instructions.Store(x.done.instructions)
}

// failed counts and keeps the error of a run that had this much fuel. If the fuel
// was less than the limit and is used up, that is not a fault.
func (x *Extension) failed(err error, fuel uint64) error {
	f, ok := errors.AsType[*engine.Fault](err)
	if !ok {
		return err
	}
	if f.Kind == engine.Fuel && fuel < x.limits.Fuel {
		return ErrBudget
	}
	x.faults.Add(1)
	x.lastFault.Store(f)
	return err
}

// Stats returns what the extension has done. It does not wait for a run. While
// one is under way, runs since the last sample may not be counted yet.
func (x *Extension) Stats() Stats {
	x.reading.Lock()
	defer x.reading.Unlock()
	if x.running.TryLock() {
		x.publish()
		x.running.Unlock()
	}
	s := Stats{
		Faults:       x.faults.Load(),
		Instructions: x.published.instructions.Load(),
		Runs:         x.published.runs.Load(),
		LastFault:    x.lastFault.Load(),
	}
	s.Time = time.Duration(math.Float64frombits(x.mean.Load()) * float64(s.Runs))
	return s
}

// Name returns the name of the program.
func (x *Extension) Name() string { return x.program.Name() }

// Engine returns the name of the engine that runs it.
func (x *Extension) Engine() string { return x.engine }

// Passed returns why not engines that an engine.Choice prefers to that one.
func (x *Extension) Passed() []error { return slices.Clone(x.passed) }

// CodeSize returns how much memory its code takes, in bytes, 0 if the engine
// does not say.
func (x *Extension) CodeSize() int {
	if sized, ok := x.code.(engine.Sized); ok {
		return sized.Size()
	}
	return 0
}

// Trusted reports whether it was inserted as trusted.
func (x *Extension) Trusted() bool { return x.program.Trusted() }

// Map returns a map by name, nil if there is none. Its memory can be shared
// with an application: see state.Map.Memory and memory.Memory.FD. It must not
// be used after Close; ReadMap is for callers that do not control Close.
func (x *Extension) Map(name string) *state.Map {
	for _, m := range x.maps {
		if m.Spec().Name == name {
			return m
		}
	}
	return nil
}

// ReadMap copies the bytes of a map from an offset on into b and returns how
// many there were. It does not wait for a run. The error is ErrClosed or that
// there is no such map or offset.
func (x *Extension) ReadMap(name string, offset uint64, b []byte) (int, error) {
	x.open.RLock()
	defer x.open.RUnlock()
	if x.closed {
		return 0, ErrClosed
	}
	m := x.Map(name)
	if m == nil {
		return 0, fmt.Errorf("extension %q has no map %q", x.Name(), name)
	}
	r := m.Region()
	if offset > r.Length {
		return 0, fmt.Errorf("map %q has %d bytes, not %d", name, r.Length, offset)
	}
	return copy(b, memory.View(r.Base+offset, r.Length-offset)), nil
}

// Close removes the extension: it waits for the run under way, lets no other
// begin, and releases memory and descriptors, except memory that was given to
// Insert. A second Close does nothing.
func (x *Extension) Close() error {
	x.lockAndPublish()
	defer x.running.Unlock()
	x.open.Lock()
	defer x.open.Unlock()
	if x.closed {
		return nil
	}
	x.closed, x.ready = true, false
	return x.release()
}

// lockAndPublish takes running. Where no run is under way, no Stats finds the
// lock taken and the counters not published.
func (x *Extension) lockAndPublish() {
	x.reading.Lock()
	idle := x.running.TryLock()
	if idle {
		x.publish()
	}
	x.reading.Unlock()
	if !idle {
		x.running.Lock()
		x.publish()
	}
}

// release gives back what build has made.
func (x *Extension) release() error {
	var errs []error
	if x.machine != nil {
		errs = append(errs, x.machine.Close())
	}
	if x.code != nil {
		errs = append(errs, x.code.Close())
	}
	for _, m := range x.maps {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}
