package main

import (
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// What was ignored when margay was started stays ignored: a job goes on when the terminal of its nohup is gone, and when Ctrl-C
// is for what a script runs in the foreground.
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
			m := playMachine(t, "m", runJob)
			p := shell(t, test.script)
			p.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
			p.start()
			m.awaitRunning()
			for _, sig := range test.ignored {
				if err := unix.Kill(-p.Process.Pid, sig); err != nil {
					t.Fatal(err)
				}
			}
			if err := unix.Kill(-p.Process.Pid, unix.SIGUSR1); err != nil {
				t.Fatal(err)
			}
			m.awaitSignal(unix.SIGUSR1)
			m.end(new(control.JobState))
			p.status()
			for _, message := range m.messages() {
				if s, is := message.(*control.Signal); is && s.Signal != int32(unix.SIGUSR1) {
					t.Errorf("the ranks are sent signal %d", s.Signal)
				}
			}
		})
	}
}

// margay run dies of a signal that it has passed on and that has ended the job, or that came before there was one. An exit status
// that only looks like it stays one, and so does that of a signal which dumps core.
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
			m := playMachine(t, "m", runJob)
			p := shell(t, `exec "$0" run --stdin none true`).start()
			m.awaitRunning()
			p.signal(test.sent)
			m.awaitSignal(test.sent)
			m.end(&control.JobState{ExitCode: test.status})
			p.ends(test.sent, test.dies, int(test.status))
		})
	}
	t.Run("early", func(t *testing.T) {
		m := playMachine(t, "m", func(*control.Conn, *control.Frame) {})
		p := shell(t, `exec "$0" run --stdin none true`).start()
		await(m, func(*control.RunRequest) bool { return true })
		p.signal(unix.SIGTERM)
		p.ends(unix.SIGTERM, true, 0)
	})
}

// SIGQUIT ends commands that look on without the stacks of Go.
func TestQuit(t *testing.T) {
	for _, line := range []string{"top", "logs 5"} {
		m := playMachine(t, "m", func(c *control.Conn, f *control.Frame) {
			if list, ok := f.Message().(*control.ListJobs); ok {
				c.Answer(f, &control.Jobs{Jobs: []*control.JobSummary{{Job: list.Job, Ranks: 1}}}, nil)
			}
		})
		p := shell(t, `exec "$0" `+line).start()
		await(m, func(message proto.Message) bool {
			switch message.(type) {
			case *control.TakeSamples, *control.Attach:
				return true
			}
			return false
		})
		p.signal(unix.SIGQUIT)
		p.ends(unix.SIGQUIT, false, 131)
		if got := p.stderr.String(); got != "margay: ended by SIGQUIT\n" {
			t.Errorf("%s says %.200q", line, got)
		}
	}
}

// A command that is recorded takes margay record with it when a signal ends it.
func TestDeathOfRecorded(t *testing.T) {
	for script, want := range map[string]exitStatus{"kill -TERM $$": {code: 143, signal: unix.SIGTERM}, "exit 143": {code: 143}} {
		if status := new(exitStatus); !errors.As(commandStatus(exec.Command("sh", "-c", script).Run()), &status) || *status != want {
			t.Errorf("%s: %+v", script, *status)
		}
	}
}

func (p *process) signal(sig unix.Signal) {
	p.t.Helper()
	if err := p.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// ends demands that the process dies of a signal, or else exits with a status.
func (p *process) ends(sig unix.Signal, dies bool, status int) {
	p.t.Helper()
	code := p.status()
	if w := p.ProcessState.Sys().(syscall.WaitStatus); w.Signaled() != dies || dies && w.Signal() != sig || !dies && code != status {
		p.t.Errorf("%v instead of %v %t, status %d: %s", p.ProcessState, sig, dies, status, p.stderr.String())
	}
}
