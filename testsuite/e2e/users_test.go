package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// Two users and an administrator share a machine of root's. A user sees that another one has a job;
// everything else is refused, and the refusal is in the audit log.
func TestOtherUsers(t *testing.T) {
	ownMachine(t, "own")
	if os.Getuid() != 0 {
		t.Skip("only root can be several users")
	}
	home := filepath.Join(scratch, "users")
	doors := filepath.Join(home, "doors")
	if err := os.MkdirAll(doors, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"margay", "margayd"} {
		text, err := os.ReadFile(filepath.Join(bin, program)) // the tree may be another user's
		if err != nil {
			t.Fatal(err)
		}
		writeProgram(t, filepath.Join(home, program), text)
	}
	margay := filepath.Join(home, "margay")
	here := func(c *exec.Cmd) { c.Env = append(os.Environ(), "MARGAY_USERS_DIR="+doors) }
	m := upAs(t, here, "hosted", 1, 2, "--users", "64101,@64190", "--admins", "64103", "--limit-cores", "1")
	as := func(uid uint32, args ...string) result {
		t.Helper()
		return start(t, func(c *exec.Cmd) {
			c.Path, c.Args[0], c.Dir = margay, margay, home
			c.Env = []string{"MARGAY_USERS_DIR=" + doors, "PATH=" + os.Getenv("PATH")}
			c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: 100, Groups: []uint32{uid + 88}}}
		}, append([]string{"-m", "root:" + m.name}, args...)...).wait()
	}
	// The second user is in the group.
	const ann, bob, carol, mallory = 64101, 64102, 64103, 64104
	r := as(ann, "run", "--detach", "-q", "/bin/sh", "-c", "echo secret; kill -STOP $$")
	job := strings.TrimSpace(r.stdout)
	if r.code != 0 || job != "1" {
		t.Fatal(r)
	}
	if r := as(bob, "ps"); r.code != 0 || !regexp.MustCompile(`(?m)^1 +user64101 +1 +0 +running +\S+ +\(hidden\)$`).MatchString(r.stdout) || strings.Contains(r.stdout, "secret") {
		t.Error(r)
	}
	for _, args := range [][]string{{"logs", job}, {"kill", "-s", "CONT", job}, {"backtrace", job}, {"debug", job, "0"}} {
		if r := as(bob, args...); r.code != 125 || r.stdout != "" || !strings.Contains(r.stderr, "job 1 is user64101's: only user64101 and the administrators of machine "+m.name+" may") {
			t.Errorf("%v: %v", args, r)
		}
	}
	for _, args := range [][]string{{"node", "drain", "node0"}, {"node", "dmesg", "node0"}} {
		if r := as(bob, args...); r.code != 125 || !strings.Contains(r.stderr, "and you are user64102") {
			t.Error(r)
		}
	}
	if r := as(mallory, "ps"); r.code != 125 || !strings.Contains(r.stderr, "does not let user64104 in") {
		t.Error(r)
	}
	if r := as(ann, "run", "/bin/true"); r.code != 125 || !strings.Contains(r.stderr, "user64101 has 1 job on 1 core, and a user of machine "+m.name+" may have 1 core at a time") {
		t.Error(r)
	}
	output := func() string {
		text, _ := os.ReadFile(m.file("output", "job-1"))
		return string(text)
	}
	eventually(t, "output", func() bool { return strings.Contains(output(), "secret") }, output)
	if r := as(carol, "kill", "--force", job); r.code != 0 {
		t.Error(r)
	}
	if r := as(ann, "logs", job); r.stdout != "secret\n" {
		t.Error(r)
	}
	r = as(carol, "machine", "audit")
	var got []string
	for line := range strings.Lines(r.stdout) {
		if f := strings.Fields(line); f[0] != "TIME" {
			got = append(got, strings.Join(f[2:], " "))
		}
	}
	want := "user64102 64102 Attach job 1, user64102 64102 Kill job 1, user64102 64102 ReadStacks job 1, user64102 64102 DrainNodes machine, user64102 64102 ReadKernelLog machine, user64104 64104 connect machine"
	got = slices.Compact(got) // a command whose connection is refused before it has sent its first frame connects again
	if r.code != 0 || strings.Join(got, ", ") != want {
		t.Errorf("the audit log: %v", r)
	}
	if r := m.margay("machine", "down"); r.code != 0 {
		t.Error(r)
	}
	if left, _ := filepath.Glob(filepath.Join(doors, "*")); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}
