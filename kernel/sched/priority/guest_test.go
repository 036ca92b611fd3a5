//go:build guest

package priority

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"margay/ext/sched/infinite"
	"margay/ext/sched/messagefirst"
	"margay/ext/sched/roundrobin"
	"margay/ext/sched/weighted"
	"margay/kernel/sched"
	"margay/kernel/sched/schedtest"
	"margay/nimble/engine/list"
)

func TestMain(m *testing.M) {
	schedtest.Main()
	os.Exit(m.Run())
}

// config is the suite on the application core of a guest.
func config() schedtest.Config {
	return schedtest.Config{
		Open:   func(t testing.TB) sched.Enforcer { return Open(t.Logf) },
		Engine: list.Automatic(), CPU: 1, Watchdog: 31 * time.Second,
		// A processor of an emulated guest is a thread of its host: a turn that is ended late goes to whoever had it.
		Tolerance: 0.2,
		Weighted:  weighted.Object, RoundRobin: roundrobin.Object, Infinite: infinite.Object, MessageFirst: messagefirst.Object,
	}
}

func TestSuite(t *testing.T) {
	c := config()
	c.Group = group
	schedtest.Run(t, c)
}

// group puts a process into a control group of its own.
func group(t testing.TB, p *schedtest.Process) {
	p.Task.Group = filepath.Join("/sys/fs/cgroup", fmt.Sprint("sched-", p.Task.PID))
	if err := os.Mkdir(p.Task.Group, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if err := os.Remove(p.Task.Group); err == nil || time.Now().After(deadline) {
				if err != nil {
					t.Error(err)
				}
				return
			}
		}
	})
	if err := os.WriteFile(filepath.Join(p.Task.Group, "cgroup.procs"), []byte(fmt.Sprint(p.Task.PID)), 0); err != nil {
		t.Fatal(err)
	}
}

// Without control groups signals hold processes.
func TestSignals(t *testing.T) {
	c := config()
	c.Watchdog = 5 * time.Second
	schedtest.Run(t, c, "infinite", "let go", "opened anew")
}

// Without real-time priorities those are stopped who do not have the core, and it is said what is missing.
func TestStops(t *testing.T) {
	c := config()
	c.Watchdog = 5 * time.Second
	c.Open = func(t testing.TB) sched.Enforcer {
		e := Open(t.Logf)
		e.stops = errors.New("a test")
		e.deaf = e.stops
		return e
	}
	e := c.Open(t)
	if e.Name() != "stop" || len(e.Lacks()) != 2 {
		t.Errorf("%s lacks %v", e.Name(), e.Lacks())
	}
	schedtest.Run(t, c, "weighted", "roundrobin", "infinite", "let go", "arrival")
}
