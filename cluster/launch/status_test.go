package launch

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"
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
	if out.String() != "margay: 1\nmargay: loud\n" {
		t.Errorf("the user is told %q", out.String())
	}
}
