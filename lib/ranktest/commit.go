package ranktest

import (
	"fmt"
	"strings"
	"testing"

	"margay/kernel/abi/wire"
)

// Commits: ranks that run the programs in turn change the windows of all of them. The program's
// mode is
//
//	commit N [D]  compares words of all ranks, by all comparisons; makes N changes of a word that all ranks race for, and N transfers
//	              to a place to which all ranks transfer; checks that each block that it sees is whole, that all ranks
//	              end with the same word and the same block, and that no refused operation has changed anything; prints "whole"
//	              and finalizes. In C, the last rank kills itself after its D-th transfer
func Commits(t *testing.T, programs ...Program) {
	for _, size := range []int{1, 2, 5} {
		t.Run(fmt.Sprint(size), func(t *testing.T) { whole(startJob(t, size, programs, "commit", "6")) })
	}
}

// givenUp: an operation that its caller has given up before all ranks have agreed takes effect
// nowhere: the turn that comes late is given back, and a begun operation is cancelled.
func givenUp(t *testing.T, program Program) {
	k := Start(t, program, "giveup")
	k.Greet()
	q, _ := k.expect(wire.OpRegion)
	k.answer(q, wire.Reply{Values: [8]uint64{q.Value}}, shared(t, "window"))
	commit := func() (m wire.Commit) {
		t.Helper()
		r := k.sleep()
		for r.Handler == wire.HandlerCollective { // a probe
			r = k.sleep()
		}
		m, err := wire.ParseCommit(r.Args, len(r.Payload))
		if err != nil || r.Handler != wire.HandlerCommit {
			t.Fatalf("it sends %+v, %v", r, err)
		}
		return m
	}
	push := func(from int, m wire.Commit) {
		t.Helper()
		k.Push(wire.Record{Handler: wire.HandlerCommit, Peer: uint32(from), Node: uint32(from), Args: m.Args()})
	}
	if m := commit(); m != (wire.Commit{Kind: wire.CommitAsk}) {
		t.Errorf("it sends %+v", m)
	}
	k.Await("first time-out", func() bool { return strings.Count(k.output.String(), "at no rank\n") == 1 })
	push(0, wire.Commit{Kind: wire.CommitGrant, Number: 1})
	ours := map[wire.CommitKind]wire.Commit{}
	next := func(kind wire.CommitKind) {
		t.Helper()
		for ours[kind].Kind == 0 {
			m := commit()
			ours[m.Kind] = m
		}
	}
	next(wire.CommitRelease)
	next(wire.CommitAsk)
	push(0, wire.Commit{Kind: wire.CommitGrant, Number: 2})
	next(wire.CommitBegin)
	k.Await("second time-out", func() bool { return strings.Count(k.output.String(), "at no rank\n") == 2 })
	next(wire.CommitDecide)
	if m := ours[wire.CommitDecide]; m.Number != 2 || m.Status != wire.CommitAbandoned || ours[wire.CommitRelease].Number != 1 {
		t.Errorf("it sends %+v", ours)
	}
}
