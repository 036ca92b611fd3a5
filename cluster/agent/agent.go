// Package agent connects a node to its machine. It registers the node with serve, passes serve's
// requests to the node kernel, reports the events of jobs to serve, and forwards the files of jobs
// down the tree.
//
// The connection to serve may break at any time. The agent then opens a new one and registers again
// with its jobs. Nothing is lost: serve requests a rewind and receives the unacknowledged records
// again, and the fault of a job is sent after each registration until the job is forgotten.
//
// Requests about one job are handled in order of arrival, also across two connections: a node that
// has forgotten a job never prepares it afterwards.
//
// Ends of ranks that come within a short time travel to serve together, but none that serve or a
// user may be waiting for (records.Gather). An end that waits here when the node kernel is killed
// is an unacknowledged record.
//
// Locks: Agent.mu guards the connection and the tables of faults, of copies, of turns and of ends.
// It is held while records are sent, so that they are sent in order.
package agent

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/trust"
	"margay/kernel"
	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
	"margay/kernel/extension"
	"margay/kernel/gate"
	"margay/kernel/hardware"
	"margay/kernel/kexec"
	"margay/kernel/klog"
	"margay/kernel/record"
	"margay/kernel/stack"
	"margay/kernel/task"
)

// FabricPort is the port on which a node accepts other nodes. In the network of a host, where
// others may have it, Linux chooses one.
const FabricPort = 7118

// The pause between two attempts to reach serve.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = time.Second
)

// silence is the time after which the agent reconnects if serve answers no heartbeat, or
// silentBeats heartbeats if that is longer: on a machine of many nodes, heartbeats are rare. There,
// a hosted node, which notices the end of serve at once, waits for hostedBeats: both may lack the
// processor, and a new connection spoils the launch of a job. That is three quarters of the silence
// after which serve takes the node for dead, so that a node whose connection has lost its packets
// is back before.
const (
	silence     = 5 * time.Second
	silentBeats = 5
	hostedBeats = 15
)

// silenceOf returns the time after which the agent reconnects, with an interval of heartbeats.
func (a *Agent) silenceOf(every time.Duration) time.Duration {
	if a.config.Boot.Substrate == node.Hosted && every > usualBeat {
		return hostedBeats * every
	}
	return max(silence, silentBeats*every)
}

// Config configures an agent.
type Config struct {
	Boot    node.Config
	Version string // of the node image
	Log     func(format string, args ...any)
	Restart func() // ends this process, to be started again by PID 1
	// Reboot reboots the node. It is called when serve has not been reached for the time Orphan:
	// the machine has ended, and nothing else ends the node. Nil: never.
	Reboot func()
	Orphan time.Duration

	Linux Linux  // starts another one in the place of this node's; nil: it is the host's, and stays
	Image string // the image that an update has given the node; empty: none has

	// KernelLog reads the log of this node's Linux: klog.Read. Nil: it is the host's.
	KernelLog func(context.Context, klog.Query) (klog.Batch, error)

	// FirmwareLogs is the folder where the Linux of the node shows the logs of earlier boots that
	// firmware has kept: pstore.Dir. Empty: it is the host's.
	FirmwareLogs string

	// Modules are the names of the modules that the Linux of the node has loaded; none if the node
	// is hosted.
	Modules []string

	// Protocol overrides the protocol version that the agent announces; 0: the real one.
	Protocol uint32
}

// Agent is a node's agent. It implements kernel.Sink.
type Agent struct {
	config Config
	node   Kernel
	key    trust.NodeKey
	bootID string
	serve  *tls.Config
	peers  *gate.Log // for misbehaviour of other nodes

	listener  net.Listener
	datagrams *net.UDPConn  // nil if the fabric is TCP
	joined    bool          // the fabric, with the first registration
	firmware  chan struct{} // has a value while logs of firmware are moved
	reached   time.Time     // when it last registered; used by Run alone
	beat      atomic.Int64  // the interval of its heartbeats, in nanoseconds

	mu      sync.Mutex
	conn    *control.Conn                // nil while there is none
	faults  map[id.Job]*control.JobFault // by job: why it cannot continue
	copies  map[id.Job]*copying
	turns   map[id.Job]*turn           // by job: its last unfinished request
	sharing map[id.Job]context.Context // by job: the connection to serve that keeps a stream of its shared files
	ends    map[id.Job]*ends           // by job: ends of its ranks that wait for others
	pause   time.Duration              // how long an end waits at most; tests change it
}

// Linux loads and starts another Linux: a *kexec.Loader.
type Linux interface {
	Write(p kexec.Part, offset uint64, data []byte) error
	Load(hashes kexec.Hashes, cmdline string) error
	Start() error
	Unload() error
}

var _ Linux = (*kexec.Loader)(nil)

// Kernel is the node kernel as its agent sees it: a *kernel.Node.
type Kernel interface {
	Adopt() (listener *os.File, err error)
	Boot() error
	PowerOff() error
	KeepListener(*os.File) error
	Info() kernel.Info
	Jobs() []kernel.JobInfo

	Prepare(context.Context, kernel.JobSpec) (lacking []int, err error)
	Load(ctx context.Context, job id.Job, files io.Reader) error
	Start(ctx context.Context, job id.Job) error
	Signal(job id.Job, rank int, sig syscall.Signal) error
	Resize(job id.Job, size *task.Size) error
	Input(job id.Job, rank id.Rank, offset uint64, data []byte, eof bool) error
	Ack(job id.Job, seq uint64) error
	Rewind(job id.Job) error
	Finish(job id.Job) error
	ReadFiles(ctx context.Context, job id.Job, offset uint64, paths [][]byte) (piece []byte, last bool, err error)
	Share(ctx context.Context, job id.Job, stream net.Conn) error
	ReadStacks(ctx context.Context, job id.Job, wanted task.StacksBody) (*stack.Report, error)
	Debug(ctx context.Context, job id.Job, rank id.Rank, stream net.Conn) error
	Forget(job id.Job) (task.Unkept, error)

	Extensions() []extension.Info
	InsertExtension(job id.Job, r extension.Request) (handle id.Handle, err error)
	RemoveExtension(handle id.Handle, by string) error
	ExtensionNotes(seq uint64) []extension.Note
	SetDuties(change func(*kernel.Duties)) error
	Noise(context.Context, time.Duration) ([]kernel.CoreNoise, error)
	Events(kernel.EventQuery) (record.Batch, error)
	Sample() (kernel.Sample, error)

	Join(kernel.Membership)
	Stream(ctx context.Context, to id.Node, service string) (net.Conn, error)
}

var _ Kernel = (*kernel.Node)(nil)

// New makes an agent. Run starts it.
func New(c Config) (*Agent, error) {
	key, err := trust.NewNodeKey()
	if err != nil {
		return nil, err
	}
	serve, err := trust.ToServe(c.Boot.CA)
	if err != nil {
		return nil, err
	}
	return &Agent{
		config: c, key: key, serve: serve, peers: gate.NewLog(c.Log, 10, 1), bootID: bootID(), firmware: make(chan struct{}, 1),
		faults: make(map[id.Job]*control.JobFault), copies: make(map[id.Job]*copying), turns: make(map[id.Job]*turn),
		sharing: make(map[id.Job]context.Context), ends: make(map[id.Job]*ends), pause: endsPause,
	}, nil
}

// bootID identifies this boot of the node. A restart of the node kernel does not change it.
func bootID() string {
	text, err := os.ReadFile("/proc/1/stat")
	if err != nil {
		return trust.NewToken()
	}
	var fields [22]string
	args := make([]any, len(fields))
	for i := range fields {
		args[i] = &fields[i]
	}
	_, _ = fmt.Sscan(string(text), args...)
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return string(id) + fields[21] // when PID 1 started
}

// Run adopts the state of the previous node kernel and serves the machine until ctx ends.
func (a *Agent) Run(ctx context.Context, node Kernel) error {
	defer a.peers.Close()
	a.node = node
	kept, err := node.Adopt()
	if err != nil {
		return err
	}
	if err := node.Boot(); err != nil {
		a.config.Log("%v", err)
		return errors.Join(err, a.powerOff(ctx))
	}
	if err := errors.Join(a.listen(kept), a.openDatagrams()); err != nil {
		return err
	}
	last := time.Now() // with a connection to serve
	for retry := firstRetry; ctx.Err() == nil; {
		started := time.Now()
		err := a.session(ctx)
		a.config.Log("connection to serve at %s: %v", a.config.Boot.Serve, err)
		if time.Since(started) > silence {
			retry = firstRetry
		}
		if a.reached.After(started) {
			last = time.Now()
		}
		if a.config.Reboot != nil && time.Since(last) > a.config.Orphan {
			a.config.Log("serve has not been reached for %v: the node reboots", a.config.Orphan)
			a.config.Reboot()
		}
		select {
		case <-time.After(retry):
		case <-ctx.Done():
		}
		retry = min(2*retry, lastRetry)
	}
	return context.Cause(ctx)
}

// powerOff turns the node off, and waits for that.
func (a *Agent) powerOff(ctx context.Context) error {
	if err := a.node.PowerOff(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-time.After(silence):
	}
	return nil
}

// listen opens the fabric's listening socket, or takes the kept one.
func (a *Agent) listen(kept *os.File) (err error) {
	if kept != nil {
		defer kept.Close()
		a.listener, err = net.FileListener(kept)
		return err
	}
	a.listener, err = net.Listen("tcp", a.address().String())
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	file, err := a.listener.(*net.TCPListener).File()
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	defer file.Close()
	return a.node.KeepListener(file)
}

// address returns the address and port at which the node accepts other nodes. In the network of a
// host the port is 0 until it is known.
func (a *Agent) address() netip.AddrPort {
	port := uint16(FabricPort)
	if a.config.Boot.Host != "" {
		port = 0
		if a.listener != nil {
			port = a.listener.Addr().(*net.TCPAddr).AddrPort().Port()
		}
	}
	return netip.AddrPortFrom(a.config.Boot.Prefix().Addr(), port)
}

// openDatagrams opens the socket of a fabric that has one. A node without it does not register: it
// could not exchange messages with the other nodes, which use the same fabric.
func (a *Agent) openDatagrams() (err error) {
	if !node.Datagrams(a.fabric()) {
		return nil
	}
	a.datagrams, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a.config.Boot.Prefix().Addr(), 0)))
	if err != nil {
		return fmt.Errorf("agent: fabric %s: %w", a.fabric(), err)
	}
	return nil
}

// session is one connection to serve, from its opening to its end.
func (a *Agent) session(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var served sync.WaitGroup // requests of this connection are queued before requests of the next one
	defer served.Wait()
	dialing, done := context.WithTimeout(ctx, control.HelloTimeout)
	defer done()
	dialer := tls.Dialer{Config: a.serve}
	raw, err := dialer.DialContext(dialing, "tcp", a.config.Boot.Serve)
	if err != nil {
		return err
	}
	conn := control.NewConn(raw)
	defer conn.Close()
	defer cancel(nil)
	greeted := time.Now()
	welcome, err := conn.Greet(&control.Hello{
		Version: a.config.Protocol, Role: control.Role_ROLE_NODE, Token: a.config.Boot.Token, Node: a.self(),
		Program: fmt.Sprintf("the image of %s (margay %s)", a.config.Boot.Hostname(), a.config.Version),
	})
	if err != nil {
		return err
	}
	clock := compareWith(greeted, welcome.TimeNs)
	// Requests are handled only after connect, when answers can be sent.
	joined := make(chan struct{})
	served.Go(func() {
		cancel(conn.Serve(func(f *control.Frame) {
			select {
			case <-joined:
				a.handle(ctx, conn, f)
			case <-ctx.Done():
			}
		}))
	})
	info := a.info()
	beat, err := a.register(dialing, conn, info, clock)
	if err != nil {
		return err
	}
	a.reached = time.Now()
	a.beat.Store(int64(beat))
	a.connect(conn)
	defer a.disconnect()
	for _, j := range a.node.Jobs() {
		if j.Shared {
			go a.shareFiles(ctx, j.Job)
		}
	}
	close(joined)
	go a.bringFirmwareLogs(ctx, conn) // not waited for: firmware may hang
	a.config.Log("registered with serve at %s", a.config.Boot.Serve)
	return a.heartbeat(ctx, conn, beat, info, clock)
}

// connect makes conn the connection for reports to serve. It first sends the faults of jobs,
// because serve may have missed them.
func (a *Agent) connect(conn *control.Conn) {
	jobs := a.node.Jobs()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.conn = conn
	maps.DeleteFunc(a.faults, func(job id.Job, _ *control.JobFault) bool {
		return !slices.ContainsFunc(jobs, func(j kernel.JobInfo) bool { return j.Job == job })
	})
	clear(a.ends) // serve requests all that it lacks again
	for _, m := range a.faults {
		_ = conn.Send(m)
	}
}

func (a *Agent) disconnect() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.conn = nil
}

// register registers the node and its jobs with serve, and joins the fabric. It returns the
// interval of heartbeats. The registration has the first readings of the node: it may get a job
// before its first heartbeat.
func (a *Agent) register(ctx context.Context, conn *control.Conn, info *control.NodeInfo, clock offset) (time.Duration, error) {
	public, err := a.key.Public()
	if err != nil {
		return 0, err
	}
	free, err := hardware.FreeMemory()
	if err != nil {
		return 0, err
	}
	request := &control.Register{
		Node: a.self(), Boot: a.bootID, Info: info, PublicKey: public, FreeMemory: free, Vitals: vitals(clock),
	}
	for _, j := range a.node.Jobs() {
		request.Jobs = append(request.Jobs, &control.HostedJob{Job: uint32(j.Job), Phase: phases[j.Phase]})
	}
	reply, err := conn.Call(ctx, request)
	if err != nil {
		return 0, err
	}
	registered, ok := reply.(*control.Registered)
	if !ok {
		return 0, fmt.Errorf("agent: serve answered Register with %T", reply)
	}
	if !a.joined {
		if err := a.joinFabric(registered.Certificate); err != nil {
			return 0, err
		}
	}
	return time.Duration(registered.HeartbeatMs) * time.Millisecond, nil
}

// joinFabric gives the node kernel what it needs to open its transport.
func (a *Agent) joinFabric(certificate []byte) error {
	accept, connect, err := trust.BetweenNodes(a.config.Boot.CA, a.key, certificate)
	if err != nil {
		return err
	}
	a.joined = true
	a.node.Join(kernel.Membership{
		Listener: a.listener, Datagrams: a.datagrams, Accept: accept, Connect: connect, Peer: trust.PeerNode, Stream: a.stream,
	})
	return nil
}

// fabric returns the name of the fabric that the node uses.
func (a *Agent) fabric() string { return cmp.Or(a.config.Boot.Fabric, node.TCP) }

// self returns the node's number as messages have it.
func (a *Agent) self() uint32 { return uint32(a.config.Boot.Node) }

var phases = map[kernel.Phase]control.JobPhase{
	kernel.Prepared: control.JobPhase_JOB_PREPARED,
	kernel.Running:  control.JobPhase_JOB_RUNNING,
	kernel.Ended:    control.JobPhase_JOB_DONE,
	kernel.Ending:   control.JobPhase_JOB_ENDING,
}

func (a *Agent) info() *control.NodeInfo {
	info := a.node.Info()
	out := &control.NodeInfo{
		Address: a.address().String(), Hostname: cmp.Or(a.config.Boot.Host, a.config.Boot.Hostname()), Substrate: a.config.Boot.Substrate,
		Kernel: info.Kernel, Arch: runtime.GOARCH, Profile: a.config.Boot.Profile, Memory: info.Memory, Limits: info.Limits,
		Lacks: info.Lacks, Scheduler: info.Scheduler, Version: a.config.Version, Fabric: a.fabric(),
		Image: a.config.Image, Modules: a.config.Modules,
	}
	out.AllCores = info.AllCores
	if info.MessageCore != nil {
		out.MessageCore = uint32(info.MessageCore.ID)
	}
	for _, c := range info.Cores {
		out.Cores = append(out.Cores, uint32(c.ID))
	}
	return out
}

// heartbeat sends heartbeats to serve, with the node's description when it has changed. It returns
// when serve is silent. Silence is counted in ticks, not in time: a node that got no CPU time for a
// while could not receive answers.
func (a *Agent) heartbeat(ctx context.Context, conn *control.Conn, every time.Duration, sent *control.NodeInfo, clock offset) error {
	every = max(every, 10*time.Millisecond)
	silence := a.silenceOf(every)
	tick := time.NewTicker(1 + rand.N(every)) // all nodes may have registered at the same time
	defer tick.Stop()
	replies := make(chan reply, 1)
	waiting, looks := false, 0 // for an answer, and the ticks since
	var seen kernel.Info       // the last one that was compared with sent
	for number := uint64(1); ; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case r := <-replies:
			if r.err != nil {
				return r.err
			}
			waiting, looks = false, 0
			clock = r.offset
		case <-tick.C:
			if number == 1 {
				tick.Reset(every)
			}
			if waiting {
				if looks++; time.Duration(looks)*every >= silence {
					return fmt.Errorf("agent: serve has been silent for %v", silence)
				}
				continue
			}
			free, err := hardware.FreeMemory()
			if err != nil {
				return err
			}
			beat := &control.Heartbeat{Number: number, FreeMemory: free, Vitals: vitals(clock)}
			for _, j := range a.node.Jobs() {
				beat.Jobs = append(beat.Jobs, uint32(j.Job))
			}
			if now := a.node.Info(); !reflect.DeepEqual(now, seen) {
				seen = now
				if info := a.info(); !control.Same(info, sent) {
					beat.Info, sent = info, info
				}
			}
			number++
			waiting = true
			go func() {
				replies <- call(ctx, conn, beat)
			}()
		}
	}
}

// vitals reads what serve decides from whether this node is well.
func vitals(clock offset) *control.Vitals {
	return &control.Vitals{Space: hardware.FreeSpace("/tmp"), ClockNs: int64(clock.ahead), ClockErrorNs: int64(clock.err)}
}

// report sends a message to serve if there is a connection. Messages that must not be lost are sent
// again after the next registration.
func (a *Agent) report(m proto.Message) {
	a.mu.Lock()
	conn := a.conn
	a.mu.Unlock()
	if conn != nil {
		_ = conn.Send(m)
	}
}

// unkept is what a job leaves behind on this node, as a message.
func (a *Agent) unkept(u task.Unkept) *control.Unkept {
	return &control.Unkept{Node: a.self(), Files: u.Files, Names: u.Names, More: u.More}
}

// InputTaken implements kernel.Sink.
func (a *Agent) InputTaken(job id.Job, rank id.Rank, position uint64) {
	a.report(&control.StdinTaken{Job: uint32(job), Rank: uint32(rank), Offset: position})
}

// Fault implements kernel.Sink. The first fault of a job ends it.
func (a *Agent) Fault(job id.Job, err error) {
	m := &control.JobFault{Job: uint32(job), Error: a.failure(err)}
	var ended *id.EndedError
	if errors.As(err, &ended) {
		m.Ended = 1 + uint32(ended.Rank)
	}
	a.mu.Lock()
	if a.faults[job] == nil {
		a.faults[job] = m
	}
	if e := a.ends[job]; e != nil {
		a.sendRecords(e.Flush()) // they came first
	}
	a.mu.Unlock()
	a.report(m)
}

// LogLine forwards a line of the node's log to serve. The kernel's log has names of programs, which
// may be no UTF-8, and then there would be no frame. It is safe for concurrent use.
func (a *Agent) LogLine(level, text string) {
	a.report(&control.LogLine{Node: a.self(), Level: level, Text: strings.ToValidUTF8(text, "?"), TimeNs: time.Now().UnixNano()})
}
