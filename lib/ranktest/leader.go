package ranktest

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"margay/kernel/abi/wire"
	"margay/lib/collective"
)

// meeting is the other rank of a job with two nodes, which leads its node as the tested one does.
type meeting struct {
	*far
	exchange *collective.Exchange
	number   uint64 // barriers on the boards
	entered  uint64 // barriers of the node kernels
	spoken   uint64 // messages for handler 6
	got      uint64 // the rank's
	strewn   bool
	climbed  int // notes of the rank in the tree
}

// startMeeting starts the program in the mode meet. The rank has entered no barrier.
func startMeeting(t *testing.T, seed uint64, program Program, mode ...string) *meeting {
	t.Helper()
	header := alone
	header.Meets = true
	return &meeting{
		far:      startFarAt(t, header, seed, program, append([]string{"meet"}, mode...)...),
		exchange: collective.NewExchange([]uint32{0, 1}, 0),
	}
}

// poll takes the rank's messages, and sends it the notes that are due.
func (m *meeting) poll() {
	m.t.Helper()
	m.far.poll()
	for {
		r, _, ok := m.next()
		if !ok {
			break
		}
		switch r.Handler {
		case wire.HandlerBarrier:
			if n, err := wire.ParseNote(r.Args, len(r.Payload)); err == nil && n.Round >= wire.RoundUp {
				m.climbed++
			}
			if err := m.exchange.Arrive(r.Peer, r.Args, len(r.Payload)); err != nil {
				m.t.Fatal(err)
			}
		case 6:
			if m.got++; r.Args[0] != m.got {
				m.t.Fatalf("message %d is %+v", m.got, r)
			}
		default:
			m.t.Fatalf("the rank sends %+v", r)
		}
	}
	for {
		_, n, ok := m.exchange.Next()
		if !ok || !m.pass(wire.Record{Handler: wire.HandlerBarrier, Args: n.Args()}) {
			return
		}
		m.exchange.Sent()
	}
}

// speak sends the rank the next message for handler 6, which arrives, and waits for the rank's.
func (m *meeting) speak() {
	m.t.Helper()
	m.spoken++
	m.pass(wire.Record{Handler: 6, Args: [2]uint64{m.spoken}})
	m.Await("messages", func() bool { m.carry(); m.poll(); return m.got == m.spoken && m.end.Reached(m.out.Spoken(1)) })
}

// meet meets the rank in a barrier on the boards, and returns the outcome.
func (m *meeting) meet(v wire.Outcome) wire.Outcome {
	m.t.Helper()
	m.number++
	m.exchange.Begin(m.number, v, m.strewn)
	decided := false
	m.Await("outcome", func() bool { m.poll(); v, decided = m.exchange.Decided(); return decided })
	if entered := m.area.Entered().Load(); entered != m.entered && v == wire.OutcomeQuiet {
		m.t.Errorf("the rank has entered %d barriers of the node kernels, %d are complete", entered, m.entered)
	}
	return v
}

// kernels lets the rank out of a barrier of the node kernels, which sees path from then on.
func (m *meeting) kernels(path uint32) {
	m.t.Helper()
	m.entered++
	m.Await("barrier of the node kernels", func() bool { m.carry(); m.poll(); return m.area.Entered().Load() == m.entered })
	m.area.Settled().Store(m.Kernel.send.Position())
	m.setPath(path)
	m.Barrier(m.entered)
}

// begin speaks and meets in the barriers that are not tried on the boards.
func (m *meeting) begin() {
	m.t.Helper()
	for range wire.Untried {
		m.speak()
		m.kernels(wire.PathDirect | wire.PathFar | wire.PathMeet)
	}
}

// leaders: a rank that leads its node completes barriers with the leader of another, over lossy
// mirrored channels, without a node kernel, if all ranks are quiet. It goes to the node kernels if
// some are not, and tries fewer barriers then. When it returns, all messages of before are handled.
func leaders(t *testing.T, seed uint64, program Program) {
	const all = wire.PathDirect | wire.PathFar | wire.PathMeet
	m := startMeeting(t, seed, program, "11")
	m.loss = 10
	m.begin()
	m.speak()
	if v := m.meet(wire.OutcomeQuiet); v != wire.OutcomeQuiet {
		t.Errorf("outcome %d of two quiet nodes", v)
	}
	m.speak()
	if v := m.meet(wire.OutcomeLoud); v != wire.OutcomeLoud {
		t.Errorf("outcome %d of a quiet and a loud node", v)
	}
	m.kernels(wire.PathDirect | wire.PathFar)
	m.speak()
	if v := m.meet(wire.OutcomeQuiet); v != wire.OutcomeLoud {
		t.Errorf("outcome %d while messages are seen", v)
	}
	m.kernels(all)
	m.speak() // the second loud one on end: the next one is not tried
	m.kernels(wire.PathMeet)
	m.speak() // the rank's passes the node kernels
	if v := m.meet(wire.OutcomeQuiet); v != wire.OutcomeLoud {
		t.Errorf("outcome %d after a message by the node kernels", v)
	}
	for range 4 { // the third one
		m.kernels(all)
		m.speak()
	}
	if v := m.meet(wire.OutcomeQuiet); v != wire.OutcomeQuiet {
		t.Errorf("outcome %d of nodes that are quiet again", v)
	}
	m.number++
	m.exchange.Abandon(m.number) // instead of finalizing
	m.Await("end", func() bool { m.poll(); return m.errors.String() != "" })
	if _, says := m.Ended(1); !strings.Contains(says, "another rank has abandoned this barrier") {
		t.Errorf("it says %s", says)
	}
}

// strewnLeaders: leaders that share CPUs with ranks of other nodes complete barriers along the tree
// when they know it of each other, and no longer when that has changed.
func strewnLeaders(t *testing.T, seed uint64, program Program) {
	const all = wire.PathDirect | wire.PathFar | wire.PathMeet
	m := startMeeting(t, seed, program, "8")
	m.loss = 10
	m.begin()
	m.strewn = true
	m.setPath(all | wire.PathStrewn)
	for climbed, v := range []wire.Outcome{wire.OutcomeQuiet, wire.OutcomeQuiet, wire.OutcomeLoud} {
		m.speak()
		if got := m.meet(v); got != v || m.climbed != climbed {
			t.Errorf("outcome %d, want %d, after %d notes in the tree, want %d", got, v, m.climbed, climbed)
		}
	}
	m.kernels(all)
	for range 2 { // the first one of these climbs the tree
		m.speak()
		if got := m.meet(wire.OutcomeQuiet); got != wire.OutcomeQuiet || m.climbed != 3 {
			t.Errorf("outcome %d after %d notes in the tree", got, m.climbed)
		}
	}
	m.speak()
	m.number++
	m.exchange.Abandon(m.number)
	m.Await("end", func() bool { m.poll(); return m.errors.String() != "" })
	m.Ended(1)
}

// boundLeader: a rank does not wait for the leader of another node that has ended, but goes to the
// node kernels.
func boundLeader(t *testing.T, seed uint64, program Program) {
	m := startMeeting(t, seed, program, "3")
	m.begin()
	m.speak()
	m.area.Bound().Store(1)
	m.ring()
	m.kernels(wire.PathDirect | wire.PathFar | wire.PathMeet)
	m.kernels(wire.PathDirect | wire.PathFar | wire.PathMeet) // finalizing
	m.Ended(0)
}

// overdueLeader: a leader that stops waiting in a barrier fails the ranks of its node that wait for
// the outcome. The other leader has its note, and need not wait.
func overdueLeader(t *testing.T, seed uint64, program Program) {
	m := startMeeting(t, seed, program, "3", "100")
	m.begin()
	m.speak()
	m.Await("end", func() bool { m.poll(); return m.errors.String() != "" })
	if _, says := m.Ended(1); !strings.Contains(says, "the barrier is not complete") || !strings.Contains(says, "a rank of another node has not entered it") {
		t.Errorf("it says %s", says)
	}
	if v := m.meet(wire.OutcomeQuiet); v != wire.OutcomeQuiet {
		t.Errorf("outcome %d", v)
	}
	if v := m.board.Outcome(1); v != wire.OutcomeAbandoned {
		t.Errorf("outcome %d on the board", v)
	}
}

// stalledMessages: a barrier does not return while a message waits for others that have not
// arrived, since messages of before the barrier may be behind it.
func stalledMessages(t *testing.T, seed uint64, program Program) {
	m := startMeeting(t, seed, program, "3")
	m.begin()
	m.Await("message", func() bool { m.poll(); return m.got == wire.Untried+1 })
	// A message by the node kernels, which waits for one behind the note.
	behind := m.ownOut.Position().Load() + 2*wire.ChannelHeader
	m.Push(wire.Record{Handler: 6, Args: [2]uint64{wire.Untried + 2}, After: uint32(behind/8)&(2*wire.ChannelRing/8-1) | 1<<15})
	m.meet(wire.OutcomeQuiet)
	m.Await("outcome of the rank", func() bool { m.poll(); return m.board.Outcome(1) == wire.OutcomeQuiet })
	m.Await("sleep", func() bool { m.poll(); return m.Waiting() })
	m.Sleeps()
	m.pass(wire.Record{Handler: 6, Args: [2]uint64{wire.Untried + 1}})
	m.number++
	m.exchange.Begin(m.number, wire.OutcomeQuiet, false) // finalizing
	ended := make(chan error, 1)
	go func() { ended <- m.wait() }()
	m.Await("end", func() bool { m.poll(); return len(ended) > 0 })
	if err := <-ended; err != nil {
		t.Errorf("the rank: %v: %s", err, m.errors.String())
	}
}

// nonsenseNotes: a leader that gets a note that no leader sends says so and ends.
func nonsenseNotes(t *testing.T, seed uint64, program Program) {
	m := startMeeting(t, seed, program, "1")
	m.pass(wire.Record{Handler: wire.HandlerBarrier, Args: wire.Note{Number: 2, Outcome: wire.OutcomeQuiet}.Args()})
	_ = m.wait()
	if says := m.errors.String(); m.cmd.ProcessState.Success() || !strings.Contains(says, "makes no sense") {
		t.Errorf("it ended with %v and says %s", m.cmd.ProcessState, says)
	}
}

// member: a rank that does not lead its node enters barriers on the board, wakes its leader, and
// waits for the outcome.
func member(t *testing.T, program func(ctx context.Context, mode ...string) *exec.Cmd) {
	header := wire.Header{Job: 7, Rank: 2, Size: 3, Node: 2, LocalRank: 1, LocalSize: 2, Nodes: 2, Meets: true}
	k := start(t, header, []uint32{0, 2, 2}, program, "await", "0", fmt.Sprint(wire.Untried))
	k.area.Path().Store(wire.PathDirect | wire.PathFar | wire.PathMeet)
	k.board.Asleep(0).Store(1)
	k.board.Enter(0, 1, true)
	k.Greet()
	for number := range uint64(wire.Untried) {
		k.Barrier(number + 1)
	}
	q, _ := k.expect(wire.OpDoorbell)
	if q.Value != 0 {
		t.Errorf("it asks for doorbell %d", q.Value)
	}
	k.answer(q, wire.Reply{}, k.bells[0])
	var count [8]byte
	k.Await("doorbell", func() bool { n, err := k.bells[0].Read(count[:]); return n == 8 && err == nil })
	k.Await("sleep", func() bool { return k.board.Asleep(1).Load() != 0 })
	k.board.Decide(1, wire.OutcomeQuiet)
	if k.board.Claim(1) {
		if _, err := k.bells[1].Write([]byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
	}
	k.Ended(0)
	if n := k.area.Entered().Load(); n != wire.Untried {
		t.Errorf("it has entered %d barriers of the node kernels", n)
	}
}
