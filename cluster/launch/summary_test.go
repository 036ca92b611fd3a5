package launch

import (
	"testing"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
)

// Tasks that failed alike are named together.
func TestSummary(t *testing.T) {
	s := newSummary()
	s.unstarted = []uint32{12, 13}
	for task, exit := range []*control.ExitStatus{{}, {Signal: int32(unix.SIGINT)}, {Code: 3}, {Signal: int32(unix.SIGINT)}, {Code: 3}, {Signal: int32(unix.SIGKILL)}} {
		end := TaskEnd{Task: uint32(task)}
		if exit.Code != 0 || exit.Signal != 0 {
			end.Status = 1
		}
		s.add(end, &control.JobState{Ranks: []*control.RankState{{Exit: exit}}})
	}
	want := "1 ok, 5 failed: 2,4 exited with status 3; 1,3 were killed by SIGINT; 5 was killed by SIGKILL, 2 not started: 12-13"
	if got := s.text(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
