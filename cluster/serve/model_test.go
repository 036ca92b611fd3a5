package serve

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/records"
	"margay/cluster/roster"
	"margay/cluster/trust"
	"margay/internal/check"
	"margay/kernel/abi/id"
	"margay/kernel/task"
)

// histories returns how many random histories TestModel plays: MARGAY_HISTORIES, or 100.
func histories(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("MARGAY_HISTORIES")
	if text == "" {
		return 100
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == 0 {
		t.Fatalf("MARGAY_HISTORIES=%s: want a number from 1", text)
	}
	return n
}

// The reasons why a job may end before its ranks.
const (
	byUser     = "was killed by its user"
	clientGone = "its margay run is gone"
	notKept    = "keep its output: "
	unrecorded = "its state could not be recorded for "
	lost       = "it was restarted and has lost the job" // how an end that a full disk prevented from being recorded appears later
)

// TestModel plays random histories of a job with a real serve, real journals, and the real order of
// records at the client, and compares the observations with a story, the reference. A message is in
// flight until the history delivers it, so that every connection can break, and every process can
// be killed, between any two messages.
func TestModel(t *testing.T) {
	n := histories(t)
	if ownDisk(t) {
		return
	}
	seed := check.Seed(t)
	authority, err := trust.NewAuthority("m")
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	empty := filepath.Join(root, "empty")
	st, err := openStore(mkdir(t, empty))
	if err != nil {
		t.Fatal(err)
	}
	if err := st.close(); err != nil {
		t.Fatal(err)
	}
	outcomes := make(map[string]int)
	for i := range n {
		synctest.Test(t, func(t *testing.T) {
			h := &history{t: t, rng: rand.New(rand.NewPCG(seed+i, 0)), root: root, story: newStory()}
			h.config = Config{
				Machine: "m", Substrate: "played", Roster: roster.New(2), Authority: authority, Secret: "secret", Owner: uint32(os.Getuid()),
				Timing: Timing{Late: 20 * time.Second, Dead: time.Minute, Kill: 20 * time.Second}.withDefaults(),
				AtOnce: int((seed + i) % 2), // all at the same time, or in turns
			}
			h.processes.on(&h.config)
			h.processes.set(ProcessRuns)
			h.startServe(empty)
			defer h.stopServe()
			defer func() {
				if t.Failed() {
					t.Logf("MARGAY_SEED=%d begins with this history:\n%s", seed+i, strings.Join(h.events, "\n"))
				}
			}()
			h.play()
			outcomes[h.outcome]++
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d histories, by outcome: %v", n, outcomes)
}

func mkdir(t *testing.T, dir string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// history is a random history of one job, on two nodes with two cores each.
type history struct {
	t       *testing.T
	rng     *rand.Rand
	root    string
	config  Config
	story   *story
	ledger  *playedLedger
	outcome string

	mu     sync.Mutex
	events []string // readable log of events

	server *Server
	ctx    context.Context
	kill   context.CancelFunc
	full   uint64 // the disk takes nothing beyond this position in a file; 0 while there is room

	wasFull bool

	nodes     []*actor
	client    *follower
	processes processes // the client's
}

func (h *history) note(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, fmt.Sprintf(format, args...))
}

func (h *history) fatal(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *history) play() {
	h.request()
	if h.rng.IntN(8) == 0 {
		h.killLaunch()
		return
	}
	h.launch()
	if h.client.stdin != control.StdinMode_STDIN_NONE {
		h.readInput()
	}
	for range h.rng.IntN(150) {
		h.event()
	}
	h.endRanks()
	for range h.rng.IntN(80) {
		h.event()
	}
	h.note("nothing more happens to the processes")
	h.drive()
	h.check()
}

// request submits the job.
func (h *history) request() {
	for i := range len(h.config.Roster.Nodes) {
		h.nodes = append(h.nodes, &actor{story: h.story, number: uint32(i), present: h.rng.IntN(2) == 0})
		h.connect(h.nodes[i])
	}
	s := spec(1 + uint32(h.rng.IntN(4)))
	s.Detach, s.KeepGoing = h.rng.IntN(2) == 0, h.rng.IntN(2) == 0
	h.note("a job of %d ranks, detached %v, keeps going %v", s.Ranks, s.Detach, s.KeepGoing)
	if !s.Detach {
		s.Stdin = control.StdinMode(h.rng.IntN(3))
	}
	h.client = &follower{story: h.story, reader: records.NewReader(), stdin: s.Stdin, detached: s.Detach, process: &h.processes}
	h.client.links = []*link{h.dial(h.server.serveLocal, &control.Hello{Role: control.Role_ROLE_CLIENT})}
	h.story.opened()
	h.client.link().call(&control.RunRequest{Spec: s, Files: []byte("files")})
}

// killLaunch makes the user end the job at any time of its launch, in which nodes may be away.
// Nothing of the job must be left.
func (h *history) killLaunch() {
	h.deliver(h.client.link(), "margay run")
	nodesDo := func(most int) {
		for range most {
			hops := append(h.nodeHops(h.nodes[0]), h.nodeHops(h.nodes[1])...)
			if len(hops) == 0 {
				return
			}
			hops[h.rng.IntN(len(hops))]()
		}
	}
	nodesDo(h.rng.IntN(8))
	away := h.nodes[h.rng.IntN(len(h.nodes))]
	if h.rng.IntN(2) == 0 {
		h.note("node %d loses its connection", away.number)
		h.lose(away.link)
	}
	h.client.job = 1
	h.userKills()
	nodesDo(h.rng.IntN(8))
	if !away.link.open() {
		h.connect(away)
	}
	nodesDo(1000)
	h.outcome = "killed while it was launched"
	if jobs := h.ask(&control.ListJobs{Job: 1})[0].(*control.Jobs).Jobs; len(jobs) != 1 || jobs[0].Phase != control.JobPhase_JOB_DONE || jobs[0].ExitCode == 0 {
		h.t.Fatalf("the job is recorded as %v", jobs)
	}
	h.nothingLeft()
}

// nothingLeft checks that no node has the job, and that all cores are free.
func (h *history) nothingLeft() {
	h.t.Helper()
	for _, a := range h.nodes {
		if a.hosts {
			h.t.Fatalf("node %d keeps job %d for ever", a.number, a.job)
		}
	}
	if status := h.ask(&control.Status{})[0].(*control.MachineStatus); status.FreeCores != 4 {
		h.t.Fatalf("%d cores are free", status.FreeCores)
	}
}

// launch takes the job to running.
func (h *history) launch() {
	h.flow()
	h.server.mu.Lock()
	defer h.server.mu.Unlock()
	if j := h.server.jobs[h.client.job]; j == nil || j.phase != control.JobPhase_JOB_RUNNING {
		h.t.Fatal("the job does not run")
	}
}

// event plays one event.
func (h *history) event() {
	a := h.nodes[h.rng.IntN(len(h.nodes))]
	switch p := h.rng.IntN(200); {
	case p < 30:
		h.write(a)
	case p < 36:
		h.rankEnds(a, h.rng.IntN(3))
	case p < 39:
		if len(a.open) > 0 {
			h.note("the children of rank %d end", a.open[0])
			a.childrenEnd(a.open[0])
		}
	case p < 43:
		h.client.stalled = !h.client.stalled
		h.note("the reader stalls: %v", h.client.stalled)
	case p < 47:
		if a.link.open() {
			h.note("node %d loses its connection", a.number)
			h.lose(a.link)
		}
	case p < 55:
		if !a.link.open() {
			h.connect(a)
		}
	case p < 58:
		h.killKernel(a)
	case p < 62:
		h.killServe()
	case p < 70:
		h.clientReturns()
	case p == 70:
		h.clientBreaks(false)
	case p == 71:
		h.clientBreaks(true)
	case p == 72:
		h.userKills()
	case p < 75:
		h.fillDisk()
	case p < 79:
		if h.full > 0 {
			h.note("the disk has room again")
			h.full = 0
		}
	case p == 79:
		h.wait()
	case p < 83:
		h.forgeEnd(a)
	case p < 85:
		h.note("the history fails: %v", h.ledger.toggle())
	case p < 90:
		h.types()
	case p < 97:
		a.tell() // another one that the node kernel has not taken
	case p == 97:
		h.clientStops()
	default:
		if hops := h.hops(); len(hops) > 0 {
			hops[h.rng.IntN(len(hops))]()
		}
	}
}

func (h *history) write(a *actor) {
	if writers := append(append([]uint32(nil), a.running...), a.open...); a.hosts && len(writers) > 0 {
		rank, kind := writers[h.rng.IntN(len(writers))], task.Stdout
		if h.rng.IntN(4) == 0 {
			kind = task.Stderr
		}
		a.write(rank, kind)
		h.note("rank %d writes line %d.%d", rank, a.number, a.lines)
	}
}

// readInput makes the ranks read while processes are killed and connections break, but nothing ends
// the job.
func (h *history) readInput() {
	for range h.rng.IntN(60) {
		a := h.nodes[h.rng.IntN(len(h.nodes))]
		switch p := h.rng.IntN(30); {
		case p < 6:
			h.types()
		case p == 6 && a.link.open():
			h.note("node %d loses its connection", a.number)
			h.lose(a.link)
		case p == 7:
			h.killKernel(a)
		case p == 8:
			h.killServe()
		case p < 12 && !a.link.open():
			h.connect(a)
		case p < 15:
			h.clientReturns()
		default:
			if hops := h.hops(); len(hops) > 0 {
				hops[h.rng.IntN(len(hops))]()
			}
		}
	}
	h.wait()
	h.allRead()
}

// types makes margay run read more of its standard input, or its end.
func (h *history) types() {
	if c := h.client; c.stdin != control.StdinMode_STDIN_NONE && !c.dead && !c.stopped && c.state == nil && !c.typedAll {
		from := len(c.typed)
		if c.typedAll = h.rng.IntN(5) == 0; !c.typedAll {
			c.typed += fmt.Sprintf("%d,", from)
		}
		h.note("margay run reads %d bytes, the end: %v", len(c.typed)-from, c.typedAll)
		c.sends(from)
	}
}

// allRead checks that the ranks have read all of the standard input exactly once, and its end.
func (h *history) allRead() {
	h.t.Helper()
	c := h.client
	for _, a := range h.nodes {
		for _, rank := range a.running {
			reads := c.stdin == control.StdinMode_STDIN_ALL || c.stdin == control.StdinMode_STDIN_FIRST && rank == 0
			if in := a.input[rank]; reads && (in.text != c.typed || in.end != c.typedAll) {
				h.t.Fatalf("rank %d waits for ever for its input: it has read %q, end %v, of %q, end %v", rank, in.text, in.end, c.typed, c.typedAll)
			}
		}
	}
}

func (h *history) rankEnds(a *actor, code int) {
	if a.hosts && len(a.running) > 0 {
		rank, children := a.running[h.rng.IntN(len(a.running))], h.rng.IntN(3) == 0
		h.note("rank %d ends with %d, children write on: %v", rank, code, children)
		a.end(rank, task.Status{Code: code}, children)
	}
}

// forgeEnd makes a node report that a running rank has ended, out of order. The number is 0 or, for
// a detached job, the number of an acknowledged record, which serve also knows after a restart,
// from the spool.
func (h *history) forgeEnd(a *actor) {
	if !a.hosts || len(a.running) == 0 || !a.link.open() {
		return
	}
	seq := uint64(0)
	if h.client.detached {
		seq = uint64(h.rng.IntN(int(a.acked) + 1))
	}
	rank := a.running[h.rng.IntN(len(a.running))]
	h.note("node %d says with number %d that rank %d has ended", a.number, seq, rank)
	a.forge(rank, seq)
}

// hops lists the possible deliveries: the oldest message in flight on each path.
func (h *history) hops() (hops []func()) {
	for _, a := range h.nodes {
		hops = append(hops, h.nodeHops(a)...)
	}
	for i, l := range h.client.links {
		if len(l.sent) > 0 {
			hops = append(hops, func() { h.deliver(l, fmt.Sprintf("margay run (connection %d)", i)) })
		}
		if l.incoming() > 0 && !h.client.dead && !h.client.stopped && !h.client.stalled {
			hops = append(hops, func() {
				f := l.receive()
				h.note("serve -> margay run (connection %d): %s", i, brief(f))
				h.fatal(h.client.take(f))
			})
		}
	}
	return hops
}

func (h *history) nodeHops(a *actor) (hops []func()) {
	if len(a.told) > 0 || a.tell() {
		hops = append(hops, a.forward)
	}
	if a.ends.Waits() {
		hops = append(hops, func() {
			h.note("node %d sends the ends that have waited", a.number)
			a.send(a.ends.Flush())
		})
	}
	if a.link != nil && len(a.link.sent) > 0 {
		hops = append(hops, func() { h.deliver(a.link, fmt.Sprintf("node %d", a.number)) })
	}
	if a.link != nil && a.link.incoming() > 0 {
		hops = append(hops, func() {
			f := a.link.receive()
			h.note("serve -> node %d: %s", a.number, brief(f))
			a.take(f)
		})
	}
	return hops
}

// flow delivers messages until none is in flight.
func (h *history) flow() {
	for hops := h.hops(); len(hops) > 0; hops = h.hops() {
		hops[h.rng.IntN(len(hops))]()
	}
}

// deliver delivers a message to serve, whose disk may be full.
func (h *history) deliver(l *link, from string) {
	h.note("%s -> serve: %s", from, brief(l.sent[0]))
	h.onDisk(func() { l.deliver() })
}

// dial opens a connection to serve up to the handshake.
func (h *history) dial(serve func(*control.Conn) error, hello *control.Hello) *link {
	l := newLink()
	h.server.running.Go(func() { h.server.hold(h.ctx, l, serve, (*control.Conn).Close) })
	hello.Version, hello.Program = control.Version, "a played program"
	l.send(hello)
	l.deliver()
	if f := l.receive(); f.GetWelcome() == nil {
		h.t.Fatalf("serve answers Hello with %v", f)
	}
	return l
}

// connect registers a node. All other messages from serve stay in flight.
func (h *history) connect(a *actor) {
	h.note("node %d connects", a.number)
	a.link = h.dial(h.server.serveNode, &control.Hello{
		Role: control.Role_ROLE_NODE, Node: a.number, Token: trust.NodeToken(h.config.Secret, id.Node(a.number), 1),
	})
	a.link.call(a.registration())
	h.onDisk(func() { a.link.deliver() })
	if f := a.link.receive(); f.GetRegistered() == nil {
		h.t.Fatalf("serve answers Register with %v", f)
	}
}

// lose cuts a connection. The other side may receive some of the messages in flight to it before it
// notices.
func (h *history) lose(l *link) {
	h.onDisk(l.cut)
	l.received = l.received[:h.rng.IntN(len(l.received)+1)]
}

// killKernel kills a node kernel. Its successor takes over the job from job init. Messages between
// the two may or may not be lost.
func (h *history) killKernel(a *actor) {
	h.note("the kernel of node %d is killed", a.number)
	if a.link.open() {
		h.lose(a.link)
	}
	a.link.received = nil
	a.ends = records.Gather{}
	if h.rng.IntN(2) == 0 {
		a.told = nil
	}
	if a.hosts {
		a.journal.Rewind()
	}
}

// killServe kills serve, and starts another one with the recorded state. That needs disk space.
func (h *history) killServe() {
	h.full = 0
	h.note("serve is killed and started again")
	dir := h.config.Dir
	state, err := os.MkdirTemp(h.root, "")
	h.fatal(err)
	h.fatal(os.CopyFS(state, os.DirFS(dir))) // writes of the old serve while it ends do not count
	h.stopServe()
	for _, a := range h.nodes {
		h.lose(a.link)
	}
	for _, l := range h.client.links {
		l.cut()
	}
	h.start(state)
}

// startServe starts serve with a copy of the files in a folder.
func (h *history) startServe(from string) {
	state, err := os.MkdirTemp(h.root, "")
	h.fatal(err)
	h.fatal(os.CopyFS(state, os.DirFS(from)))
	h.start(state)
}

func (h *history) start(dir string) {
	h.config.Dir = dir
	h.ledger = h.ledger.successor()
	h.config.History = h.ledger
	st, err := openStore(dir)
	h.fatal(err)
	ctx, kill := context.WithCancel(context.Background())
	h.ctx, h.kill = ctx, kill
	h.config.Log = func(format string, args ...any) {
		if ctx.Err() == nil && !strings.Contains(fmt.Sprintf(format, args...), "public key") { // the nodes here have none
			h.note("    serve: "+format, args...)
		}
	}
	h.server, err = newServer(h.config, nil, st)
	h.fatal(err)
	h.fatal(h.server.begin(h.ctx))
	synctest.Wait()
}

func (h *history) stopServe() {
	h.kill()
	h.server.running.Wait()
	h.server.history.close()
	h.fatal(errors.Join(h.server.chooser.Close(), h.server.store.close(), os.RemoveAll(h.config.Dir)))
}

// clientReturns makes a client that has lost its connection attach to the job again.
func (h *history) clientReturns() {
	c := h.client
	if c.dead || c.stopped || c.state != nil || c.link().open() {
		return
	}
	h.note("margay run connects again (connection %d)", len(c.links))
	c.links = append(c.links, h.dial(h.server.serveLocal, &control.Hello{Role: control.Role_ROLE_CLIENT}))
	c.link().call(&control.Attach{Job: c.job})
}

// clientStops stops the process of the client, or has it continue. A stopped client takes nothing,
// and does not connect again.
func (h *history) clientStops() {
	c := h.client
	if c.dead || c.state != nil {
		return
	}
	c.stopped = !c.stopped
	h.note("margay run is stopped: %v", c.stopped)
	if c.stopped {
		h.processes.set(ProcessStopped)
	} else {
		h.processes.set(ProcessRuns)
	}
}

// clientBreaks cuts the client's connection, because the client is killed or for another reason.
func (h *history) clientBreaks(dead bool) {
	c := h.client
	if c.dead || !c.link().open() && !dead {
		return
	}
	h.note("margay run loses its connection, killed for good: %v", dead)
	if c.dead = dead; !h.client.detached {
		h.story.may(clientGone)
	}
	if dead {
		h.processes.set(ProcessEnded)
	}
	h.onDisk(c.link().cut)
}

// userKills ends the job by force, from another client.
func (h *history) userKills() {
	h.note("the user kills the job")
	h.story.may(byUser)
	h.onDisk(func() { h.ask(&control.Kill{Job: h.client.job, Force: true}) })
}

// ask sends a request from another client, and returns all messages that this client gets.
func (h *history) ask(request proto.Message) (answers []proto.Message) {
	l := h.dial(h.server.serveLocal, &control.Hello{Role: control.Role_ROLE_CLIENT})
	defer l.cut()
	l.call(request)
	l.deliver()
	for f := l.receive(); f != nil; f = l.receive() {
		answers = append(answers, f.Message())
	}
	return answers
}

// fillDisk leaves no space on the disk, or only enough for some more output.
func (h *history) fillDisk() {
	h.wasFull = true
	if h.full = 8192; h.rng.IntN(3) == 0 {
		h.full = 1 + uint64(h.rng.IntN(500))
		if h.client.detached {
			h.story.may(notKept)
		}
	}
	h.note("the disk is full behind %d", h.full)
}

// onDisk runs do with the disk as full as it is at this point.
func (h *history) onDisk(do func()) {
	if h.full == 0 {
		do()
		return
	}
	room := fullDisk(h.t, h.full)
	defer room()
	do()
}

// wait lets minutes pass in which all nodes are connected and nothing but a slow reader or a
// stopped client holds up messages.
func (h *history) wait() {
	for _, a := range h.nodes {
		if !a.link.open() {
			h.connect(a)
		}
	}
	h.clientReturns()
	if h.note("minutes pass"); h.full > 0 {
		h.story.may(unrecorded)
	}
	for range 15 {
		h.pass()
	}
}

func (h *history) pass() {
	h.flow()
	for _, a := range h.nodes {
		a.link.send(&control.Heartbeat{Number: 1})
		h.onDisk(func() { a.link.deliver() })
	}
	h.onDisk(func() { time.Sleep(10 * time.Second); synctest.Wait() })
}

// drive brings the history to rest: no process is killed any longer, all ranks end, and all
// messages are delivered.
func (h *history) drive() {
	h.full, h.client.stalled = 0, false
	if h.client.stopped {
		h.clientStops()
	}
	h.ledger.takes()
	h.wait()
	h.endRanks()
	h.wait()
}

func (h *history) endRanks() {
	for _, a := range h.nodes {
		for a.hosts && len(a.running) > 0 {
			h.rankEnds(a, h.rng.IntN(2))
		}
	}
}

// check compares the end of the job, and the observed output, with the story.
func (h *history) check() {
	h.t.Helper()
	jobs := h.ask(&control.ListJobs{Job: h.client.job})[0].(*control.Jobs).Jobs
	if len(jobs) != 1 || jobs[0].Phase != control.JobPhase_JOB_DONE {
		h.t.Fatalf("the job waits for ever: %v", jobs)
	}
	s := jobs[0]
	if h.wasFull && len(h.story.reasons) > 0 {
		h.story.may(lost)
	}
	h.outcome = "complete"
	for _, reason := range h.story.reasons {
		if strings.Contains(s.Error, reason) {
			h.outcome = reason
		}
	}
	if h.client.detached {
		h.replay(s)
	} else if state := h.client.state; state != nil {
		h.fatal(h.story.ended(state.ExitCode, int32(state.FirstFailed), state.Ranks, state.Error.GetText()))
		unrecorded := h.wasFull && state.ExitCode != 0 // a later serve may know only how the ranks ended, but not why the job failed
		if s.ExitCode != state.ExitCode && !unrecorded {
			h.t.Fatalf("margay run ended with %d, and the job is recorded as %v", state.ExitCode, s)
		}
	} else if !h.client.dead {
		h.t.Fatalf("margay run waits for ever for the end of %v", s)
	}
	h.fatal(h.story.ended(s.ExitCode, control.None, s.RankStates, s.Error))
	if last := h.ledger.last(s.Job); last == nil || last.Status != s.ExitCode {
		h.t.Fatalf("the job is recorded as %v, and its history is %v", s, last)
	}
	h.nothingLeft()
}

// replay reads the output of a detached job.
func (h *history) replay(s *control.JobSummary) {
	h.story.opened()
	answers := h.ask(&control.Attach{Job: s.Job, Output: true})
	for _, m := range answers {
		if m, ok := m.(*control.Record); ok {
			for r := range records.Each(m) {
				h.fatal(h.story.saw(r))
			}
		}
	}
	e, failed := answers[len(answers)-1].(*control.Error)
	if failed != (s.Missing != "") || !failed && h.story.unseen() != "" {
		h.t.Fatalf("margay logs ends with %v without %q, and the job is recorded as %v", e, h.story.unseen(), s)
	}
}

var _ net.Conn = (*link)(nil)
