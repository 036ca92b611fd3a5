package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/kernel"
	"margay/kernel/abi/archive"
	"margay/kernel/abi/id"
	"margay/kernel/abi/layout"
	"margay/kernel/abi/node"
	"margay/kernel/abi/slot"
	"margay/kernel/extension"
	"margay/kernel/record"
	"margay/kernel/task"
)

// requestTimeout bounds the preparation and the start of a job on this node. A hosted node has more
// time on a machine of many nodes, as much as its heartbeats are rarer than usualBeat: it shares
// the processors with all of them.
const (
	requestTimeout = 30 * time.Second
	usualBeat      = 500 * time.Millisecond
)

// requestTime returns the time that a request has when heartbeats are so far apart.
func (a *Agent) requestTime(beat time.Duration) time.Duration {
	if a.config.Boot.Substrate != node.Hosted {
		return requestTimeout
	}
	return requestTimeout * max(1, beat/usualBeat)
}

// handle handles a frame from serve. Requests that may take a while run in goroutines, where
// requests about the life of one job run in order. Other requests whose order matters run at once.
func (a *Agent) handle(ctx context.Context, conn *control.Conn, f *control.Frame) {
	switch m := f.Message().(type) {
	case *control.Prepare:
		a.inTurn(ctx, id.Job(m.Job), func(turn context.Context) {
			a.answerWith(turn, conn, f, func(ctx context.Context) (proto.Message, error) { return a.prepare(ctx, m) })
			if len(m.Spec.GetShared()) > 0 {
				go a.shareFiles(ctx, id.Job(m.Job))
			}
		})
	case *control.Start: // serve takes the job for a running one, whatever becomes of the connection
		a.inTurn(context.WithoutCancel(ctx), id.Job(m.Job), func(ctx context.Context) {
			a.answerWith(ctx, conn, f, func(ctx context.Context) (proto.Message, error) { return a.start(ctx, id.Job(m.Job)) })
		})
	case *control.Forget:
		a.giveUp(id.Job(m.Job))
		a.inTurn(ctx, id.Job(m.Job), func(context.Context) { a.forget(conn, f, m) })
	case *control.ReadFiles:
		go a.answerWith(ctx, conn, f, func(ctx context.Context) (proto.Message, error) { return a.readFiles(ctx, m) })
	case *control.ReadStacks:
		go a.answerWith(ctx, conn, f, func(ctx context.Context) (proto.Message, error) { return a.readStacks(ctx, m) })
	case *control.DebugRank:
		go a.answer(ctx, conn, f, func(dialing context.Context) error { return a.debugRank(ctx, dialing, m) })
	case *control.Noise:
		go a.noise(ctx, conn, f, m)
	case *control.ListExtensions:
		conn.Answer(f, &control.Extensions{Extensions: a.extensions(func(extension.Info) bool { return true })}, nil)
	case *control.ReadClock:
		conn.Answer(f, &control.Clock{TimeNs: int64(record.Now())}, nil)
	case *control.ReadKernelLog:
		go a.answerWith(ctx, conn, f, func(ctx context.Context) (proto.Message, error) { return a.readKernelLog(ctx, m) })
	case *control.ReadEvents:
		go a.readEvents(conn, f, m)
	case *control.TakeSamples:
		go a.takeSamples(conn, f)
	case *control.ExtensionLog:
		conn.Answer(f, a.extensionNotes(m), nil)
	case *control.RestartKernel:
		conn.Answer(f, &control.Done{}, nil)
		conn.Flush(time.Second)
		a.config.Restart()
	case *control.ImagePiece:
		conn.Answer(f, &control.Done{}, a.imagePiece(m))
	case *control.StartImage:
		go a.startImage(conn, f, m)
	case *control.SetDuties:
		go a.setDuties(conn, f, m)
	case *control.InsertExtension:
		go a.insertExtension(conn, f, m)
	case *control.RemoveExtension:
		go a.answer(ctx, conn, f, func(context.Context) error {
			return a.node.RemoveExtension(id.Handle(m.Handle), "an operator has removed it")
		})
	case *control.FileChunk:
		a.fileChunk(m)
	case *control.Stdin:
		a.ignore(a.node.Input(id.Job(m.Job), id.Rank(m.Rank), m.Offset, m.Data, m.Eof))
	case *control.Resize:
		a.ignore(a.node.Resize(id.Job(m.Job), terminalSize(m.Size)))
	case *control.Signal:
		a.ignore(a.node.Signal(id.Job(m.Job), int(m.Rank), syscall.Signal(m.Signal)))
	case *control.Ack:
		a.ignore(a.node.Ack(id.Job(m.Job), m.Seq))
	case *control.Finish:
		a.ignore(a.node.Finish(id.Job(m.Job)))
	case *control.Rewind:
		a.ignore(a.node.Rewind(id.Job(m.Job)))
	default:
		conn.Answer(f, nil, control.Failf(control.Code_CODE_BAD_REQUEST, "a node does not know what to do with %T", m))
	}
}

// turn is a request about the life of a job.
type turn struct {
	before *turn // its predecessor; nil: none
	giveUp context.CancelFunc
	done   chan struct{}
}

// inTurn handles a request about a job after its predecessors.
func (a *Agent) inTurn(ctx context.Context, job id.Job, handle func(context.Context)) {
	ctx, cancel := context.WithCancel(ctx)
	t := &turn{giveUp: cancel, done: make(chan struct{})}
	a.mu.Lock()
	t.before = a.turns[job]
	a.turns[job] = t
	a.mu.Unlock()
	go func() {
		defer cancel()
		if t.before != nil {
			<-t.before.done
		}
		handle(ctx)
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.turns[job] == t {
			delete(a.turns, job)
		}
		t.before = nil
		close(t.done)
	}()
}

// giveUp cancels the pending requests about a job that will be forgotten.
func (a *Agent) giveUp(job id.Job) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for t := a.turns[job]; t != nil; t = t.before {
		t.giveUp()
	}
}

// ignore logs an error that has no recipient, except for a job that has just ended.
func (a *Agent) ignore(err error) {
	if err != nil && !errors.Is(err, kernel.ErrNoJob) {
		a.config.Log("%v", err)
	}
}

func (a *Agent) answer(ctx context.Context, conn *control.Conn, f *control.Frame, do func(context.Context) error) {
	a.answerWith(ctx, conn, f, func(ctx context.Context) (proto.Message, error) { return &control.Done{}, do(ctx) })
}

func (a *Agent) answerWith(ctx context.Context, conn *control.Conn, f *control.Frame, do func(context.Context) (proto.Message, error)) {
	ctx, cancel := context.WithTimeout(ctx, a.requestTime(time.Duration(a.beat.Load())))
	defer cancel()
	answer, err := do(ctx)
	if err != nil {
		answer = a.failure(err)
	}
	conn.Answer(f, answer, nil)
}

func (a *Agent) forget(conn *control.Conn, f *control.Frame, m *control.Forget) {
	job := id.Job(m.Job)
	a.stopCopy(job)
	unkept, err := a.node.Forget(job)
	if err != nil {
		conn.Answer(f, a.failure(err), nil)
		return
	}
	a.mu.Lock()
	delete(a.faults, job)
	delete(a.ends, job)
	a.mu.Unlock()
	conn.Answer(f, &control.Forgotten{Unkept: a.unkept(unkept)}, nil)
}

// failure turns an error of the node kernel into a message.
func (a *Agent) failure(err error) *control.Error {
	out := control.FromError(err)
	out.Node = int32(a.self())
	var start *task.StartError
	if errors.As(err, &start) && start.Rank != task.AllRanks {
		out.Rank = int32(start.Rank)
		out.Text = fmt.Sprintf("%s: %s", start.Op, start.Text)
	}
	switch {
	case errors.Is(err, unix.ENOEXEC):
		out.Code = control.Code_CODE_NOT_EXECUTABLE
		out.Text += " (built for another architecture?)"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.E2BIG):
		out.Code = control.Code_CODE_NOT_EXECUTABLE
	case errors.Is(err, unix.ENOENT):
		out.Code = control.Code_CODE_NOT_FOUND
	case errors.Is(err, unix.ENOSPC):
		out.Code = control.Code_CODE_NO_ROOM
		out.Text += " (the job's RAM disk is full)"
	case errors.Is(err, kernel.ErrNoJob), errors.Is(err, extension.ErrNotFound):
		out.Code = control.Code_CODE_NOT_FOUND
	case errors.Is(err, extension.ErrRefused), errors.Is(err, kernel.ErrLacks):
		out.Code = control.Code_CODE_REFUSED
	case errors.Is(err, kernel.ErrRoom), errors.Is(err, kernel.ErrBusy), errors.Is(err, extension.ErrNoRoom):
		out.Code = control.Code_CODE_NO_ROOM
	}
	return out
}

func (a *Agent) prepare(ctx context.Context, m *control.Prepare) (*control.Prepared, error) {
	if m.Spec == nil {
		return nil, control.Failf(control.Code_CODE_BAD_REQUEST, "Prepare without a job")
	}
	contents, err := digests(m.Exec.GetContents())
	if err != nil {
		return nil, err
	}
	s := kernel.JobSpec{
		Exec: task.Exec{
			Path: string(m.Spec.Path), Dir: string(m.Spec.Dir), Argv: stringsOf(m.Exec.GetArgv()), Env: stringsOf(m.Exec.GetEnv()),
		},
		Job: id.Job(m.Job), Umask: int(m.Spec.Umask), User: m.Spec.User, UserID: m.Spec.Uid, Stdin: kernel.StdinMode(m.Spec.Stdin),
		Files: m.Spec.RamDisk, Contents: contents, Memory: m.Spec.Memory,
		Terminal: terminalSize(m.Spec.Terminal),
		PMI:      m.Spec.Mpi == control.MPI_MPI_PMI1, Network: m.Spec.Network, HostRoot: m.Spec.HostRoot,
		Shared: sharedFolders(m.Spec.Shared), Collects: len(m.Spec.Out) > 0,
		Pids: int(m.Spec.Pids), HugePages: m.Spec.HugePages, Hold: m.Spec.Hold, Secret: m.Secret, InitTimeout: time.Duration(m.Spec.InitTimeoutMs) * time.Millisecond,
	}
	for _, p := range m.Exec.GetParts() {
		s.Parts = append(s.Parts, task.Part{First: id.Rank(p.First), Path: string(p.Path), Argv: stringsOf(p.Argv), Env: stringsOf(p.Env)})
	}
	if s.Layout, err = layoutOf(m.Layout); err != nil {
		return nil, control.Failf(control.Code_CODE_BAD_REQUEST, "%v", err)
	}
	if m.NetworkJob != 0 {
		joined := &kernel.Joined{Job: id.Job(m.NetworkJob)}
		if joined.Layout, err = layoutOf(m.Network); err != nil {
			return nil, control.Failf(control.Code_CODE_BAD_REQUEST, "the network of its allocation: %v", err)
		}
		s.Joined = joined
	}
	begun := time.Now()
	lacking, err := a.node.Prepare(ctx, s)
	if err != nil {
		return nil, err
	}
	answer := &control.Prepared{PrepareNs: int64(time.Since(begun))}
	for _, i := range lacking {
		answer.Lacking = append(answer.Lacking, uint32(i))
	}
	if len(lacking) == 0 && len(m.Files) > 0 {
		begun = time.Now()
		if err := a.node.Load(ctx, s.Job, bytes.NewReader(m.Files)); err != nil {
			return nil, err
		}
		answer.Loaded, answer.LoadNs = true, int64(time.Since(begun))
	}
	a.startCopy(s, answer.Loaded)
	return answer, nil
}

// layoutOf reads where the ranks of a job are.
func layoutOf(m *control.Layout) (layout.Layout, error) {
	var c layout.Condensed
	for _, r := range m.GetRuns() {
		address, err := netip.ParseAddrPort(r.Address)
		if err != nil {
			return layout.Layout{}, fmt.Errorf("node%d: %w", r.Node, err)
		}
		c.Runs = append(c.Runs, layout.Run{Node: id.Node(r.Node), Count: int(r.Count), Share: int(r.Share), Address: address})
	}
	for _, s := range m.GetShares() {
		var share layout.Share
		for _, r := range s.Ranks {
			var cores []id.Core
			for _, core := range r.Cores {
				cores = append(cores, id.Core(core))
			}
			share = append(share, cores)
		}
		c.Shares = append(c.Shares, share)
	}
	return layout.New(c)
}

// sharedFolders returns the folders that a job's client shares with the ranks.
func sharedFolders(list []*control.SharedFolder) (folders []task.SharedFolder) {
	for _, f := range list {
		folders = append(folders, task.SharedFolder{Path: string(f.Path), ReadOnly: f.ReadOnly})
	}
	return folders
}

// terminalSize returns the size of a terminal as Linux takes it, nil if there is none.
func terminalSize(t *control.Terminal) *task.Size {
	if t == nil {
		return nil
	}
	return &task.Size{Rows: uint16(min(t.Rows, math.MaxUint16)), Columns: uint16(min(t.Columns, math.MaxUint16))}
}

// start runs the ranks of a job. Every node has its files then: a copy that waits for some is over.
// An error is also a fault of the job, because the answer may be lost with its connection.
func (a *Agent) start(ctx context.Context, job id.Job) (*control.Started, error) {
	a.stopCopy(job)
	begun := time.Now()
	if err := a.node.Start(ctx, job); err != nil {
		if !errors.Is(err, kernel.ErrNoJob) {
			a.Fault(job, err)
		}
		return nil, err
	}
	return &control.Started{StartNs: int64(time.Since(begun))}, nil
}

// readFiles returns a piece of the files that the ranks of a job have written.
func (a *Agent) readFiles(ctx context.Context, m *control.ReadFiles) (proto.Message, error) {
	piece, last, err := a.node.ReadFiles(ctx, id.Job(m.Job), m.Offset, m.Paths)
	if errors.Is(err, kernel.ErrNoData) {
		err = control.Failf(control.Code_CODE_TIMEOUT, "%v", err)
	}
	return &control.FilesPiece{Data: piece, Last: last}, err
}

// digests reads the digests of contents.
func digests(list [][]byte) ([]archive.Digest, error) {
	if len(list) > archive.MaxContents {
		return nil, control.Failf(control.Code_CODE_BAD_REQUEST, "%d contents are named by their digests, at most %d can be", len(list), archive.MaxContents)
	}
	digests := make([]archive.Digest, len(list))
	for i, b := range list {
		var err error
		if digests[i], err = archive.FromBytes(b); err != nil {
			return nil, control.Failf(control.Code_CODE_BAD_REQUEST, "%v", err)
		}
	}
	return digests, nil
}

func stringsOf(list [][]byte) []string {
	out := make([]string, 0, len(list))
	for _, text := range list {
		out = append(out, string(text))
	}
	return out
}

func (a *Agent) noise(ctx context.Context, conn *control.Conn, f *control.Frame, m *control.Noise) {
	cores, err := a.node.Noise(ctx, time.Duration(m.DurationMs)*time.Millisecond)
	report := new(control.NoiseReport)
	for _, c := range cores {
		out := &control.CoreNoise{
			Node: a.self(), Core: uint32(c.Core), Interrupts: c.Interrupts, Seconds: c.Elapsed.Seconds(),
		}
		for _, r := range c.Rows {
			out.Rows = append(out.Rows, &control.InterruptRow{Name: r.Name, Count: r.Count})
		}
		report.Cores = append(report.Cores, out)
	}
	conn.Answer(f, report, err)
}

func (a *Agent) setDuties(conn *control.Conn, f *control.Frame, m *control.SetDuties) {
	err := a.node.SetDuties(func(d *kernel.Duties) {
		d.All = switched(d.All, m.AllCores)
		d.Message = switched(d.Message, m.MessageCore)
	})
	if err != nil {
		conn.Answer(f, a.failure(err), nil)
		return
	}
	conn.Answer(f, &control.DutiesSet{Info: a.info()}, nil)
}

// switched returns the state of a setting after a switch.
func switched(is bool, to control.Switch) bool {
	if to == control.Switch_SWITCH_KEEP {
		return is
	}
	return to == control.Switch_SWITCH_ON
}

// extensions describes the extensions of the node that match.
func (a *Agent) extensions(wanted func(extension.Info) bool) []*control.ExtensionState {
	var list []*control.ExtensionState
	for _, x := range a.node.Extensions() {
		if !wanted(x) {
			continue
		}
		state := &control.ExtensionState{
			Node: a.self(), Job: uint32(x.Job), Handle: uint32(x.Handle), Slot: string(x.Slot), Name: x.Name, State: "active",
			Engine: x.Engine, Trusted: x.Trusted, Runs: x.Stats.Runs, Instructions: x.Stats.Instructions, Faults: x.Stats.Faults,
			TimeNs: int64(x.Stats.Time), Dropped: x.Dropped, Passed: x.Passed, Number: x.Number, Waits: x.Waits,
		}
		if x.Removed != "" {
			state.State = "removed: " + x.Removed
		}
		if x.Stats.LastFault != nil {
			state.LastFault = x.Stats.LastFault.Error()
		}
		list = append(list, state)
	}
	return list
}

// extensionNotes returns notes about the node's extensions.
func (a *Agent) extensionNotes(m *control.ExtensionLog) *control.ExtensionNotes {
	answer := new(control.ExtensionNotes)
	for _, n := range a.node.ExtensionNotes(m.After[a.self()]) {
		answer.Notes = append(answer.Notes, &control.ExtensionNote{
			Node: a.self(), Seq: n.Seq, TimeNs: n.Time.UnixNano(), Job: uint32(n.Job), Handle: uint32(n.Handle), Name: n.Name, Text: n.Text,
		})
	}
	return answer
}

func (a *Agent) insertExtension(conn *control.Conn, f *control.Frame, m *control.InsertExtension) {
	request := extension.Request{Name: m.Name, Slot: slot.Name(m.Slot), Object: m.Object, Number: m.Number}
	for _, s := range m.Settings {
		request.Settings = append(request.Settings, extension.Setting{Name: s.Name, Value: s.Value})
	}
	handle, err := a.node.InsertExtension(id.Job(m.Job), request)
	if err != nil {
		conn.Answer(f, a.failure(err), nil)
		return
	}
	inserted := a.extensions(func(x extension.Info) bool { return x.Handle == handle })
	conn.Answer(f, &control.Extensions{Extensions: inserted}, nil)
}
