//go:build guest

package list

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
	"margay/kernel/sched"
	"margay/kernel/sched/schedtest"
)

// config is the configuration of a node with sched_ext.
var config = node.Config{Profile: node.Sched, Substrate: node.Virtual}

// Tasks that were sched_ext's, one of them stopped, share their core by priorities when sched_ext
// cannot be had any more. The node says why.
func TestNoSchedExt(t *testing.T) {
	first, lacks := Open(config, t.Logf)
	defer first.Close()
	if first.Name() != "sched_ext" || len(lacks) > 0 {
		t.Fatalf("by %s, which lacks %q", first.Name(), lacks)
	}
	second, lacks := Open(config, t.Logf)
	defer second.Close()
	if second.Name() != "priority" || len(lacks) != 1 || !strings.Contains(lacks[0], "another scheduler is attached") {
		t.Fatalf("by %s, which lacks %q", second.Name(), lacks)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	var tasks []*schedtest.Process
	for rank := range id.Rank(2) {
		p := schedtest.Start(t, schedtest.Spin, 1)
		p.Task.ID, p.Task.Core = sched.ID{Job: 7, Rank: rank}, 1
		schedtest.Group(t, p)
		leave(t, p)
		tasks = append(tasks, p)
	}
	for _, p := range tasks {
		p.Begin()
	}
	if err := tasks[1].Task.Stop(true); err != nil {
		t.Fatal(err)
	}
	for _, p := range tasks {
		if err := second.Add(p.Task); err != nil {
			t.Fatal(err)
		}
	}
	var turns [2]atomic.Int32
	second.Watch(func(_ id.Core, _ id.Time, to sched.ID, _ string) {
		if to.Job == 7 {
			turns[to.Rank].Add(1)
		}
	})
	defer second.Watch(nil)
	before := []time.Duration{tasks[0].Ran(), tasks[1].Ran()}
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		had := []int32{turns[0].Load(), turns[1].Load()}
		spent := []time.Duration{tasks[0].Ran() - before[0], tasks[1].Ran() - before[1]}
		if slices.Min(had) >= 20 && slices.Min(had) >= slices.Max(had)*9/10 && slices.Min(spent) > 0 {
			t.Logf("they had %d turns, and %v", had, spent)
			return
		}
		if time.Now().After(end) {
			t.Fatalf("they do not take turns: %d, and %v", had, spent)
		}
	}
}

// leave makes the threads of a process what they are when the node kernel that had them under
// sched_ext has been killed.
func leave(t *testing.T, p *schedtest.Process) {
	t.Helper()
	for _, thread := range sched.Threads(p.Task.PID) {
		if err := unix.SchedSetAttr(thread.ID, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_EXT}, 0); err != nil {
			t.Fatal(err)
		}
	}
}
