package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/internal/check"
	"margay/kernel"
	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
	"margay/kernel/extension"
	"margay/kernel/klog"
	"margay/kernel/record"
	"margay/kernel/task"
)

// playedServe accepts the connections of agents as serve does.
type playedServe struct {
	*machine
	recorder
	listener net.Listener
	conns    chan *control.Conn // registered connections
	refuse   error              // the answer to Hello
	keep     func() error       // the answer to FirmwareLog
	sent     []proto.Message    // sent to every agent directly after Registered
}

func newServe(t *testing.T) *playedServe {
	t.Helper()
	s := &playedServe{machine: newMachine(t), conns: make(chan *control.Conn, 16)}
	config, err := s.authority.ServeTLS()
	if err != nil {
		t.Fatal(err)
	}
	if s.listener, err = tls.Listen("tcp", "127.0.0.1:0", config); err != nil {
		t.Fatal(err)
	}
	s.serve = s.listener.Addr().String()
	t.Cleanup(func() { s.listener.Close() })
	go func() {
		for {
			c, err := s.listener.Accept()
			if err != nil {
				return
			}
			go s.talk(control.NewConn(c))
		}
	}()
	return s
}

func (s *playedServe) talk(conn *control.Conn) {
	defer conn.Close()
	hello, err := conn.Meet()
	if err == nil {
		s.add(hello)
		err = s.refuse
	}
	if err != nil {
		conn.Refuse(err)
		return
	}
	_ = conn.Send(&control.Welcome{Version: control.Version, TimeNs: time.Now().Add(time.Hour).UnixNano()})
	_ = conn.Serve(func(f *control.Frame) {
		s.add(f.Message())
		switch m := f.Message().(type) {
		case *control.Register:
			cert, err := s.authority.Certify(id.Node(m.Node), m.PublicKey)
			conn.Answer(f, &control.Registered{Certificate: cert, HeartbeatMs: 20}, err)
			for _, m := range s.sent {
				_ = conn.Send(m)
			}
			s.conns <- conn
		case *control.FirmwareLog:
			conn.Answer(f, &control.Done{}, s.keep())
		case *control.Heartbeat:
			conn.Answer(f, m, nil)
		}
	})
}

// next waits for a node that has registered.
func (s *playedServe) next() *control.Conn {
	s.t.Helper()
	select {
	case conn := <-s.conns:
		return conn
	case <-time.After(patience):
		s.t.Fatalf("nobody registers within %v", patience)
		return nil
	}
}

// ask makes a request of the agent.
func (s *playedServe) ask(conn *control.Conn, request proto.Message) (proto.Message, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	return conn.Call(ctx, request)
}

// run runs the agent of node 3 until the test ends.
func (s *playedServe) run(k *playedKernel) (*Agent, *lines) {
	s.t.Helper()
	log := new(lines)
	a := s.agent(3, log)
	s.live(a, k)
	return a, log
}

// live runs an agent until the test ends.
func (s *playedServe) live(a *Agent, k *playedKernel) {
	s.t.Helper()
	ctx, cancel := context.WithCancelCause(context.Background())
	errStop := errors.New("the test is over")
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx, k) }()
	s.t.Cleanup(func() {
		cancel(errStop)
		select {
		case err := <-ended:
			if !errors.Is(err, errStop) {
				s.t.Errorf("the agent ended with %v", err)
			}
		case <-time.After(patience):
			s.t.Error("the agent does not end")
		}
		if k.transport != nil {
			k.transport.Close()
		} else {
			a.listener.Close()
		}
	})
}

// On a fabric of datagrams a node brings a socket for them, and does not register without it.
func TestDatagrams(t *testing.T) {
	check.Leaks(t)
	s := newServe(t)
	k := new(playedKernel)
	a := s.agent(3, new(lines))
	a.config.Boot.Fabric = node.TrustedUDP
	t.Cleanup(func() { a.datagrams.Close() })
	s.live(a, k)
	s.next()
	if r := first[*control.Register](t, &s.recorder); r.Info.Fabric != "udp-trusted" {
		t.Errorf("the agent registers %v", r)
	}
	check.AwaitFor(t, patience, "fabric", func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.transport != nil
	})
	if k.datagrams == nil || k.datagrams.LocalAddr().(*net.UDPAddr).IP.String() != "127.0.0.1" {
		t.Errorf("the node kernel gets the socket %v", k.datagrams)
	}
}

func TestNoDatagrams(t *testing.T) {
	check.Leaks(t)
	s := newServe(t)
	a := s.agent(3, new(lines))
	a.config.Boot.Fabric, a.config.Boot.Address = node.UDP, "203.0.113.1/24" // which this host does not have
	err := a.Run(t.Context(), new(playedKernel))
	defer a.listener.Close()
	if err == nil || !strings.HasPrefix(err.Error(), "agent: fabric udp: listen udp 203.0.113.1:0: bind: ") {
		t.Errorf("the agent ended with %v", err)
	}
	if met := all[*control.Hello](&s.recorder); len(met) > 0 {
		t.Errorf("it has met serve: %v", met)
	}
}

func TestSession(t *testing.T) {
	check.Leaks(t)
	s := newServe(t)
	k := new(playedKernel)
	a, log := s.run(k)
	conn := s.next()
	if hello := first[*control.Hello](t, &s.recorder); hello.Role != control.Role_ROLE_NODE || hello.Token != s.token || hello.Node != 3 ||
		hello.Program != "the image of node3 (margay v1)" {
		t.Errorf("the agent says %v", hello)
	}
	r := first[*control.Register](t, &s.recorder)
	if r.Node != 3 || r.Boot == "" || r.Info.Kernel != "9.9" || r.Info.Hostname != "node3" || r.Info.Fabric != "tcp" || r.Info.Address != fmt.Sprint("127.0.0.1:", FabricPort) ||
		len(r.Jobs) != 1 || r.Jobs[0].Job != 5 || r.Jobs[0].Phase != control.JobPhase_JOB_DONE {
		t.Errorf("the agent registers %v", r)
	}
	if v := r.Vitals; r.FreeMemory <= 0 || v == nil || v.Space <= 0 || v.ClockErrorNs < 0 || v.ClockNs+int64(time.Hour) > v.ClockErrorNs || v.ClockNs+int64(time.Hour) < -v.ClockErrorNs {
		t.Errorf("the agent registers with %d bytes of memory and %v, an hour behind serve", r.FreeMemory, v)
	}
	check.AwaitFor(t, patience, "two heartbeats", func() bool { return len(all[*control.Heartbeat](&s.recorder)) > 1 })
	if beats := all[*control.Heartbeat](&s.recorder); beats[0].Number != 1 || beats[1].Number != 2 || beats[0].FreeMemory <= 0 || beats[0].Info != nil {
		t.Errorf("heartbeats %v", beats)
	}
	// A changed description of the node is sent again.
	k.mu.Lock()
	k.shares = "a scheduler"
	k.mu.Unlock()
	told := func() (infos []*control.NodeInfo, later int) {
		for _, beat := range all[*control.Heartbeat](&s.recorder) {
			if beat.Info != nil {
				infos = append(infos, beat.Info)
			} else if len(infos) > 0 {
				later++
			}
		}
		return infos, later
	}
	check.AwaitFor(t, patience, "two heartbeats after a change", func() bool { _, later := told(); return later > 1 })
	if infos, _ := told(); len(infos) != 1 || infos[0].Scheduler != "a scheduler" || infos[0].Kernel != "9.9" {
		t.Errorf("serve was told %v", infos)
	}

	check.AwaitFor(t, patience, "registered agent", func() bool { return strings.Contains(log.String(), "registered with serve") })
	a.Record(5, task.Record{Seq: 1, Rank: 2, Stream: task.Stdout, Data: []byte("hi")})
	a.Record(5, task.Record{Seq: 2, Rank: 2, Stream: task.Exit, Status: task.Status{Signal: unix.SIGKILL, Reason: "out of memory", Time: time.Second}})
	a.InputTaken(5, 2, 77)
	a.Fault(5, task.ErrGone)
	a.Fault(6, fmt.Errorf("rank 0 has sent a message to %w", &id.EndedError{Rank: 2, Node: 1}))
	a.LogLine("warning", "hot: \xff ä")
	if m := first[*control.LogLine](t, &s.recorder); m.Node != 3 || m.Level != "warning" || m.Text != "hot: ? ä" {
		t.Errorf("a line of the log comes as %v", m)
	}
	records := all[*control.Record](&s.recorder)
	if len(records) != 2 || string(records[0].Data) != "hi" || records[0].Stream != control.Stream_STREAM_STDOUT || records[0].Exit != nil || records[0].Node != 3 ||
		records[1].Exit.GetSignal() != 9 || records[1].Exit.GetReason() != "out of memory" || records[1].Exit.TimeNs != 1e9 {
		t.Errorf("records come as %v", records)
	}
	if m := first[*control.StdinTaken](t, &s.recorder); m.Job != 5 || m.Rank != 2 || m.Offset != 77 {
		t.Errorf("taken input comes as %v", m)
	}
	if m := first[*control.JobFault](t, &s.recorder); m.Error.GetNode() != 3 || m.Error.Text != task.ErrGone.Error() {
		t.Errorf("a fault comes as %v", m)
	}
	if m := all[*control.JobFault](&s.recorder)[1]; m.Ended != 3 || m.Error.Text != "rank 0 has sent a message to rank 2 on node1, which has ended" {
		t.Errorf("a fault comes as %v", m)
	}

	// The connection breaks. The same boot registers again.
	conn.Close()
	s.next()
	if again := all[*control.Register](&s.recorder); len(again) != 2 || again[1].Boot != r.Boot || string(again[1].PublicKey) != string(r.PublicKey) {
		t.Errorf("the agent registers %v", again)
	}
}

// The fault of a job reaches serve even if there is no connection at the time: it is sent after
// each registration until the job is forgotten. Faults of unknown jobs are dropped.
func TestFaultsWithoutServe(t *testing.T) {
	check.Leaks(t)
	s := newServe(t)
	a := s.agent(3, new(lines))
	a.Fault(4, errors.New("it is gone"))
	a.Fault(5, errors.New("a message was lost"))
	a.Fault(5, errors.New("another one, too"))
	s.live(a, new(playedKernel))
	for round := 1; round <= 2; round++ {
		conn := s.next()
		check.AwaitFor(t, patience, "fault", func() bool { return len(all[*control.JobFault](&s.recorder)) >= round })
		if round == 2 {
			if _, err := s.ask(conn, &control.Forget{Job: 5}); err != nil {
				t.Error(err)
			}
		}
		conn.Close()
	}
	// Faults are sent before the first heartbeat.
	s.next()
	beats := len(all[*control.Heartbeat](&s.recorder))
	check.AwaitFor(t, patience, "heartbeat", func() bool { return len(all[*control.Heartbeat](&s.recorder)) > beats })
	faults := all[*control.JobFault](&s.recorder)
	if len(faults) != 2 || faults[0].Job != 5 || faults[0].Error.Text != "a message was lost" || !proto.Equal(faults[0], faults[1]) {
		t.Errorf("serve was told %v", faults)
	}
}

// sameExceptNow compares events except for the time of reading.
func sameExceptNow(got proto.Message, want *control.Events) bool {
	events, ok := got.(*control.Events)
	if ok {
		want.NowNs = events.NowNs
	}
	return ok && events.NowNs > 0 && proto.Equal(events, want)
}

// Requests are passed to the node kernel and answered with its result. Requests without an answer
// are handled in order.
func TestRequests(t *testing.T) {
	check.Leaks(t)
	s := newServe(t)
	k := new(playedKernel)
	_, log := s.run(k)
	conn := s.next()
	requests := []struct {
		request proto.Message
		called  string
	}{
		{&control.Prepare{Job: 6, Spec: new(control.JobSpec), Layout: alone(3)}, "prepare 6"},
		{&control.Start{Job: 6}, "start 6"},
		{&control.InsertExtension{Job: 5, Name: "y", Slot: "message", Number: 4}, "insert 5 y message 4"},
		{&control.RemoveExtension{Handle: 4}, "remove 4"},
		{&control.Forget{Job: 6}, "forget 6"},
	}
	for _, r := range requests {
		answer, err := s.ask(conn, r.request)
		if err != nil || !k.called(r.called) {
			t.Errorf("%T: %v, %v", r.request, answer, err)
		}
		if x, ok := answer.(*control.Extensions); ok && (len(x.Extensions) != 1 || x.Extensions[0].State != "removed: too many faults") {
			t.Errorf("inserted: %v", x)
		}
	}
	if x, err := s.ask(conn, new(control.ListExtensions)); err != nil || len(x.(*control.Extensions).Extensions) != 2 || x.(*control.Extensions).Extensions[0].Number != 3 {
		t.Errorf("extensions: %v, %v", x, err)
	}
	if x, err := s.ask(conn, &control.ExtensionLog{After: map[uint32]uint64{3: 7, 4: 9}}); err != nil || len(x.(*control.ExtensionNotes).Notes) != 1 || x.(*control.ExtensionNotes).Notes[0].Seq != 8 {
		t.Errorf("notes: %v, %v", x, err)
	}
	if x, err := s.ask(conn, &control.Noise{DurationMs: 1500}); err != nil || len(x.(*control.NoiseReport).Cores) != 1 || x.(*control.NoiseReport).Cores[0].Seconds != 1.5 {
		t.Errorf("noise: %v, %v", x, err)
	}
	question := &control.ReadEvents{Reader: 2, Leave: true, Generation: 3, Positions: []uint64{4, 5}, Job: 6}
	if x, err := s.ask(conn, question); err != nil || !k.called("events 2 true {3 [4 5]} job 6 1048576") || !sameExceptNow(x, &control.Events{
		Generation: 6, BegunNs: 5, KernelNs: 4, Positions: []uint64{7, 8}, Events: []byte("events"), Lost: 9, More: true,
	}) {
		t.Errorf("events: %v, %v", x, err)
	}
	if x, err := s.ask(conn, new(control.TakeSamples)); err != nil || !proto.Equal(x, &control.Samples{Nodes: []*control.NodeSample{{
		Node: 3, TimeNs: 5, Recording: true, Cores: []*control.CoreSample{{Core: 1, Shared: true, Interrupts: 2}},
		Ranks: []*control.RankSample{
			{Job: 5, Rank: 3, Core: 1},
			{Job: 5, Rank: 4, Core: 2, Pid: 9, Why: "why", CpuNs: 1, Threads: 2, Voluntary: 3, Involuntary: 4, MajorFaults: 7, Sent: 5, Arrived: 6},
		},
		Extensions: []*control.ExtensionState{{Node: 3, Job: 5, Handle: 8, Name: "x", State: "active", Number: 3}},
	}}}) {
		t.Errorf("samples: %v, %v", x, err)
	}
	before := int64(record.Now())
	if x, err := s.ask(conn, new(control.ReadClock)); err != nil || x.(*control.Clock).TimeNs < before || x.(*control.Clock).TimeNs > int64(record.Now()) {
		t.Errorf("clock: %v, %v", x, err)
	}
	for _, m := range []proto.Message{
		&control.Stdin{Job: 5, Rank: 1, Offset: 9, Data: []byte("in"), Eof: true}, &control.Signal{Job: 5, Rank: -1, Signal: 15},
		&control.Ack{Job: 5, Seq: 8}, &control.Rewind{Job: 5}, &control.FileChunk{Job: 99, Data: []byte("of no job")},
	} {
		if err := conn.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	check.AwaitFor(t, patience, "call of the last request", func() bool { return k.called("rewind 5") })
	for _, want := range []string{"input 5 1 9 in true", "signal 5 -1 15", "ack 5 8"} {
		if !k.called(want) {
			t.Errorf("the node kernel was not asked to %s", want)
		}
	}
	if _, err := s.ask(conn, new(control.ListJobs)); !errors.Is(err, &control.Failure{Code: control.Code_CODE_BAD_REQUEST}) {
		t.Errorf("a request for serve: %v", err)
	}
	if _, err := s.ask(conn, &control.Prepare{Job: 6}); !errors.Is(err, &control.Failure{Code: control.Code_CODE_BAD_REQUEST}) {
		t.Errorf("a job that says nothing: %v", err)
	}
	k.mu.Lock()
	k.refuse = fmt.Errorf("job 6: %w", kernel.ErrNoJob)
	k.mu.Unlock()
	for _, m := range []proto.Message{new(control.ReadEvents), new(control.TakeSamples)} {
		if _, err := s.ask(conn, m); !errors.Is(err, &control.Failure{Code: control.Code_CODE_NOT_FOUND}) {
			t.Errorf("an error of the node kernel to %T: %v", m, err)
		}
	}
	if _, err := s.ask(conn, &control.Start{Job: 6}); err == nil || err.Error() != "node3: job 6: no such job on this node" {
		t.Errorf("an error of the node kernel: %v", err)
	}
	_ = conn.Send(&control.Ack{Job: 6})
	k.mu.Lock()
	k.refuse = errors.New("broken")
	k.mu.Unlock()
	_ = conn.Send(&control.Rewind{Job: 6})
	check.AwaitFor(t, patience, "line in the log", func() bool { return strings.Contains(log.String(), "broken") })
	if strings.Contains(log.String(), "no such job") {
		t.Errorf("a job that has just ended is worth a line:\n%s", log)
	}
}

// The log of the kernel is read on from the number that serve names, unless that is one of another
// boot. The wait is bounded, and ends with the connection. A hosted node has no log.
func TestKernelLog(t *testing.T) {
	check.Leaks(t)
	s := newServe(t)
	a := s.agent(3, new(lines))
	queries := make(chan klog.Query, 8)
	var stuck atomic.Bool
	ended := make(chan struct{})
	a.config.KernelLog = func(ctx context.Context, q klog.Query) (klog.Batch, error) {
		queries <- q
		if stuck.Load() {
			<-ctx.Done()
			close(ended)
			return klog.Batch{}, ctx.Err()
		}
		if q.From == 9 {
			return klog.Batch{}, errors.New("klog: no such device")
		}
		return klog.Batch{Records: []klog.Record{{Sequence: 7, Priority: 12, Time: 1500 * time.Microsecond, Text: "a\nb\xff"}}, More: true}, nil
	}
	s.live(a, new(playedKernel))
	conn := s.next()
	ask := func(q *control.ReadKernelLog) (*control.KernelLog, error) {
		answer, err := s.ask(conn, q)
		log, _ := answer.(*control.KernelLog)
		return log, err
	}
	first, err := ask(&control.ReadKernelLog{From: 5, WaitMs: 1000})
	want := &control.KernelLog{
		Boot: []byte(a.bootID), Records: []*control.KernelRecord{{Sequence: 7, Priority: 12, TimeNs: 1_500_000, Text: []byte("a\nb\xff")}}, More: true,
	}
	if q := <-queries; err != nil || !proto.Equal(first, want) || q != (klog.Query{Size: kernelLogBytes}) {
		t.Errorf("%v, %v, after %v", first, err, q)
	}
	for _, c := range []struct {
		boot string
		wait uint32
		want klog.Query
	}{
		{"of another boot", 1000, klog.Query{Size: kernelLogBytes}},
		{a.bootID, 1000, klog.Query{From: 5, Size: kernelLogBytes, Wait: time.Second}},
		{a.bootID, 1<<32 - 1, klog.Query{From: 5, Size: kernelLogBytes, Wait: control.KernelLogWait}},
	} {
		_, err := ask(&control.ReadKernelLog{Boot: []byte(c.boot), From: 5, WaitMs: c.wait})
		if q := <-queries; err != nil || q != c.want {
			t.Errorf("%q, %d ms: the kernel is asked %v: %v", c.boot, c.wait, q, err)
		}
	}
	if _, err := ask(&control.ReadKernelLog{Boot: first.GetBoot(), From: 9}); err == nil || err.Error() != "node3: klog: no such device" {
		t.Errorf("a log that cannot be read: %v", err)
	}
	<-queries
	stuck.Store(true)
	go func() {
		<-queries
		conn.Close()
	}()
	if _, err := ask(&control.ReadKernelLog{}); err == nil {
		t.Error("there is an answer over a connection that has ended")
	}
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("a question outlives its connection")
	}
}

func TestNoKernelLog(t *testing.T) {
	check.Leaks(t)
	s := newServe(t)
	s.run(new(playedKernel))
	_, err := s.ask(s.next(), new(control.ReadKernelLog))
	if !errors.Is(err, &control.Failure{Code: control.Code_CODE_REFUSED}) || err.Error() != "node3: it is a hosted node, which has the kernel of its host: run dmesg there" {
		t.Error(err)
	}
}

// serve may send requests directly after its answer to Register.
func TestPrepareRightAfterRegistration(t *testing.T) {
	check.Leaks(t)
	s := newServe(t)
	s.sent = []proto.Message{
		&control.Prepare{Job: 6, Spec: new(control.JobSpec), Layout: alone(3)}, &control.Forget{Job: 7},
	}
	k := new(playedKernel)
	s.run(k)
	conn := s.next()
	check.AwaitFor(t, patience, "prepared job", func() bool { return k.called("prepare 6") && k.called("forget 7") })
	if _, err := s.ask(conn, &control.Forget{Job: 6}); err != nil {
		t.Fatal(err)
	}
}

// SWITCH_KEEP leaves a setting as it is.
func TestSetDuties(t *testing.T) {
	check.Leaks(t)
	s := newServe(t)
	k := new(playedKernel)
	s.run(k)
	conn := s.next()
	for _, c := range []struct {
		all, message control.Switch
		want         string
	}{
		{control.Switch_SWITCH_KEEP, control.Switch_SWITCH_ON, "duties {All:true Message:true}"},
		{control.Switch_SWITCH_OFF, control.Switch_SWITCH_KEEP, "duties {All:false Message:false}"},
		{control.Switch_SWITCH_ON, control.Switch_SWITCH_OFF, "duties {All:true Message:false}"},
	} {
		answer, err := s.ask(conn, &control.SetDuties{AllCores: c.all, MessageCore: c.message})
		if set, ok := answer.(*control.DutiesSet); err != nil || !ok || set.Info.Hostname != "node3" || !k.called(c.want) {
			t.Errorf("%v: %v, %v, not %s", c, answer, err, c.want)
		}
	}
}

// The node kernel is restarted only once serve has its answer.
func TestRestartKernel(t *testing.T) {
	check.Leaks(t)
	s := newServe(t)
	log := new(lines)
	a := s.agent(3, log)
	restarted := make(chan struct{})
	a.config.Restart = func() { close(restarted) }
	near, far := net.Pipe()
	conn, serve := control.NewConn(near), control.NewConn(far)
	defer conn.Close()
	defer serve.Close()
	go conn.Serve(func(f *control.Frame) { a.handle(t.Context(), conn, f) })
	go serve.Serve(func(*control.Frame) {})
	if _, err := s.ask(serve, new(control.RestartKernel)); err != nil {
		t.Error(err)
	}
	select {
	case <-restarted:
	case <-time.After(patience):
		t.Error("it is not restarted")
	}
}

// The agent keeps one stream for the files of a job, and none for a job that has ended, whatever
// serve says.
func TestShareFiles(t *testing.T) {
	s := newServe(t)
	s.refuse = control.Failf(control.Code_CODE_NOT_FOUND, "no such job")
	a := s.agent(3, new(lines))
	a.node = new(playedKernel)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	a.shareFiles(ctx, 99)
	if ctx.Err() != nil {
		t.Error("it asks for streams of a job that is not here")
	}
	var ended sync.WaitGroup
	defer ended.Wait()
	defer cancel()
	ended.Go(func() { a.shareFiles(ctx, 5) })
	check.AwaitFor(t, patience, "two tries", func() bool { return len(all[*control.Hello](&s.recorder)) >= 2 })
	a.shareFiles(ctx, 5)
	if ctx.Err() != nil {
		t.Error("there are two streams for one job")
	}
}

// The agent opens a stream for the debugger of a rank, and reports it when serve has none.
func TestDebugRank(t *testing.T) {
	s := newServe(t)
	k := new(playedKernel)
	s.run(k)
	conn := s.next()
	if _, err := s.ask(conn, &control.DebugRank{Job: 6, Rank: 1, Stream: 9}); err != nil {
		t.Fatal(err)
	}
	hellos := all[*control.Hello](&s.recorder)
	if h := hellos[len(hellos)-1]; h.Role != control.Role_ROLE_DEBUG || h.Stream != 9 || h.Node != 3 || h.Token != s.token {
		t.Errorf("it opens the stream by %v", h)
	}
	check.AwaitFor(t, patience, "the node kernel", func() bool { return k.called("debug 6 1") })
	s.refuse = control.Failf(control.Code_CODE_NOT_FOUND, "no debugger waits")
	if _, err := s.ask(conn, &control.DebugRank{Job: 6, Rank: 1, Stream: 10}); err == nil || !strings.Contains(err.Error(), "no debugger waits") {
		t.Error(err)
	}
}

func TestRefusedAgent(t *testing.T) {
	check.Leaks(t)
	s := newServe(t)
	s.refuse = control.Failf(control.Code_CODE_VERSION, "this margay is too old")
	_, log := s.run(new(playedKernel))
	check.AwaitFor(t, patience, "two tries", func() bool { return strings.Count(log.String(), "this margay is too old") >= 2 })
}

// The agent leaves a serve that does not answer heartbeats, later if they are rare.
func TestSilentServe(t *testing.T) {
	for every, after := range map[time.Duration]string{500 * time.Millisecond: "5s", time.Second: "5s", 4 * time.Second: "20s"} {
		synctest.Test(t, func(t *testing.T) {
			a := newMachine(t).agent(3, new(lines))
			a.node = new(playedKernel)
			near, far := net.Pipe()
			conn, serve := control.NewConn(near), control.NewConn(far)
			defer conn.Close()
			defer serve.Close()
			go conn.Serve(func(*control.Frame) {})
			go serve.Serve(func(*control.Frame) {})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if err := a.heartbeat(ctx, conn, every, a.info(), offset{err: -1}); err == nil || err.Error() != "agent: serve has been silent for "+after {
				t.Errorf("every %v: the heartbeat ended with %v", every, err)
			}
		})
	}
}

// awayKernel is a node kernel that once takes long to list its jobs.
type awayKernel struct {
	*playedKernel
	once sync.Once
}

func (k *awayKernel) Jobs() []kernel.JobInfo {
	k.once.Do(func() { time.Sleep(2 * silence) })
	return k.playedKernel.Jobs()
}

// A node without CPU time for a while does not blame serve.
func TestAwayAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newMachine(t).agent(3, new(lines))
		a.node = &awayKernel{playedKernel: new(playedKernel)}
		near, far := net.Pipe()
		conn, serve := control.NewConn(near), control.NewConn(far)
		defer conn.Close()
		defer serve.Close()
		var beats atomic.Int64
		go conn.Serve(func(*control.Frame) {})
		go serve.Serve(func(f *control.Frame) {
			beats.Add(1)
			serve.Answer(f, new(control.Done), nil)
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := a.heartbeat(ctx, conn, time.Second, a.info(), offset{err: -1}); !errors.Is(err, context.DeadlineExceeded) || beats.Load() < 40 {
			t.Errorf("the heartbeat ended with %v, after %d", err, beats.Load())
		}
	})
}

// Errors of the node kernel keep their codes in answers.
func TestFailure(t *testing.T) {
	a := newMachine(t).agent(3, new(lines))
	cases := []struct {
		err  error
		code control.Code
		want string
	}{
		{errors.New("x"), control.Code_CODE_FAILED, "node3: x"},
		{context.DeadlineExceeded, control.Code_CODE_TIMEOUT, "node3: context deadline exceeded"},
		{&task.StartError{Rank: 2, Op: "exec /x", Errno: unix.ENOEXEC, Text: "exec format error"}, control.Code_CODE_NOT_EXECUTABLE,
			"rank 2 on node3: exec /x: exec format error (built for another architecture?)"},
		{&task.StartError{Rank: task.AllRanks, Op: "mount", Errno: unix.ENOMEM, Text: "no memory"}, control.Code_CODE_FAILED, "node3: mount: no memory"},
		{&task.StartError{Rank: 1, Op: "exec /x", Errno: unix.EACCES, Text: "permission denied"}, control.Code_CODE_NOT_EXECUTABLE, "rank 1 on node3: exec /x: permission denied"},
		{&task.StartError{Rank: 1, Op: "exec /x", Errno: unix.ENOENT, Text: "no such file"}, control.Code_CODE_NOT_FOUND, "rank 1 on node3: exec /x: no such file"},
		{fmt.Errorf("write: %w", syscall.ENOSPC), control.Code_CODE_NO_ROOM, "node3: write: no space left on device (the job's RAM disk is full)"},
		{fmt.Errorf("job 1: %w", kernel.ErrBusy), control.Code_CODE_NO_ROOM, "node3: job 1: core is not free"},
		{extension.ErrNotFound, control.Code_CODE_NOT_FOUND, "node3: no such extension"},
		{extension.ErrRefused, control.Code_CODE_REFUSED, "node3: the extension is refused"},
		{control.Failf(control.Code_CODE_BAD_REQUEST, "y").At(9), control.Code_CODE_BAD_REQUEST, "node3: y"},
	}
	for _, k := range cases {
		if m := a.failure(k.err); m.Code != k.code || m.Err().Error() != k.want {
			t.Errorf("%v becomes %v %q", k.err, m.Code, m.Err())
		}
	}
}

// alone is the layout of a job with one rank, on a node.
func alone(node uint32) *control.Layout {
	return &control.Layout{
		Runs: []*control.LayoutRun{{Node: node, Count: 1, Address: "127.0.0.1:1"}}, Shares: []*control.LayoutShare{{Ranks: []*control.LayoutRank{{Cores: []uint32{1}}}}},
	}
}
