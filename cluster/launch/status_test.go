package launch

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"margay/cluster/control"
)

// Progress is shown on a terminal only, once something takes a while, and is wiped away at its end.
func TestProgress(t *testing.T) {
	for _, terminal := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			s := &Status{W: &out, Terminal: terminal}
			quick := s.Progress("copying files", 1<<20)
			quick.Set(1 << 20)
			quick.Done()
			if out.Len() != 0 {
				t.Errorf("for what is quick it shows %q", out.String())
			}
			slow := s.Progress("copying files", 9<<20)
			time.Sleep(2 * progressDelay)
			slow.Set(4 << 20)
			slow.Set(5 << 20) // too soon after the last
			time.Sleep(progressDelay)
			slow.Set(6 << 20)
			slow.Done()
			want := ""
			if terminal {
				want = "\r\x1b[Kmargay: copying files: 4 of 9 MiB\r\x1b[Kmargay: copying files: 6 of 9 MiB\r\x1b[K"
			}
			if out.String() != want {
				t.Errorf("on a terminal %v it shows %q", terminal, out.String())
			}
		})
	}
}

func TestStatus(t *testing.T) {
	var out bytes.Buffer
	s := &Status{W: &out}
	s.Logf("quiet")
	s.Warnf("%d", 1)
	s.Verbose = true
	s.Logf("loud")
	s.Quiet = true
	s.Warnf("hidden")
	s.Lossf("lost")
	if out.String() != "margay: 1\nmargay: loud\nmargay: lost\n" {
		t.Errorf("the user is told %q", out.String())
	}
}

// A job whose end could not be recorded has said all that it had to say.
func TestResultOfUnrecorded(t *testing.T) {
	for code, want := range map[control.Code]string{
		control.Code_CODE_NO_ROOM:   "rank 0 on node3 exited with status 5; the reason",
		control.Code_CODE_NODE_LOST: "rank 0 on node3 exited with status 5; output may be missing: the reason",
	} {
		state := &control.JobState{
			ExitCode: ExitMargay, Error: control.FromError(control.Failf(code, "the reason")),
			Ranks: []*control.RankState{{Node: 3, Ended: true, Exit: &control.ExitStatus{Code: 5}}},
		}
		if status, err := (&session{Options: Options{Spec: new(control.JobSpec)}}).result(state); status != ExitMargay || err.Error() != want {
			t.Errorf("%v: status %d, %v", code, status, err)
		}
	}
}
