// Package ranktest plays the node kernel for one rank, or for a job of several, and has one
// contract suite for all application libraries. A library takes part with a program that implements
// the modes of Suite.
//
// Locks: regions.mu and text.mu; neither is taken while the other is held.
package ranktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/rights"
	"margay/kernel/abi/wire"
)

// patience bounds every wait.
const patience = 30 * time.Second

// lifetime bounds the run of a program, which waits often in some tests.
const lifetime = 5 * time.Minute

// Kernel is the node kernel of a test with one rank.
type Kernel struct {
	t                   *testing.T
	cmd                 *exec.Cmd
	wait                func() error // cmd.Wait, for any number of goroutines
	output              text
	errors              text
	socket              *net.UnixConn
	memory              *os.File // the area
	doorbell            *net.UnixConn
	theirs              *os.File // the rank's end of the doorbell
	upcallDoorbell      *net.UnixConn
	theirUpcallDoorbell *os.File // the rank's end of the upcall doorbell
	*commons
	area    *wire.Area
	local   int // the rank's local rank
	send    *wire.Consumer
	receive *wire.Producer
	upcalls *wire.Producer
}

// text is what a program has printed so far.
type text struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (t *text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.Write(p)
}

func (t *text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.String()
}

// apart is the place of a rank of a job with two nodes. Its node is the third of the machine's.
var apart = wire.Header{Job: 7, Rank: 1, Size: 3, Node: 2, LocalRank: 1, LocalSize: 2, Nodes: 2}

// Start starts the program with a mode, as a rank of a job with two nodes.
func Start(t *testing.T, program func(ctx context.Context, mode ...string) *exec.Cmd, mode ...string) *Kernel {
	t.Helper()
	return start(t, apart, []uint32{0, 2, 2}, program, mode...)
}

// start starts the program with a mode, as a rank with that place.
func start(t *testing.T, header wire.Header, nodes []uint32, program func(ctx context.Context, mode ...string) *exec.Cmd, mode ...string) *Kernel {
	t.Helper()
	return startIn(t, newCommons(t, int(header.LocalSize)), header, nodes, program, mode...)
}

// startIn is start with the commons of the rank's node.
func startIn(t *testing.T, c *commons, header wire.Header, nodes []uint32, program Program, mode ...string) *Kernel {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lifetime)
	t.Cleanup(cancel)
	k := &Kernel{t: t, cmd: program(ctx, mode...), local: int(header.LocalRank), commons: c}
	var far *os.File
	k.socket, far = pair(t, unix.SOCK_SEQPACKET)
	k.doorbell, k.theirs = pair(t, unix.SOCK_STREAM)
	k.upcallDoorbell, k.theirUpcallDoorbell = pair(t, unix.SOCK_STREAM)
	if err := unix.SetNonblock(int(k.theirUpcallDoorbell.Fd()), false); err != nil {
		t.Fatal(err)
	}
	var mem []byte
	k.memory, mem = mapped(t, "area", wire.AreaSize(int(header.Size)))
	var err error
	if k.area, err = wire.NewArea(mem, header, nodes); err != nil {
		t.Fatal(err)
	}
	k.send, k.receive, k.upcalls = k.area.SendConsumer(), k.area.ReceiveProducer(), k.area.UpcallProducer()
	k.cmd.ExtraFiles = []*os.File{far}
	k.cmd.Env = append(os.Environ(), fmt.Sprint(wire.EnvFD, "=", wire.FD))
	k.cmd.Stdout, k.cmd.Stderr = &k.output, &k.errors
	k.cmd.WaitDelay = 30 * time.Second // a child of the rank may have its output
	k.wait = sync.OnceValue(k.cmd.Wait)
	if err := k.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	far.Close()
	t.Cleanup(func() {
		cancel()
		_ = k.wait()
		k.socket.Close()
		k.doorbell.Close()
		k.theirs.Close()
		k.upcallDoorbell.Close()
		k.theirUpcallDoorbell.Close()
	})
	return k
}

// mapped makes shared memory and maps it until the test ends.
func mapped(t *testing.T, name string, size int) (*os.File, []byte) {
	t.Helper()
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err := f.Truncate(int64(size)); err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.Close()
		_ = unix.Munmap(mem)
	})
	return f, mem
}

// pair makes two connected sockets, one for each side.
func pair(t *testing.T, kind int) (*net.UnixConn, *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	near := os.NewFile(uintptr(fds[0]), "near")
	defer near.Close()
	if kind == unix.SOCK_SEQPACKET {
		if err := unix.SetNonblock(fds[1], false); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := net.FileConn(near)
	if err != nil {
		t.Fatal(err)
	}
	return conn.(*net.UnixConn), os.NewFile(uintptr(fds[1]), "far")
}

// request waits for the rank's next request and its file.
func (k *Kernel) request() (wire.Request, *os.File) {
	k.t.Helper()
	buf, oob := make([]byte, wire.MaxRequest+1), make([]byte, rights.Space(1))
	k.socket.SetReadDeadline(time.Now().Add(patience))
	n, oobn, _, _, err := k.socket.ReadMsgUnix(buf, oob)
	if err != nil {
		k.t.Fatalf("no request: %v; the rank says %s%s", err, k.output.String(), k.errors.String())
	}
	q, err := wire.DecodeRequest(buf[:n])
	if err != nil {
		k.t.Fatal(err)
	}
	files, err := rights.Decode(oob[:oobn], "given")
	if err != nil {
		k.t.Fatal(err)
	}
	if len(files) == 0 {
		return q, nil
	}
	return q, files[0]
}

// answer answers a request.
func (k *Kernel) answer(q wire.Request, r wire.Reply, files ...*os.File) {
	k.t.Helper()
	r.Call = q.Call
	if _, _, err := k.socket.WriteMsgUnix(r.Encode(), rights.Encode(files...), nil); err != nil {
		k.t.Fatal(err)
	}
}

// expect waits for a request of a kind.
func (k *Kernel) expect(op wire.Op) (wire.Request, *os.File) {
	k.t.Helper()
	q, file := k.request()
	if q.Op != op {
		k.t.Fatalf("the rank asks for %d, not for %d", q.Op, op)
	}
	return q, file
}

// Greet answers the rank's first request with all that it needs.
func (k *Kernel) Greet() {
	k.t.Helper()
	q, _ := k.expect(wire.OpHello)
	if q.Value != wire.Version {
		k.t.Fatalf("the rank speaks version %d", q.Value)
	}
	k.answer(q, wire.Reply{Values: [8]uint64{wire.Version}}, k.memory, k.theirs, k.theirUpcallDoorbell, k.boards, k.bells[k.local])
}

// ring wakes the rank. If the doorbell is full, it has not answered it for long, but it was rung.
func (k *Kernel) ring() {
	err := k.doorbell.SetWriteDeadline(time.Now().Add(time.Second))
	if err == nil {
		_, err = k.doorbell.Write([]byte{1})
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		k.t.Errorf("ring: %v", err)
	}
}

// Push sends the rank a message, if there is room.
func (k *Kernel) Push(r wire.Record) bool {
	k.t.Helper()
	ok, wake, err := k.receive.Push(r)
	if err != nil {
		k.t.Fatal(err)
	}
	if wake {
		k.ring()
	}
	return ok
}

// Armed reports whether the rank wants to be interrupted.
func (k *Kernel) Armed() bool { return k.area.Armed().Load() != 0 }

// Waiting reports whether the rank sleeps in its library, or is about to.
func (k *Kernel) Waiting() bool { return k.area.ReceiveWaiting().Load() != 0 }

// Sleeps waits until the rank's first thread is in a system call that waits.
func (k *Kernel) Sleeps() {
	k.t.Helper()
	k.Await("sleep", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", k.cmd.Process.Pid))
		_, rest, ok := strings.Cut(string(b), ") ")
		return err == nil && ok && strings.HasPrefix(rest, "S")
	})
}

// Rendezvous calls a function while the rank waits for a region.
func (k *Kernel) Rendezvous(during func()) {
	k.t.Helper()
	q, _ := k.expect(wire.OpRegion)
	during()
	k.answer(q, wire.Reply{Values: [8]uint64{q.Value}}, k.memory)
}

// Upcall sends the rank an upcall, if there is room, and reports whether it rang the upcall
// doorbell.
func (k *Kernel) Upcall(r wire.Record) (ok, nudged bool) {
	k.t.Helper()
	ok, wake, err := k.upcalls.Push(r)
	if err != nil {
		k.t.Fatal(err)
	}
	switch {
	case !ok:
	case wake && k.upcalls.Claim():
		nudged = true
		if _, err := k.upcallDoorbell.Write([]byte{1}); err != nil {
			k.t.Errorf("nudge: %v", err)
		}
	case k.area.ReceiveWaiting().Load() != 0:
		k.ring()
	}
	return ok, nudged
}

// Next receives a message from the rank, if there is one.
func (k *Kernel) Next() (wire.Record, bool) {
	k.t.Helper()
	r, ok, err := k.send.Next()
	if err != nil {
		k.t.Fatal(err)
	}
	if !ok {
		return r, false
	}
	r.Payload = bytes.Clone(r.Payload)
	if k.send.Release() {
		k.ring()
	}
	return r, true
}

// sleep is Next, but sleeps until the rank rings.
func (k *Kernel) sleep() wire.Record {
	k.t.Helper()
	for {
		if r, ok := k.Next(); ok {
			return r
		}
		if !k.send.Wait() {
			continue
		}
		k.doorbell.SetReadDeadline(time.Now().Add(patience))
		if _, err := k.doorbell.Read(make([]byte, 256)); err != nil {
			k.t.Fatalf("the rank does not ring: %v; it says %s%s", err, k.output.String(), k.errors.String())
		}
		k.send.Awake()
	}
}

// Await waits until ok holds.
func (k *Kernel) Await(what string, ok func() bool) {
	k.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(deadline) {
			k.t.Fatalf("no %s within %v; the rank says %s%s", what, patience, k.output.String(), k.errors.String())
		}
	}
}

// Barrier waits until the rank has entered its n-th barrier, and releases it.
func (k *Kernel) Barrier(n uint64) {
	k.t.Helper()
	k.Await(fmt.Sprintf("barrier %d", n), func() bool { return k.area.Entered().Load() == n })
	k.area.Released().Store(n)
	if k.area.ReceiveWaiting().Load() != 0 {
		k.ring()
	}
}

// Ended waits for the end of the program and returns what it has printed.
func (k *Kernel) Ended(code int) (output, errors string) {
	k.t.Helper()
	_ = k.wait()
	if got := k.cmd.ProcessState.ExitCode(); got != code {
		k.t.Errorf("the rank ended with %v: %s%s", k.cmd.ProcessState, k.output.String(), k.errors.String())
	}
	return strings.TrimSpace(k.output.String()), strings.TrimSpace(k.errors.String())
}

// payload is the payload of the i-th message of a test.
func payload(i int) []byte {
	b := make([]byte, i%(wire.MaxPayload+1))
	for j := range b {
		b[j] = byte(i + j)
	}
	return b
}

// Suite checks a library against the contract. The seed determines its random parts. program
// returns a command that implements a mode, and exits with status 1 and a message if a function of
// the library fails:
//
//	who         prints job, rank, size, node, nodes, local rank, local size and the node of each rank, and ends
//	nowhere     sends a message to rank 3, one for handler 256 and one of 1 MiB and a byte, posts one of 1025 bytes, makes window 1 of 0 bytes, and enters a barrier with a time-out
//	            of 50 ms and another one, and prints the error of each but the first barrier
//	echo        sends each message for handler 1 back to its source, for handler 2, with 1 added to its second argument, until
//	            one for handler 3 comes; then it enters a barrier, finalizes and ends
//	flood N     sends N messages to rank 0, for handler 7, with the arguments i and ^i and a payload of i modulo 1025 bytes,
//	            byte j being i+j; then it finalizes and ends
//	compute N   has upcalls interrupt it and computes, without a call of the library, until it has sent N messages for handler 4
//	            back to their sources, for handler 2, with 1 added to the second argument; then it finalizes and ends
//	await N [B] enters a barrier, or B of them, has upcalls interrupt it, waits until N messages for handler 5 have been handled, be it before it
//	            waited; then it finalizes and ends
//	meet N [T]  N times sends rank 0 a message for handler 6, whose first argument counts them from 1, enters a barrier, the last
//	            one with a time-out of T ms, and ends with status 1 unless as many messages for handler 6 have been handled by
//	            then; then it finalizes and ends
//	served T    waits for a message for handler 6, makes window 0 of 4096 bytes, waits for messages with a time-out of T ms, prints their
//	            number and the window's first byte, and ends
//	services    takes the region "shared" of 4096 bytes and writes 'R' there; inserts the extension "object" as "x" into the slot
//	            "message" with the constant "c" 5 and 6 entries of the map "m"; prints its runs, instructions, faults,
//	            nanoseconds and last fault; writes 'S' into its map "m" and prints its entries and stride; removes it; and inserts
//	            "object" once more, as it is
//	list WHAT   takes the fixed region "list" of 4096 bytes, twice; if it is to write, puts there a pointer to a list of the squares
//	            of 0 to 9, linked by pointers; and prints the address of the region and the sum of the list that it finds there
//	finalized   has a handler for messages for handler 5, which ends it with the status 1; inserts "object" as it is; finalizes,
//	            which must succeed; prints "finalized"; waits for the end of its input; polls, for nothing; and prints the error of
//	            each call that fails from then on, a line for each: send, post, wait, wait for a condition that holds, barrier,
//	            finalize, region, fixed region, insert, stats, state, remove and broadcast
//	calls       prints the error of a sum of int32 for rank 9, of "and" of 1 float64 in all ranks, of a broadcast of 8 bytes from
//	            rank 0, and of gathering them in all ranks; and ends
//	overdue T   prints the error of a broadcast of 8 bytes from rank 0 with a time-out of T ms, and ends
//	tests       starts a broadcast of 8 bytes from rank 0 and another one, tests the first until it is over, and prints its error and
//	            that of the second; makes a broadcast, and prints its error; and ends
//	split       splits the ranks of the job, with colour and key 0, prints the error, and ends
//	refused     puts 1 byte to window 9 of rank 0 and enters a barrier, which must fail; enters another one; puts once more and
//	            finalizes, which must fail; prints the two errors, and that of a barrier from then on
//	collect     see Collectives
//	windows     see Windows
//	commit      see Commits
//	giveup      makes window 0 of 8 bytes; twice compares its first word with 0, by ==, in all ranks, and writes 1 there, with a time-out of
//	            500 ms and then 5 s, prints the error, and waits for a message; and ends
//	pending     starts a get of 8 bytes from window 0 of rank 0, waits for it 50 ms in vain, starts puts there until that is
//	            refused, prints the error, abandons the get, starts another put, prints "abandoned", waits for all puts, and
//	            finalizes if the memory of the get is as it was
func Suite(t *testing.T, seed uint64, program func(ctx context.Context, mode ...string) *exec.Cmd) {
	const noJob = "this process is not a rank of a job: start it with margay run"
	t.Run("no job", func(t *testing.T) {
		for _, env := range []string{"", "=", "=99", "=-1", "=0", "=garbage"} {
			cmd := program(t.Context(), "who")
			cmd.Env = os.Environ()
			if env != "" {
				cmd.Env = append(cmd.Env, wire.EnvFD+env)
			}
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), noJob) {
				t.Errorf("with %q: %v, %s", env, err, out)
			}
		}
	})
	t.Run("who", func(t *testing.T) {
		k := Start(t, program, "who")
		k.Greet()
		if out, _ := k.Ended(0); out != "7 1 3 2 2 1 2 0 2 2" {
			t.Errorf("it is %s", out)
		}
	})
	t.Run("nowhere", func(t *testing.T) {
		k := Start(t, program, "nowhere")
		k.Greet()
		const want = "there is no rank 3, but ranks 0 to 2\nthere is no handler 256, but handlers 0 to 255\n" +
			"a message carries at most 1048576 bytes\na message that is posted carries at most 1024 bytes\n" +
			"window 1 of 0 bytes: a window has 1 byte at least\nan earlier barrier was abandoned: the job has no barriers any more"
		if out, _ := k.Ended(0); strings.ReplaceAll(out, "margay: ", "") != want {
			t.Errorf("it says %s", out)
		}
	})
	t.Run("version", func(t *testing.T) {
		k := Start(t, program, "who")
		q, _ := k.expect(wire.OpHello)
		k.answer(q, wire.Reply{Status: wire.StatusVersion, Text: "the node kernel speaks version 99"})
		if _, text := k.Ended(1); !strings.Contains(text, "the node kernel speaks version 99") {
			t.Errorf("it says %s", text)
		}
	})
	t.Run("no descriptors", func(t *testing.T) {
		k := Start(t, program, "who")
		q, _ := k.expect(wire.OpHello)
		k.answer(q, wire.Reply{})
		if _, text := k.Ended(1); !strings.Contains(text, "the node kernel sent") {
			t.Errorf("it says %s", text)
		}
	})
	t.Run("another area", func(t *testing.T) {
		k := Start(t, program, "who")
		if _, err := k.memory.WriteAt([]byte{99}, 4); err != nil {
			t.Fatal(err)
		}
		k.Greet()
		if _, text := k.Ended(1); !strings.Contains(text, "area") || !strings.Contains(text, fmt.Sprint("of version ", wire.Version)) {
			t.Errorf("it says %s", text)
		}
	})
	t.Run("another process", func(t *testing.T) {
		k := Start(t, program, "who")
		k.area.Joined().Store(1)
		k.Greet()
		if _, text := k.Ended(1); !strings.Contains(text, "another process of this rank has joined the job") {
			t.Errorf("it says %s", text)
		}
	})
	t.Run("hang-up", func(t *testing.T) {
		k := Start(t, program, "who")
		k.expect(wire.OpHello)
		k.socket.Close()
		if _, text := k.Ended(1); !strings.Contains(text, "the node kernel's answer") {
			t.Errorf("it says %s", text)
		}
	})
	t.Run("gone", func(t *testing.T) {
		k := Start(t, program, "echo")
		k.Greet()
		k.Sleeps()
		k.doorbell.Close()
		if _, text := k.Ended(1); !strings.Contains(text, "the node kernel is gone") {
			t.Errorf("it says %s", text)
		}
	})
	t.Run("echo", func(t *testing.T) { echo(t, program) })
	t.Run("flood", func(t *testing.T) { flood(t, program) })
	t.Run("await", func(t *testing.T) { await(t, program) })
	t.Run("upcalls", func(t *testing.T) { upcalls(t, program) })
	t.Run("upcalls by polling", func(t *testing.T) { polledUpcalls(t, program) })
	t.Run("services", func(t *testing.T) { services(t, program) })
	t.Run("list", func(t *testing.T) { list(t, program) })
	t.Run("finalized", func(t *testing.T) { finalized(t, program) })
	t.Run("calls", func(t *testing.T) { calls(t, program) })
	t.Run("overdue", func(t *testing.T) { overdue(t, program) })
	t.Run("different calls", func(t *testing.T) { differ(t, program) })
	t.Run("barrier and call", func(t *testing.T) { barrierAndCall(t, program) })
	t.Run("nonsense", func(t *testing.T) { nonsense(t, program) })
	t.Run("pending", func(t *testing.T) { pending(t, program) })
	t.Run("refused", func(t *testing.T) { refused(t, program) })
	t.Run("given up", func(t *testing.T) { givenUp(t, program) })
	t.Run("commits", func(t *testing.T) { Commits(t, program) })
	t.Run("tests", func(t *testing.T) { tests(t, program) })
	t.Run("split", func(t *testing.T) { split(t, program) })
	t.Run("windows", func(t *testing.T) { Windows(t, seed, program) })
	t.Run("collectives", func(t *testing.T) { Collectives(t, seed, program) })
	t.Run("neighbours", func(t *testing.T) { neighbours(t, seed, program) })
	t.Run("last to a barrier", func(t *testing.T) { lastToMeet(t, program) })
	t.Run("closed channel", func(t *testing.T) { closedChannel(t, program) })
	t.Run("mirrored channels", func(t *testing.T) { mirrors(t, seed, program) })
	t.Run("served", func(t *testing.T) { served(t, seed, program) })
	t.Run("flood of another node", func(t *testing.T) { farFlood(t, seed, program) })
	t.Run("leaders", func(t *testing.T) { leaders(t, seed, program) })
	t.Run("strewn leaders", func(t *testing.T) { strewnLeaders(t, seed, program) })
	t.Run("leader that has ended", func(t *testing.T) { boundLeader(t, seed, program) })
	t.Run("leader that stops waiting", func(t *testing.T) { overdueLeader(t, seed, program) })
	t.Run("stalled messages", func(t *testing.T) { stalledMessages(t, seed, program) })
	t.Run("nonsense notes", func(t *testing.T) { nonsenseNotes(t, seed, program) })
	t.Run("member", func(t *testing.T) { member(t, program) })
	t.Run("garbage", func(t *testing.T) { garbage(t, program) })
	t.Run("fixed address that cannot be had", func(t *testing.T) {
		k := Start(t, program, "list", "write")
		k.Greet()
		q, _ := k.expect(wire.OpRegion)
		const beyond = 1 << 60 // what no application can have
		k.answer(q, wire.Reply{Values: [8]uint64{0: 4096, 3: beyond}}, shared(t, "region"))
		if _, text := k.Ended(1); !strings.Contains(text, "region list at ") {
			t.Errorf("it says %s", text)
		}
	})
}

// echo: messages arrive whole and in order, both when one side sleeps and when the rings are full.
func echo(t *testing.T, program func(ctx context.Context, mode ...string) *exec.Cmd) {
	k := Start(t, program, "echo")
	k.Greet()
	message := func(i int) wire.Record {
		return wire.Record{Handler: 1, Peer: uint32(i % 3), Node: 2, Args: [2]uint64{uint64(i), 1 << 40}, Payload: payload(i)}
	}
	check := func(i int, r wire.Record) {
		t.Helper()
		if r.Handler != 2 || r.Peer != uint32(i%3) || r.Args != [2]uint64{uint64(i), 1<<40 + 1} || !bytes.Equal(r.Payload, payload(i)) {
			t.Fatalf("message %d comes back as %+v", i, r)
		}
	}
	for i := range 300 {
		if !k.Push(message(i)) {
			t.Fatal("there is no room for one message")
		}
		check(i, k.sleep())
	}
	const n = 5000
	sent, got := 0, 0
	k.Await("echo", func() bool {
		for sent < n && k.Push(message(sent)) {
			sent++
		}
		for range 100 { // less than has come, so that the rank's ring is full at times
			r, ok := k.Next()
			if !ok {
				break
			}
			check(got, r)
			got++
		}
		return got == n
	})
	if !k.Push(wire.Record{Handler: 3}) {
		t.Fatal("there is no room for one message")
	}
	k.Barrier(1)
	k.Barrier(2)
	k.Ended(0)
}

// flood: a sender waits while its ring is full, and loses nothing.
func flood(t *testing.T, program func(ctx context.Context, mode ...string) *exec.Cmd) {
	const n = 3000
	k := Start(t, program, "flood", fmt.Sprint(n))
	k.Greet()
	for i := range n {
		r := k.sleep()
		if r.Handler != 7 || r.Peer != 0 || r.Node != 0 || r.Args != [2]uint64{uint64(i), ^uint64(i)} || !bytes.Equal(r.Payload, payload(i)) {
			t.Fatalf("message %d comes as %+v", i, r)
		}
	}
	k.Barrier(1)
	k.Ended(0)
}

// await: a goroutine that waits for a handler's effect need not be the one that runs the handler.
func await(t *testing.T, program func(ctx context.Context, mode ...string) *exec.Cmd) {
	for _, later := range []int{0, 1, 5} { // messages after the barrier
		t.Run(fmt.Sprint(later), func(t *testing.T) {
			k := Start(t, program, "await", fmt.Sprint(1+later))
			k.Greet()
			k.Await("barrier", func() bool { return k.area.Entered().Load() == 1 && k.Waiting() })
			k.Push(wire.Record{Handler: 5, Node: 2})
			k.Await("handling of the message", func() bool { return k.receive.Empty() })
			k.Barrier(1)
			for i := range later {
				k.Await("sleep", k.Waiting)
				if i%2 == 0 {
					k.Upcall(wire.Record{Handler: 5, Node: 2})
				} else {
					k.Push(wire.Record{Handler: 5, Node: 2})
				}
			}
			k.Barrier(2)
			k.Ended(0)
		})
	}
}

// upcalls: a computing rank is interrupted, by one message and by many, and at most once for each
// time it has armed.
func upcalls(t *testing.T, program func(ctx context.Context, mode ...string) *exec.Cmd) {
	const n, singles = 3000, 100
	k := Start(t, program, "compute", fmt.Sprint(n))
	k.Greet()
	nudges, sent := 0, 0
	for got := range n {
		// Messages in flight have room in the send ring, because a handler cannot wait.
		for sent < n && sent < got+200 && (sent <= got || got >= singles) {
			if sent < singles {
				k.Await("arming", func() bool { return k.area.Armed().Load() != 0 })
			}
			ok, nudged := k.Upcall(wire.Record{Handler: 4, Peer: uint32(sent % 3), Node: 2, Args: [2]uint64{uint64(sent), 1 << 40}, Payload: payload(sent)})
			if nudged {
				nudges++
			}
			if !ok {
				break
			}
			sent++
		}
		r := k.sleep()
		if r.Handler != 2 || r.Peer != uint32(got%3) || r.Args != [2]uint64{uint64(got), 1<<40 + 1} || !bytes.Equal(r.Payload, payload(got)) {
			t.Fatalf("upcall %d comes back as %+v", got, r)
		}
	}
	if nudges < singles || nudges > n {
		t.Errorf("it was nudged %d times", nudges)
	}
	k.Barrier(1)
	k.Ended(0)
}

// polledUpcalls: a rank without upcalls handles them when it waits, before messages that were sent
// later.
func polledUpcalls(t *testing.T, program func(ctx context.Context, mode ...string) *exec.Cmd) {
	k := Start(t, program, "echo")
	k.Greet()
	for i := range 200 {
		if i%10 == 0 { // it sleeps
			k.Await("sleep", func() bool { return k.area.ReceiveWaiting().Load() != 0 })
		}
		if ok, nudged := k.Upcall(wire.Record{Handler: 1, Peer: 0, Node: 2, Args: [2]uint64{uint64(2 * i)}}); !ok || nudged {
			t.Fatalf("room %v, nudged %v", ok, nudged)
		}
		k.Push(wire.Record{Handler: 1, Peer: 0, Node: 2, Args: [2]uint64{uint64(2*i + 1)}})
	}
	upcall, message := 0, 1
	for range 400 {
		switch r := k.sleep(); r.Args[0] {
		case uint64(upcall):
			upcall += 2
		case uint64(message):
			if message += 2; message > upcall+1 {
				t.Errorf("message %d was handled before upcall %d", r.Args[0], upcall)
			}
		default:
			t.Fatalf("%d came back, neither %d nor %d", r.Args[0], upcall, message)
		}
	}
	k.Push(wire.Record{Handler: 3, Peer: 0, Node: 2})
	k.Barrier(1)
	k.Barrier(2)
	k.Ended(0)
}

// finalized: a finalized rank neither sends nor receives, and calls that would return the reason.
func finalized(t *testing.T, program func(ctx context.Context, mode ...string) *exec.Cmd) {
	input, more, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer input.Close()
	defer more.Close()
	k := Start(t, func(ctx context.Context, mode ...string) *exec.Cmd {
		cmd := program(ctx, mode...)
		cmd.Stdin = input
		return cmd
	}, "finalized")
	k.Greet()
	q, object := k.expect(wire.OpInsert)
	object.Close()
	k.answer(q, wire.Reply{Handle: 77})
	k.Barrier(1)
	k.Await("end of finalize", func() bool { return strings.Contains(k.output.String(), "finalized\n") })
	late := wire.Record{Handler: 5, Node: 2}
	if ok, nudged := k.Upcall(late); !ok || nudged || !k.Push(late) {
		t.Errorf("upcall: room %v, nudged %v", ok, nudged)
	}
	more.Close()
	output, _ := k.Ended(0)
	says := strings.Split(output, "\n")[1:]
	for _, line := range says {
		if !strings.HasSuffix(line, "the job is finalized") {
			t.Errorf("a call says %q", line)
		}
	}
	if len(says) != 13 {
		t.Errorf("%d calls of 13 fail: %q", len(says), says)
	}
	if k.receive.Empty() || k.upcalls.Empty() {
		t.Error("it has taken a message that came after it had finalized")
	}
	if r, ok := k.Next(); ok || k.area.Entered().Load() != 1 {
		t.Errorf("it has sent %+v, %v, and entered %d barriers", r, ok, k.area.Entered().Load())
	}
	if n, err := k.socket.Read(make([]byte, wire.MaxRequest)); n > 0 {
		t.Errorf("it has made a request, %d bytes, %v", n, err)
	}
}

// shared makes a page of memory that can be mapped.
func shared(t *testing.T, name string) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), name)
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	return f
}

// list: a pointer that one rank has stored in a fixed region is valid in another.
func list(t *testing.T, program func(ctx context.Context, mode ...string) *exec.Cmd) {
	region := shared(t, "list")
	const address = 0x1000_0040_0000
	for _, what := range []string{"write", "read"} {
		k := Start(t, program, "list", what)
		k.Greet()
		for _, size := range []uint64{4096, 0} {
			q, _ := k.expect(wire.OpRegion)
			if q.Name != "list" || q.Value != size {
				t.Errorf("region %+v", q)
			}
			k.answer(q, wire.Reply{Values: [8]uint64{0: 4096, 3: address}}, region)
		}
		if out, _ := k.Ended(0); out != fmt.Sprintf("%#x 285", address) {
			t.Errorf("it says %s", out)
		}
	}
}

// services: requests carry the application's arguments, and replies reach it.
func services(t *testing.T, program func(ctx context.Context, mode ...string) *exec.Cmd) {
	k := Start(t, program, "services")
	k.Greet()
	region, state := shared(t, "region"), shared(t, "state")
	q, _ := k.expect(wire.OpRegion)
	if q.Name != "shared" || q.Value != 4096 {
		t.Errorf("region %+v", q)
	}
	k.answer(q, wire.Reply{Values: [8]uint64{4096}}, region)

	q, object := k.expect(wire.OpInsert)
	if q.Name != "x" || q.Where != "message" || len(q.Settings) != 2 || q.Settings[0] != (wire.Setting{Kind: wire.SetConstant, Name: "c", Value: 5}) ||
		q.Settings[1] != (wire.Setting{Kind: wire.SetEntries, Name: "m", Value: 6}) {
		t.Errorf("insert %+v", q)
	}
	text := make([]byte, 100)
	if n, _ := object.ReadAt(text, 0); string(text[:n]) != "object" {
		t.Errorf("the object is %q", text[:n])
	}
	object.Close()
	k.answer(q, wire.Reply{Handle: 77})

	// A restarted node kernel may answer an old request again, and this one must be repeated.
	q, _ = k.expect(wire.OpStats)
	old := q
	old.Call--
	k.answer(old, wire.Reply{Status: wire.StatusFailed, Text: "an old answer"}, shared(t, "old"))
	k.answer(q, wire.Reply{Status: wire.StatusAgain})
	if q, _ = k.expect(wire.OpStats); q.Handle != 77 {
		t.Errorf("stats %+v", q)
	}
	k.answer(q, wire.Reply{Values: [8]uint64{1, 2, 3, 4}, Text: "the last fault"})
	if q, _ = k.expect(wire.OpState); q.Handle != 77 || q.Name != "m" {
		t.Errorf("state %+v", q)
	}
	k.answer(q, wire.Reply{Values: [8]uint64{4096, 6, 16}}, state)
	if q, _ = k.expect(wire.OpRemove); q.Handle != 77 {
		t.Errorf("remove %+v", q)
	}
	k.answer(q, wire.Reply{})
	q, object = k.expect(wire.OpInsert)
	object.Close()
	if q.Name != "" || q.Where != "" || len(q.Settings) != 0 {
		t.Errorf("insert %+v", q)
	}
	k.answer(q, wire.Reply{Status: wire.StatusRefused, Text: "instruction 3: bad"})
	output, errors := k.Ended(1)
	if output != "1 2 3 4 the last fault\n6 16" || !strings.Contains(errors, "instruction 3: bad") {
		t.Errorf("it says %q and %q", output, errors)
	}
	for name, f := range map[string]*os.File{"R": region, "S": state} {
		if n, err := f.ReadAt(text[:1], 0); n != 1 || string(text[:1]) != name {
			t.Errorf("memory %s holds %q, %v", name, text[:1], err)
		}
	}
}
