package job_test

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/tools/margay/margaytest"
)

// A job in the background goes on, takes no input, and ends when it is killed.
func TestBackgroundJob(t *testing.T) {
	m := margaytest.Play(t, "m", margaytest.RunJob)
	x := margaytest.OnTerminal(t)
	x.Press("$margay run cat &\n")
	m.AwaitRunning()
	x.Press("echo typed\n") // which is for the shell
	x.Await("\ntyped")
	x.Press("kill -USR1 %1\n") // a stopped process would not pass it on
	m.AwaitSignal(unix.SIGUSR1)
	x.Press("jobs\n")
	x.Await("Running")
	x.Press("kill %1\n")
	m.AwaitSignal(unix.SIGTERM)
	m.End(&control.JobState{ExitCode: 143})
	x.Ended(143)
}

// stops waits until the ranks are asked to stop, and then are stopped.
func stops(m *margaytest.Machine) {
	m.AwaitSignal(unix.SIGTSTP)
	margaytest.Await(m, func(k *control.Kill) bool {
		return k.Job == 5 && k.Rank == control.None && k.Signal == int32(unix.SIGSTOP) && !k.Force
	})
}

// fg, Ctrl-Z and bg move a job to and fro: in the foreground it reads the terminal, in the
// background it goes on without. Ctrl-Z stops the ranks as well, and they continue once.
func TestForegroundAgain(t *testing.T) {
	m := margaytest.Play(t, "m", margaytest.RunJob)
	x := margaytest.OnTerminal(t)
	x.Press("$margay run cat &\n")
	m.AwaitRunning()
	x.Press("fg\n")
	x.Await("run cat")
	x.Press("first\n")
	m.Typed("first\n")
	x.Press(margaytest.CtrlZ)
	stops(m)
	x.Await("Stopped")
	x.Press("bg\n")
	x.Await("]+ ")
	m.AwaitSignal(unix.SIGCONT)
	x.Press("kill -USR1 %1\n")
	m.AwaitSignal(unix.SIGUSR1)
	x.Press("fg\n")
	x.Await("run cat")
	x.Press("second\n")
	m.Typed("second\n")
	x.Press(margaytest.CtrlZ)
	stops(m)
	x.Await("Stopped")
	x.Press("kill %1\n") // a stopped one ends as well
	m.AwaitSignal(unix.SIGCONT)
	m.AwaitSignal(unix.SIGTERM)
	m.End(&control.JobState{ExitCode: 143})
	x.Ended(143)
	continued := 0
	for _, message := range m.Messages() {
		if s, is := message.(*control.Signal); is && s.Signal == int32(unix.SIGCONT) {
			continued++
		}
	}
	if continued != 2 { // by bg and kill: the shell continues stopped jobs only
		t.Errorf("the ranks were continued %d times", continued)
	}
}

// Ctrl-C says what it does and what the next one will do; the next one ends the job, with status
// 130.
func TestCtrlC(t *testing.T) {
	m := margaytest.Play(t, "m", margaytest.RunJob)
	x := margaytest.OnTerminal(t)
	x.Press("$margay run cat\n")
	m.AwaitRunning()
	x.Press(margaytest.CtrlC)
	x.Await("SIGINT is sent to the ranks of job 5; Ctrl-C again within 3 s ends the job")
	m.AwaitSignal(unix.SIGINT)
	// However slow this machine is, some two follow each other soon enough.
	for {
		x.Press(margaytest.CtrlC)
		m.AwaitSignal(unix.SIGINT)
		x.Await("job")
		ending := strings.Contains(x.Text(), "ending job 5")
		if ending {
			break
		}
	}
	margaytest.Await(m, func(k *control.Kill) bool { return k.Force && k.Job == 5 })
	m.End(&control.JobState{ExitCode: 137, Error: control.FromError(control.Failf(control.Code_CODE_KILLED, "killed"))})
	x.Await("job 5 was ended by Ctrl-C")
	x.Await("\n$ ")
	x.Press("echo status $?\n")
	x.Await("\nstatus 130")
}

// playHeld plays serve for one job that is held.
func playHeld(t *testing.T) *margaytest.Machine {
	return margaytest.Play(t, "m", func(c *control.Conn, f *control.Frame) {
		switch f.Message().(type) {
		case *control.Status:
			c.Answer(f, &control.MachineStatus{}, nil)
		case *control.TakeSamples:
			c.Answer(f, &control.Samples{}, nil)
		default:
			margaytest.RunJob(c, f)
		}
	})
}

// heldOnTerminal has a job held in the background of a terminal, where it gets a signal, and then
// in the foreground.
func heldOnTerminal(t *testing.T) (*margaytest.Machine, *margaytest.Terminal) {
	t.Helper()
	m := playHeld(t)
	x := margaytest.OnTerminal(t)
	x.Press("$margay run --attach cat &\n")
	x.Await("is held before its first instruction; Enter lets it go on")
	x.Press("kill -USR1 %1\n")
	m.AwaitSignal(unix.SIGUSR1) // from here on the client of the moment is the one with the job
	x.Press("fg\n")
	x.Await("run --attach cat")
	return m, x
}

// Ranks that are held stay so in the background, which no read of the terminal ends; Enter in the
// foreground lets them go on.
func TestHeldInBackground(t *testing.T) {
	m, x := heldOnTerminal(t)
	x.Press("\n")
	m.AwaitSignal(unix.SIGCONT)
	x.Press("typed\n")
	m.Typed("typed\n")
	m.End(&control.JobState{})
	x.Await("\n$ ")
}

// The first line that is typed after another has let held ranks go on is theirs.
func TestHeldContinuedElsewhere(t *testing.T) {
	m, x := heldOnTerminal(t)
	m.Send(&control.JobState{Job: 5, Phase: control.JobPhase_JOB_RUNNING, FirstFailed: control.None, Halt: int32(unix.SIGCONT)})
	m.Send(&control.Record{Job: 5, Seq: 1, Stream: control.Stream_STREAM_STDERR, Data: []byte("a rank runs\n")})
	x.Await("a rank runs") // so the other message was processed before
	x.Press("typed\n")
	m.Typed("typed\n")
	m.End(&control.JobState{})
	x.Await("\n$ ")
}

// Standard input that is not a terminal is all for the ranks, and does not let them go on.
func TestHeldWithInput(t *testing.T) {
	m := playHeld(t)
	x := margaytest.OnTerminal(t)
	x.Press("printf '\\nfirst\\nsecond\\n' | $margay run --attach cat\n")
	x.Await("margay kill -s CONT 5 lets it go on")
	m.Typed("\nfirst\nsecond\n")
	m.End(&control.JobState{})
	x.Await("\n$ ")
	for _, message := range m.Messages() {
		if s, is := message.(*control.Signal); is {
			t.Errorf("the ranks get %v", s)
		}
	}
}

// When ranks die of Ctrl-C, so does margay run, and a shell ends its loop. A job that ends
// otherwise after one lets it go on.
func TestCtrlCInLoop(t *testing.T) {
	m := margaytest.Play(t, "m", margaytest.RunJob)
	x := margaytest.OnTerminal(t)
	x.Press("for i in 1 2 3; do $margay run cat; done; echo over\n")
	for _, status := range []int32{0, 3, 130} {
		m.AwaitRunning()
		x.Await("a rank runs")
		x.Press(margaytest.CtrlC)
		m.AwaitSignal(unix.SIGINT)
		m.End(&control.JobState{ExitCode: status})
	}
	x.Await("\n$ ")
	x.Press("echo status $?\n")
	x.Await("\nstatus 130")
	x.Press("bash -c 'for i in 1 2 3; do $margay run cat; done'\n")
	m.AwaitRunning()
	x.Await("a rank runs")
	x.Press(margaytest.CtrlC)
	m.AwaitSignal(unix.SIGINT)
	m.End(&control.JobState{ExitCode: 130})
	x.Await("\n$ ")
	x.Press("echo script $?\n")
	x.Await("\nscript 130")
	if text := x.Text(); strings.Contains(text, "\nover") {
		t.Errorf("the loop went on: %q", text)
	}
}
