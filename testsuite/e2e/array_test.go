package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"margay/cluster/launch"
)

// An array goes on when serve is killed and started again: each task runs once, and its output and
// its record are there.
func TestArray(t *testing.T) {
	ownMachine(t, "own")
	m := up(t, "hosted", 2, 2)
	dir := t.TempDir()
	script := filepath.Join(dir, "task")
	text := "#!/bin/sh\necho task $MARGAY_ARRAY_TASK_ID of array $MARGAY_ARRAY_JOB_ID\ntest $MARGAY_ARRAY_TASK_ID != 11 || exit 7\n"
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	const tasks = 30
	p := m.start("run", "--array", fmt.Sprintf("0-%d", tasks-1), "--keep-going", "--json", "-o", filepath.Join(dir, "out-%a"), script)
	eventually(t, "output of a task", func() bool {
		text, _ := os.ReadFile(filepath.Join(dir, "out-3"))
		return len(text) > 0
	}, func() string { return m.margay("ps").String() })
	kill(t, m.serve())
	r := p.wait()
	if r.code != 7 || !strings.HasSuffix(strings.TrimSpace(r.stderr), fmt.Sprintf("margay: %d ok, 1 failed: 11 exited with status 7", tasks-1)) {
		t.Error(r)
	}
	var array int // each task knows it; task 0 may have another job, if the restart has spoilt its launch
	if text, err := os.ReadFile(filepath.Join(dir, "out-0")); err != nil {
		t.Error(err)
	} else if _, err := fmt.Sscanf(string(text), "task 0 of array %d\n", &array); err != nil {
		t.Errorf("task 0 has written %q", text)
	}
	ended := make(map[uint32]bool)
	for line := range strings.Lines(r.stdout) {
		var end launch.TaskEnd
		if err := json.Unmarshal([]byte(line), &end); err != nil || ended[end.Task] {
			t.Errorf("%q: %v", line, err)
		}
		ended[end.Task] = true
	}
	for task := range tasks {
		text, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("out-%d", task)))
		if want := fmt.Sprintf("task %d of array %d\n", task, array); err != nil || string(text) != want || !ended[uint32(task)] {
			t.Errorf("task %d has written %q, not %q, and has ended: %v", task, text, want, ended[uint32(task)])
		}
	}
	list := m.margay("history", "-n", "1")
	if want := []string{fmt.Sprintf("%d_[0-%d]", array, tasks-1), fmt.Sprintf("1 of %d failed (7)", tasks)}; slices.ContainsFunc(want, func(w string) bool { return !strings.Contains(list.stdout, w) }) {
		t.Errorf("the history: %v, should have %q", list, want)
	}
	m.usable()
}
