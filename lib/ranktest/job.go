package ranktest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"margay/internal/rights"
	"margay/kernel/abi/wire"
	"margay/lib/collective"
)

// Program returns a command that runs a rank with a mode.
type Program = func(ctx context.Context, mode ...string) *exec.Cmd

// commons is what the ranks of a node share.
type commons struct {
	boards *os.File // the memory of board
	board  *wire.Board
	bells  []*os.File // the peer doorbells by local rank
}

// newCommons makes the commons of a node with so many ranks.
func newCommons(t *testing.T, ranks int) *commons {
	t.Helper()
	c := new(commons)
	var memory []byte
	c.boards, memory = mapped(t, "board", wire.BoardSize(ranks))
	var err error
	if c.board, err = wire.OpenBoard(memory, ranks); err != nil {
		t.Fatal(err)
	}
	for range ranks {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			t.Fatal(err)
		}
		c.bells = append(c.bells, os.NewFile(uintptr(fd), "doorbell"))
	}
	t.Cleanup(func() { rights.Close(c.bells) })
	return c
}

// job is the node kernels of a job with several ranks, two on each node.
type job struct {
	t       *testing.T
	ranks   []*Kernel
	entered uint64 // barriers that are complete
	regions *regions
	direct  atomic.Pointer[directs] // nil: all requests about windows pass the node kernels
	step    func()                  // if it is not nil, called again and again
	answers map[int]*wire.Record    // by rank: to its last request about a window, until there is room
}

// startJob starts a job of ranks that run the programs in turn, with one mode, and greets them.
func startJob(t *testing.T, size int, programs []Program, mode ...string) *job {
	t.Helper()
	nodes := make([]uint32, size)
	for rank := range nodes {
		nodes[rank] = uint32(rank / 2)
	}
	j := &job{t: t, regions: &regions{t: t, files: make(map[string]*os.File), memory: make(map[string][]byte)}, answers: make(map[int]*wire.Record)}
	t.Cleanup(j.regions.close)
	var node *commons
	for rank := range size {
		local := min(2, size-rank&^1)
		if rank%2 == 0 {
			node = newCommons(t, local)
		}
		header := wire.Header{
			Job: 7, Rank: uint32(rank), Size: uint32(size), Node: nodes[rank], LocalRank: uint32(rank % 2),
			LocalSize: uint32(local), Nodes: uint32(max(2, (size+1)/2)), // so that barriers are the node kernel's
		}
		k := startIn(t, node, header, nodes, programs[rank%len(programs)], mode...)
		k.area.Path().Store(wire.PathYield)
		k.Greet()
		go j.answer(k, nodes[rank], rank)
		j.ranks = append(j.ranks, k)
	}
	return j
}

// carry takes messages from the ranks to their targets, and lets ranks out of barriers.
func (j *job) carry() {
	j.t.Helper()
	if j.step != nil {
		j.step()
	}
	entered := ^uint64(0)
	for rank, k := range j.ranks {
		for j.carryOne(rank, k) {
		}
		entered = min(entered, k.area.Entered().Load())
	}
	if entered > j.entered {
		j.entered = entered
		for _, k := range j.ranks {
			k.area.Released().Swap(entered)
			k.ring()
		}
	}
}

// carryOne carries a message of a rank and reports whether there was one, and room for it.
func (j *job) carryOne(rank int, k *Kernel) bool {
	j.t.Helper()
	r, ok, err := k.send.Next()
	if err != nil {
		j.t.Fatal(err)
	}
	if !ok {
		return false
	}
	to := j.ranks[r.Peer]
	if r.Handler == wire.HandlerRemote {
		if r.Peer/2 == uint32(rank/2) {
			j.t.Errorf("rank %d uses a window of its node by a message", rank)
		}
		// The answer may wait for room, but the request is carried out once.
		if j.answers[rank] == nil {
			answer := j.regions.serve(r, int(r.Peer), r.Peer/2)
			j.answers[rank] = &answer
			to.ring()
		}
		r, to = *j.answers[rank], k
	}
	r.Peer, r.Node = uint32(rank), uint32(rank/2)
	if !to.Push(r) {
		k.send.Unread()
		return false
	}
	delete(j.answers, rank)
	if k.send.Release() {
		k.ring()
	}
	return true
}

// finish carries until all ranks have ended, well, and returns what they printed.
func (j *job) finish() (outputs []string) {
	j.t.Helper()
	ended := make(chan int, len(j.ranks))
	for rank, k := range j.ranks {
		go func() {
			_ = k.wait()
			ended <- rank
		}()
	}
	left := len(j.ranks)
	j.ranks[0].Await("end of all ranks", func() bool {
		j.carry()
		select {
		case <-ended:
			left--
		default:
		}
		return left == 0
	})
	for rank, k := range j.ranks {
		if !k.cmd.ProcessState.Success() {
			j.t.Errorf("rank %d: %v: %s", rank, k.cmd.ProcessState, k.errors.String())
		}
		outputs = append(outputs, strings.TrimSpace(k.output.String()))
	}
	return outputs
}

// Collectives: jobs of ranks that run the programs in turn make random collective calls. Each rank
// compares its results with a sequential program's, and all ranks have equal results. The
// program's mode is
//
//	collect SEED N [D]  makes N calls, of all ranks and of groups, waiting and started, that the seed determines, and
//	                    finalizes; prints the digest of results that all ranks have. In C, the last rank exits before call D, or
//	                    kills itself before call -D
func Collectives(t *testing.T, seed uint64, programs ...Program) {
	for _, size := range []int{1, 2, 3, 6} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			outputs := startJob(t, size, programs, "collect", fmt.Sprint(seed), "100").finish()
			for rank, output := range outputs {
				if output != outputs[0] || output == "" {
					t.Errorf("rank 0 says %q, rank %d %q", outputs[0], rank, output)
				}
			}
		})
	}
}

// calls: the error of a wrong call names the reason, and after a failed call all fail.
func calls(t *testing.T, program Program) {
	k := Start(t, program, "calls")
	k.Greet()
	other := wire.Call{Number: 1, Root: 0, Kind: wire.CallReduce, Type: wire.TypeFloat64, Op: wire.OpMax, Length: 16}
	k.Push(wire.Record{Handler: wire.HandlerCollective, Peer: 0, Args: other.Args(), Payload: make([]byte, 16)})
	out, _ := k.Ended(0)
	want := []string{
		"reduce: there is no rank 9, but ranks 0 to 2",
		"there is no and of float64",
		"rank 0 is in call 1, reduce of 16 bytes by max of float64 with root 0; this rank is in call 1, broadcast of 8 bytes with root 0",
		"all-gather: a collective operation has failed before: ",
	}
	lines := strings.Split(out, "\n")
	for i, part := range want {
		if i >= len(lines) || !strings.Contains(lines[i], part) {
			t.Errorf("%q is not in line %d of %s", part, i, out)
		}
	}
}

// overdue: a rank that waits probes whether the other has ended, and gives up after its time-out.
func overdue(t *testing.T, program Program) {
	k := Start(t, program, "overdue", "2000")
	k.Greet()
	k.probed()
	if out, _ := k.Ended(0); !strings.Contains(out, "broadcast: waiting for rank 0: ") {
		t.Errorf("it says %s", out)
	}
}

// probed waits until the rank probes rank 0 in its first collective call.
func (k *Kernel) probed() {
	k.t.Helper()
	probe := k.sleep()
	if probe.Handler != wire.HandlerCollective || probe.Peer != 0 || probe.Args != (wire.Call{Number: 1, Kind: wire.CallProbe}).Args() || len(probe.Payload) != 0 {
		k.t.Errorf("it sends %+v", probe)
	}
}

// say sends the rank where rank 0 is.
func (k *Kernel) say(c wire.Call) {
	k.Push(wire.Record{
		Handler: wire.HandlerCollective, Args: wire.Call{Kind: wire.CallWhere}.Args(), Payload: wire.WherePayload(wire.Where{Call: c}),
	})
}

// answered waits for the answer of the rank to a probe of rank 0, its call.
func (k *Kernel) answered(want wire.Call) {
	k.t.Helper()
	var sent wire.Record
	for sent.Args != (wire.Call{Kind: wire.CallWhere}).Args() {
		k.Await("whereabouts", func() (came bool) { sent, came = k.Next(); return came })
	}
	if wheres, err := wire.ParseWheres(sent.Payload); err != nil || sent.Peer != 0 || wheres[0] != (wire.Where{Rank: 1, Call: want}) {
		k.t.Errorf("it sends rank %d %v, %v", sent.Peer, wheres, err)
	}
}

// differ: a rank whose call differs from the one of a rank that it awaits fails at once and names
// both, and sends the other its own. It answers a probe.
func differ(t *testing.T, program Program) {
	k := Start(t, program, "overdue", "60000")
	k.Greet()
	k.probed()
	own := wire.Call{Number: 1, Kind: wire.CallBroadcast, Length: 8}
	k.Push(wire.Record{Handler: wire.HandlerCollective, Args: wire.Call{Number: 1, Kind: wire.CallProbe}.Args()})
	k.answered(own)
	k.say(own) // which differs in nothing
	k.say(wire.Call{Number: 1, Kind: wire.CallGather, Length: 8})
	k.answered(own)
	const want = "rank 0 is in call 1, gather of 8 bytes with root 0; this rank is in call 1, broadcast of 8 bytes with root 0"
	if out, _ := k.Ended(0); !strings.Contains(out, want) {
		t.Errorf("it says %s", out)
	}
}

// barrierAndCall: of a rank in a barrier of the job and one in a collective call, each one's
// time-out names the other.
func barrierAndCall(t *testing.T, program Program) {
	calls := Start(t, program, "overdue", "4000")
	calls.Greet()
	calls.probed()
	calls.say(wire.Call{Kind: wire.CallBarrier})
	calls.answered(wire.Call{Number: 1, Kind: wire.CallBroadcast, Length: 8})
	meets := Start(t, program, "meet", "1", "4000")
	meets.Greet()
	meets.Await("message", func() bool { _, came := meets.Next(); return came })
	meets.Await("entry", func() bool { return meets.area.Entered().Load() == 1 })
	meets.Push(wire.Record{Handler: wire.HandlerCollective, Args: wire.Call{Number: 1, Kind: wire.CallProbe}.Args()})
	meets.answered(wire.Call{Kind: wire.CallBarrier})
	meets.say(wire.Call{Number: 1, Kind: wire.CallGather, Length: 8})
	if out, _ := calls.Ended(0); !strings.Contains(out, "waiting for rank 0 in call 1, broadcast of 8 bytes with root 0: rank 0 is in a barrier of the job: ") {
		t.Errorf("it says %s", out)
	}
	if _, says := meets.Ended(1); !strings.Contains(says, "a rank has not entered it, and rank 0 is in call 1, gather of 8 bytes with root 0") {
		t.Errorf("it says %s", says)
	}
}

// tests: a rank that does not wait for its collective call, but tests it, probes the other rank,
// too. When the call fails, the calls behind it do.
func tests(t *testing.T, program Program) {
	k := Start(t, program, "tests")
	k.Greet()
	var probe wire.Record
	k.Await("probe", func() (came bool) { probe, came = k.Next(); return came })
	if probe.Handler != wire.HandlerCollective || probe.Peer != 0 || probe.Args != (wire.Call{Number: 1, Kind: wire.CallProbe}).Args() {
		t.Errorf("it sends %+v", probe)
	}
	other := wire.Call{Number: 1, Kind: wire.CallBroadcast, Length: 9}
	k.Push(wire.Record{Handler: wire.HandlerCollective, Args: other.Args(), Payload: make([]byte, 9)})
	out, _ := k.Ended(0)
	const mismatch = "rank 0 is in call 1, broadcast of 9 bytes with root 0; this rank is in call 1, broadcast of 8 bytes with root 0"
	lines := strings.Split(out, "\n")
	if len(lines) != 3 || strings.Count(out, "broadcast: ") != 3 || strings.Count(out, mismatch) != 3 || !strings.Contains(lines[2], "has failed before") {
		t.Errorf("it says %s", out)
	}
}

// split: a rank does not join a group whose number another of its groups has, here the group of
// all ranks, and says so to the others.
func split(t *testing.T, program Program) {
	k := Start(t, program, "split")
	k.Greet()
	call := wire.Call{Number: 1, Kind: wire.CallSplit, Length: collective.WishSize}
	wishes := slices.Concat(collective.Wish{Key: -1}.Encode(), collective.Wish{Drawn: 1}.Encode(), collective.Wish{Colour: -1}.Encode())
	k.Push(wire.Record{Handler: wire.HandlerCollective, Args: call.Args(), Payload: wishes})
	call = wire.Call{Number: 2, Kind: wire.CallAllReduce, Type: wire.TypeUint64, Op: wire.OpMin, Length: 8}
	var sent wire.Record
	for sent.Args != call.Args() {
		k.Await("message", func() (came bool) { sent, came = k.Next(); return came })
	}
	if !bytes.Equal(sent.Payload, make([]byte, 8)) {
		t.Errorf("it has joined: %v", sent.Payload)
	}
	k.Push(wire.Record{Handler: wire.HandlerCollective, Args: call.Args(), Payload: make([]byte, 8)})
	if out, _ := k.Ended(0); !strings.Contains(out, "the group was not made") {
		t.Errorf("it says %s", out)
	}
}

// nonsense: a rank that gets a message that only a broken library sends says so and ends.
func nonsense(t *testing.T, program Program) {
	for name, r := range map[string]wire.Record{
		"chunk":  {Handler: wire.HandlerCollective, Args: [2]uint64{0, 1 << 60}, Payload: []byte("x")},
		"credit": {Handler: wire.HandlerCollective, Args: wire.Call{Kind: wire.CallCredit, Length: 1}.Args()},
		"source": {Handler: wire.HandlerCollective, Peer: 3, Args: wire.Call{Kind: wire.CallProbe}.Args()},
		"number": {Handler: wire.HandlerCollective + 99},
		// A decision about nothing, a turn for a rank that has not asked, and no kind.
		"decision":  {Handler: wire.HandlerCommit, Args: wire.Commit{Kind: wire.CommitDecide, Number: 1}.Args()},
		"turn":      {Handler: wire.HandlerCommit, Args: wire.Commit{Kind: wire.CommitGrant, Number: 1}.Args()},
		"no commit": {Handler: wire.HandlerCommit},
		// Answers about windows: to no request, and from another rank; and a request, which is the
		// node kernel's.
		"answer":   {Handler: wire.HandlerRemote, Peer: 1, Args: wire.Remote{Kind: wire.RemoteReply}.Args()},
		"stranger": {Handler: wire.HandlerRemote, Peer: 0, Args: wire.Remote{Kind: wire.RemoteReply}.Args()},
		"request":  {Handler: wire.HandlerRemote, Peer: 1, Args: wire.Remote{Kind: wire.RemoteGet, Length: 8}.Args()},
		// A part of a long message with an impossible length.
		"long piece": {Handler: wire.HandlerPiece, Args: [2]uint64{1<<32 - 1, 1 | 1<<32}, Payload: make([]byte, 1000)},
		"note":       {Handler: wire.HandlerBarrier, Args: wire.Note{Number: 1, Outcome: wire.OutcomeQuiet}.Args()}, // to a rank that leads no node
	} {
		t.Run(name, func(t *testing.T) {
			k := Start(t, program, "echo")
			k.Greet()
			k.Push(r)
			_ = k.wait()
			if says := k.errors.String(); k.cmd.ProcessState.Success() || !strings.Contains(says, "makes no sense") && !strings.Contains(says, "no such handler") {
				t.Errorf("it ended with %v and says %s", k.cmd.ProcessState, says)
			}
		})
	}
	t.Run("flood", func(t *testing.T) {
		k := Start(t, program, "echo")
		k.Greet()
		call := wire.Call{Number: 1, Kind: wire.CallBroadcast, Length: 1 << 20}
		for range wire.CollectiveWindow + 1 {
			k.Push(wire.Record{Handler: wire.HandlerCollective, Args: call.Args(), Payload: bytes.Repeat([]byte("x"), wire.MaxPayload)})
		}
		_ = k.wait()
		if says := k.errors.String(); k.cmd.ProcessState.Success() || !strings.Contains(says, "makes no sense") {
			t.Errorf("it ended with %v and says %s", k.cmd.ProcessState, says)
		}
	})
}
