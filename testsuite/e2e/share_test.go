package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// inherited returns a file and a folder of the host. The commands that make the shared machines
// inherit open descriptors of both.
func inherited() []string { return []string{filepath.Join(scratch, "inherited"), "/"} }

// inherit gives a command ten descriptors of each inherited file.
func inherit(t *testing.T) func(*exec.Cmd) {
	return func(c *exec.Cmd) {
		for range 10 {
			for _, path := range inherited() {
				f, err := os.Open(path)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { f.Close() })
				c.ExtraFiles = append(c.ExtraFiles, f)
			}
		}
	}
}

// Descriptors that machine up was started with, including a folder of the host, do not reach the
// machine: no process of it has any of them, and ranks have their standard streams and their
// socket.
func TestDescriptors(t *testing.T) {
	onBoth(t, func(t *testing.T, m *machine) {
		var inherits []os.FileInfo
		for _, path := range inherited() {
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			inherits = append(inherits, info)
		}
		own := regexp.MustCompile(`^descriptor 0: /dev/null
descriptor 1: pipe:\[\d+\]
descriptor 2: pipe:\[\d+\]
descriptor 3: socket:\[\d+\]
$`)
		r := m.run(0, "-n", "2", "--stdin", "none", "--label", attacker(), "descriptors")
		for rank := range 2 {
			if got := labelled(r.stdout, rank); !own.MatchString(got) {
				t.Errorf("rank %d has other descriptors: %v", rank, r)
			}
		}
		for _, pid := range m.processes() {
			// A process that has just been started takes its name in a moment.
			eventually(t, "process with a name", func() bool {
				name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
				return err != nil || strings.TrimSpace(string(name)) != "exe"
			}, func() string {
				command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				return fmt.Sprintf("%q is called exe by ps and top", command)
			})
			files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
			for _, f := range files {
				// Other roots are called / as well, so compare the file.
				info, err := os.Stat(f)
				if err == nil && slices.ContainsFunc(inherits, func(file os.FileInfo) bool { return os.SameFile(file, info) }) {
					command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
					t.Errorf("%s of %q is %s", f, command, info.Name())
				}
			}
		}
	})
}

// labelled returns the output of a rank, by the labels of margay run --label.
func labelled(output string, rank int) string {
	var b strings.Builder
	for line := range strings.Lines(output) {
		if text, ok := strings.CutPrefix(line, fmt.Sprintf("[%d] ", rank)); ok {
			b.WriteString(text)
		}
	}
	return b.String()
}

// An ordinary user without XDG_RUNTIME_DIR makes machines, in the default folder and in one given
// by a relative name.
func TestOrdinaryUser(t *testing.T) {
	ownMachine(t, "own")
	home := filepath.Join(scratch, "nobody")
	if err := os.MkdirAll(home, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{filepath.Join(bin, "margay"), filepath.Join(bin, "margayd"), filepath.Join(bin, "nodekernel"), filepath.Join(bin, "jobinit"), filepath.Join(bin, "hello-c"), attacker()} {
		text, err := os.ReadFile(program) // the tree may be another user's
		if err != nil {
			t.Fatal(err)
		}
		writeProgram(t, filepath.Join(home, filepath.Base(program)), text)
	}
	tmp, state := filepath.Join(home, "tmp"), filepath.Join(home, "state")
	for _, dir := range []string{filepath.Join(tmp, "r"), state} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	ordinary := func(c *exec.Cmd) {
		c.Path, c.Args[0] = filepath.Join(home, "margay"), filepath.Join(home, "margay")
		c.Dir = tmp
		c.Env = []string{"TMPDIR=" + tmp, "PATH=" + os.Getenv("PATH")}
		if os.Getuid() == 0 {
			const nobody = 65534
			for _, dir := range []string{tmp, filepath.Join(tmp, "r"), state} {
				if err := os.Chown(dir, nobody, nobody); err != nil {
					t.Fatal(err)
				}
			}
			c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		}
	}
	relative := func(c *exec.Cmd) {
		ordinary(c)
		c.Env = append(c.Env, "MARGAY_DIR=r", "MARGAY_STATE=../state")
	}
	for name, change := range map[string]func(*exec.Cmd){"no folder named": ordinary, "a relative folder": relative} {
		t.Run(name, func(t *testing.T) {
			r := start(t, change, "machine", "up", "--substrate", "hosted", "--nodes", "2", "--cores", "1").wait()
			if strings.Contains(r.stderr, "does not let an ordinary user make them") {
				t.Skip(r.stderr)
			}
			if r.code != 0 {
				t.Fatal(r)
			}
			kept := !strings.Contains(r.stderr, "the history of this machine's jobs is not kept: folder of histories: $HOME is not defined; set MARGAY_STATE")
			if kept != (name == "a relative folder") {
				t.Errorf("a history is kept %v: %v", kept, r)
			}
			// The first job finds its program on the nodes: it is lent.
			r = start(t, change, "run", "-v", "-n", "2", filepath.Join(home, "hello-c")).wait()
			if r.code != 0 || strings.Count(r.stdout, "hello from rank") != 2 || !strings.Contains(r.stderr, "its nodes have loaded all files") {
				t.Error(r)
			}
			r = start(t, change, "run", filepath.Join(home, "attacker"), "system", "10.66.0.1:7117", "10.66.1.0:7118").wait()
			checkSystem(t, slices.Concat(hostMay, ordinaryMay), r.stdout)
			if r := start(t, change, "machine", "down").wait(); r.code != 0 {
				t.Error(r)
			}
			if !kept {
				return
			}
			if r := start(t, change, "history", "--job", "1").wait(); r.code != 0 || !strings.HasSuffix(r.stdout, "hello-c\n") {
				t.Errorf("history: %v", r)
			}
		})
	}
	if names, _ := filepath.Glob(filepath.Join(tmp, "*")); len(names) != 1 || filepath.Base(names[0]) != "r" {
		t.Errorf("left are %v", names)
	}
}

// Jobs of different nodes and numbers are different users of the Linux that they share, so each has
// its full limits on each node.
func TestUsersOfJobs(t *testing.T) {
	m := use(t, "hosted")
	users := make(map[int]int)
	for range 2 {
		r := m.run(0, "-n", "8", "--pids", "120", probe(), "threads", "35")
		in := make(map[int]int)
		for line := range strings.Lines(r.stdout) {
			var rank, uid int
			if _, err := fmt.Sscanf(line, "rank %d has its threads, as user %d", &rank, &uid); err != nil {
				t.Errorf("%q: %v", line, err)
			}
			in[uid]++
		}
		for uid, ranks := range in {
			if users[uid]++; users[uid] > 1 || ranks != 2 {
				t.Errorf("user %d has %d ranks, and is that of another job: %v", uid, ranks, r)
			}
		}
		if len(in) != 4 {
			t.Errorf("%d users on 4 nodes: %v", len(in), r)
		}
	}
	// Waiting programs of one process each, so that there is no room for more. Linux checks the
	// number only before a start.
	waits := func(c *exec.Cmd) {
		if _, err := c.StdinPipe(); err != nil {
			t.Fatal(err)
		}
	}
	r := start(t, waits, "-m", m.name, "run", "-n", "3", "--per-core", "3", "--pids", "1", "--stdin", "all", "/bin/sh", "-c", "read x").wait()
	if r.code != 125 || !strings.Contains(r.stderr, "the job may have 1 processes and threads on this node: --pids") {
		t.Error(r)
	}
}

// The keys of a job are gone with it.
func TestKeysOfJobs(t *testing.T) {
	m := use(t, "hosted")
	for range 2 {
		r := m.run(0, attacker(), "keys")
		var uid int
		if _, err := fmt.Sscanf(r.stdout, "user %d", &uid); err != nil || strings.Contains(r.stdout, "DONE") || strings.Contains(r.stdout, "no key") {
			t.Errorf("%v: %v", err, r)
		}
		kept := func() string {
			text, err := os.ReadFile("/proc/key-users")
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		eventually(t, "end of the job's keys", func() bool { return !strings.Contains(kept(), fmt.Sprintf(" %d:", uid)) }, kept)
	}
}

// A restarted node kernel has as much memory for jobs as the first, also while a job uses a part of
// it.
func TestMemoryAfterRestart(t *testing.T) {
	m := use(t, "qemu")
	memory := func() string {
		var nodes struct {
			Nodes []struct{ Info struct{ Memory json.Number } }
		}
		r := m.margay("nodes", "--json")
		if err := json.Unmarshal([]byte(r.stdout), &nodes); err != nil || len(nodes.Nodes) != m.nodes || nodes.Nodes[0].Info.Memory == "" {
			t.Fatalf("%v: %v", err, r)
		}
		return nodes.Nodes[0].Info.Memory.String()
	}
	kernels := func() int {
		text, err := os.ReadFile(m.file("log", "node0.console"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(text), "registered with serve")
	}
	before, earlier := memory(), kernels()
	job := m.start("run", probe(), "touch", "100", "wait")
	job.awaitOutput("KiB in huge pages")
	if r := m.margay("machine", "restart", "0"); r.code != 0 {
		t.Fatal(r)
	}
	// The node's console arrives through a pipe that the command does not wait for.
	eventually(t, "second node kernel", func() bool { return kernels() == earlier+1 }, func() string {
		return fmt.Sprintf("%d node kernels have registered, before the restart %d", kernels(), earlier)
	})
	if after := memory(); after != before {
		t.Errorf("%s bytes became %s", before, after)
	}
	job.signal(syscall.SIGTERM)
	job.wait()
}
