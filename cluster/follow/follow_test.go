package follow

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/client"
	"margay/cluster/control"
	"margay/cluster/trace"
	"margay/cluster/trace/tracetest"
	"margay/internal/check"
	"margay/kernel/abi/id"
	"margay/kernel/record"
)

// played is a serve with nodes, each with its own recorder.
type played struct {
	t      *testing.T
	socket string

	mu     sync.Mutex
	nodes  map[uint32]*record.Recorder
	ahead  map[uint32]time.Duration // of the test's clock
	made   map[uint32]int64
	change func(node uint32, answer *control.Events) error // nil: nothing
	conns  []*control.Conn
	said   []string
}

func play(t *testing.T, nodes ...uint32) *played {
	check.Leaks(t)
	p := &played{
		t: t, socket: filepath.Join(t.TempDir(), "s"), nodes: make(map[uint32]*record.Recorder), ahead: make(map[uint32]time.Duration),
		made: make(map[uint32]int64),
	}
	for i, n := range nodes {
		p.ahead[n] = time.Duration(i) * time.Hour
		p.restart(n)
	}
	l, err := net.Listen("unix", p.socket)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { p.serve(control.NewConn(c)) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.drop()
		serving.Wait()
	})
	return p
}

// restart starts a node's kernel again.
func (p *played) restart(node uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nodes[node] = record.New(2)
	p.made[node] = int64(record.Now()) + int64(p.ahead[node])
}

// drop ends all connections.
func (p *played) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		go c.Close()
	}
	p.conns = nil
}

func (p *played) serve(conn *control.Conn) {
	defer conn.Close()
	if _, err := conn.Meet(); err != nil {
		return
	}
	_ = conn.Send(&control.Welcome{Version: control.Version})
	p.mu.Lock()
	p.conns = append(p.conns, conn)
	p.mu.Unlock()
	_ = conn.Serve(func(f *control.Frame) {
		answer, err := p.answer(f.Message())
		conn.Answer(f, answer, err)
	})
}

func (p *played) answer(m proto.Message) (proto.Message, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := func(node uint32) int64 { return int64(record.Now()) + int64(p.ahead[node]) }
	switch m := m.(type) {
	case *control.ReadClock:
		return &control.Clock{TimeNs: now(m.Node)}, nil
	case *control.ReadEvents:
		r := p.nodes[m.Node]
		if r == nil {
			return nil, control.Failf(control.Code_CODE_NOT_FOUND, "there is no such node that is up")
		}
		if m.Leave {
			r.Leave(m.Reader)
			return &control.Events{}, nil
		}
		r.Follow(m.Reader)
		b := r.Read(record.Cursor{Generation: m.Generation, Positions: m.Positions}, 2000, func(*record.Event) bool { return true })
		answer := &control.Events{
			NowNs: now(m.Node), Generation: b.Cursor.Generation, BegunNs: int64(b.Begun) + int64(p.ahead[m.Node]), Positions: b.Cursor.Positions,
			Events: b.Events, Lost: b.Lost, More: b.More, KernelNs: p.made[m.Node],
		}
		if p.change != nil {
			return answer, p.change(m.Node, answer)
		}
		return answer, nil
	}
	return nil, fmt.Errorf("%T was not expected", m)
}

// add has a node record a fault.
func (p *played) add(node uint32, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nodes[node].Add(record.Event{Kind: record.Fault, Time: record.Now().Add(p.ahead[node]), Job: 7, Text: text})
}

func (p *played) warn(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said = append(p.said, fmt.Sprintf(format, args...))
}

func (p *played) warned(text string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Contains(strings.Join(p.said, "\n"), text)
}

// follow follows nodes while during runs, and returns the trace.
func (p *played) follow(nodes []id.Node, during func()) (*tracetest.Trace, error) {
	p.t.Helper()
	var out bytes.Buffer
	w := trace.NewWriter(&out, time.Now())
	stop := make(chan struct{})
	err := Run(p.t.Context(), Options{Socket: p.socket, Nodes: nodes, Trace: w, Warn: p.warn}, stop, func() {
		go func() {
			defer close(stop)
			during()
		}()
	})
	if _, err := w.Close(); err != nil {
		p.t.Error(err)
	}
	t, wrong := tracetest.Parse(out.Bytes())
	if wrong != nil {
		p.t.Fatalf("%v\n%s", wrong, out.String())
	}
	return t, err
}

// await waits until ok holds.
func (p *played) await(what string, ok func() bool) {
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Errorf("no %s within 20 s", what)
			return
		}
	}
}

// texts returns the texts of the faults in a trace, by node.
func texts(t *tracetest.Trace) map[int64][]string {
	m := make(map[int64][]string)
	for _, e := range t.Events {
		if *e.Name == "fault" {
			text, _ := e.Args["text"].(string)
			m[*e.PID-1] = append(m[*e.PID-1], text)
		}
	}
	return m
}

// What nodes record while they are followed is in the trace, all of it, under a common clock; then
// they record no longer.
func TestFollow(t *testing.T) {
	p := play(t, 0, 1)
	p.add(0, "too early")
	const n = 500 // more than one answer
	var begin, end time.Time
	zero := time.Now()
	tr, err := p.follow([]id.Node{0, 1}, func() {
		begin = time.Now()
		for i := range n {
			p.add(0, fmt.Sprint(i))
		}
		p.add(1, "other")
		end = time.Now()
	})
	if err != nil {
		t.Fatal(err)
	}
	got := texts(tr)
	if len(got[0]) != n || got[0][0] != "0" || got[0][n-1] != fmt.Sprint(n-1) || len(got[1]) != 1 {
		t.Errorf("the trace has %d and %d events", len(got[0]), len(got[1]))
	}
	if len(tr.Other.Nodes) != 2 {
		t.Fatalf("%+v", tr.Other)
	}
	// The trace's clock began between zero and begin.
	slack := float64(tr.Other.Nodes[0].ClockError+tr.Other.Nodes[1].ClockError) / 1000
	for _, e := range tr.Events {
		if *e.Name == "fault" && *e.Time > float64(end.Sub(zero).Nanoseconds())/1000+slack {
			t.Errorf("an event is at %.3f us, after %v", *e.Time, end.Sub(zero))
		}
	}
	hour := float64(tr.Other.Nodes[1].ClockAhead - tr.Other.Nodes[0].ClockAhead - int64(time.Hour))
	if hour > 1000*slack || hour < -1000*slack || begin.IsZero() {
		t.Errorf("the clocks are an hour and %.0f ns apart, within %.3f us", hour, slack)
	}
	for number, r := range p.nodes {
		if r.On() {
			t.Errorf("node%d records for ever", number)
		}
	}
	if len(p.said) != 0 {
		t.Errorf("%q", p.said)
	}
}

// Serve may be started again, and a node's kernel; only the latter loses anything, which is in the
// trace.
func TestInterrupted(t *testing.T) {
	p := play(t, 0, 1)
	tr, err := p.follow([]id.Node{0, 1}, func() {
		p.add(0, "first")
		p.drop()
		p.await("another connection", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.conns) > 0 })
		p.add(0, "second")
		p.restart(1)
		p.await("word of the restart", func() bool { return p.warned("node1: nothing is known of") })
		p.add(1, "third")
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := texts(tr); fmt.Sprint(got) != "map[0:[first second] 1:[third]]" {
		t.Error(got)
	}
	if n := tr.Other.Nodes; len(n[0].Gaps) != 0 || len(n[1].Gaps) != 1 || n[1].Gaps[0].Why != "its kernel was started again" || n[1].Gaps[0].To < n[1].Gaps[0].From {
		t.Errorf("%+v", n)
	}
}

// When the machine goes down, with or without notice, following ends, and the trace has all fetched
// events.
func TestMachineGoesDown(t *testing.T) {
	for want, end := range map[string]func(p *played){
		"the machine goes down": func(p *played) {
			for _, c := range p.conns {
				go c.Dismiss(control.Failf(control.Code_CODE_DOWN, "the machine goes down"))
			}
		},
		"the machine is gone": func(p *played) {
			if err := os.RemoveAll(filepath.Dir(p.socket)); err != nil {
				p.t.Error(err)
			}
			for _, c := range p.conns {
				go c.Close()
			}
		},
	} {
		t.Run(want, func(t *testing.T) {
			p := play(t, 0, 1)
			given, taken := false, false // the event, by the node and by the follower
			p.mu.Lock()
			p.change = func(node uint32, e *control.Events) error {
				if node == 0 {
					taken = given
					given = given || bytes.Contains(e.Events, []byte("before"))
				}
				return nil
			}
			p.mu.Unlock()
			ended := make(chan struct{})
			tr, err := p.follow([]id.Node{0, 1}, func() {
				p.add(0, "before")
				p.await("event", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return taken })
				p.mu.Lock()
				end(p)
				p.mu.Unlock()
				select {
				case <-ended:
				case <-time.After(20 * time.Second):
					t.Error("it is followed on")
				}
			})
			close(ended)
			if !client.Gone(err) || err.Error() != want || fmt.Sprint(texts(tr)) != "map[0:[before]]" {
				t.Errorf("%v, %v", err, texts(tr))
			}
		})
	}
}

// A clock that does not run as others do is reported.
func TestDrift(t *testing.T) {
	p := play(t, 0, 1)
	tr, err := p.follow([]id.Node{0, 1}, func() {
		p.mu.Lock()
		p.ahead[1] += time.Minute
		p.mu.Unlock()
	})
	if err != nil || len(p.said) != 1 || !p.warned("node1: its clock drifted by 1m0") {
		t.Errorf("%v, %q", err, p.said)
	}
	if n := tr.Other.Nodes[1]; n.ClockDrift < int64(59*time.Second) || n.ClockDrift > int64(61*time.Second) {
		t.Errorf("%+v", n)
	}
}

// A pause longer than the lease is reported.
func TestPaused(t *testing.T) {
	p := play(t, 0)
	tr, err := p.follow([]id.Node{0}, func() {
		p.mu.Lock()
		p.nodes[0] = record.New(2) // for another generation, of the same kernel
		p.mu.Unlock()
		p.await("word of it", func() bool { return p.warned("it was not asked for more than") })
	})
	if err != nil || len(tr.Other.Nodes[0].Gaps) != 1 {
		t.Errorf("%v, %+v", err, tr.Other.Nodes)
	}
}

// A node that is not there, or says nonsense, is reported and costs the others nothing.
func TestNonsense(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*control.Events) error
		says   string
	}{
		"gone":          {func(*control.Events) error { return control.Failf(control.Code_CODE_NODE_LOST, "it is not connected") }, "it is not connected"},
		"events":        {func(e *control.Events) error { e.Events = []byte("nonsense"); return nil }, "no events"},
		"clock":         {func(e *control.Events) error { e.NowNs = -5; return nil }, "its clock shows"},
		"begin":         {func(e *control.Events) error { e.BegunNs = 1 << 62; return nil }, "its clock shows"},
		"no kernel":     {func(e *control.Events) error { e.KernelNs = 0; return nil }, ""},
		"no generation": {func(e *control.Events) error { e.Generation, e.Positions = 0, nil; return nil }, ""},
		"always more":   {func(e *control.Events) error { e.More = true; return nil }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := play(t, 0, 1)
			p.mu.Lock()
			p.change = func(node uint32, e *control.Events) error {
				if node == 1 {
					return c.change(e)
				}
				return nil
			}
			p.mu.Unlock()
			tr, err := p.follow([]id.Node{0, 1}, func() {
				p.add(0, "good")
				if c.says != "" {
					p.await("warning", func() bool { return p.warned("node1: ") && p.warned(c.says) })
				}
			})
			if err != nil || fmt.Sprint(texts(tr)[0]) != "[good]" {
				t.Errorf("%v, %v", err, texts(tr))
			}
		})
	}
}

type full struct{}

var errFull = errors.New("no room")

func (full) Write([]byte) (int, error) { return 0, errFull }

// A trace that cannot be written ends everything.
func TestNoRoom(t *testing.T) {
	p := play(t, 0, 1)
	err := Run(t.Context(), Options{Socket: p.socket, Nodes: []id.Node{0, 1}, Trace: trace.NewWriter(full{}, time.Now()), Warn: p.warn},
		make(chan struct{}), func() {
			for range 3000 {
				p.add(0, "more than is buffered")
			}
		})
	if !errors.Is(err, errFull) {
		t.Error(err)
	}
}

// A user that may not record gets the reason, and following ends.
func TestDenied(t *testing.T) {
	p := play(t, 0, 1)
	p.mu.Lock()
	p.change = func(uint32, *control.Events) error {
		return control.Failf(control.Code_CODE_REFUSED, "job 1 is another user's")
	}
	p.mu.Unlock()
	err := Run(t.Context(), Options{Socket: p.socket, Nodes: []id.Node{0, 1}, Trace: trace.NewWriter(new(bytes.Buffer), time.Now()), Warn: p.warn},
		make(chan struct{}), func() {})
	if !errors.Is(err, &control.Failure{Code: control.Code_CODE_REFUSED}) {
		t.Error(err)
	}
}

func TestBounds(t *testing.T) {
	var b bounds
	for _, r := range [][2]time.Duration{{10, 30}, {0, 22}, {5, 40}} {
		b.narrow(r[0], r[1])
	}
	if c := b.clock(); c.Ahead != 16 || c.Error != 7 {
		t.Errorf("%+v", c)
	}
	b.narrow(100, 200) // it contradicts, and is not better
	b.narrow(300, 304)
	if c := b.clock(); c.Ahead != 302 || c.Error != 3 {
		t.Errorf("%+v", c)
	}
}
