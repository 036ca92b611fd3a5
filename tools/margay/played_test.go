package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/machine"
	"margay/kernel/abi/node"
)

// patience bounds every wait of these tests.
const patience = 30 * time.Second

// asMargay makes the program of these tests behave as margay.
const asMargay = "MARGAY_TEST_AS_MARGAY"

func TestMain(m *testing.M) {
	if os.Getenv(asMargay) != "" {
		main()
	}
	os.Exit(m.Run())
}

// playedMachine is a machine that is nothing but its folder and a serve that a test plays.
type playedMachine struct {
	t    *testing.T
	base string // of MARGAY_DIR
	name string
	play func(c *control.Conn, f *control.Frame) // answers what clients send

	mu      sync.Mutex
	changed sync.Cond
	got     []proto.Message // from clients
	seen    int             // how many of them a test has waited for
	conn    *control.Conn   // over which the last one came
	conns   []*control.Conn // all that there were
}

// playMachine makes a machine called name. The environment names its folder until the test ends.
func playMachine(t *testing.T, name string, play func(c *control.Conn, f *control.Frame)) *playedMachine {
	t.Helper()
	base, err := os.MkdirTemp("", "mg") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	return playMachineIn(t, base, name, play)
}

// playMachineIn makes a machine beside others.
func playMachineIn(t *testing.T, base, name string, play func(c *control.Conn, f *control.Frame)) *playedMachine {
	t.Helper()
	t.Setenv("MARGAY_DIR", base)
	t.Setenv("MARGAY_MACHINE", name)
	m := &playedMachine{t: t, base: base, name: name, play: play}
	m.changed.L = &m.mu
	d, err := machine.DirOf(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(string(d), 0o700); err != nil {
		t.Fatal(err)
	}
	marker := "This folder belongs to a machine. margay machine up made it, margay machine down removes it.\n"
	if err := os.WriteFile(filepath.Join(string(d), "margay-machine"), []byte(marker), 0o600); err != nil {
		t.Fatal(err)
	}
	spec, err := json.Marshal(machine.Spec{Name: name, Substrate: node.Hosted, Nodes: 4, Cores: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(string(d), "machine.json"), spec, 0o600); err != nil {
		t.Fatal(err)
	}
	m.lock(d)
	l, err := net.Listen("unix", d.Socket())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			go m.talk(control.NewConn(raw))
		}
	}()
	return m
}

// lock makes the machine look alive.
func (m *playedMachine) lock(d machine.Dir) {
	f, err := os.OpenFile(filepath.Join(string(d), "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		m.t.Fatal(err)
	}
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &whole); err != nil {
		m.t.Fatal(err)
	}
	if _, err := f.WriteString("4711\n"); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { f.Close() })
}

func (m *playedMachine) talk(c *control.Conn) {
	defer c.Close()
	if _, err := c.Meet(); err != nil {
		return // a client that only looks
	}
	_ = c.Send(&control.Welcome{Version: control.Version, Machine: m.name})
	m.mu.Lock()
	m.conns = append(m.conns, c)
	m.mu.Unlock()
	_ = c.Serve(func(f *control.Frame) {
		m.play(c, f) // what a test sends when it has awaited the message comes after the answer
		m.mu.Lock()
		m.got, m.conn = append(m.got, f.Message()), c
		m.changed.Broadcast()
		m.mu.Unlock()
	})
}

// await waits for the next message of clients of which ok holds.
func await[M proto.Message](m *playedMachine, ok func(M) bool) (found M) {
	m.t.Helper()
	late := time.AfterFunc(patience, m.changed.Broadcast)
	defer late.Stop()
	m.mu.Lock()
	defer m.mu.Unlock()
	for deadline := time.Now().Add(patience); ; m.changed.Wait() {
		for m.seen < len(m.got) {
			message, is := m.got[m.seen].(M)
			m.seen++
			if is && ok(message) {
				return message
			}
		}
		if !time.Now().Before(deadline) {
			var types []string
			for _, got := range m.got {
				types = append(types, string(got.ProtoReflect().Descriptor().Name()))
			}
			m.t.Fatalf("no such %T came within %v, but %v", found, patience, types)
		}
	}
}

// messages are all that clients have sent.
func (m *playedMachine) messages() []proto.Message {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.got)
}

// awaitSignal waits until the ranks of job 5 are sent a signal.
func (m *playedMachine) awaitSignal(sig unix.Signal) {
	m.t.Helper()
	await(m, func(s *control.Signal) bool { return s.Signal == int32(sig) })
}

// send sends a message to the client of the moment.
func (m *playedMachine) send(message proto.Message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_ = m.conn.Send(message)
}

// down tells clients that the machine goes down, as serve does.
func (m *playedMachine) down() {
	m.mu.Lock()
	conns := slices.Clone(m.conns)
	m.mu.Unlock()
	for _, c := range conns {
		c.Dismiss(control.Failf(control.Code_CODE_DOWN, "the machine goes down"))
	}
}

// connected returns how often clients have connected.
func (m *playedMachine) connected() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.conns)
}

// awaitRunning waits until the ranks of job 5 run and its client knows.
func (m *playedMachine) awaitRunning() {
	m.t.Helper()
	await(m, func(f *control.FileChunk) bool { return f.Last })
	m.send(&control.Record{Job: 5, Seq: 1, Stream: control.Stream_STREAM_STDERR, Data: []byte("a rank runs\n")})
	await(m, func(a *control.Ack) bool { return a.Seq == 1 }) // so it has taken in what came before
}

// end ends job 5.
func (m *playedMachine) end(state *control.JobState) {
	state.Job, state.Phase = 5, control.JobPhase_JOB_DONE
	if state.Ranks == nil {
		state.FirstFailed = control.None
	}
	m.send(state)
}

// runJob plays serve for one job, number 5, of one rank. The ranks do nothing.
func runJob(c *control.Conn, f *control.Frame) {
	switch message := f.Message().(type) {
	case *control.RunRequest:
		c.Answer(f, &control.RunReply{Job: 5, Places: []*control.Place{{}}}, nil)
	case *control.FileChunk:
		_ = c.Send(&control.FileTaken{Job: 5, Offset: 1 << 40})
		if message.Last {
			_ = c.Send(&control.JobState{Job: 5, Phase: control.JobPhase_JOB_RUNNING, FirstFailed: control.None})
		}
	}
}

// process is a margay, or a shell that starts some, that runs as a process of its own.
type process struct {
	*exec.Cmd
	t              *testing.T
	stdout, stderr bytes.Buffer
}

// shell makes a shell that has margay as $0.
func shell(t *testing.T, script string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(cancel)
	p := &process{Cmd: exec.CommandContext(ctx, "bash", "-c", script, self), t: t}
	p.Env = append(os.Environ(), asMargay+"=1")
	p.Stdout, p.Stderr = &p.stdout, &p.stderr
	return p
}

func (p *process) start() *process {
	p.t.Helper()
	if err := p.Start(); err != nil {
		p.t.Fatal(err)
	}
	return p
}

// status waits for the end and returns the exit status.
func (p *process) status() int {
	p.t.Helper()
	if err := p.Wait(); p.ProcessState == nil {
		p.t.Fatal(err)
	}
	return p.ProcessState.ExitCode()
}

// played runs a command on a machine whose serve gives the answer that play returns to everything.
func played(t *testing.T, play func(question proto.Message) (proto.Message, error), args ...string) (status int, stdout, stderr string) {
	t.Helper()
	playMachine(t, "m", func(c *control.Conn, f *control.Frame) {
		answer, err := play(f.Message())
		c.Answer(f, answer, err)
	})
	return margay("", args...)
}

// wants demands a status and texts that are in what a command wrote.
func wants(t *testing.T, status, want int, text string, parts ...string) {
	t.Helper()
	if status != want {
		t.Errorf("status %d instead of %d: %s", status, want, text)
	}
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q does not have %q", text, part)
		}
	}
}
