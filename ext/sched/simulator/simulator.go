// Package simulator runs a scheduler on a simulated core, with tasks that compute and wait, and a
// clock that jumps from event to event. A test of a policy takes no time and gives the same
// schedule every time; a fault or an invalid verdict fails the test. Tests of the node kernel run
// the same objects on real cores.
package simulator

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"margay/kernel/abi/slot"
	"margay/nimble"
	"margay/nimble/engine"
	"margay/nimble/memory"
	"margay/nimble/object"
	"margay/nimble/service"
)

// Task describes a simulated process: it computes for Burst, waits for Pause, and so on.
type Task struct {
	Burst time.Duration // 0: it never waits
	Pause time.Duration
	Total time.Duration // it ends after so much computing; 0: it does not
}

// Turn is an interval in which a task had the core.
type Turn struct {
	Task     int
	From, To time.Duration
}

// Core is a simulated core with a scheduler. It is not safe for concurrent use.
type Core struct {
	t       testing.TB
	x       *nimble.Extension
	event   *memory.Memory
	tasks   []*task // in order of arrival, without ended ones
	all     []*task
	now     time.Duration
	quantum time.Duration // until the next tick, counted from asked
	asked   time.Duration
	turns   []Turn
}

// forever is a time that is never reached.
const forever = time.Duration(math.MaxInt64)

type task struct {
	Task
	number  int
	state   slot.TaskState
	since   time.Duration
	ran     time.Duration
	burst   time.Duration // left of this one
	wakes   time.Duration
	waits   bool // also while it is held
	pending uint32
	data    uint64
}

// New inserts a scheduler on an engine, with its constants set, for a core with these tasks. It is
// removed when the test ends.
func New(t testing.TB, e engine.Engine, objectFile []byte, constants map[string]any, tasks ...Task) *Core {
	t.Helper()
	c := &Core{t: t}
	event, err := memory.Map("sched", slot.SchedSize)
	c.check(err)
	t.Cleanup(func() { c.check(event.Close()) })
	c.event = event
	c.check(c.insert(e, objectFile, constants))
	for i, t := range tasks {
		c.tasks = append(c.tasks, &task{Task: t, number: i, burst: t.Burst, wakes: forever})
	}
	c.all = slices.Clone(c.tasks)
	for i := range c.tasks {
		c.check(c.ask(slot.Wake, i))
	}
	return c
}

func (c *Core) insert(e engine.Engine, objectFile []byte, constants map[string]any) error {
	specs, err := object.ELF(objectFile)
	if err != nil {
		return err
	}
	if len(specs) != 1 || specs[0].Slot() != string(slot.Sched) {
		return fmt.Errorf("the object holds %d programs, or none for slot %s", len(specs), slot.Sched)
	}
	services, err := service.NewTable(service.Linux()...)
	if err != nil {
		return err
	}
	x, err := nimble.Insert(specs[0], nimble.Options{Engine: e, Services: services, Variables: constants})
	if err != nil {
		return err
	}
	c.t.Cleanup(func() { c.check(x.Close()) })
	c.x = x
	return nil
}

// Replace installs another scheduler, which sees the tasks as new.
func (c *Core) Replace(e engine.Engine, objectFile []byte, constants map[string]any) {
	c.t.Helper()
	c.check(c.insert(e, objectFile, constants))
	for _, t := range c.tasks {
		t.data = 0
	}
	c.check(c.ask(slot.Change, -1))
}

// check ends the test on an error.
func (c *Core) check(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// Ran returns the time that a task has computed.
func (c *Core) Ran(task int) time.Duration { return c.all[task].ran }

// Turns returns the turns in order.
func (c *Core) Turns() []Turn { return c.turns }

// Message delivers a message to a task; it is pending until Handled. A waiting task wakes up for
// it.
func (c *Core) Message(task int) {
	c.t.Helper()
	t := c.all[task]
	t.pending++
	c.wake(t)
	c.check(c.ask(slot.Arrival, slices.Index(c.tasks, t)))
}

// Handled clears the pending messages of a task.
func (c *Core) Handled(task int) { c.all[task].pending = 0 }

// Run lets d go by.
func (c *Core) Run(d time.Duration) {
	c.t.Helper()
	end := c.now + d
	for c.now < end {
		if err := c.step(end); err != nil {
			c.t.Fatal(err)
		}
	}
}

// running returns the task that has the core, nil if none has.
func (c *Core) running() *task {
	for _, t := range c.tasks {
		if t.state == slot.Running {
			return t
		}
	}
	return nil
}

// step advances to the next event, or to end.
func (c *Core) step(end time.Duration) error {
	next, r := end, c.running()
	if r != nil {
		if c.quantum != forever {
			next = min(next, c.asked+c.quantum)
		}
		if r.Burst > 0 {
			next = min(next, c.now+r.burst)
		}
		if r.Total > 0 {
			next = min(next, c.now+r.Total-r.ran)
		}
	}
	for _, t := range c.tasks {
		next = min(next, t.wakes)
	}
	c.spend(r, next)
	return c.happen(r)
}

// spend runs the running task until then.
func (c *Core) spend(r *task, then time.Duration) {
	if r != nil && then > c.now {
		r.ran += then - c.now
		r.burst -= then - c.now
		if n := len(c.turns); n > 0 && c.turns[n-1].Task == r.number && c.turns[n-1].To == c.now {
			c.turns[n-1].To = then
		} else {
			c.turns = append(c.turns, Turn{r.number, c.now, then})
		}
	}
	c.now = then
}

// happen processes the events that are due.
func (c *Core) happen(r *task) error {
	for i, t := range c.tasks {
		if t.wakes <= c.now {
			c.wake(t)
			if err := c.ask(slot.Wake, i); err != nil {
				return err
			}
		}
	}
	switch {
	case r == nil || r.state != slot.Running:
		return nil
	case r.Total > 0 && r.ran >= r.Total:
		c.tasks = slices.DeleteFunc(c.tasks, func(t *task) bool { return t == r })
		return c.ask(slot.Ending, -1)
	case r.Burst > 0 && r.burst <= 0:
		r.waits, r.wakes = true, c.now+r.Pause
		c.become(r, slot.Blocked)
		return c.ask(slot.Block, slices.Index(c.tasks, r))
	case c.quantum != forever && c.now >= c.asked+c.quantum:
		return c.ask(slot.Tick, -1)
	}
	return nil
}

func (c *Core) wake(t *task) {
	if t.waits {
		t.waits, t.wakes, t.burst = false, forever, t.Burst
	}
	if t.state == slot.Blocked {
		c.become(t, slot.Ready)
	}
}

func (c *Core) become(t *task, state slot.TaskState) {
	if t.state != state {
		t.state, t.since = state, c.now
	}
}

// ask runs the scheduler and applies its verdict. An invalid verdict is an error.
func (c *Core) ask(why slot.Why, target int) error {
	s := slot.SchedContext{Why: why, Count: uint32(len(c.tasks)), Target: slot.NoTask, Now: uint64(c.now), Quantum: slot.Infinite}
	if target >= 0 {
		s.Target = uint32(target)
	}
	for i, t := range c.tasks {
		s.Tasks[i] = slot.SchedTask{
			Job: 1, Rank: uint32(t.number), State: t.state, Messages: t.pending, Ran: uint64(t.ran), Since: uint64(t.since), Data: t.data,
		}
		if t.state == slot.Held {
			s.Hold |= 1 << i
		}
	}
	if _, err := binary.Encode(c.event.Bytes(), binary.LittleEndian, s); err != nil {
		return err
	}
	answer, err := c.x.Run(&nimble.Event{Context: c.event.Region(true)})
	if err != nil {
		return err
	}
	if _, err := binary.Decode(c.event.Bytes(), binary.LittleEndian, &s); err != nil {
		return err
	}
	for i, t := range c.tasks {
		t.data = s.Tasks[i].Data
	}
	return c.obey(slot.Verdict(answer), &s)
}

// obey gives the core to the chosen task.
func (c *Core) obey(answer slot.Verdict, s *slot.SchedContext) error {
	if answer != slot.Default && (answer >= slot.Verdict(len(c.tasks)) || s.Hold>>answer&1 != 0) {
		return fmt.Errorf("asked for reason %d at %v, it answered %d of %d tasks and holds %b", s.Why, c.now, answer, len(c.tasks), s.Hold)
	}
	for i, t := range c.tasks {
		switch {
		case s.Hold>>i&1 != 0:
			c.become(t, slot.Held)
		case t.waits:
			c.become(t, slot.Blocked)
		case slot.Verdict(i) == answer:
			c.become(t, slot.Running)
		default:
			c.become(t, slot.Ready)
		}
	}
	c.asked, c.quantum = c.now, forever
	if s.Quantum < uint64(forever) {
		c.quantum = time.Duration(s.Quantum)
	}
	if answer != slot.Default && c.tasks[answer].waits { // it was held, which was not visible
		return c.ask(slot.Block, int(answer))
	}
	return nil
}
