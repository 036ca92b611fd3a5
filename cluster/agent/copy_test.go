package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/internal/check"
	"margay/kernel"
	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
)

// member is a node of a tree: its agent, its node kernel, and its messages to serve.
type member struct {
	*Agent
	kernel *playedKernel
	told   recorder
	log    lines
}

// grow makes nodes that can reach each other, the first one being the root of every job.
func grow(t *testing.T, n int) []*member {
	t.Helper()
	check.Leaks(t)
	m := newMachine(t)
	var all []*member
	for i := range n {
		b := &member{kernel: &playedKernel{self: id.Node(i)}}
		b.Agent = m.agent(uint32(i), &b.log)
		b.node = b.kernel
		near, far := net.Pipe()
		b.conn = control.NewConn(near)
		serve := control.NewConn(far)
		go serve.Serve(func(f *control.Frame) { b.told.add(f.Message()) })
		var err error
		if b.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		public, err := b.key.Public()
		if err != nil {
			t.Fatal(err)
		}
		cert, err := m.authority.Certify(id.Node(i), public)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.joinFabric(cert); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			b.stopCopy(1)
			b.kernel.transport.Close()
			b.conn.Close()
			serve.Close()
		})
		all = append(all, b)
	}
	return all
}

// prepare makes the nodes expect the files of job 1.
func prepare(t *testing.T, all []*member) {
	t.Helper()
	p := &control.Prepare{Job: 1, Spec: new(control.JobSpec)}
	p.Layout = alone(0)
	p.Layout.Runs = nil
	for i, b := range all {
		p.Layout.Runs = append(p.Layout.Runs, &control.LayoutRun{Node: uint32(i), Count: 1, Address: b.listener.Addr().String()})
	}
	for _, b := range all {
		if _, err := b.prepare(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
}

// send sends files to the root as serve does: as fast as it takes them.
func send(t *testing.T, root *member, files []byte, piece int) {
	t.Helper()
	sent := 0
	for sent < len(files) {
		check.AwaitFor(t, patience, "room for more files", func() bool {
			taken := all[*control.FileTaken](&root.told)
			return len(taken) == 0 && sent < control.FileWindow || len(taken) > 0 && sent < int(taken[len(taken)-1].Offset)+control.FileWindow ||
				len(all[*control.Loaded](&root.told)) > 0
		})
		n := min(piece, len(files)-sent)
		root.fileChunk(&control.FileChunk{Job: 1, Data: files[sent : sent+n]})
		sent += n
	}
	root.fileChunk(&control.FileChunk{Job: 1, Last: true})
}

func randomBytes(n int) []byte {
	random := rand.NewChaCha8([32]byte{1})
	b := make([]byte, n)
	random.Read(b)
	return b
}

func TestCopyDownTheTree(t *testing.T) {
	for _, size := range []int{0, 1, 5<<20 + 3} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			nodes := grow(t, 7)
			prepare(t, nodes)
			files := randomBytes(size)
			send(t, nodes[0], files, 256<<10)
			for i, b := range nodes {
				if m := first[*control.Loaded](t, &b.told); m.Job != 1 || m.Error != nil {
					t.Errorf("node %d says %v", i, m)
				}
				if !bytes.Equal(b.kernel.loaded, files) {
					t.Errorf("node %d got %d bytes, and not those that were sent", i, len(b.kernel.loaded))
				}
				taken := all[*control.FileTaken](&b.told)
				if i > 0 && len(taken) > 0 {
					t.Errorf("node %d tells serve what it has taken", i)
				}
				if i == 0 && size > 0 && taken[len(taken)-1].Offset != uint64(size) {
					t.Errorf("the root has taken %v", taken)
				}
			}
			nodes[0].mu.Lock()
			defer nodes[0].mu.Unlock()
			if len(nodes[0].copies) != 0 {
				t.Error("the root remembers what is over")
			}
		})
	}
}

// A node in the middle of the tree cannot unpack the files. It reports the reason, the nodes above
// name it, and the nodes below name their parent.
func TestCopyFailsInTheMiddle(t *testing.T) {
	nodes := grow(t, 5) // 1 is the parent of 3 and 4
	nodes[1].kernel.load = func(_ context.Context, files io.Reader) error {
		_, _ = io.CopyN(io.Discard, files, 1<<20)
		return fmt.Errorf("unpack: %w", unix.ENOSPC)
	}
	prepare(t, nodes)
	for range 8 {
		nodes[0].fileChunk(&control.FileChunk{Job: 1, Data: randomBytes(256 << 10)})
	}
	first[*control.Loaded](t, &nodes[1].told)
	send(t, nodes[0], randomBytes(32<<20), 256<<10)
	want := []struct {
		node int32
		code control.Code
		text string
	}{
		{0, control.Code_CODE_RESTARTED, "pass files on to node1: "},
		{1, control.Code_CODE_NO_ROOM, "unpack: no space left on device (the job's RAM disk is full)"},
		{2, control.Code_CODE_RESTARTED, "files from node0: "},
		{3, control.Code_CODE_RESTARTED, "files from node1: "},
		{4, control.Code_CODE_RESTARTED, "files from node1: "},
	}
	for i, b := range nodes {
		m := first[*control.Loaded](t, &b.told)
		if m.Error == nil || m.Error.Node != want[i].node || m.Error.Code != want[i].code || !strings.HasPrefix(m.Error.Text, want[i].text) {
			t.Errorf("node %d says %v", i, m)
		}
	}
}

// A node that cannot be reached is named by its parent.
func TestCopyToDeadNode(t *testing.T) {
	nodes := grow(t, 3)
	prepare(t, nodes)
	nodes[2].kernel.transport.Close()
	send(t, nodes[0], []byte("files"), 5)
	if m := first[*control.Loaded](t, &nodes[0].told); m.Error.GetNode() != 0 || m.Error.GetCode() != control.Code_CODE_RESTARTED || !strings.HasPrefix(m.Error.Text, "pass files on to node2: ") {
		t.Errorf("the root says %v", m)
	}
}

// A job that is ended during the copy of its files reports nothing more, and leaves nothing behind.
func TestCopyIsStopped(t *testing.T) {
	nodes := grow(t, 3)
	prepare(t, nodes)
	nodes[0].fileChunk(&control.FileChunk{Job: 1, Data: []byte("the first piece")})
	first[*control.FileTaken](t, &nodes[0].told)
	var passing []*copying
	for _, b := range nodes {
		passing = append(passing, b.copying(1))
	}
	for i, b := range nodes {
		b.stopCopy(1)
		b.stopCopy(1)
		check.AwaitFor(t, patience, "end of the passage", func() bool { return passing[i].context.Err() != nil && b.copying(1) == nil })
		b.fileChunk(&control.FileChunk{Job: 1, Data: []byte("too late"), Last: true})
	}
	for i, b := range nodes {
		if told := all[*control.Loaded](&b.told); len(told) != 0 && !strings.Contains(told[0].Error.GetText(), "node0") {
			t.Errorf("node %d says %v", i, told)
		}
	}
	if told := all[*control.Loaded](&nodes[0].told); len(told) != 0 {
		t.Errorf("the root says %v", told)
	}
}

// A stalled copy ends the launch, which can be repeated.
func TestCopyStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newMachine(t).agent(3, new(lines))
		a.node = new(playedKernel)
		near, far := net.Pipe()
		a.conn = control.NewConn(near)
		serve := control.NewConn(far)
		defer a.conn.Close()
		defer serve.Close()
		var told recorder
		go serve.Serve(func(f *control.Frame) { told.add(f.Message()) })
		where, err := layoutOf(alone(3))
		if err != nil {
			t.Fatal(err)
		}
		a.startCopy(kernel.JobSpec{Job: 1, Layout: where}, false)
		time.Sleep(stall - time.Second)
		a.fileChunk(&control.FileChunk{Job: 1, Data: []byte("a piece that is late, but not too late")})
		time.Sleep(stall - time.Second)
		if m := all[*control.Loaded](&told); len(m) > 0 {
			t.Fatalf("the node says %v", m)
		}
		time.Sleep(time.Second + 2*reasonGrace)
		synctest.Wait()
		want := "files of the job: no data for 30s"
		if m := all[*control.Loaded](&told); len(m) != 1 || m[0].Error.GetCode() != control.Code_CODE_RESTARTED || m[0].Error.GetText() != want {
			t.Errorf("the node says %v", m)
		}
	})
}

// A piece of a job's files takes longer in a job of many hosted nodes.
func TestPieceOfMany(t *testing.T) {
	c := &copying{more: 200, pieces: make(chan []byte, 1), context: t.Context()}
	looks := make(chan time.Time, 2*stallLooks+200)
	for range cap(looks) {
		looks <- time.Now()
	}
	if p, err := c.nextBy(looks); p != nil || err == nil || err.Error() != "files of the job: no data for 3m50s" || len(looks) != stallLooks {
		t.Errorf("%q, %v, with %d ticks left", p, err, len(looks))
	}
}

// Ticks count, so that a node without CPU time does not blame the sender: a received piece is taken
// regardless of the number of ticks, and so is a piece that arrives after all ticks but one.
func TestCopyOfAbsentNode(t *testing.T) {
	for name, test := range map[string]struct {
		ticks int
		late  bool
	}{
		"one tick": {1, true}, "all but one": {stallLooks - 1, true}, "all, and a piece": {stallLooks, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := &copying{pieces: make(chan []byte, 1), context: t.Context()}
			looks := make(chan time.Time, test.ticks)
			for range test.ticks {
				looks <- time.Now().Add(time.Hour)
			}
			send := func() { c.pieces <- []byte("x") }
			if test.late {
				go send()
			} else {
				send()
			}
			if p, err := c.nextBy(looks); string(p) != "x" || err != nil {
				t.Errorf("%q, %v", p, err)
			}
		})
	}
}

// More than the window is not stored, in whatever pieces it comes. A frame holds more than it.
func TestCopyTooMuch(t *testing.T) {
	for name, piece := range map[string]int{"small pieces": 1, "usual pieces": 256 << 10, "a large piece": control.FileWindow + 1} {
		t.Run(name, func(t *testing.T) {
			nodes := grow(t, 1)
			nodes[0].kernel.load = func(ctx context.Context, _ io.Reader) error {
				<-ctx.Done()
				return context.Cause(ctx)
			}
			prepare(t, nodes)
			for range min(queuedPieces, control.FileWindow/piece) + 2 {
				nodes[0].fileChunk(&control.FileChunk{Job: 1, Data: make([]byte, piece)})
			}
			if m := first[*control.Loaded](t, &nodes[0].told); m.Error.GetText() != "the sender of the files exceeds its window" {
				t.Errorf("the node says %v", m)
			}
		})
	}
}

// A node below the root holds little of what its parent sends, and lets the parent wait.
func TestStreamTooMuch(t *testing.T) {
	nodes := grow(t, 2)
	nodes[1].kernel.load = func(ctx context.Context, _ io.Reader) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	prepare(t, nodes)
	c := nodes[1].copying(1)
	conn, err := nodes[0].kernel.Stream(t.Context(), 1, copyService)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(append([]byte{0, 0, 0, 1}, bytes.Repeat([]byte{0, 0, 0, 1, 'x'}, 1000)...)); err != nil {
		t.Fatal(err)
	}
	check.AwaitFor(t, patience, "pieces that wait", func() bool { return len(c.pieces) == cap(c.pieces) })
	if most := cap(c.pieces) * maxPiece; most > 4*control.FileWindow {
		t.Errorf("it would hold %d bytes", most)
	}
}

func TestStrangeStreams(t *testing.T) {
	nodes := grow(t, 2)
	prepare(t, nodes)
	long := binary.BigEndian.AppendUint32(nil, 1)
	long = binary.BigEndian.AppendUint32(long, maxPiece+1)
	cases := []struct {
		name, service string
		content       []byte
		want          string // in the log
		fails         string // the job, with this text
	}{
		{name: "unknown service", service: "teleport", want: `node0 asks for a stream "teleport", which is unknown`},
		{name: "no job", service: copyService, content: []byte{1}, want: "files from node0: unexpected EOF"},
		{name: "unknown job", service: copyService, content: binary.BigEndian.AppendUint32(nil, 77)},
		{name: "piece", service: copyService, content: long, fails: "files from node0: piece of 1048577 bytes, at most 1048576 are allowed"},
	}
	for _, k := range cases {
		t.Run(k.name, func(t *testing.T) {
			conn, err := nodes[0].kernel.Stream(t.Context(), 1, k.service)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.Write(k.content); err != nil {
				t.Fatal(err)
			}
			if len(k.content) == 1 {
				conn.Close()
			} else if _, err := conn.Read(make([]byte, 1)); err == nil {
				t.Error("it was answered")
			}
			check.AwaitFor(t, patience, "line in the log", func() bool { return strings.Contains(nodes[1].log.String(), k.want) })
			if k.fails != "" {
				if m := first[*control.Loaded](t, &nodes[1].told); m.Error.GetText() != k.fails {
					t.Errorf("the node says %v", m)
				}
			}
		})
	}
}

// A node accepts the files of a job only from its parent in the job's tree, and the root only from
// serve. Data from other nodes is ignored, and does not end the job.
func TestFilesOfOthers(t *testing.T) {
	nodes := grow(t, 5)
	stranger := nodes[4]
	nodes = nodes[:4]
	prepare(t, nodes)
	for _, from := range append(nodes[1:], stranger) {
		for to := range nodes {
			if int(from.config.Boot.Node) == to || from == nodes[1] && to == 3 {
				continue
			}
			from.kernel.transport.Meet(id.Node(to), nodes[to].listener.Addr().String())
			conn, err := from.kernel.Stream(t.Context(), id.Node(to), copyService)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			forged := binary.BigEndian.AppendUint32(nil, 1)
			forged = append(forged, "\x00\x00\x00\x06forged\xff\xff\xff\xff"...)
			if _, err := conn.Write(forged); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Read(make([]byte, 1)); err == nil {
				t.Error("it was answered")
			}
		}
	}
	files := []byte("the job's own files")
	send(t, nodes[0], files, 7)
	for i, b := range nodes {
		if m := first[*control.Loaded](t, &b.told); m.Error != nil || !bytes.Equal(b.kernel.loaded, files) {
			t.Errorf("node %d got %q and says %v", i, b.kernel.loaded, m)
		}
		if !strings.Contains(b.log.String(), "node4 sends files of job 1, but is not this node's parent") {
			t.Errorf("the log of node %d says %q", i, b.log.String())
		}
	}
}

// A node passes a piece on without a copy of it.
func TestPieceIsNotCopied(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	taken := make(chan int64, 1)
	go func() {
		n, _ := io.Copy(io.Discard, far)
		taken <- n
	}()
	out, piece := &child{conn: near}, make([]byte, maxPiece)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const pieces = 10
	for range pieces {
		if err := out.write(piece, stall); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if bytes := after.TotalAlloc - before.TotalAlloc; bytes > pieces*maxPiece/10 {
		t.Errorf("%d pieces of %d bytes took %d bytes of memory", pieces, maxPiece, bytes)
	}
	near.Close()
	if n := <-taken; n != pieces*(4+maxPiece) {
		t.Errorf("%d bytes were written", n)
	}
}

// Input from another node is read as pieces of bounded size, or refused. readPiece reads pieces
// from write.
func FuzzReadPiece(f *testing.F) {
	f.Add([]byte{0, 0, 0, 3, 'a', 'b', 'c', 0, 0, 0, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0, 0x10, 0, 0})
	f.Add([]byte{0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		in := bytes.NewReader(data)
		for used := 0; ; {
			p, err := readPiece(in)
			if err != nil {
				if err == io.EOF && in.Len() > 0 {
					t.Fatal("end of input reported before the end")
				}
				return
			}
			if len(p) > maxPiece {
				t.Fatalf("piece of %d bytes", len(p))
			}
			if used += 4 + len(p); used != len(data)-in.Len() {
				t.Fatalf("pieces of %d bytes were made of %d", used, len(data)-in.Len())
			}
		}
	})
}

func TestPieceRoundTrip(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	out := &child{id.Node(1), near}
	pieces := [][]byte{{1}, randomBytes(maxPiece), {}}
	go func() {
		for _, p := range pieces {
			if err := out.write(p, stall); err != nil {
				t.Error(err)
			}
		}
	}()
	in := bufio.NewReader(far)
	for i, want := range pieces {
		if p, err := readPiece(in); err != nil || !bytes.Equal(p, want) {
			t.Errorf("piece %d came as %d bytes, %v", i, len(p), err)
		}
	}
	far.Close()
	var broken *streamError
	if err := out.write([]byte{1}, stall); !errors.As(err, &broken) || !strings.HasPrefix(err.Error(), "pass files on to node1: ") {
		t.Errorf("a broken stream: %v", err)
	}
}

// A hosted node waits longer, for its own work and for serve, where heartbeats are rare because the
// machine has many nodes.
func TestPatienceOfHosted(t *testing.T) {
	for _, c := range []struct {
		substrate           string
		beat, want, silence time.Duration
	}{
		{node.Hosted, 0, requestTimeout, 5 * time.Second},
		{node.Hosted, usualBeat, requestTimeout, 5 * time.Second},
		{node.Hosted, 4 * time.Second, 8 * requestTimeout, time.Minute},
		{node.Virtual, time.Second, requestTimeout, 5 * time.Second},
	} {
		a := new(Agent)
		a.config.Boot.Substrate = c.substrate
		if got := a.requestTime(c.beat); got != c.want {
			t.Errorf("%s, a heartbeat every %v: %v, not %v", c.substrate, c.beat, got, c.want)
		}
		if got := a.silenceOf(c.beat); got != c.silence {
			t.Errorf("%s, a heartbeat every %v: serve may be silent for %v, not %v", c.substrate, c.beat, got, c.silence)
		}
	}
}
