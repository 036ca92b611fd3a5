package serve

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
)

// processes are the processes of a played host, by PID.
type processes struct {
	mu    sync.Mutex
	state map[int32]ProcessState
	start uint64 // of all of them
}

// on shows serve process 7 at the other end of all connections.
func (p *processes) on(c *Config) {
	c.Process = p.look
	c.Peer = func(conn net.Conn) (control.Peer, error) {
		peer, err := asOwner(conn)
		peer.PID = 7
		return peer, err
	}
}

func (p *processes) look(pid int32) (ProcessState, uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	state, is := p.state[pid]
	if !is {
		return ProcessEnded, 0, nil
	}
	return state, p.start, nil
}

func (p *processes) set(state ProcessState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = map[int32]ProcessState{7: state}
}

// again gives the PID to another process.
func (p *processes) again() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.start++
}

// After a restart of serve, a job waits for a client whose process is stopped, as long as it takes,
// whether or not the ranks are stopped as well. It does not wait for one whose process has ended.
func TestStoppedLauncher(t *testing.T) {
	const gone, lost = "its margay run is gone", "its margay run has not come back after a restart of serve"
	for _, test := range []struct {
		name  string
		halt  bool // the ranks are stopped, too
		after func(p *processes)
		waits time.Duration // at least
		ends  time.Duration // after that, at most; 0: never
		error string
	}{
		{"by Ctrl-Z", true, func(p *processes) { p.set(ProcessStopped) }, time.Hour, 0, ""},
		{"alone", false, func(p *processes) { p.set(ProcessStopped) }, time.Hour, 0, ""},
		{"ended", false, func(p *processes) { p.set(ProcessEnded) }, 0, time.Second, gone},
		{"ended, the job stopped", true, func(p *processes) { p.set(ProcessEnded) }, 0, time.Second, gone},
		{"another process has the PID", true, func(p *processes) { p.again() }, 0, time.Second, gone},
		{"runs and does not come", false, func(*processes) {}, 4 * time.Minute, 2 * time.Minute, lost},
		{"runs, the job stopped", true, func(*processes) {}, 4 * time.Minute, 2 * time.Minute, lost},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p := new(processes)
				p.set(ProcessRuns)
				m := up(t, 2, p.on)
				c := m.client()
				job := c.run(spec(3))
				if test.halt {
					c.halt(job, unix.SIGSTOP)
				}
				m.restart()
				test.after(p)
				m.back(job, control.JobPhase_JOB_RUNNING, 0, 1)
				time.Sleep(test.waits)
				if s := m.client().summary(job); test.waits > 0 && (s.Phase != control.JobPhase_JOB_RUNNING || s.Stopped != test.halt) {
					t.Fatalf("after %v it is %v", test.waits, s)
				}
				if test.ends != 0 {
					time.Sleep(test.ends)
					if s := m.client().summary(job); s.Phase != control.JobPhase_JOB_DONE || s.ExitCode != 125 || s.Error != test.error {
						t.Errorf("it is recorded as %v", s)
					}
					return
				}
				p.set(ProcessRuns) // fg
				time.Sleep(time.Minute)
				c = m.attach(job)
				time.Sleep(time.Hour)
				if s := c.summary(job); s.Phase != control.JobPhase_JOB_RUNNING {
					t.Errorf("it goes on as %v", s)
				}
			})
		})
	}
}

// Nodes send the ends of ranks again only to a client. A job that the failure of a rank has ended
// waits for the other ends as long as its client is stopped, and ends with that failure.
func TestStoppedLauncherOfFailedJob(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := new(processes)
		p.set(ProcessRuns)
		m := up(t, 2, p.on)
		job := m.client().run(spec(3))
		m.played[1].exits(job, 1, 2, 7, 0)
		m.restart()
		p.set(ProcessStopped)
		m.back(job, control.JobPhase_JOB_RUNNING, 0, 1)
		time.Sleep(time.Hour)
		if got := take[*control.Signal](&m.played[0].recorder); len(got) == 0 {
			t.Error("the other ranks were not ended")
		}
		p.set(ProcessRuns) // fg
		c := m.attach(job)
		time.Sleep(m.config.Timing.withDefaults().Kill / 2)
		m.played[1].exits(job, 1, 2, 7, 0)
		for rank := range uint32(2) {
			m.played[0].exits(job, 1+uint64(rank), rank, 0, 15)
		}
		c.ackAll()
		if state := c.ended(); state.ExitCode != 7 || state.FirstFailed != 2 || state.Error != nil {
			t.Errorf("it has ended as %v", state)
		}
	})
}

// A stopped client that is killed ends its job, after any number of restarts. The next client of a
// job is the one to look for.
func TestStoppedLauncherIsKilled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := new(processes)
		p.set(ProcessRuns)
		m := up(t, 1, p.on)
		job := m.client().run(spec(1))
		m.restart()
		p.again() // as if another process were the client from here on
		m.back(job, control.JobPhase_JOB_RUNNING, 0)
		m.attach(job)
		for range 2 {
			m.restart()
			p.set(ProcessStopped)
			m.back(job, control.JobPhase_JOB_RUNNING, 0)
			time.Sleep(time.Hour)
		}
		if s := m.client().summary(job); s.Phase != control.JobPhase_JOB_RUNNING {
			t.Fatalf("it is %v", s)
		}
		p.set(ProcessEnded)
		time.Sleep(2 * lookLater)
		if s := m.client().summary(job); s.Phase != control.JobPhase_JOB_DONE || s.Error != "its margay run is gone" {
			t.Errorf("it is recorded as %v", s)
		}
	})
}

// A stopped job whose client serve cannot see waits for long, unless another client continues it.
func TestStoppedWithoutProcess(t *testing.T) {
	for _, remote := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			m := up(t, 2, listens(t), func(c *Config) { c.Timing.Stopped = time.Hour })
			c, far := m.client(), (*wire)(nil)
			if remote {
				c, far = m.far(m.userToken(&control.CreateToken{Whom: "7001", LifeNs: int64(24 * time.Hour)}))
			}
			stays, continued := c.run(spec(1)), c.run(spec(1))
			lost := "its margay run has not come back after a restart of serve"
			for _, job := range []uint32{stays, continued} {
				c.halt(job, unix.SIGSTOP)
			}
			if remote {
				far.cut(true)
				lost = "its margay run has not come back after its connection was lost"
			} else {
				m.restart()
				for i := range m.played {
					m.played[i].jobs = []*control.HostedJob{{Job: stays, Phase: control.JobPhase_JOB_RUNNING}, {Job: continued, Phase: control.JobPhase_JOB_RUNNING}}
					m.played[i].connect()
				}
			}
			other := m.client()
			time.Sleep(50 * time.Minute)
			other.halt(continued, unix.SIGCONT)
			time.Sleep(time.Minute)
			if s := other.summary(continued); s.Phase != control.JobPhase_JOB_DONE || s.Error != lost {
				t.Errorf("remote %v: the one that is continued: %v", remote, s)
			}
			if s := other.summary(stays); s.Phase != control.JobPhase_JOB_RUNNING {
				t.Errorf("remote %v: before: %v", remote, s)
			}
			time.Sleep(10 * time.Minute)
			if s := other.summary(stays); s.Phase != control.JobPhase_JOB_DONE || s.Error != lost {
				t.Errorf("remote %v: afterwards: %v", remote, s)
			}
		})
	}
}

// Linux says whether a process is stopped, and whether it is the one that it was.
func TestStateOf(t *testing.T) {
	look := func(pid int) (ProcessState, uint64) {
		state, start, err := StateOf(int32(pid))
		if err != nil {
			t.Fatal(err)
		}
		return state, start
	}
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Process.Kill()
	pid := child.Process.Pid
	becomes := func(want ProcessState) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			if state, _ := look(pid); state == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("it does not become %v", want)
			}
		}
	}
	state, start := look(pid)
	if _, own := look(os.Getpid()); state != ProcessRuns || start == 0 || own == 0 || own > start {
		t.Errorf("%v, started at %d, this one at %d", state, start, own)
	}
	for _, step := range []struct {
		sig   unix.Signal
		state ProcessState
	}{{unix.SIGSTOP, ProcessStopped}, {unix.SIGCONT, ProcessRuns}, {unix.SIGKILL, ProcessEnded}} { // which is not waited for yet
		if err := child.Process.Signal(step.sig); err != nil {
			t.Fatal(err)
		}
		becomes(step.state)
	}
	_ = child.Wait()
	if state, start := look(pid); state != ProcessEnded || start != 0 {
		t.Errorf("%v, started at %d", state, start)
	}
	for _, text := range []string{"", "7 (a) b", "7 (x) S " + strings.Repeat("1 ", 18), "7 (x) S " + strings.Repeat("x ", 50)} {
		if _, _, err := parseStat([]byte(text)); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	if state, start, err := parseStat([]byte("7 (a) S (b) T " + strings.Repeat("1 ", 18) + "42 1\n")); state != ProcessStopped || start != 42 || err != nil {
		t.Errorf("%v, %d, %v", state, start, err)
	}
}
