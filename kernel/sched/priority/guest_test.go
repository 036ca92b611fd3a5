//go:build guest

package priority

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/ext/sched/infinite"
	"margay/ext/sched/messagefirst"
	"margay/ext/sched/roundrobin"
	"margay/ext/sched/weighted"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/sched"
	"margay/kernel/sched/schedtest"
	"margay/nimble/engine/list"
)

// config is the suite on the application core of a guest.
func config() schedtest.Config {
	return schedtest.Config{
		Open:   func(t testing.TB) sched.Enforcer { return Open(false, t.Logf) },
		Engine: list.Automatic(), CPU: 1, Hold: schedtest.StarvationLimit * 3 / 2,
		// An emulated processor is a thread of the host. On an overloaded host, the processor of
		// the thread that ends turns may have to wait, and the running task keeps the core for so
		// long. So turns are counted; TestTime of testsuite/soak measures time.
		Tolerance: 0.1, Count: true, Obeyed: obeyed,
		Weighted: weighted.Object, RoundRobin: roundrobin.Object, Infinite: infinite.Object, MessageFirst: messagefirst.Object,
		Abandon: abandon, StarvationLimit: setStarvationLimit,
	}
}

// setStarvationLimit sets how long a task may wait on all cores.
func setStarvationLimit(e sched.Enforcer, d time.Duration) {
	for _, c := range e.(*Enforcer).cores {
		c.mu.Lock()
		c.decision.StarvationLimit = d
		c.mu.Unlock()
	}
}

// obeyed looks whether the threads of all tasks have the priorities that were decided.
func obeyed(e sched.Enforcer) error {
	for _, c := range e.(*Enforcer).cores {
		if err := c.obeyed(); err != nil {
			return err
		}
	}
	return nil
}

func (c *core) obeyed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.active || c.stops {
		return nil
	}
	plan := c.decision.Plan()
	for i, t := range c.tasks {
		want := ready
		switch {
		case i == plan.Run && c.alone(plan):
			want = ordinary
		case i == plan.Run:
			want = chosen
		case t.blocked || plan.Hold>>i&1 != 0:
			want = waking
		}
		for tid := range t.threads {
			attr, err := unix.SchedGetAttr(tid, 0)
			if err == nil && level(attr.Priority) != want {
				return fmt.Errorf("thread %d of rank %d has priority %d, not %d, under plan %+v", tid, t.Rank, attr.Priority, want, plan)
			}
		}
	}
	return nil
}

// abandon ends the threads of an enforcer, which leave tasks as they are.
func abandon(e sched.Enforcer) {
	for _, c := range e.(*Enforcer).cores {
		c.mu.Lock()
		c.closed = true
		c.ring()
		c.mu.Unlock()
		<-c.stopped
	}
}

func TestSuite(t *testing.T) {
	c := config()
	c.Group = schedtest.Group
	schedtest.Run(t, c)
}

// Without tracepoints, records of all context switches give the same.
func TestRecords(t *testing.T) {
	c := config()
	c.Open = func(t testing.TB) sched.Enforcer {
		e := Open(false, t.Logf)
		if e.points == nil {
			t.Error("there are no tracepoints here anyway")
		}
		e.points = nil // e.asked keeps them enabled, and reports nothing
		return e
	}
	schedtest.Run(t, c, "block", "threads", "task ends")
}

// A task that computes while it is said to wait is found out.
func TestUnseen(t *testing.T) {
	e := Open(false, t.Logf)
	defer e.Close()
	ids := []sched.ID{{Job: 7}, {Job: 7, Rank: 1}}
	both := []*schedtest.Process{schedtest.Start(t, schedtest.Spin, 1), schedtest.Start(t, schedtest.Spin, 1)}
	for i, p := range both {
		p.Begin()
		p.Task.ID, p.Task.Core = ids[i], 1
		if err := e.Add(p.Task); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { schedtest.KillAll(both) })
	for range 10 { // the thread may just have something else to do, and look then
		findUnseen(t, e.of(ids[0]), ids[0])
	}
}

func findUnseen(t *testing.T, c *core, id sched.ID) {
	c.mu.Lock()
	wronged := c.find(id)
	for _, x := range wronged.threads {
		x.is(true, now())
	}
	c.settle(wronged)
	c.update()
	c.mu.Unlock()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		blocked := wronged.blocked
		c.mu.Unlock()
		if !blocked {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("core %+v", c.describe())
		}
	}
}

// A killed process ends although others compute, and it is not taken for one that runs.
func TestKilled(t *testing.T) {
	for name, without := range map[string]bool{"tracepoints": false, "records": true} {
		t.Run(name, func(t *testing.T) {
			e := Open(false, t.Logf)
			defer e.Close()
			if without {
				e.points = nil
			}
			start := func(rank id.Rank) *schedtest.Process {
				p := schedtest.Start(t, schedtest.SpinThreads, 1)
				p.Task.ID, p.Task.Core = sched.ID{Job: 7, Rank: rank}, 1
				p.Begin()
				if err := e.Add(p.Task); err != nil {
					t.Fatal(err)
				}
				return p
			}
			both := []*schedtest.Process{start(0), start(1)} // one alone would compute without a priority
			t.Cleanup(func() { schedtest.KillAll(both) })
			for rank := range id.Rank(3) {
				p := start(rank + 2)
				p.Kill()
				c := e.of(p.Task.ID)
				for deadline := time.Now().Add(2 * time.Minute); c.describe().Tasks[2].State != slot.Blocked; time.Sleep(time.Millisecond) {
					if time.Now().After(deadline) {
						t.Fatalf("core %+v", c.describe())
					}
				}
				e.Remove(p.Task.ID)
			}
		})
	}
}

// Without control groups signals hold processes.
func TestSignals(t *testing.T) {
	c := config()
	schedtest.Run(t, c, "infinite", "let go", "opened again")
}

// Without real-time priorities the tasks without the core are stopped, and the missing right is
// reported. TestSchedulersWithoutPriorities of testsuite/e2e measures the shares.
func TestStops(t *testing.T) {
	c := config()
	c.Open = func(t testing.TB) sched.Enforcer {
		e := Open(false, t.Logf)
		e.stops = errors.New("a test")
		e.deaf = e.stops
		return e
	}
	e := c.Open(t)
	if e.Name() != "stop" || len(e.Lacks()) != 2 {
		t.Errorf("%s lacks %v", e.Name(), e.Lacks())
	}
	schedtest.Run(t, c, "let go", "arrival")
}
