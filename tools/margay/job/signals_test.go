package job_test

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/tools/margay/margaytest"
)

// What was ignored when margay was started stays ignored: a job goes on when the terminal of its
// nohup is gone, and when Ctrl-C is for what a script runs in the foreground.
func TestIgnoredSignals(t *testing.T) {
	for _, test := range []struct {
		name    string
		script  string
		ignored []unix.Signal
	}{
		{"nohup", `exec nohup "$0" run --stdin none true`, []unix.Signal{unix.SIGHUP}},
		{"background of a script", `"$0" run --stdin none true & echo $! >&2; wait $!`, []unix.Signal{unix.SIGINT, unix.SIGQUIT}},
		{"trap", `trap "" HUP INT; exec "$0" run --stdin none true`, []unix.Signal{unix.SIGHUP, unix.SIGINT}},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := margaytest.Play(t, "m", margaytest.RunJob)
			p := margaytest.Shell(t, test.script)
			p.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
			p.Begin()
			m.AwaitRunning()
			for _, sig := range test.ignored {
				if err := unix.Kill(-p.Process.Pid, sig); err != nil {
					t.Fatal(err)
				}
			}
			if err := unix.Kill(-p.Process.Pid, unix.SIGUSR1); err != nil {
				t.Fatal(err)
			}
			m.AwaitSignal(unix.SIGUSR1)
			m.End(new(control.JobState))
			p.Status()
			for _, message := range m.Messages() {
				if s, is := message.(*control.Signal); is && s.Signal != int32(unix.SIGUSR1) {
					t.Errorf("the ranks are sent signal %d", s.Signal)
				}
			}
		})
	}
}

// margay run dies of a signal that it has passed on and that has ended the job, or that came before
// there was one. An exit status that only looks like it stays one, and so does the status of a
// signal that dumps core.
func TestDeath(t *testing.T) {
	for _, test := range []struct {
		sent   unix.Signal
		status int32 // of the job
		dies   bool
	}{
		{unix.SIGINT, 130, true}, {unix.SIGTERM, 143, true}, {unix.SIGHUP, 129, true}, {unix.SIGQUIT, 131, false},
		{unix.SIGTERM, 130, false}, {unix.SIGTERM, 0, false}, {unix.SIGUSR1, 143, false},
	} {
		t.Run(fmt.Sprint(unix.SignalName(test.sent), test.status), func(t *testing.T) {
			m := margaytest.Play(t, "m", margaytest.RunJob)
			p := margaytest.Shell(t, `exec "$0" run --stdin none true`).Begin()
			m.AwaitRunning()
			p.Signal(test.sent)
			m.AwaitSignal(test.sent)
			m.End(&control.JobState{ExitCode: test.status})
			p.Ends(test.sent, test.dies, int(test.status))
		})
	}
	t.Run("early", func(t *testing.T) {
		m := margaytest.Play(t, "m", func(*control.Conn, *control.Frame) {})
		p := margaytest.Shell(t, `exec "$0" run --stdin none true`).Begin()
		margaytest.Await(m, func(*control.RunRequest) bool { return true })
		p.Signal(unix.SIGTERM)
		p.Ends(unix.SIGTERM, true, 0)
	})
}

// SIGQUIT ends commands that look on without the stacks of Go.
func TestQuit(t *testing.T) {
	for _, line := range []string{"top", "logs 5"} {
		m := margaytest.Play(t, "m", func(c *control.Conn, f *control.Frame) {
			if list, ok := f.Message().(*control.ListJobs); ok {
				c.Answer(f, &control.Jobs{Jobs: []*control.JobSummary{{Job: list.Job, Ranks: 1}}}, nil)
			}
		})
		p := margaytest.Shell(t, `exec "$0" `+line).Begin()
		margaytest.Await(m, func(message proto.Message) bool {
			switch message.(type) {
			case *control.TakeSamples, *control.Attach:
				return true
			}
			return false
		})
		p.Signal(unix.SIGQUIT)
		p.Ends(unix.SIGQUIT, false, 131)
		if got := p.Err.String(); got != "margay: ended by SIGQUIT\n" {
			t.Errorf("%s says %.200q", line, got)
		}
	}
}

// Every signal that a process can catch goes to the ranks, but for those that margay run keeps.
func TestEverySignal(t *testing.T) {
	kept := []unix.Signal{
		unix.SIGKILL, unix.SIGSTOP, unix.SIGCHLD, unix.SIGPIPE, unix.SIGURG, unix.SIGPROF, 32, 33, 34,
	}
	m := margaytest.Play(t, "m", margaytest.RunJob)
	p := margaytest.Shell(t, `exec "$0" run --stdin none true`)
	p.SysProcAttr = &unix.SysProcAttr{Setpgid: true} // the test is its shell: Linux stops it
	p.Begin()
	m.AwaitRunning()
	for sig := unix.Signal(1); sig <= 64; sig++ {
		if slices.Contains(kept, sig) || sig == unix.SIGHUP {
			continue
		}
		p.Signal(sig)
		m.AwaitSignal(sig)
		if sig == unix.SIGTSTP || sig == unix.SIGTTIN || sig == unix.SIGTTOU {
			stopped(t, p)
			p.Signal(unix.SIGCONT)
			m.AwaitSignal(unix.SIGCONT)
		}
	}
	p.Signal(unix.SIGHUP) // ends it
	m.AwaitSignal(unix.SIGHUP)
	m.End(&control.JobState{ExitCode: 129})
	p.Ends(unix.SIGHUP, true, 0)
}

// stopped waits until a process is stopped.
func stopped(t *testing.T, p *margaytest.Process) {
	t.Helper()
	margaytest.AwaitText(t, func() string {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
		return string(status)
	}, "State:\tT (stopped)")
}

// Where no shell could continue it, Ctrl-Z stops nothing for good: so Linux treats other programs.
func TestStopWithoutShell(t *testing.T) {
	m := margaytest.Play(t, "m", margaytest.RunJob)
	p := margaytest.Shell(t, `exec "$0" run --stdin none true`)
	p.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	p.Begin()
	m.AwaitRunning()
	p.Signal(unix.SIGTSTP)
	stops(m)
	m.AwaitSignal(unix.SIGCONT)
	p.Signal(unix.SIGUSR1)
	m.AwaitSignal(unix.SIGUSR1)
	m.End(new(control.JobState))
	p.Ends(0, false, 0)
}
