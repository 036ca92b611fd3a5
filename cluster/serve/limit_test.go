package serve

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
)

func TestLimit(t *testing.T) {
	begin := time.Unix(1000, 0)
	spec := &control.JobSpec{LimitMs: 60_000, Warning: int32(unix.SIGUSR1), WarningMs: 10_000}
	for _, c := range []struct {
		name         string
		spec         *control.JobSpec
		after        time.Duration
		warned, over bool
		want         due
		wait         time.Duration
	}{
		{"none", new(control.JobSpec), time.Hour, false, false, dueNothing, 0},
		{"begin", spec, 0, false, false, dueNothing, 50 * time.Second},
		{"warning", spec, 50 * time.Second, false, false, dueWarning, 0},
		{"late warning", spec, 55 * time.Second, false, false, dueWarning, 0},
		{"warned", spec, 50 * time.Second, true, false, dueNothing, 10 * time.Second},
		{"end", spec, time.Minute, true, false, dueEnd, 0},
		{"end without a warning", spec, 2 * time.Minute, false, false, dueEnd, 0},
		{"over", spec, 2 * time.Minute, true, true, dueNothing, 0},
		{"no warning wanted", &control.JobSpec{LimitMs: 60_000}, 55 * time.Second, false, false, dueNothing, 5 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := limitOf(c.spec, begin)
			l.warned, l.over = c.warned, c.over
			if what, wait := l.next(begin.Add(c.after)); what != c.want || wait != c.wait {
				t.Errorf("%d after %v, want %d after %v", what, wait, c.want, c.wait)
			}
		})
	}
}

func TestLimitRefused(t *testing.T) {
	for name, spec := range map[string]*control.JobSpec{
		"negative":          {LimitMs: -1},
		"more than a time":  {LimitMs: 1 << 62},
		"no signal":         {LimitMs: 1000, Warning: 65},
		"warning too early": {LimitMs: 1000, Warning: 10, WarningMs: 1000},
		"warning too late":  {LimitMs: 1000, Warning: 10, WarningMs: -1},
	} {
		if err := checkLimit(spec); !errors.Is(err, &control.Failure{Code: control.Code_CODE_BAD_REQUEST}) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// limited is a job that may run for a minute.
func limited(detach bool) *control.JobSpec {
	s := spec(1)
	s.Detach, s.LimitMs, s.Warning, s.WarningMs = detach, 60_000, int32(unix.SIGUSR1), 10_000
	return s
}

// signals returns the signals that a node has received since the last call, in order.
func signals(n *playedNode) (list []unix.Signal) {
	for _, m := range take[*control.Signal](&n.recorder) {
		list = append(list, unix.Signal(m.Signal))
	}
	return list
}

// A job is warned, asked to end at its limit, and killed if it does not end.
func TestTimeLimit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		job := c.run(limited(false))
		for _, step := range []struct {
			after time.Duration
			want  unix.Signal
		}{{49 * time.Second, 0}, {2 * time.Second, unix.SIGUSR1}, {8 * time.Second, 0}, {2 * time.Second, unix.SIGTERM}, {2 * time.Second, unix.SIGKILL}} {
			time.Sleep(step.after)
			got := signals(m.played[0])
			if len(got) > 1 || len(got) == 0 && step.want != 0 || len(got) == 1 && got[0] != step.want {
				t.Errorf("sent %v, want %v", got, step.want)
			}
		}
		m.played[0].exits(job, 1, 0, 0, 9)
		c.ackAll()
		state := c.ended()
		if state.ExitCode != exitTimeLimit || state.FirstFailed != control.None || !errors.Is(state.Error.Err(), &control.Failure{Code: control.Code_CODE_TIME_LIMIT}) {
			t.Errorf("ended as %v", state)
		}
	})
}

// A job that ends in time has its own status.
func TestEndBeforeLimit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		job := c.run(limited(false))
		time.Sleep(55 * time.Second)
		m.played[0].exits(job, 1, 0, 3, 0)
		c.ackAll()
		if state := c.ended(); state.ExitCode != 3 || state.Error != nil {
			t.Errorf("ended as %v", state)
		}
	})
}

// A restart of serve makes a limit neither longer nor shorter. A detached job needs no client for
// its limit.
func TestLimitAfterRestart(t *testing.T) {
	for _, away := range []time.Duration{0, 2 * time.Minute} {
		bubble(t, func(t *testing.T) {
			m := up(t, 1)
			job := m.client().run(limited(true))
			time.Sleep(40 * time.Second)
			m.stop(context.Canceled)
			time.Sleep(away)
			m.start()
			m.back(job, control.JobPhase_JOB_RUNNING, 0)
			var got []unix.Signal
			for range 30 {
				time.Sleep(time.Second)
				if got = append(got, signals(m.played[0])...); slices.Contains(got, unix.SIGKILL) {
					break
				}
			}
			if len(got) == 0 || got[len(got)-1] != unix.SIGKILL {
				t.Errorf("away for %v: sent %v", away, got)
			}
			m.played[0].exits(job, 1, 0, 0, 15)
			time.Sleep(time.Second)
			jobs := must[*control.Jobs](m.client(), &control.ListJobs{Job: job})
			if j := jobs.Jobs[0]; j.Phase != control.JobPhase_JOB_DONE || j.ExitCode != exitTimeLimit {
				t.Errorf("away for %v: %v", away, j)
			}
		})
	}
}
