// Package margaytest has what tests of the commands of margay share: a machine whose serve a test
// plays, margay as a process of its own, and terminals.
//
// Locks: Machine.mu guards the played machine, Terminal.mu the text of a terminal. Neither is held
// while the other one is taken.
package margaytest

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/machine"
	"margay/kernel/abi/node"
)

// Patience bounds every wait of these tests.
const Patience = 30 * time.Second

// Machine is a machine that is nothing but its folder and a serve that a test plays.
type Machine struct {
	t    *testing.T
	Base string // of MARGAY_DIR
	Name string
	play func(c *control.Conn, f *control.Frame) // answers what clients send

	mu      sync.Mutex
	changed sync.Cond
	got     []proto.Message // from clients
	seen    int             // how many of them a test has waited for
	conn    *control.Conn   // over which the last one came
	conns   []*control.Conn // all that there were
}

// Play makes a machine called name. The environment names its folder until the test ends.
func Play(t *testing.T, name string, play func(c *control.Conn, f *control.Frame)) *Machine {
	t.Helper()
	base, err := os.MkdirTemp("", "mg") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	return PlayIn(t, base, name, play)
}

// PlayIn makes a machine beside others.
func PlayIn(t *testing.T, base, name string, play func(c *control.Conn, f *control.Frame)) *Machine {
	t.Helper()
	t.Setenv("MARGAY_DIR", base)
	t.Setenv("MARGAY_MACHINE", name)
	m := &Machine{t: t, Base: base, Name: name, play: play}
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
func (m *Machine) lock(d machine.Dir) {
	f, err := os.OpenFile(filepath.Join(string(d), "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		m.t.Fatal(err)
	}
	first := unix.Flock_t{Type: unix.F_WRLCK, Len: 1 << 20} // as a holder's
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &first); err != nil {
		m.t.Fatal(err)
	}
	if _, err := f.WriteString("4711\n"); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { f.Close() })
}

func (m *Machine) talk(c *control.Conn) {
	defer c.Close()
	if _, err := c.Meet(); err != nil {
		return // a client that only looks
	}
	_ = c.Send(&control.Welcome{Version: control.Version, Machine: m.Name})
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

// Await waits for the next message of a client that ok accepts.
func Await[M proto.Message](m *Machine, ok func(M) bool) (found M) {
	m.t.Helper()
	late := time.AfterFunc(Patience, m.changed.Broadcast)
	defer late.Stop()
	m.mu.Lock()
	defer m.mu.Unlock()
	for deadline := time.Now().Add(Patience); ; m.changed.Wait() {
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
			m.t.Fatalf("no such %T came within %v, but %v", found, Patience, types)
		}
	}
}

// Messages are all that clients have sent.
func (m *Machine) Messages() []proto.Message {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.got)
}

// AwaitSignal waits until the ranks of job 5 are sent a signal.
func (m *Machine) AwaitSignal(sig unix.Signal) {
	m.t.Helper()
	Await(m, func(s *control.Signal) bool { return s.Signal == int32(sig) })
}

// Send sends a message to the client of the moment.
func (m *Machine) Send(message proto.Message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_ = m.conn.Send(message)
}

// Down notifies clients that the machine goes down, as serve does.
func (m *Machine) Down() {
	m.mu.Lock()
	conns := slices.Clone(m.conns)
	m.mu.Unlock()
	for _, c := range conns {
		c.Dismiss(control.Failf(control.Code_CODE_DOWN, "the machine goes down"))
	}
}

// Connected returns how often clients have connected.
func (m *Machine) Connected() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.conns)
}

// AwaitRunning waits until the ranks of job 5 run and its client knows.
func (m *Machine) AwaitRunning() {
	m.t.Helper()
	Await(m, func(f *control.FileChunk) bool { return f.Last })
	m.Send(&control.Record{Job: 5, Seq: 1, Stream: control.Stream_STREAM_STDERR, Data: []byte("a rank runs\n")})
	Await(m, func(a *control.Ack) bool { return a.Seq == 1 }) // so it has processed the earlier messages
}

// End ends job 5.
func (m *Machine) End(state *control.JobState) {
	state.Job, state.Phase = 5, control.JobPhase_JOB_DONE
	if state.Ranks == nil {
		state.FirstFailed = control.None
	}
	m.Send(state)
}

// RunJob plays serve for one job, number 5, of one rank. The ranks do nothing.
func RunJob(c *control.Conn, f *control.Frame) {
	switch message := f.Message().(type) {
	case *control.RunRequest:
		c.Answer(f, &control.RunReply{Job: 5, Places: []*control.Place{{}}}, nil)
	case *control.Stdin:
		_ = c.Send(&control.StdinTaken{Job: 5, Offset: message.Offset + uint64(len(message.Data))})
	case *control.Kill:
		c.Answer(f, &control.Done{}, nil)
	case *control.FileChunk:
		_ = c.Send(&control.FileTaken{Job: 5, Offset: 1 << 40})
		if message.Last {
			_ = c.Send(&control.JobState{Job: 5, Phase: control.JobPhase_JOB_RUNNING, FirstFailed: control.None})
		}
	}
}

// Played runs a command on a machine whose serve gives the answer that play returns to everything.
// play is called once at a time, and what it has written for an answer may be read when Played has
// returned.
func Played(t *testing.T, play func(question proto.Message) (proto.Message, error), args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var mu sync.Mutex
	Play(t, "m", func(c *control.Conn, f *control.Frame) {
		mu.Lock()
		answer, err := play(f.Message())
		mu.Unlock()
		c.Answer(f, answer, err)
	})
	status, stdout, stderr = Margay("", args...)
	mu.Lock()
	defer mu.Unlock()
	return status, stdout, stderr
}

// Typed waits until rank 0 is sent what was typed.
func (m *Machine) Typed(text string) {
	m.t.Helper()
	Await(m, func(in *control.Stdin) bool { return string(in.Data) == text })
}

// EndJob plays serve for a job that ends at once as end says.
func EndJob(end *control.JobState) func(c *control.Conn, f *control.Frame) {
	end.Job, end.Phase = 5, control.JobPhase_JOB_DONE
	return func(c *control.Conn, f *control.Frame) {
		RunJob(c, f)
		if chunk := f.GetFileChunk(); chunk.GetLast() {
			_ = c.Send(end)
		}
	}
}
