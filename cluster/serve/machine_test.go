package serve

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/roster"
	"margay/cluster/trust"
	"margay/internal/check"
	"margay/kernel/abi/id"
	"margay/nimble/engine/portable"
)

// bubble runs a test in a synctest bubble: its clock is fake and advances when all goroutines wait,
// and the test fails if a goroutine is left behind.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// machine is a serve; the test plays its nodes, clients and holder.
type machine struct {
	t      *testing.T
	config Config
	played []*playedNode

	server         *Server
	clients, nodes *check.Pipes
	cancel         context.CancelCauseFunc
	ended          chan error

	mu  sync.Mutex
	log []string
}

// newMachine starts a serve with this number of nodes. No node has registered.
func newMachine(t *testing.T, nodes int, changes ...func(*Config)) *machine {
	t.Helper()
	authority, err := trust.NewAuthority("m")
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t}
	m.config = Config{
		Machine: "m", Substrate: "played", Roster: roster.New(nodes), Authority: authority, Secret: trust.NewToken(), Dir: t.TempDir(),
		Log: m.logf, Owner: uint32(os.Getuid()),
		Peer: asOwner, Engine: portable.New(),
	}
	for _, change := range changes {
		change(&m.config)
	}
	for i := range uint32(nodes) {
		m.played = append(m.played, m.player(i))
	}
	m.start()
	t.Cleanup(func() { m.stop(context.Canceled) })
	return m
}

// asOwner takes every client for the machine's owner.
func asOwner(net.Conn) (control.Peer, error) { return control.Peer{UID: uint32(os.Getuid())}, nil }

// player makes a node that has not connected.
func (m *machine) player(number uint32) *playedNode {
	return &playedNode{
		m: m, number: number, boot: fmt.Sprint("boot ", number), cores: []uint32{1, 2}, refused: make(map[string]error), mute: make(map[string]bool),
		acked: make(map[uint32]uint64), runs: make(map[uint32]map[uint32]bool), last: make(map[uint32]uint64),
	}
}

// up is newMachine with all nodes registered.
func up(t *testing.T, nodes int, changes ...func(*Config)) *machine {
	t.Helper()
	m := newMachine(t, nodes, changes...)
	for _, n := range m.played {
		n.connect()
	}
	return m
}

func (m *machine) logf(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.log = append(m.log, fmt.Sprintf(format, args...))
}

// logged reports whether a line of serve's log has text in it.
func (m *machine) logged(text string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Contains(strings.Join(m.log, "\n"), text)
}

func (m *machine) start() {
	m.t.Helper()
	server, err := New(m.config)
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	m.server, m.cancel, m.clients, m.nodes, m.ended = server, cancel, check.NewPipes(), check.NewPipes(), make(chan error, 1)
	go func() { m.ended <- server.Run(ctx, m.clients, m.nodes) }()
	synctest.Wait()
}

// stop ends serve for a reason and waits for it.
func (m *machine) stop(cause error) {
	if m.cancel == nil {
		return
	}
	m.cancel(cause)
	m.cancel = nil
	if err := <-m.ended; err != nil {
		m.t.Errorf("serve ended: %v", err)
	}
	synctest.Wait()
}

// restart kills serve and starts another one, to which nothing is connected yet. As with a signal,
// serve sends no notification and records nothing more.
func (m *machine) restart() {
	m.t.Helper()
	synctest.Wait()
	state := m.t.TempDir()
	if err := os.CopyFS(state, os.DirFS(m.config.Dir)); err != nil {
		m.t.Fatal(err)
	}
	m.stop(context.Canceled)
	m.config.Dir = state
	m.start()
}

// recorder keeps the messages from the other side of a connection.
type recorder struct {
	mu  sync.Mutex
	got []proto.Message
}

func (r *recorder) add(m proto.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, m)
}

// take returns the received messages of one type, and forgets them.
func take[M proto.Message](r *recorder) (found []M) {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	var rest []proto.Message
	for _, got := range r.got {
		if m, ok := got.(M); ok {
			found = append(found, m)
		} else {
			rest = append(rest, got)
		}
	}
	r.got = rest
	return found
}

// one is take for a message that must have arrived exactly once.
func one[M proto.Message](t *testing.T, r *recorder) M {
	t.Helper()
	found := take[M](r)
	if len(found) != 1 {
		t.Fatalf("%d messages %T came: %v", len(found), *new(M), found)
	}
	return found[0]
}

// none fails the test if messages of a type have arrived.
func none[M proto.Message](t *testing.T, r *recorder, why string) {
	t.Helper()
	if found := take[M](r); len(found) != 0 {
		t.Fatalf("%s: %v", why, found)
	}
}

// playedNode is a node as seen by serve. It does what it is asked, unless a test makes it refuse.
type playedNode struct {
	recorder
	m       *machine
	number  uint32
	boot    string
	cores   []uint32
	arch    string // runtime.GOARCH unless a test sets another
	jobs    []*control.HostedJob
	refused map[string]error         // by name of request: the error in the answer
	mute    map[string]bool          // by name of request: not answered
	slow    map[string]time.Duration // by name of request: how long the answer takes
	answers map[string]proto.Message // by name of request; Done for all others

	acked map[uint32]uint64          // by job: the last record that serve has acknowledged
	runs  map[uint32]map[uint32]bool // by job: its ranks here that have not ended
	last  map[uint32]uint64          // by job: its record that no other follows

	conn      *control.Conn
	connected string // the boot that conn was opened for
	silence   context.CancelFunc
}

// token is the join token of a node.
func (m *machine) token(node uint32) string {
	return trust.NodeToken(m.config.Secret, id.Node(node), m.config.Roster.Term(node))
}

// dial opens a connection to serve like a node, up to the handshake.
func (m *machine) dial() *control.Conn {
	m.t.Helper()
	config, err := trust.ToServe(m.config.Authority.Certificate())
	if err != nil {
		m.t.Fatal(err)
	}
	conn := control.NewConn(tls.Client(m.nodes.Dial(m.t), config))
	m.t.Cleanup(conn.Close)
	return conn
}

// connect registers the node, and starts its heartbeats.
func (n *playedNode) connect() {
	n.m.t.Helper()
	n.connectAs(n.register())
}

// connectAs is connect with a given registration.
func (n *playedNode) connectAs(register *control.Register) {
	n.m.t.Helper()
	if n.conn != nil && n.connected != register.Boot { // its last boot has ended
		n.conn.Close()
		synctest.Wait()
	}
	n.connected = register.Boot
	n.conn = n.m.dial()
	if _, err := n.conn.Greet(&control.Hello{Role: control.Role_ROLE_NODE, Token: n.m.token(n.number), Node: n.number, Program: "a played node"}); err != nil {
		n.m.t.Fatal(err)
	}
	go n.conn.Serve(func(f *control.Frame) { n.handle(f) })
	answer, err := n.conn.Call(n.m.t.Context(), register)
	if _, ok := answer.(*control.Registered); !ok || err != nil {
		n.m.t.Fatalf("Register was answered with %v, %v", answer, err)
	}
	n.m.t.Cleanup(n.beat())
	synctest.Wait()
}

func (n *playedNode) register() *control.Register {
	key, err := trust.NewNodeKey()
	if err != nil {
		n.m.t.Fatal(err)
	}
	public, err := key.Public()
	if err != nil {
		n.m.t.Fatal(err)
	}
	if n.arch == "" {
		n.arch = runtime.GOARCH
	}
	return &control.Register{
		Node: n.number, Boot: n.boot, PublicKey: public, Jobs: n.jobs,
		Info: &control.NodeInfo{Address: fmt.Sprintf("10.0.0.%d:1", n.number), Arch: n.arch, Cores: n.cores, Memory: 64 << 20, Kernel: "9.9"},
	}
}

// beat sends heartbeats until the node is silenced.
func (n *playedNode) beat() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	n.silence = cancel
	conn := n.conn
	go func() {
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for number := uint64(1); ; number++ {
			select {
			case <-tick.C:
				_ = conn.Send(&control.Heartbeat{Number: number, FreeMemory: 32 << 20})
			case <-conn.Done():
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return cancel
}

func (n *playedNode) handle(f *control.Frame) {
	m := f.Message()
	n.add(m)
	if ack, ok := m.(*control.Ack); ok {
		n.mu.Lock()
		n.acked[ack.Job] = max(n.acked[ack.Job], ack.Seq)
		n.mu.Unlock()
	}
	if p, ok := m.(*control.Prepare); ok {
		n.prepared(p)
	}
	name := string(m.ProtoReflect().Descriptor().Name())
	n.mu.Lock()
	mute := n.mute[name]
	n.mu.Unlock()
	if mute {
		return
	}
	answer := n.answers[name]
	if answer == nil {
		answer = &control.Done{}
	}
	if takes := n.slow[name]; takes > 0 {
		time.AfterFunc(takes, func() { n.conn.Answer(f, answer, nil) })
		return
	}
	n.conn.Answer(f, answer, n.refused[name])
}

// answersAgain makes the node answer a request again. serve may be sending it at the same time.
func (n *playedNode) answersAgain(request string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mute[request] = false
}

// Sends a message and waits until serve has processed it.
func (n *playedNode) tell(m proto.Message) {
	n.m.t.Helper()
	if err := n.conn.Send(m); err != nil {
		n.m.t.Fatal(err)
	}
	synctest.Wait()
}

// says sends a record with output of a rank.
func (n *playedNode) says(job uint32, seq uint64, rank uint32, text string) {
	n.m.t.Helper()
	n.tell(&control.Record{Job: job, Seq: seq, Rank: rank, Stream: control.Stream_STREAM_STDOUT, Data: []byte(text), Acked: n.ackedOf(job)})
}

// placesOf expands where the ranks of a job are.
func placesOf(l *control.Layout) (places []*control.Place) {
	for _, run := range l.Runs {
		for i := range run.Count {
			for _, rank := range l.Shares[run.Share].Ranks {
				places = append(places, &control.Place{Rank: uint32(len(places)), Node: run.Node + i, Core: rank.Cores[0], More: rank.Cores[1:]})
			}
		}
	}
	return places
}

// prepared notes which ranks of a job the node has.
func (n *playedNode) prepared(p *control.Prepare) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.runs[p.Job] = make(map[uint32]bool)
	for _, place := range placesOf(p.Layout) {
		if place.Node == n.number {
			n.runs[p.Job][place.Rank] = true
		}
	}
}

// exits sends a record with the end of a rank. For the last rank of the node it marks the record as
// the last one.
func (n *playedNode) exits(job uint32, seq uint64, rank uint32, code, signal int32) {
	n.m.t.Helper()
	n.mu.Lock()
	delete(n.runs[job], rank)
	if len(n.runs[job]) == 0 && n.last[job] == 0 {
		n.last[job] = seq
	}
	last := n.last[job] == seq
	n.mu.Unlock()
	n.tell(&control.Record{
		Job: job, Seq: seq, Rank: rank, Stream: control.Stream_STREAM_EXIT, Exit: &control.ExitStatus{Code: code, Signal: signal},
		Last: last, Acked: n.ackedOf(job),
	})
}

// ackedOf returns the number of the last record of a job that the node may forget.
func (n *playedNode) ackedOf(job uint32) uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.acked[job]
}

// playedClient is the command line tool as seen by serve.
type playedClient struct {
	recorder
	m    *machine
	conn *control.Conn

	staged  *control.ImageStaged // the holder's image; nil: its nodes start none
	staging func(answer func())  // answers with it; nil: at once
}

func (m *machine) client() *playedClient { return m.local(control.Role_ROLE_CLIENT) }

func (m *machine) local(role control.Role) *playedClient {
	m.t.Helper()
	c := &playedClient{m: m, conn: control.NewConn(m.clients.Dial(m.t))}
	m.t.Cleanup(c.conn.Close)
	if _, err := c.conn.Greet(&control.Hello{Role: role, Program: "a played client"}); err != nil {
		m.t.Fatal(err)
	}
	go c.conn.Serve(func(f *control.Frame) { c.add(f.Message()) })
	return c
}

// ask sends a request, which must be answered.
func (c *playedClient) ask(request proto.Message) (proto.Message, error) {
	ctx, cancel := context.WithTimeout(c.m.t.Context(), 2*time.Minute)
	defer cancel()
	return c.conn.Call(ctx, request)
}

// must is ask for a request that must succeed.
func must[M proto.Message](c *playedClient, request proto.Message) M {
	c.m.t.Helper()
	answer, err := c.ask(request)
	if err != nil {
		c.m.t.Fatalf("%T: %v", request, err)
	}
	m, ok := answer.(M)
	if !ok {
		c.m.t.Fatalf("%T was answered with %v", request, answer)
	}
	return m
}

// Sends a message and waits until serve has processed it.
func (c *playedClient) tell(m proto.Message) {
	c.m.t.Helper()
	if err := c.conn.Send(m); err != nil {
		c.m.t.Fatal(err)
	}
	synctest.Wait()
}

// ackAll acknowledges all received records and returns them.
func (c *playedClient) ackAll() []*control.Record {
	c.m.t.Helper()
	records := take[*control.Record](&c.recorder)
	for _, r := range records {
		c.tell(&control.Ack{Job: r.Job, Node: r.Node, Seq: r.Seq})
	}
	return records
}

func spec(ranks uint32) *control.JobSpec {
	return &control.JobSpec{Path: []byte("/bin/true"), User: "somebody", Ranks: ranks, Arch: runtime.GOARCH}
}

// detachedSpec is spec for a job that does not end with its client.
func detachedSpec(ranks uint32) *control.JobSpec {
	s := spec(ranks)
	s.Detach = true
	return s
}

// run takes a job to running and returns its number.
func (c *playedClient) run(spec *control.JobSpec) uint32 {
	c.m.t.Helper()
	reply := must[*control.RunReply](c, &control.RunRequest{Spec: spec})
	on := make(map[uint32]bool)
	for _, p := range reply.Places {
		if !on[p.Node] {
			on[p.Node] = true
			c.m.played[p.Node].tell(&control.Loaded{Job: reply.Job})
		}
	}
	if state := one[*control.JobState](c.m.t, &c.recorder); state.Phase != control.JobPhase_JOB_RUNNING {
		c.m.t.Fatalf("the job is not running: %v", state)
	}
	return reply.Job
}

// ended returns the last state of a job, which must have ended.
func (c *playedClient) ended() *control.JobState {
	c.m.t.Helper()
	state := one[*control.JobState](c.m.t, &c.recorder)
	if state.Phase != control.JobPhase_JOB_DONE {
		c.m.t.Fatalf("the job has not ended: %v", state)
	}
	return state
}

// freeCores returns how many cores of the machine are free.
func (c *playedClient) freeCores() uint32 {
	c.m.t.Helper()
	return must[*control.MachineStatus](c, &control.Status{}).FreeCores
}

// summary returns a job's entry in the list of jobs.
func (c *playedClient) summary(job uint32) *control.JobSummary {
	c.m.t.Helper()
	jobs := must[*control.Jobs](c, &control.ListJobs{Job: job}).Jobs
	if len(jobs) != 1 {
		c.m.t.Fatalf("job %d is listed as %v", job, jobs)
	}
	return jobs[0]
}

// hosts adds a job to the node's next registration.
func (n *playedNode) hosts(job uint32, phase control.JobPhase) {
	n.jobs = []*control.HostedJob{{Job: job, Phase: phase}}
}
