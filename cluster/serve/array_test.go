package serve

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"margay/cluster/control"
	"margay/cluster/permit"
)

// taskRequest asks for a task of an array; array is 0 for its first one.
func taskRequest(array, id uint32) *control.RunRequest {
	s := patient(1)
	s.Task = &control.Task{Array: array, Id: id}
	return &control.RunRequest{Spec: s, Exec: &control.Exec{Argv: [][]byte{[]byte("true")}, Env: [][]byte{[]byte("A=1")}}}
}

// The tasks of an array are jobs that wait for cores together. They know their array, as does their
// history. A client can follow any number of them, and can take those that wait back.
func TestTasks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, l := withLedger(t, 1)
		c := m.client()
		n := m.played[0]
		begun := func(id, array uint32, answer <-chan asked) uint32 {
			job := started(t, answer)
			p := take[*control.Prepare](&n.recorder)
			if want := fmt.Sprintf("MARGAY_ARRAY_JOB_ID=%d", array); len(p) == 0 || !slices.ContainsFunc(p[0].Exec.Env, func(v []byte) bool { return string(v) == want }) {
				t.Errorf("task %d is prepared with %v, and should have %s", id, p, want)
			}
			n.tell(&control.Loaded{Job: job})
			return job
		}
		array := begun(0, 1, c.begin(taskRequest(0, 0)))
		job := array
		var waiting []<-chan asked
		for id := uint32(1); id < 40; id++ {
			waiting = append(waiting, c.begin(taskRequest(array, id)))
		}
		for _, answer := range waiting[1:] {
			waits(t, answer)
		}
		none[*control.LogLine](t, &c.recorder, "the client is told what each task waits for")
		list := must[*control.Jobs](c, &control.ListJobs{})
		if w := list.Waiting; len(w) != 1 || w[0].Array != array || w[0].Tasks != 38 || w[0].Why == "" {
			t.Errorf("the list of jobs: %v", w)
		}
		if task := c.summary(array).Task; task.GetArray() != array || task.GetId() != 0 {
			t.Errorf("the first one is task %v", task)
		}
		for id := uint32(1); id < 30; id++ {
			next := begun(id, array, waiting[id-1])
			n.exits(job, 1, 0, 0, 0)
			c.ackAll()
			synctest.Wait()
			if r := l.last(job); r == nil || r.Array != array || *r.Task != id-1 {
				t.Errorf("the history has %+v of job %d", r, job)
			}
			job = next
		}
		c.tell(&control.Withdraw{})
		c.tell(&control.Withdraw{})
		for _, answer := range waiting[31:] {
			if a := <-answer; !errors.Is(a.err, &control.Failure{Code: control.Code_CODE_KILLED}) {
				t.Errorf("a task that was taken back is answered with %v", a)
			}
		}
		if list := must[*control.Jobs](c, &control.ListJobs{}); len(list.Waiting) != 0 {
			t.Errorf("there wait %v", list.Waiting)
		}
	})
}

// A task that fits and whose turn has not come is not said to lack cores.
func TestTaskFits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := up(t, 1).server
		s.mu.Lock()
		defer s.mu.Unlock()
		for ranks, why := range map[uint32]string{2: "", 3: "waiting for cores: 3 ranks need 3"} {
			r := taskRequest(1, 1)
			r.Spec.Ranks = ranks
			s.queue = queue{{spec: r.Spec, since: time.Now()}}
			if w := s.waitingJobs(permit.Caller{Role: permit.Owner}); len(w) != 1 || w[0].Why != why && (why == "" || !strings.HasPrefix(w[0].Why, why)) {
				t.Errorf("%d ranks: %v", ranks, w)
			}
		}
		s.queue = nil
	})
}

// The log has a task that the history has only if it fails.
func TestTasksInLog(t *testing.T) {
	for _, kept := range []bool{true, false} {
		bubble(t, func(t *testing.T) {
			m := up(t, 1, func(c *Config) {
				if kept {
					c.History = new(playedLedger)
				}
			})
			c, n := m.client(), m.played[0]
			for _, status := range []int32{0, 3} {
				job := started(t, c.begin(taskRequest(0, 0)))
				n.tell(&control.Loaded{Job: job})
				n.exits(job, 1, 0, status, 0)
				c.ackAll()
				synctest.Wait()
				begin, end := m.logged(fmt.Sprintf("job %d: 1 rank", job)), m.logged(fmt.Sprintf("job %d ended with status %d", job, status))
				if begin == kept || end != (status != 0 || !kept) {
					t.Errorf("history: %v, status %d: the begin is logged: %v, the end: %v", kept, status, begin, end)
				}
			}
		})
	}
}

// A client that follows many jobs, one after the other, leaves none of them behind in serve.
func TestFollowedJobs(t *testing.T) {
	s := &Server{jobs: make(map[uint32]*job)}
	c := &client{server: s}
	for number := uint32(1); number <= 1000; number++ {
		s.jobs[number] = newJob(number, spec(1), nil)
		c.follow(s.jobs[number])
		delete(s.jobs, number-2)
	}
	if n := len(c.jobs); n > 10 || c.jobs[n-1].number != 1000 || c.jobs[n-2].number != 999 {
		t.Errorf("it has %d jobs, of which 2 have not ended", n)
	}
}
