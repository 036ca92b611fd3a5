package agent

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/trust"
	"margay/internal/check"
	"margay/kernel"
	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
	"margay/kernel/extension"
	"margay/kernel/fabric"
	"margay/kernel/fabric/tcp"
	"margay/kernel/record"
	"margay/kernel/task"
	"margay/kernel/usage"
)

// patience bounds every wait of these tests.
const patience = 20 * time.Second

// recorder keeps received messages in order.
type recorder struct {
	mu  sync.Mutex
	got []proto.Message
}

func (r *recorder) add(m proto.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, m)
}

// all returns the received messages of one type.
func all[M proto.Message](r *recorder) (found []M) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, got := range r.got {
		if m, ok := got.(M); ok {
			found = append(found, m)
		}
	}
	return found
}

// first waits for the first message of a type.
func first[M proto.Message](t *testing.T, r *recorder) M {
	t.Helper()
	check.AwaitFor(t, patience, fmt.Sprintf("message %T", *new(M)), func() bool { return len(all[M](r)) > 0 })
	return all[M](r)[0]
}

// playedKernel is a node kernel that a test controls.
type playedKernel struct {
	Kernel // methods that no test calls

	self      id.Node
	transport fabric.Transport // nil until Join
	datagrams *net.UDPConn     // that Join was given

	prepare func(kernel.JobSpec) error
	load    func(ctx context.Context, files io.Reader) error
	start   func(ctx context.Context) error
	refuse  error // the answer to requests

	mu     sync.Mutex
	calls  []string // requests, in short
	shares string   // the name of its scheduler
	loaded []byte
}

func (k *playedKernel) note(format string, args ...any) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls = append(k.calls, fmt.Sprintf(format, args...))
	return k.refuse
}

// called reports whether a request was received.
func (k *playedKernel) called(what string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Contains(k.calls, what)
}

func (k *playedKernel) Adopt() (*os.File, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return l.(*net.TCPListener).File()
}

func (k *playedKernel) Info() kernel.Info {
	k.mu.Lock()
	defer k.mu.Unlock()
	return kernel.Info{Kernel: "9.9", Memory: 1 << 20, Limits: "none", Scheduler: k.shares}
}
func (k *playedKernel) Jobs() []kernel.JobInfo {
	return []kernel.JobInfo{{Job: 5, Phase: kernel.Ended}}
}

// Join opens a transport that carries streams.
func (k *playedKernel) Join(m kernel.Membership) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.datagrams = m.Datagrams
	k.transport = tcp.New(m.Listener, tcp.Config{
		Self: k.self, Accept: m.Accept, Connect: m.Connect, Peer: m.Peer, Handler: streams(m.Stream), Log: func(string, ...any) {},
	})
}

func (k *playedKernel) Stream(ctx context.Context, to id.Node, service string) (net.Conn, error) {
	return k.transport.Stream(ctx, to, service)
}

// streams is a fabric.Handler that takes streams.
type streams func(from id.Node, service string, c net.Conn)

func (f streams) Frame(id.Node, []byte)                           {}
func (f streams) Broken(id.Node, error)                           {}
func (f streams) Stream(from id.Node, service string, c net.Conn) { f(from, service, c) }

// Prepare says that the node has one content, the first.
func (k *playedKernel) Prepare(_ context.Context, s kernel.JobSpec) (lacking []int, err error) {
	for place := range s.Layout.Nodes() {
		k.transport.Meet(s.Layout.Node(place), s.Layout.Address(place).String())
	}
	for i := range s.Contents {
		if i > 0 {
			lacking = append(lacking, i)
		}
	}
	if k.prepare != nil {
		return lacking, k.prepare(s)
	}
	return lacking, k.note("prepare %d", s.Job)
}

// Load accepts the files unless the test sets another function.
func (k *playedKernel) Load(ctx context.Context, _ id.Job, files io.Reader) error {
	if k.load != nil {
		return k.load(ctx, files)
	}
	text, err := io.ReadAll(files)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.loaded = text
	return err
}

func (k *playedKernel) Start(ctx context.Context, job id.Job) error {
	if k.start != nil {
		return k.start(ctx)
	}
	return k.note("start %d", job)
}

func (k *playedKernel) Forget(job id.Job) (task.Unkept, error) {
	return task.Unkept{Files: 3, Names: []string{"a", "b"}}, k.note("forget %d", job)
}
func (k *playedKernel) Ack(job id.Job, seq uint64) error { return k.note("ack %d %d", job, seq) }
func (k *playedKernel) Finish(job id.Job) error          { return k.note("finish %d", job) }
func (k *playedKernel) Resize(job id.Job, size *task.Size) error {
	return k.note("resize %d %v", job, size)
}
func (k *playedKernel) Rewind(job id.Job) error { return k.note("rewind %d", job) }

func (k *playedKernel) Debug(_ context.Context, job id.Job, rank id.Rank, stream net.Conn) error {
	stream.Close()
	return k.note("debug %d %d", job, rank)
}

func (k *playedKernel) Signal(job id.Job, rank int, sig syscall.Signal) error {
	return k.note("signal %d %d %d", job, rank, sig)
}

func (k *playedKernel) Input(job id.Job, rank id.Rank, offset uint64, data []byte, eof bool) error {
	return k.note("input %d %d %d %s %v", job, rank, offset, data, eof)
}

func (k *playedKernel) Extensions() []extension.Info {
	return []extension.Info{{Handle: 8, Job: 5, Name: "x", Number: 3}, {Handle: 9, Job: 5, Name: "y", Removed: "too many faults"}}
}

func (k *playedKernel) InsertExtension(job id.Job, r extension.Request) (id.Handle, error) {
	return 9, k.note("insert %d %s %s %d", job, r.Name, r.Slot, r.Number)
}

func (k *playedKernel) ExtensionNotes(seq uint64) []extension.Note {
	return []extension.Note{{Seq: seq + 1, Time: time.Unix(5, 0), Job: 5, Handle: 9, Name: "y", Text: "removed"}}
}

func (k *playedKernel) Boot() error     { return k.note("boot") }
func (k *playedKernel) PowerOff() error { return k.note("off") }

func (k *playedKernel) RemoveExtension(handle id.Handle, _ string) error {
	return k.note("remove %d", handle)
}

func (k *playedKernel) SetDuties(change func(*kernel.Duties)) error {
	d := kernel.Duties{All: true}
	change(&d)
	return k.note("duties %+v", d)
}

func (k *playedKernel) Events(q kernel.EventQuery) (record.Batch, error) {
	return record.Batch{
		Cursor: record.Cursor{Generation: 6, Positions: []uint64{7, 8}}, Made: 4, Begun: 5, Events: []byte("events"), Lost: 9, More: true,
	}, k.note("events %d %v %v job %d %d", q.Reader, q.Leave, q.Cursor, q.Job, q.Size)
}

func (k *playedKernel) Sample() (kernel.Sample, error) {
	return kernel.Sample{
		Time: 5, Recording: true, Cores: []kernel.CoreSample{{Core: 1, Shared: true, Interrupts: 2}},
		Ranks: []kernel.RankSample{
			{Job: 5, Rank: 4, Core: 2, PID: 9, Why: "why", Usage: usage.Usage{CPU: 1, Threads: 2, Voluntary: 3, Involuntary: 4, MajorFaults: 7}, Sent: 5, Arrived: 6},
			{Job: 5, Rank: 3, Core: 1},
		},
	}, k.note("sample")
}

func (k *playedKernel) Noise(_ context.Context, d time.Duration) ([]kernel.CoreNoise, error) {
	return []kernel.CoreNoise{{Core: 1, Interrupts: 3, Elapsed: d}}, k.refuse
}

// machine is the machine that the agents of a test belong to.
type machine struct {
	t         *testing.T
	authority *trust.Authority
	token     string
	serve     string // address
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	a, err := trust.NewAuthority("m")
	if err != nil {
		t.Fatal(err)
	}
	return &machine{t: t, authority: a, token: trust.NewToken(), serve: "127.0.0.1:1"}
}

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) logf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(&l.text, format+"\n", args...)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// agent makes the agent of a node without running it.
func (m *machine) agent(number uint32, log *lines) *Agent {
	m.t.Helper()
	a, err := New(Config{
		Boot: node.Config{
			Machine: "m", Node: id.Node(number), Substrate: "played", Address: "127.0.0.1/8", Serve: m.serve, CA: m.authority.Certificate(), Token: m.token,
		},
		Version: "v1", Log: log.logf,
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return a
}
