// Package array decides when the tasks of an array start. An array is a number of jobs of the same
// program, which a client submits and follows over one connection.
//
// Machine starts nothing itself: events and the time go in, and the tasks to submit come out. The
// life of a task:
//
//	waiting -- Next --> asked -- Placed --> placed -- Ended --> ended
//	asked, placed -- Spoilt, before it has run --> waiting, after a pause, or ended
//	asked -- Lost, with the connection --> waiting
//
// A task is asked while serve has its request, and placed when it has cores. Only a limited number
// of tasks is asked at a time: serve places them as cores become free, and other jobs in its queue
// have their turn.
package array

import (
	"slices"
	"time"
)

// Limits bound how much of an array goes on at a time.
type Limits struct {
	Active int           // tasks that are asked or placed; 0: any number
	Asked  int           // tasks that are asked, besides one for each four that are placed; at least 1
	Tries  int           // how often a task is asked for when its launch is spoilt
	Pause  time.Duration // before the second try; it doubles with each further one
}

// Machine is the life of the tasks of an array. It is not safe for concurrent use.
type Machine struct {
	limits  Limits
	left    []uint32        // tasks that were never asked for, in order
	again   []retry         // tasks to ask for again, oldest first
	active  map[uint32]bool // asked: false, or placed: true
	asked   int
	tries   map[uint32]int // of tasks whose launch was spoilt
	stopped bool
}

// retry is a task that is asked for again at a time.
type retry struct {
	task uint32
	at   time.Time
}

// New returns the machine of an array. No task was asked for yet.
func New(tasks []uint32, l Limits) *Machine {
	return &Machine{limits: l, left: tasks, active: make(map[uint32]bool), tries: make(map[uint32]int)}
}

// Next returns the next task to ask for now. If there is none now, wake is when to call Next again,
// zero for after the next event.
func (m *Machine) Next(now time.Time) (task uint32, ok bool, wake time.Time) {
	if m.stopped || m.asked >= m.limits.Asked+(len(m.active)-m.asked)/4 || m.limits.Active > 0 && len(m.active) >= m.limits.Active {
		return 0, false, time.Time{}
	}
	for i, r := range m.again {
		if !r.at.After(now) {
			m.again = slices.Delete(m.again, i, i+1)
			return m.ask(r.task), true, time.Time{}
		}
		if wake.IsZero() || r.at.Before(wake) {
			wake = r.at
		}
	}
	if len(m.left) == 0 {
		return 0, false, wake
	}
	task, m.left = m.left[0], m.left[1:]
	return m.ask(task), true, time.Time{}
}

func (m *Machine) ask(task uint32) uint32 {
	m.active[task] = false
	m.asked++
	return task
}

// Placed reports that an asked task has cores.
func (m *Machine) Placed(task uint32) {
	if placed, ok := m.active[task]; ok && !placed {
		m.active[task] = true
		m.asked--
	}
}

// Spoilt reports that the launch of an active task was spoilt before it ran. It returns false if
// the task is not asked for again.
func (m *Machine) Spoilt(now time.Time, task uint32) (again bool) {
	if _, ok := m.active[task]; !ok {
		return false
	}
	m.tries[task]++
	if tries := m.tries[task]; tries < m.limits.Tries {
		m.drop(task)
		m.again = append(m.again, retry{task, now.Add(m.limits.Pause << (tries - 1))})
		return true
	}
	m.Ended(task)
	return false
}

// Ended reports that an active task has ended, or was refused.
func (m *Machine) Ended(task uint32) {
	m.drop(task)
	delete(m.tries, task)
}

// drop removes an active task.
func (m *Machine) drop(task uint32) {
	placed, ok := m.active[task]
	if ok && !placed {
		m.asked--
	}
	delete(m.active, task)
}

// Lost reports that serve has forgotten the tasks that are asked, for example because the
// connection has ended. They are asked for again, in order.
func (m *Machine) Lost(now time.Time) {
	var again []retry
	for task, placed := range m.active {
		if !placed {
			again = append(again, retry{task, now})
			m.drop(task)
		}
	}
	slices.SortFunc(again, func(a, b retry) int { return int(int64(a.task) - int64(b.task)) })
	m.again = append(again, m.again...)
}

// Stop has no further task asked for.
func (m *Machine) Stop() { m.stopped = true }

// Stopped reports whether Stop was called.
func (m *Machine) Stopped() bool { return m.stopped }

// Over reports whether no task is active, and none will be.
func (m *Machine) Over() bool {
	return len(m.active) == 0 && (m.stopped || len(m.left)+len(m.again) == 0)
}

// Active returns how many tasks are asked or placed.
func (m *Machine) Active() int { return len(m.active) }

// Left returns the tasks that have not run and are not active, in ascending order.
func (m *Machine) Left() []uint32 {
	left := slices.Clone(m.left)
	for _, r := range m.again {
		left = append(left, r.task)
	}
	slices.Sort(left)
	return left
}
