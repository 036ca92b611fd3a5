package message

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/check"
	"margay/internal/rights"
	"margay/kernel/abi/frame"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/abi/wire"
	"margay/kernel/extension"
	"margay/kernel/fabric"
	"margay/kernel/keep"
	"margay/kernel/record"
	"margay/kernel/untrusted"
	"margay/nimble/engine/portable"
)

// network joins the engines of a test without sockets. It can lose and delay frames.
type network struct {
	mu    sync.Mutex
	ports map[id.Node]*port
	cut   map[[2]id.Node]bool // the way from the first to the second
	held  map[[2]id.Node]hold // the same
}

// hold makes messages wait, and all messages behind them.
type hold struct {
	waits   chan struct{} // closed when one waits
	once    *sync.Once
	release chan struct{} // the test closes it to release them
}

// hold makes the messages on one way wait.
func (n *network) hold(from, to id.Node) hold {
	h := hold{make(chan struct{}), new(sync.Once), make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.held[[2]id.Node{from, to}] = h
	return h
}

// pass waits while a frame's way is held, or until done is closed.
func (n *network) pass(from, to id.Node, b []byte, done chan struct{}) {
	n.mu.Lock()
	h, held := n.held[[2]id.Node{from, to}]
	n.mu.Unlock()
	if !held || frame.KindOf(b) != frame.Messages {
		return
	}
	h.once.Do(func() { close(h.waits) })
	select {
	case <-h.release:
	case <-done:
	}
}

// port is a node's end of a network.
type port struct {
	net    *network
	self   id.Node
	engine *Engine
	done   chan struct{} // closed by close: messages on their way to the port are lost

	mu      sync.Mutex
	in      map[id.Node]chan []byte // by sender
	closed  bool
	running sync.WaitGroup
}

func (p *port) Meet(id.Node, string) {}
func (p *port) Close() error         { return nil }

func (p *port) Stream(context.Context, id.Node, string) (net.Conn, error) {
	return nil, fmt.Errorf("no streams here")
}

func (p *port) Send(ctx context.Context, to id.Node, _ fabric.Class, frame []byte) error {
	p.net.mu.Lock()
	target, cut := p.net.ports[to], p.net.cut[[2]id.Node{p.self, to}]
	p.net.mu.Unlock()
	if cut {
		return nil
	}
	select {
	case target.from(p.self) <- frame:
	case <-target.done:
	case <-p.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// from returns the channel on which frames of a node arrive; nil when none can arrive any more.
func (p *port) from(node id.Node) chan []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.in[node]
	if c == nil && !p.closed {
		c = make(chan []byte, 1<<14) // more than the windows of a job of some ranks allow, so that Send never waits
		p.in[node] = c
		p.running.Go(func() {
			for {
				select {
				case frame := <-c:
					p.net.pass(node, p.self, frame, p.done)
					p.engine.Frame(node, frame)
				case <-p.done:
					return
				}
			}
		})
	}
	return c
}

func (p *port) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	close(p.done)
	p.running.Wait()
}

// testNode is a node of a test.
type testNode struct {
	engine  *Engine
	port    *port
	kept    *keptItems
	manager *extension.Manager
	events  *record.Recorder
	job     *Job
}

// keptItems stands in for the job's init.
type keptItems struct {
	mu    sync.Mutex
	items map[string]*keep.Item
}

func (k *keptItems) Keep(item keep.Item) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := item
	c.Files = nil
	for _, f := range item.Files {
		d, err := keep.Duplicate(f.Fd(), f.Name())
		if err != nil {
			return err
		}
		c.Files = append(c.Files, d)
	}
	if old := k.items[item.Name]; old != nil {
		old.CloseFiles()
	}
	k.items[item.Name] = &c
	return nil
}

func (k *keptItems) Drop(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if old := k.items[name]; old != nil {
		old.CloseFiles()
		delete(k.items, name)
	}
	return nil
}

// item returns the item kept under a name; nil: none.
func (k *keptItems) item(name string) *keep.Item {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.items[name]
}

// has reports whether something is kept under a name.
func (k *keptItems) has(name string) bool { return k.item(name) != nil }

// replay returns the kept items, with files of their own, as the next node kernel gets them.
func (k *keptItems) replay(t testing.TB) (items []*keep.Item) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, item := range k.items {
		again := &keep.Item{Name: item.Name, Words: item.Words}
		for _, f := range item.Files {
			d, err := keep.Duplicate(f.Fd(), f.Name())
			if err != nil {
				t.Fatal(err)
			}
			again.Files = append(again.Files, d)
		}
		items = append(items, again)
	}
	return items
}

// testJob is a job on several nodes.
type testJob struct {
	t      testing.TB
	net    *network
	nodes  []*testNode
	config JobConfig
	border []Border // of all nodes; none: there is none
	faults chan error
}

// open starts a job with perNode ranks on each of n nodes. The test fails if anything of it is left
// at the end.
func open(t testing.TB, n, perNode int) *testJob {
	t.Helper()
	return openWith(t, n, perNode, JobConfig{Job: 7, Secret: []byte("12345678"), InitTimeout: time.Minute})
}

func openWith(t testing.TB, n, perNode int, c JobConfig, border ...Border) *testJob {
	t.Helper()
	if _, fuzzing := t.(*testing.F); !fuzzing { // fuzzing has goroutines of its own
		check.Leaks(t)
	}
	j := &testJob{t: t, border: border, faults: make(chan error, 16), net: &network{
		ports: make(map[id.Node]*port), cut: make(map[[2]id.Node]bool), held: make(map[[2]id.Node]hold),
	}}
	j.config = c
	for i := range n {
		j.config.Members = append(j.config.Members, id.Node(i))
		for range perNode {
			j.config.Nodes = append(j.config.Nodes, id.Node(i))
		}
	}
	for i := range n {
		j.nodes = append(j.nodes, &testNode{kept: &keptItems{items: make(map[string]*keep.Item)}})
		j.start(i)
	}
	for i := range n {
		c := j.configOf(i)
		var err error
		if j.nodes[i].job, err = j.nodes[i].engine.Open(c); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(j.close)
	return j
}

// start makes the node kernel of a node.
func (j *testJob) start(i int) {
	n := j.nodes[i]
	var err error
	if n.manager, err = extension.NewManager(portable.New(), 1, func(string, ...any) {}); err != nil {
		j.t.Fatal(err)
	}
	n.events = record.New(3)
	n.manager.RecordTo(n.events)
	c := Config{Self: id.Node(i), Log: func(string, ...any) {}, Fault: func(_ id.Job, err error) { j.faults <- err }, Recorder: n.events}
	for _, c.Border = range j.border {
	}
	n.engine = NewEngine(c)
	for _, name := range []slot.Name{slot.Message, slot.Packet} {
		n.manager.Watch(name, func(id.Job) { n.engine.Repath() })
	}
	n.events.Watch(func(bool) { n.engine.Repath() })
	n.port = &port{net: j.net, self: id.Node(i), engine: n.engine, in: make(map[id.Node]chan []byte), done: make(chan struct{})}
	n.engine.Connect(n.port)
	j.net.mu.Lock()
	j.net.ports[id.Node(i)] = n.port
	j.net.mu.Unlock()
}

// kill ends the node kernel of a node as SIGKILL would, as far as this is visible from outside.
func (j *testJob) kill(i int) {
	j.t.Helper()
	n := j.nodes[i]
	n.port.close()
	n.job.Close()
	if err := n.job.config.Set.Close(); err != nil {
		j.t.Error(err)
	}
}

// restart kills a node kernel and starts the next.
func (j *testJob) restart(i int) {
	j.t.Helper()
	j.kill(i)
	j.adopt(i)
}

// adopt starts the node kernel of a node whose previous one was killed.
func (j *testJob) adopt(i int) {
	j.t.Helper()
	n := j.nodes[i]
	j.start(i)
	var err error
	if n.job, err = n.engine.Adopt(j.configOf(i), n.kept.replay(j.t)); err != nil {
		j.t.Fatal(err)
	}
	for other, peer := range j.nodes {
		if other != i {
			peer.engine.Broken(id.Node(i))
		}
	}
}

// lose starts or stops losing all frames between two nodes. When it stops, both are notified, as by
// a transport.
func (j *testJob) lose(a, b int, lost bool) {
	j.net.mu.Lock()
	for _, way := range [][2]id.Node{{id.Node(a), id.Node(b)}, {id.Node(b), id.Node(a)}} {
		j.net.cut[way] = lost
	}
	j.net.mu.Unlock()
	if !lost {
		j.nodes[a].engine.Broken(id.Node(b))
		j.nodes[b].engine.Broken(id.Node(a))
	}
}

func (j *testJob) configOf(i int) JobConfig {
	c := j.config
	for rank, node := range c.Nodes {
		if node == id.Node(i) {
			c.Local = append(c.Local, id.Rank(rank))
			c.Cores = append(c.Cores, id.Core(len(c.Local)))
		}
	}
	c.Set = j.nodes[i].manager.Open(c.Job, 64<<20)
	c.Keeper = j.nodes[i].kept
	return c
}

func (j *testJob) close() {
	for i, n := range j.nodes {
		j.kill(i)
		n.kept.mu.Lock()
		for _, item := range n.kept.items {
			item.CloseFiles()
		}
		n.kept.mu.Unlock()
	}
}

// app is a rank's side of the interface.
type app struct {
	t       testing.TB
	socket  *net.UnixConn
	area    *wire.Area
	header  wire.Header
	memory  []byte
	bell    *os.File
	alarm   *os.File
	board   *wire.Board
	bells   []*os.File // its doorbell
	send    *wire.Producer
	receive *wire.Consumer
	upcalls *wire.Consumer
}

// join makes a rank take part, as a library does.
func (j *testJob) join(rank int) *app {
	j.t.Helper()
	item := j.nodes[j.config.Nodes[rank]].kept.item(fmt.Sprintf("rank/%d/app", rank))
	conn, err := net.FileConn(item.Files[0])
	if err != nil {
		j.t.Fatal(err)
	}
	a := &app{t: j.t, socket: conn.(*net.UnixConn)}
	reply, files := a.ask(wire.Request{Op: wire.OpHello, Value: wire.Version}, nil)
	if reply.Status != wire.StatusOK || len(files) != 5 {
		j.t.Fatalf("hello of rank %d: %+v", rank, reply)
	}
	size := wire.AreaSize(len(j.config.Nodes))
	if a.memory, err = unix.Mmap(int(files[0].Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		j.t.Fatal(err)
	}
	files[0].Close()
	a.bell, a.alarm = files[1], files[2]
	board, err := unix.Mmap(int(files[3].Fd()), 0, wire.BoardSize(perNodeOf(j.config)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		j.t.Fatal(err)
	}
	files[3].Close()
	a.bells = files[4:]
	if a.board, err = wire.OpenBoard(board, perNodeOf(j.config)); err != nil {
		j.t.Fatal(err)
	}
	if a.area, a.header, err = wire.OpenArea(a.memory); err != nil {
		j.t.Fatal(err)
	}
	a.send, a.receive, a.upcalls = a.area.SendProducer(), a.area.ReceiveConsumer(), a.area.UpcallConsumer()
	j.t.Cleanup(func() {
		a.socket.Close()
		a.bell.Close()
		a.alarm.Close()
		rights.Close(a.bells)
		unix.Munmap(a.memory)
		unix.Munmap(board)
	})
	return a
}

// perNodeOf returns how many ranks of a job are on each node.
func perNodeOf(c JobConfig) int { return len(c.Nodes) / len(c.Members) }

func (a *app) ask(q wire.Request, give *os.File) (wire.Reply, []*os.File) {
	a.t.Helper()
	b, err := q.Encode()
	if err != nil {
		a.t.Fatal(err)
	}
	var oob []byte
	if give != nil {
		oob = unix.UnixRights(int(give.Fd()))
	}
	if _, _, err := a.socket.WriteMsgUnix(b, oob, nil); err != nil {
		a.t.Fatal(err)
	}
	return a.answer()
}

// answer returns the next reply.
func (a *app) answer() (wire.Reply, []*os.File) {
	a.t.Helper()
	buf, oob := make([]byte, wire.ReplySize), make([]byte, rights.Space(5))
	a.socket.SetReadDeadline(time.Now().Add(10 * time.Second))
	n, oobn, _, _, err := a.socket.ReadMsgUnix(buf, oob)
	if err != nil {
		a.t.Fatal(err)
	}
	reply, err := wire.DecodeReply(buf[:n])
	if err != nil {
		a.t.Fatal(err)
	}
	return reply, untrusted.Files(oob[:oobn])
}

func (a *app) ring() { unix.Send(int(a.bell.Fd()), []byte{1}, unix.MSG_DONTWAIT) }

// post sends a message and reports whether there was room.
func (a *app) post(target int, handler uint16, arg uint64, payload []byte) bool {
	ok, wake, err := a.send.Push(wire.Record{Handler: handler, Peer: uint32(target), Args: [2]uint64{arg}, Payload: payload})
	if err != nil {
		a.t.Error(err)
	}
	if wake {
		a.ring()
	}
	return ok
}

// next returns the next message, if one comes in time. It polls, so it needs no ring, and sleeps
// between looks, so that a long wait takes little processor time.
func (a *app) next(wait time.Duration) (wire.Record, bool) { return a.nextOf(a.receive, wait) }

// nextUpcall is next for the upcall ring.
func (a *app) nextUpcall(wait time.Duration) (wire.Record, bool) { return a.nextOf(a.upcalls, wait) }

func (a *app) nextOf(ring *wire.Consumer, wait time.Duration) (wire.Record, bool) {
	for looks, deadline := 0, time.Now().Add(wait); ; looks++ {
		r, ok, err := ring.Next()
		if err != nil {
			a.t.Error(err)
			return r, false
		}
		if ok {
			r.Payload = append([]byte(nil), r.Payload...)
			if ring.Release() {
				a.ring()
			}
			return r, true
		}
		if time.Now().After(deadline) {
			return r, false
		}
		if looks < 50 {
			runtime.Gosched()
		} else {
			time.Sleep(50 * time.Microsecond)
		}
	}
}

// enter enters a barrier and returns its number.
func (a *app) enter() uint64 {
	number := a.area.Entered().Add(1)
	if a.area.SendWaiting().Load() != 0 {
		a.ring()
	}
	return number
}

// barrier enters a barrier and reports whether it was completed in time.
func (a *app) barrier(wait time.Duration) bool {
	number := a.enter()
	for deadline := time.Now().Add(wait); a.area.Released().Load() < number; {
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(100 * time.Microsecond)
	}
	return true
}

// fault waits for the job to be reported as faulty, checks the reason and returns it.
func (j *testJob) fault(says ...string) (err error) {
	j.t.Helper()
	select {
	case err = <-j.faults:
		for _, text := range says {
			if !strings.Contains(err.Error(), text) {
				j.t.Errorf("the fault is %q, which does not say %q", err, text)
			}
		}
	case <-time.After(20 * time.Second):
		j.t.Fatalf("no fault that says %q within 20 s", says)
	}
	return err
}

// noFault fails the test if the job was reported as faulty.
func (j *testJob) noFault() {
	j.t.Helper()
	select {
	case err := <-j.faults:
		j.t.Fatal(err)
	default:
	}
}

func TestEveryoneToEveryone(t *testing.T) {
	const nodes, perNode, each = 3, 2, 400
	j := open(t, nodes, perNode)
	n := nodes * perNode
	var all sync.WaitGroup
	for rank := range n {
		a := j.join(rank)
		all.Go(func() {
			next := make([]uint64, n)
			got, sent := 0, 0
			for got < n*each {
				for sent < n*each && a.post(sent%n, uint16(rank), uint64(sent/n), []byte(fmt.Sprint("from ", rank))) {
					sent++
				}
				r, ok := a.next(time.Minute)
				if !ok {
					t.Errorf("rank %d: %d messages came", rank, got)
					return
				}
				if string(r.Payload) != fmt.Sprint("from ", r.Peer) || int(r.Node) != int(r.Peer)/perNode || r.Args[0] != next[r.Peer] {
					t.Errorf("rank %d: message %+v, expected number %d", rank, r, next[r.Peer])
					return
				}
				next[r.Peer]++
				got++
			}
		})
	}
	all.Wait()
	j.noFault()
}

func TestBarrier(t *testing.T) {
	const nodes, perNode, rounds = 5, 2, 50
	j := open(t, nodes, perNode)
	var mu sync.Mutex
	inside := make([]int, nodes*perNode)
	var all sync.WaitGroup
	for rank := range nodes * perNode {
		a := j.join(rank)
		all.Go(func() {
			for round := range rounds {
				mu.Lock()
				inside[rank] = round
				mu.Unlock()
				if !a.barrier(10 * time.Second) {
					t.Errorf("rank %d is stuck in barrier %d", rank, round)
					return
				}
				mu.Lock()
				for other, at := range inside {
					if at < round {
						t.Errorf("rank %d left barrier %d, which rank %d had not entered", rank, round, other)
					}
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	j.noFault()
}

// holdsBarrier checks that no rank leaves a barrier before the messages held on a way have arrived,
// and that then all leave.
func (j *testJob) holdsBarrier(apps []*app, way hold) {
	j.t.Helper()
	time.Sleep(100 * time.Millisecond)
	for rank, a := range apps {
		if a.area.Released().Load() != 0 {
			j.t.Errorf("rank %d is out of the barrier, and a message from before it is on its way", rank)
		}
	}
	close(way.release)
	for rank, a := range apps {
		check.Await(j.t, fmt.Sprint("release of rank ", rank), func() bool { return a.area.Released().Load() == 1 })
	}
}

// A barrier completes only after earlier messages have arrived, even if nothing else takes the way
// that is held.
func TestBarrierAwaitsMessages(t *testing.T) {
	for _, restart := range []int{-1, 1, 3} {
		t.Run(fmt.Sprint("restart ", restart), func(t *testing.T) {
			j := open(t, 4, 1)
			var apps []*app
			for rank := range 4 {
				apps = append(apps, j.join(rank))
			}
			way := j.net.hold(3, 0)
			if !apps[3].post(0, 1, 42, nil) {
				t.Fatal("no room for a message")
			}
			for _, a := range apps {
				a.enter()
			}
			<-way.waits
			if restart >= 0 {
				j.restart(restart)
			}
			j.holdsBarrier(apps, way)
			if r, ok := apps[0].next(0); !ok || r.Args[0] != 42 {
				t.Errorf("rank 0 is out of the barrier with message %+v, %v", r, ok)
			}
			j.noFault()
		})
	}
}

// A rank leaves a barrier only behind messages that did not fit into its ring.
func TestBarrierBehindWaitingMessages(t *testing.T) {
	j := open(t, 2, 2)
	var apps []*app
	for rank := range 4 {
		apps = append(apps, j.join(rank))
	}
	sent := 0
	for _, source := range []int{1, 2} {
		for i := 0; i < 200; i++ {
			check.Await(t, "room for a message", func() bool { return apps[source].post(0, 1, 0, make([]byte, wire.MaxPayload)) })
			sent++
		}
	}
	for _, a := range apps {
		a.enter()
	}
	check.Await(t, "release of rank 1", func() bool { return apps[1].area.Released().Load() == 1 })
	if apps[0].area.Released().Load() != 0 {
		t.Fatal("rank 0 is out of the barrier, and messages wait for room in its ring")
	}
	for i := range sent {
		if _, ok := apps[0].next(time.Minute); !ok {
			t.Fatalf("%d of %d messages came", i, sent)
		}
	}
	check.Await(t, "release of rank 0", func() bool { return apps[0].area.Released().Load() == 1 })
	j.noFault()
}
