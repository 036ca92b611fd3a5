package launch

import (
	"strings"
	"testing"

	"margay/cluster/control"
	"margay/cluster/launch/bring"
)

// A job can end while its files are brought back, as when the machine goes down. Nothing is waited
// for then.
func TestJobEndsWhileFilesAreRead(t *testing.T) {
	s := serveTo(t, func(c *talk) {
		c.launched(1)
		_ = c.Send(&control.JobState{Job: 5, Phase: control.JobPhase_JOB_RUNNING, FirstFailed: control.None, Collect: true})
		expect[*control.ReadFiles](c)
		c.done(&control.JobState{FirstFailed: control.None, ExitCode: 125, Error: control.FromError(control.Failf(control.Code_CODE_DOWN, "the machine goes down"))})
	})
	l := newLauncher(t, s, 1)
	l.Out = []bring.Target{{Path: "/out", Dest: t.TempDir()}}
	code, err := l.run(t)
	if code != 125 || err == nil || !strings.Contains(err.Error(), "the machine goes down") || !strings.Contains(l.status.String(), "not all files of node0 were brought back: the job has ended") {
		t.Errorf("status %d, %v, the user reads %q", code, err, l.status.String())
	}
}
