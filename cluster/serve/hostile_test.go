package serve

import (
	"context"
	"io"
	"net"
	"os"
	"runtime"
	"testing"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/permit"
	"margay/cluster/roster"
	"margay/cluster/trust"
	"margay/kernel/abi/id"
)

// FuzzFrames: serve survives any frame from a registered node or a client.
func FuzzFrames(f *testing.F) {
	seeds := []proto.Message{
		&control.JobFault{Job: 1}, &control.Loaded{Job: 1, Error: new(control.Error)}, &control.LogLine{Text: "x"}, &control.FirmwareLog{Text: []byte("<0>[x] Kernel panic - not syncing: \x1b")},
		&control.Record{Job: 1, Seq: 1, Rank: 1, Stream: control.Stream_STREAM_EXIT, Exit: &control.ExitStatus{Code: 1}},
		&control.Record{Job: 1, Seq: 1, Rank: 7, Stream: control.Stream_STREAM_EXIT}, &control.Heartbeat{FreeMemory: -1},
		&control.Ack{Job: 1, Node: 7, Seq: 1 << 63}, &control.Ack{Job: 1, Seq: 1 << 63}, &control.Stdin{Job: 1, Rank: 9}, &control.FileChunk{Job: 1},
		&control.Signal{Job: 1, Rank: -5, Signal: -5}, &control.Kill{Job: 1, Rank: 1 << 30, Force: true}, &control.RunRequest{},
		&control.RunRequest{Spec: &control.JobSpec{Ranks: 1<<32 - 1, Arch: runtime.GOARCH}}, &control.RunRequest{Spec: &control.JobSpec{Ranks: 1, Arch: runtime.GOARCH}},
		&control.RunRequest{Spec: &control.JobSpec{Ranks: 1, Arch: runtime.GOARCH, Detach: true}},
		&control.Attach{Job: 1}, &control.Attach{Job: 1, Output: true}, &control.ListJobs{Job: 9}, &control.ListJobs{All: true}, &control.Noise{DurationMs: 1<<32 - 1},
		&control.InsertExtension{Job: 1, Node: -1}, &control.RemoveExtension{Node: 1 << 31}, &control.ListExtensions{Node: -9},
		&control.ReadEvents{Node: 1 << 31, Positions: make([]uint64, 100)}, &control.ReadClock{}, &control.TakeSamples{Node: -9},
		&control.ReadKernelLog{Node: 1 << 31, Boot: make([]byte, 100), From: 1 << 63, WaitMs: 1<<32 - 1},
		&control.RestartKernel{Node: 3}, &control.Hello{}, &control.Status{}, &control.StdinTaken{Job: 1, Rank: 99},
	}
	for _, m := range seeds {
		frame := control.NewFrame(m)
		frame.Call = 1
		data, err := proto.Marshal(frame)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, true)
		f.Add(data, false)
	}
	authority, err := trust.NewAuthority("m")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte, fromNode bool) {
		frame := new(control.Frame)
		if proto.Unmarshal(data, frame) != nil {
			return
		}
		s, conn := runningJob(t, authority)
		if fromNode {
			s.fromNode(conn, s.nodes[0], frame)
		} else {
			c := &client{server: s, conn: conn, caller: permit.Caller{UID: s.config.Owner + 1, Name: "x", Role: permit.Administrator}}
			c.handle(frame)
			c.gone()
		}
	})
}

// runningJob starts a serve with one node, which runs job 1 of two ranks. Requests over the
// connection to the node remain unanswered.
func runningJob(t *testing.T, authority *trust.Authority) (*Server, *control.Conn) {
	t.Helper()
	s, err := New(Config{Machine: "m", Roster: roster.New(1), Authority: authority, Dir: t.TempDir(), Owner: uint32(os.Getuid()), Peer: asOwner, Log: func(string, ...any) {},
		KeepFirmwareLog: func(id.Node, []byte, bool) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.context = ctx
	near, far := net.Pipe()
	go io.Copy(io.Discard, far)
	conn := control.NewConn(near)
	t.Cleanup(func() {
		cancel()
		conn.Close()
		far.Close()
		s.running.Wait()
		if err := s.store.close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.restore(); err != nil {
		t.Fatal(err)
	}
	n := s.nodes[0]
	n.conn, n.health, n.info = conn, control.NodeHealth_NODE_UP, &control.NodeInfo{Arch: runtime.GOARCH, Cores: []uint32{1, 2, 3, 4}}
	j, err := s.create(&control.JobSpec{Ranks: 2, Arch: runtime.GOARCH}, conn)
	if err != nil {
		t.Fatal(err)
	}
	s.runs(j)
	return s, conn
}
