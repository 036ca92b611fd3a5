//go:build !guest

package task_test

import (
	"os/exec"
	"testing"

	"margay/kernel/task"
)

// Go's runtime knows all settings in the environment of a job init. It would complain about others
// on the console of the node, in each job.
func TestInitEnv(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "-test.list=none")
	cmd.Env = task.InitEnv()
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
}
