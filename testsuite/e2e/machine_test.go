// Package e2e tests machines as their users use them: through the margay command, on nodes of both
// substrates.
package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/check"
)

// bin is where make build puts the programs.
var bin = func() string {
	dir, err := filepath.Abs("../../bin")
	if err != nil {
		panic(err)
	}
	return dir
}()

// scratch is the folder of this test run: machines, and programs that only tests need.
var scratch string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	listen()
	for _, name := range []string{"margay", "margayd", "nodekernel", "jobinit", "hello", "hello-c", "histogram", "histogram-c", "latency", "fabric", "fabric-sockets"} {
		if _, err := os.Stat(filepath.Join(bin, name)); err != nil {
			fmt.Fprintf(os.Stderr, "e2e: %v: make build makes it\n", err)
			return 1
		}
	}
	var err error
	// Socket paths are limited in length, so the folder's name is short.
	if scratch, err = os.MkdirTemp("/tmp", "mg"); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	cleaned, err := cleanLater()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer cleaned()
	if err := os.Chmod(scratch, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	for _, program := range []string{"probe", "attacker", "oldnode", "oldlib"} {
		if err := build(program); err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			return 1
		}
	}
	if err := os.WriteFile(inherited()[0], []byte("secret"), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	// The job init must be beside the nodes among them.
	if err := os.Symlink(filepath.Join(bin, "jobinit"), filepath.Join(scratch, "jobinit")); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer turns.endAll()
	flag.Parse()
	if err := flag.Set("test.parallel", "1000"); err != nil { // turns limits how many tests run
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	return m.Run()
}

// listen resets ignored signals for the programs that tests start. nohup and shells start
// background programs with such signals ignored; margay would ignore them as well, and tests send
// them.
func listen() {
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig) // a new program finds it at its default
		}
	}
}

// cleanLater starts a process that ends the remaining machines and removes scratch after this
// process has ended in any way. The function that it returns waits for this after a successful run.
func cleanLater() (cleaned func(), err error) {
	os.Setenv("MARGAY_DIR", filepath.Join(scratch, "m"))
	os.Setenv("MARGAY_STATE", filepath.Join(scratch, "s"))
	cmd := exec.Command("sh", "-c", `cat
for base in "$1"/m "$1"/r*; do
	for m in "$base"/*; do
		[ ! -d "$m" ] || MARGAY_DIR="$base" "$0" -m "${m##*/}" machine down
	done
done
rm -rf "$1"`,
		filepath.Join(bin, "margay"), scratch)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // Ctrl-C must not reach it
	lifeline, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() {
		lifeline.Close()
		cmd.Wait()
	}, nil
}

// build compiles one of the programs that only tests need.
func build(name string) error {
	// Half of a Go program is data for debuggers, which would be sent to the nodes with each job.
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", filepath.Join(scratch, name), "margay/testsuite/programs/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	return nil
}

func probe() string { return filepath.Join(scratch, "probe") }

// commandTimeout bounds one margay command, also one that runs beside others for the length of a
// test.
const commandTimeout = 4 * time.Minute

// result is the result of a command.
type result struct {
	stdout, stderr string
	code           int
	took           time.Duration
}

func (r result) String() string {
	return fmt.Sprintf("status %d after %v\n--- stdout\n%s--- stderr\n%s", r.code, r.took.Round(time.Millisecond), r.stdout, r.stderr)
}

// command is a running margay command.
type command struct {
	t              testing.TB
	cmd            *exec.Cmd
	stdout, stderr check.Buffer
	started        time.Time
	done           chan struct{}
	result         result
}

// start starts margay with arguments. change may change the command before it starts.
func start(t testing.TB, change func(*exec.Cmd), args ...string) *command {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	c := &command{t: t, cmd: exec.CommandContext(ctx, filepath.Join(bin, "margay"), args...), done: make(chan struct{})}
	c.cmd.Stdout, c.cmd.Stderr = &c.stdout, &c.stderr
	c.cmd.Dir = scratch
	if change != nil {
		change(c.cmd)
	}
	c.started = time.Now()
	if err := c.cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() { // a failed test may leave a job, which would take cores from later ones
		cancel()
		<-c.done
	})
	go func() {
		defer close(c.done)
		defer cancel()
		err := c.cmd.Wait()
		c.result = result{stdout: c.stdout.String(), stderr: c.stderr.String(), took: time.Since(c.started)}
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			c.result.code = exit.ExitCode()
			if s, ok := exit.Sys().(syscall.WaitStatus); ok && s.Signaled() {
				c.result.code = 128 + int(s.Signal()) // as shells count
			}
		} else if err != nil {
			c.result.code = -1
		}
	}()
	return c
}

// wait waits for the end of a command.
func (c *command) wait() result {
	<-c.done
	return c.result
}

// ended reports whether the command has ended.
func (c *command) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

func (c *command) signal(sig syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(sig); err != nil {
		c.t.Error(err)
	}
}

// awaitOutput waits until the standard output contains a text.
func (c *command) awaitOutput(text string) {
	c.t.Helper()
	eventually(c.t, "output "+text, func() bool { return strings.Contains(c.stdout.String(), text) }, func() string {
		return c.stdout.String() + c.stderr.String()
	})
}

// awaitRanks waits until each of the ranks has printed a text.
func (c *command) awaitRanks(text string, ranks int) {
	c.t.Helper()
	for rank := range ranks {
		c.awaitOutput(fmt.Sprintf("%s %d\n", text, rank))
	}
}

// eventually waits until ok holds. On a busy host the time is not predictable; commandTimeout
// bounds a hang.
func eventually(t testing.TB, what string, ok func() bool, state func() string) {
	t.Helper()
	started := time.Now()
	for deadline := started.Add(commandTimeout); ; {
		begin := time.Now()
		if ok() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no %s within %v:\n%s", what, commandTimeout, state())
		}
		// A check that runs a command must not take the processors from the work that it waits for,
		// which may be long.
		took, waited := time.Since(begin), time.Since(started)
		time.Sleep(min(max(10*time.Millisecond, 3*took, min(10*took, waited/10)), 250*time.Millisecond))
	}
}

// machine is a machine of a test.
type machine struct {
	t         testing.TB
	name      string
	substrate string // of a machine that is up
	nodes     int
	cores     int
}

// hosted reports whether its nodes share the Linux of this host.
func (m *machine) hosted() bool { return m.substrate == "hosted" }

var machineNumber atomic.Int32

// up makes a machine that ends with the test.
func up(t testing.TB, substrate string, nodes, cores int, flags ...string) *machine {
	t.Helper()
	return upAs(t, nil, substrate, nodes, cores, flags...)
}

// upAs makes a machine with a modified command.
func upAs(t testing.TB, change func(*exec.Cmd), substrate string, nodes, cores int, flags ...string) *machine {
	t.Helper()
	m := &machine{t: t, name: fmt.Sprintf("t%d", machineNumber.Add(1)), substrate: substrate, nodes: nodes, cores: cores}
	r := start(t, change, m.upArgs(substrate, flags...)...).wait()
	repeats(t, r)
	if r.code != 0 {
		if strings.Contains(r.stderr, "does not let an ordinary user make them") {
			t.Skip(r.stderr)
		}
		t.Fatalf("machine up: %v", r)
	}
	t.Cleanup(func() {
		m.logs()
		if r := m.margay("machine", "down"); r.code != 0 && !strings.Contains(r.stderr, "there is no such machine") {
			t.Errorf("machine down: %v", r)
		}
	})
	return m
}

func (m *machine) up(substrate string, flags ...string) result {
	return m.upAs(nil, substrate, flags...)
}

func (m *machine) upAs(change func(*exec.Cmd), substrate string, flags ...string) result {
	r := start(m.t, change, m.upArgs(substrate, flags...)...).wait()
	repeats(m.t, r)
	return r
}

// repeats logs the nodes that had to be started again before they were up. The summary of make test
// lists them.
func repeats(t testing.TB, r result) {
	t.Helper()
	for line := range strings.Lines(r.stderr) {
		if strings.Contains(line, "it is being restarted") {
			t.Log(strings.TrimSpace(line))
		}
	}
}

// upArgs returns the arguments of a command that makes the machine. Its nodes may come up beside
// other tests, which slows them down.
func (m *machine) upArgs(substrate string, flags ...string) []string {
	return append([]string{"-m", m.name, "machine", "up", "--substrate", substrate, "--nodes", strconv.Itoa(m.nodes),
		"--cores", strconv.Itoa(m.cores), "--boot-timeout", "3m"}, flags...)
}

// logs prints the machine's logs if its test has failed.
func (m *machine) logs() {
	if !m.t.Failed() {
		return
	}
	files, _ := filepath.Glob(m.file("log", "*"))
	for _, f := range files {
		text, _ := os.ReadFile(f)
		lines := strings.Split(string(text), "\n")
		m.t.Logf("%s:\n%s", f, strings.Join(lines[max(0, len(lines)-30):], "\n"))
	}
}

// file returns the path of a file in the machine's folder.
func (m *machine) file(parts ...string) string {
	return filepath.Join(append([]string{os.Getenv("MARGAY_DIR"), m.name}, parts...)...)
}

// awaitConsole waits until the console of node0 contains a text, and returns its contents. They
// arrive through a pipe, and no job waits for the pipe's reader.
func (m *machine) awaitConsole(text string) (all string) {
	m.t.Helper()
	eventually(m.t, fmt.Sprintf("%q on the console of node0", text), func() bool {
		got, err := os.ReadFile(m.file("log", "node0.console"))
		if err != nil {
			m.t.Fatal(err)
		}
		all = string(got)
		return strings.Contains(all, text)
	}, func() string { return all })
	return all
}

// margay runs a command on the machine.
func (m *machine) margay(args ...string) result {
	m.t.Helper()
	return m.start(args...).wait()
}

// start starts a command on the machine.
func (m *machine) start(args ...string) *command {
	m.t.Helper()
	return start(m.t, nil, append([]string{"-m", m.name}, args...)...)
}

// run runs a program on the machine and requires an exit status.
func (m *machine) run(want int, args ...string) result {
	m.t.Helper()
	r := m.margay(append([]string{"run"}, args...)...)
	if r.code != want {
		m.t.Fatalf("margay run %q: want status %d: %v", args, want, r)
	}
	return r
}

// usable requires that all cores of the machine can be used at once.
func (m *machine) usable() {
	m.t.Helper()
	m.awaitUp()
	n := m.nodes * m.cores
	r := m.run(0, "-n", m.all(), filepath.Join(bin, "hello-c"))
	if got := strings.Count(r.stdout, "hello from rank "); got != n {
		m.t.Fatalf("%d of %d ranks say hello: %v", got, n, r)
	}
}

// all returns how many ranks have a core each.
func (m *machine) all() string { return strconv.Itoa(m.nodes * m.cores) }

// awaitUp waits until all nodes are up, which they are soon after their node kernels were killed.
func (m *machine) awaitUp() {
	m.t.Helper()
	eventually(m.t, "machine with all nodes up", func() bool {
		return !slices.ContainsFunc(m.listNodes(), func(n nodeState) bool { return n.Health != "up" })
	}, func() string { return m.margay("nodes").String() })
}

// nodeState is a node as margay nodes --json shows it.
type nodeState struct {
	Node   int
	Health string
	Reason string
	Boots  int
	Info   struct {
		Fabric  string
		Image   string
		Modules []string
	}
	Cores []struct {
		Core, Job int
		Ranks     []int
	}
}

func (m *machine) listNodes() []nodeState {
	m.t.Helper()
	r := m.margay("nodes", "--json")
	var list struct{ Nodes []nodeState }
	if err := json.Unmarshal([]byte(r.stdout), &list); err != nil || r.code != 0 {
		m.t.Fatalf("nodes --json: %v: %v", err, r)
	}
	return list.Nodes
}

// awaitHealth waits until a node has a state.
func (m *machine) awaitHealth(node int, health string) nodeState {
	m.t.Helper()
	var n nodeState
	eventually(m.t, fmt.Sprintf("node%d %s", node, health), func() bool {
		n = m.listNodes()[node]
		return n.Health == health
	}, func() string { return fmt.Sprintf("%+v", n) })
	return n
}

// writeProgram writes a program that is executed at once. Linux refuses that while any process has
// the file open for writing, such as a process that another test forks at the same time.
// writeProgram holds off forks while it writes.
func writeProgram(t *testing.T, path string, text []byte) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, text, 0o755); err != nil {
		t.Fatal(err)
	}
}

// pids finds processes by a part of their command lines.
func pids(t testing.TB, part string) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		if strings.Contains(strings.ReplaceAll(string(text), "\x00", " "), part) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			found = append(found, pid)
		}
	}
	return found
}

// status returns the pids in machine status --json.
func (m *machine) status() (holder, serve int) {
	m.t.Helper()
	r := m.margay("machine", "status", "--json")
	var s struct {
		HolderPid int `json:"holder_pid"`
		ServePid  int `json:"serve_pid"`
	}
	if err := json.Unmarshal([]byte(r.stdout), &s); err != nil || r.code != 0 {
		m.t.Fatalf("machine status --json: %v: %v", err, r)
	}
	if s.HolderPid == 0 || s.ServePid == 0 {
		m.t.Fatalf("machine status: %v", r)
	}
	return s.HolderPid, s.ServePid
}

// kill kills a process and waits until it is dead: on a busy host, killed processes live on for a
// while.
func kill(t testing.TB, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("kill %d: %v", pid, err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		t.Fatalf("kill %d: %v", pid, err)
	}
	dead := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} // pidfd_open(2)
	eventually(t, "end of a killed process", func() bool {
		n, err := unix.Poll(dead, 100)
		return n == 1 && err == nil
	}, func() string { return fmt.Sprintf("process %d", pid) })
}
