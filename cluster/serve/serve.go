// Package serve is the service node's daemon: it tracks the nodes of a machine, allocates their
// cores, records jobs, and relays between a job's client and its nodes.
//
// serve holds no process and no output of a job: both stay on the nodes. It can be killed and
// started again at any time; nodes and clients reconnect and report their state, and the store has
// the requests.
//
// Locks: Server.mu guards all tables and everything in them. Messages are sent with it held, which
// is safe because sending never blocks (control.Conn.Send); blocking calls are made without it.
// Server.placing, which serializes insertions and removals of the machine's extensions on nodes,
// Server.replacing, which does so for those in slot place, and frames.listing, which serializes the
// lists of jobs of a user, are taken before Server.mu. spool.mu guards the file of a job's output
// and is taken last, but before outputs.mu, which guards the sizes of all of these files. So are
// union.mu, which guards the contents that the nodes of a job lack, chronicle.mu, which guards the
// records that wait for the history, and frames.mu, which guards the room for the requests of a
// user.
package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"margay/cluster/control"
	"margay/cluster/fitness"
	"margay/cluster/permit"
	"margay/cluster/placement"
	"margay/cluster/roster"
	"margay/cluster/trust"
	"margay/kernel/abi/id"
	"margay/kernel/gate"
	"margay/nimble/engine"
)

// Config is the configuration of a serve.
type Config struct {
	Machine   string
	Substrate string
	Roster    roster.Roster    // the machine's nodes, as far as its holder has recorded them
	Authority *trust.Authority // the machine's key
	Secret    string           // nodes show tokens made from it (trust.NodeToken)
	Dir       string           // has the store and the output of detached jobs
	Log       func(format string, args ...any)

	// Address returns the address of a node by its number; nil if nodes bring their own.
	Address func(node id.Node) netip.Addr

	// Console returns the last lines of a node's console, for messages; nil if there is none.
	Console func(node id.Node, lines int) []string

	// KeepFirmwareLog writes a log that the firmware of a node has kept to disk, behind the logs
	// before it, or if first is set, in their place. Calls for one node do not overlap. Nil: no log
	// is kept.
	KeepFirmwareLog func(node id.Node, text []byte, first bool) error
	// RemoveFirmwareLog removes all logs that the firmware of a node has kept. It is set if
	// KeepFirmwareLog is.
	RemoveFirmwareLog func(id.Node) error

	Engine engine.Engine // runs the extensions in slot place; nil: none can be inserted

	History History // gets a record of each job that ends; nil: no history

	Fitness fitness.Limits // that idle nodes must keep
	Timing  Timing
	AtOnce  int // how many nodes of a job are asked at a time, at most, to launch or to end it; 0: all

	Owner  uint32                                 // the user whose processes the machine is made of
	Access permit.Policy                          // lets others in
	Audit  *permit.Audit                          // gets the refusals of requests; nil: no log
	Peer   func(c net.Conn) (control.Peer, error) // returns the user at the other end of a client's connection; nil: control.PeerOf

	Process func(pid int32) (ProcessState, uint64, error) // returns the state of a client's process, and when it was started; nil: StateOf

	Remote net.Listener // for users of other hosts, in TCP; Run closes it; nil: there is none
}

// usualDead is the silence after which a node is dead on a machine of few nodes.
const usualDead = 10 * time.Second

// Timing contains the timeouts of a serve. A zero field means the default. The first three are for
// machines of few nodes (Timing.pace).
type Timing struct {
	Heartbeat time.Duration // interval between the heartbeats of a node; default 500 ms
	Late      time.Duration // silence after which a node is late; default 2 s
	Dead      time.Duration // silence after which a node is dead; default usualDead
	Space     time.Duration // how far apart the heartbeats of different nodes are on average, at least; default 1 ms
	Each      time.Duration // how much longer a job's launch may wait for a node, for each node of the job; default 0
	Boot      time.Duration // how long a node may take to register; default 2 min
	Orphan    time.Duration // how long a job waits for its client after serve was started again, if serve cannot see the client's process; default 4 s
	Alive     time.Duration // the same for a process that serve sees running; default 5 min
	Away      time.Duration // how long a job waits for a client on another host that has lost its connection; default 30 s
	Stopped   time.Duration // how long a stopped job waits for a client whose process serve cannot see; default 24 h
	Kill      time.Duration // from the polite to the hard signal when a job is ended; default 2 s
	Records   time.Duration // how long the records of ended ranks may be missing; default 30 s
	Room      time.Duration // how long a job may stand still because it cannot be recorded; default 2 min
}

func (t Timing) withDefaults() Timing {
	set := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	set(&t.Heartbeat, 500*time.Millisecond)
	set(&t.Late, 2*time.Second)
	set(&t.Dead, usualDead)
	set(&t.Space, time.Millisecond)
	set(&t.Boot, 2*time.Minute)
	set(&t.Orphan, 4*time.Second)
	set(&t.Alive, 5*time.Minute)
	set(&t.Away, 30*time.Second)
	set(&t.Stopped, 24*time.Hour)
	set(&t.Kill, 2*time.Second)
	set(&t.Records, 30*time.Second)
	set(&t.Room, 2*time.Minute)
	return t
}

// pace returns by how much all times of heartbeats are longer on a machine of so many nodes.
func (t Timing) pace(nodes int) time.Duration {
	return max(1, (time.Duration(nodes)*t.Space+t.Heartbeat-1)/t.Heartbeat)
}

// deadAfter returns the silence after which a node is dead whose heartbeats have a pace. A longer
// time than the usual one has room for longer intervals already.
func (t Timing) deadAfter(pace time.Duration) time.Duration {
	return max(t.Dead, pace*min(t.Dead, usualDead))
}

// Silence returns the silence after which a node of a machine of so many nodes is dead.
func (t Timing) Silence(nodes int) time.Duration {
	t = t.withDefaults()
	return t.deadAfter(t.pace(nodes))
}

// pace is Timing.pace for the nodes that the machine has now. The caller holds Server.mu.
func (s *Server) pace() time.Duration { return s.config.Timing.pace(len(s.roster.Nodes)) }

// Server is the state of a serve.
type Server struct {
	config  Config
	tls     *tls.Config // for nodes
	users   *tls.Config // for users of other hosts
	log     *gate.Log   // logs what strangers do at the nodes' port
	known   *gate.Log   // logs connections of known peers that end with an error
	store   *store
	history *chronicle
	life    string // of the machine (life)
	started time.Time
	starts  uint32
	context context.Context
	running sync.WaitGroup

	heard   chan struct{} // closed when every node of an earlier serve has registered or is dead
	settled chan struct{} // closed after that, when the jobs whose launch the restart interrupted are gone

	mu           sync.Mutex
	roster       roster.Roster
	nodes        []*node         // by number, also those that have left (members)
	absent       map[uint32]bool // nodes of an earlier serve that have not registered yet
	jobs         map[uint32]*job
	ended        map[uint32]*job // jobs whose end could not be recorded yet
	remembered   []uint32        // jobs whose end is recorded, in the order of their ends
	remember     int             // how many of them the store remembers: keepEnded
	holder       *control.Conn
	guests       *control.Guests // as the holder has sent them last; nil: it has sent none
	room         chan struct{}   // closed, and replaced, when there may be room for more jobs
	queue        queue
	counted      bool                      // waiting.ahead is right in all of the queue
	held         map[string]*held          // by launch
	files        map[filesKey]*filesStream // of shared files
	debuggers    map[uint64]*debugger      // that wait for the node, by the number of the stream
	lastDebugger uint64                    // the number of the last of them
	callers      *gate.Room                // for connections of users that are let in
	frames       map[uint32]*frames        // of these users
	outputs      *outputs
	chooser      *placement.Chooser              // of nodes for jobs
	tokens       map[uint32]*control.StoredToken // by number
	remotes      map[*control.Conn]uint32        // the connections of other hosts, and the token of each
	update       *control.Update                 // the last one; nil: there was none. Not changed, but replaced
	working      map[uint32]control.UpdateStage  // by node: the stage whose work has begun
	troubles     map[uint32]string               // by node: why this work has failed, and is tried again

	keeping map[uint32]bool // numbers whose logs of firmware are being written

	replacing  sync.Mutex                  // held, before mu, while extensions in slot place are inserted and removed
	placing    sync.Mutex                  // held, before mu, while extensions of the machine are inserted and removed
	extensions []*control.MachineExtension // in the order of insertion; changed with both held, but with mu when a node leaves
}

// How many connections to the nodes' port may be without a join token: in addition to one for each
// node that a machine can have, and from one address.
const (
	strangers     = 64
	strangersEach = 16
)

// New opens the store, and loads the jobs that an earlier serve left running.
func New(c Config) (*Server, error) {
	c.Timing = c.Timing.withDefaults()
	if c.Peer == nil {
		c.Peer = control.PeerOf
	}
	if c.Process == nil {
		c.Process = StateOf
	}
	config, err := c.Authority.ServeTLS()
	if err != nil {
		return nil, err
	}
	st, err := openStore(c.Dir)
	if err != nil {
		return nil, err
	}
	return newServer(c, config, st)
}

// newServer makes a serve that uses the open store, and closes the store on an error.
func newServer(c Config, tls *tls.Config, st *store) (s *Server, err error) {
	s = &Server{
		config: c, tls: tls, log: gate.NewLog(c.Log, 10, 1), known: gate.NewLog(c.Log, 20, 1), store: st, started: time.Now(),
		heard: make(chan struct{}), settled: make(chan struct{}), absent: make(map[uint32]bool),
		jobs: make(map[uint32]*job), working: make(map[uint32]control.UpdateStage), troubles: make(map[uint32]string), keeping: make(map[uint32]bool), held: make(map[string]*held), files: make(map[filesKey]*filesStream), remotes: make(map[*control.Conn]uint32),
		debuggers: make(map[uint64]*debugger), remember: keepEnded,
		ended: make(map[uint32]*job), room: make(chan struct{}), callers: gate.NewRoom(userConns, userConnsEach), frames: make(map[uint32]*frames), outputs: newOutputs(int64(c.Access.Output) << 20), life: life(c.Authority.Certificate()),
	}
	s.seat(c.Roster)
	if s.chooser, err = placement.New(c.Engine, c.Log); err != nil {
		return nil, errors.Join(err, st.close())
	}
	if s.starts, err = st.countStart(); err == nil {
		s.tokens, err = st.tokens()
	}
	if err == nil && c.Remote != nil {
		s.users, err = c.Authority.UsersTLS()
	}
	if err == nil {
		s.history, err = newChronicle(c, st)
	}
	if err != nil {
		return nil, errors.Join(err, s.chooser.Close(), st.close())
	}
	return s, nil
}

// Run accepts clients on one listener and nodes on the other until ctx ends. If its cause is more
// than a cancellation, Run reports the cause to the clients. It closes all listeners. The nodes
// stay connected until the last client is gone: a client should receive the cause, and not an error
// that a node is not up.
func (s *Server) Run(ctx context.Context, clients, nodes net.Listener) error {
	inner, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	if err := s.begin(inner); err != nil {
		s.history.close()
		return errors.Join(err, s.chooser.Close(), s.store.close())
	}
	stop := context.AfterFunc(ctx, func() {
		cancel(s.farewell(context.Cause(ctx)))
		clients.Close()
		nodes.Close()
		if s.config.Remote != nil {
			s.config.Remote.Close()
		}
	})
	defer stop()
	waiting := gate.New(gate.Config{Most: strangers + roster.Most, MostEach: strangersEach, Wait: 2 * control.HelloTimeout, Log: s.log})
	attached, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	s.running.Go(func() {
		s.accept(attached, tls.NewListener(waiting.Listener(nodes), s.tls), s.serveNode, (*control.Conn).Close)
	})
	var users sync.WaitGroup // of other hosts
	if s.config.Remote != nil {
		users.Go(func() { s.acceptRemote(inner) })
	}
	s.accept(inner, clients, s.serveLocal, func(c *control.Conn) { dismiss(c, context.Cause(inner)) })
	users.Wait()
	cancel(nil)
	release()
	s.running.Wait()
	s.history.close()
	s.closeLogs()
	return errors.Join(s.chooser.Close(), s.store.close())
}

func (s *Server) closeLogs() {
	s.log.Close()
	s.known.Close()
	for _, n := range s.nodes {
		n.closeLogs()
	}
}

// begin restores the state of an earlier serve and watches the nodes until ctx ends.
func (s *Server) begin(ctx context.Context) error {
	s.context = ctx
	s.history.begin()
	s.countOutputs()
	if err := s.restore(); err != nil {
		return err
	}
	s.running.Go(func() { s.watch(ctx) })
	return nil
}

// farewell ends the jobs of clients when serve ends for a reason that concerns them, and returns
// the reason in the form that clients receive.
func (s *Server) farewell(cause error) error {
	if errors.Is(cause, context.Canceled) {
		return cause
	}
	s.config.Log("%v", cause)
	down := control.Failf(control.Code_CODE_DOWN, "%v", cause)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.jobs {
		if j.finishing {
			continue
		}
		s.history.enter(s.historyOfDown(j, down))
		if j.client != nil {
			if j.phase != control.JobPhase_JOB_ENDING { // an earlier serve has recorded how it ended
				j.failure = down
			}
			j.phase, j.finishing = control.JobPhase_JOB_DONE, true
			j.tellClient()
		}
	}
	return down
}

// dismiss closes the connection of a client. It sends the reason first, unless serve is only being
// restarted.
func dismiss(conn *control.Conn, cause error) {
	if errors.Is(cause, context.Canceled) {
		conn.Close()
		return
	}
	conn.Dismiss(cause)
}

// accept serves each connection of l on its own goroutines until l is closed. It returns when all
// connections have ended; when ctx ends, it closes the remaining ones.
func (s *Server) accept(ctx context.Context, l net.Listener, serve func(*control.Conn) error, end func(*control.Conn)) {
	var open sync.WaitGroup
	defer open.Wait()
	for {
		c, err := l.Accept()
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.log.Printf("accept: %v", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		open.Go(func() { s.hold(ctx, c, serve, end) })
	}
}

// hold serves one connection until it or ctx ends.
func (s *Server) hold(ctx context.Context, c net.Conn, serve func(*control.Conn) error, end func(*control.Conn)) {
	conn := control.NewConn(c)
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { end(conn) })
	defer stop()
	if err := serve(conn); err != nil && !errors.Is(err, control.ErrClosed) && !errors.Is(err, io.EOF) && ctx.Err() == nil {
		log := s.known
		if !gate.Admitted(c) {
			log = s.log
		}
		log.Printf("connection from %s: %v", name(c), err)
	}
}

func name(c net.Conn) string {
	if a := c.RemoteAddr(); a != nil && a.String() != "" && a.String() != "@" {
		return a.String()
	}
	return "a local client"
}

// serveLocal serves a connection to the unix socket, from a client or the holder.
func (s *Server) serveLocal(conn *control.Conn) error {
	peer, err := s.config.Peer(conn.NetConn())
	if err != nil {
		err = fmt.Errorf("serve: peer of the connection: %w", err)
		conn.Refuse(err)
		return err
	}
	caller, leave, err := s.enterCaller(peer)
	if err != nil {
		conn.Refuse(err)
		return err
	}
	defer leave()
	return s.serveAs(conn, caller, s.launcherOf(peer))
}

// serveAs serves a connection of a user, a client's or the holder's.
func (s *Server) serveAs(conn *control.Conn, caller permit.Caller, from launcher) error {
	hello, err := conn.Meet()
	if err != nil {
		conn.Refuse(err)
		return err
	}
	switch hello.Role {
	case control.Role_ROLE_CLIENT:
	case control.Role_ROLE_HOLDER:
		if err := s.mayHold(caller); err != nil {
			conn.Refuse(err)
			return err
		}
	case control.Role_ROLE_FILES:
		if err := s.mayShare(caller, hello.Job); err != nil {
			conn.Refuse(err)
			return err
		}
		return s.serveFiles(conn, hello, sideClient)
	case control.Role_ROLE_DEBUG:
		return s.serveDebugger(conn, hello, caller)
	default:
		err := control.Failf(control.Code_CODE_REFUSED, "only clients and the holder are served here")
		conn.Refuse(err)
		return err
	}
	if err := conn.Send(&control.Welcome{Version: control.Version, Machine: s.config.Machine}); err != nil {
		return err
	}
	if hello.Role == control.Role_ROLE_HOLDER {
		return s.serveHolder(conn)
	}
	c := &client{server: s, conn: conn, caller: caller, launcher: from}
	if caller.Role == permit.User {
		c.questions = make(chan struct{}, mostQuestions)
		c.inlet.frames, c.inlet.context = s.framesOf(caller.UID), s.context
		conn.Within(&c.inlet)
	}
	defer c.gone()
	return conn.Serve(c.handle)
}

// serveHolder receives the holder's reports about the substrates of nodes.
func (s *Server) serveHolder(conn *control.Conn) error {
	s.mu.Lock()
	s.holder = conn
	for n := range s.members() {
		if n.health == control.NodeHealth_NODE_UP || n.health == control.NodeHealth_NODE_LATE {
			_ = conn.Send(&control.NodeUp{Node: n.number})
		}
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.holder == conn {
			s.holder = nil
		}
	}()
	conn.Distrust() // it forwards the output of nodes' consoles
	return conn.Serve(func(f *control.Frame) {
		switch m := f.Message().(type) {
		case *control.NodeBoot:
			s.nodeBoot(m)
		case *control.NodeExit:
			s.nodeExit(m)
		case *control.NodeStage:
			s.nodeStage(m)
		case *control.NodePanic:
			s.nodePanic(m)
		case *control.Roster:
			conn.Answer(f, &control.Done{}, s.adopt(m))
		case *control.Guests:
			s.mu.Lock()
			s.guests = m
			s.mu.Unlock()
		case *control.TokenShown:
			s.tokenShown(m)
		}
	})
}
