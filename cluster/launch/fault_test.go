package launch

import (
	"testing"

	"margay/cluster/control"
	"margay/cluster/symbol"
)

func TestDescribeFault(t *testing.T) {
	for want, exit := range map[string]*control.ExitStatus{
		"was killed by SIGSEGV":               {Signal: 11},
		"was killed by SIGSEGV (address 0x0)": {Signal: 11, Fault: &control.RankFault{Code: 1}},
		"was killed by SIGSEGV at 0x1139 in app": {Signal: 11, Fault: &control.RankFault{
			Code: siKernel, Files: []*control.CodeFile{{Path: "/no/app"}}, Stack: &control.CodeStack{Files: []int32{0}, Addresses: []uint64{0x1139}},
		}},
		"was killed by SIGFPE (integer division by zero)": {Signal: 8, Fault: &control.RankFault{Code: 1, Address: 7}},
		"was killed by SIGABRT: out of patience":          {Signal: 6, Reason: "out of patience", Fault: &control.RankFault{Code: -6, Address: 7}},
	} {
		if got := Describe(exit); got != want {
			t.Errorf("%v is described as %q", exit, got)
		}
	}
}

func TestPlaceOf(t *testing.T) {
	own := symbol.Frame{Place: symbol.Place{Function: "work", File: "/home/u/main.c", Line: 12}, Module: "/home/u/app"}
	bare := symbol.Frame{Place: symbol.Place{Function: "start"}, Module: "/home/u/app"}
	abort := symbol.Frame{Place: symbol.Place{Function: "abort", File: "abort.c", Line: 79}, Module: "/usr/lib/libc.so.6"}
	kill := symbol.Frame{Place: symbol.Place{Function: "kill"}, Module: "/lib/libc.so.6"}
	inline := symbol.Frame{Place: symbol.Place{Function: "at", File: "/usr/include/c++/12/bits/stl_vector.h", Line: 1153}, Module: "/home/u/app"}
	for want, frames := range map[string][]symbol.Frame{
		" in at() in app, called at work() in main.c:12": {kill, inline, own},
		"":                        {},
		" at work() in main.c:12": {own, bare},
		" at start() in app":      {bare},
		" at kill() in libc.so.6": {kill},
		" in abort() in libc.so.6, called at work() in main.c:12": {kill, abort, own},
		" in abort() in libc.so.6, called at start() in app":      {abort, bare},
	} {
		if got := placeOf(frames); got != want {
			t.Errorf("%v: %q", frames, got)
		}
	}
}

func TestAlike(t *testing.T) {
	fault := new(control.RankFault)
	state := func(rank uint32, signal int32, f *control.RankFault) *control.RankState {
		return &control.RankState{Rank: rank, Exit: &control.ExitStatus{Signal: signal, Fault: f}}
	}
	ranks := []*control.RankState{{}, state(1, 6, fault), state(2, 11, nil), state(3, 11, fault), state(4, 11, fault), state(5, 9, nil), state(6, 0, nil)}
	for rank, want := range []int{-1, -1, 3, -1, -1, -1, -1} {
		if got := alike(ranks, ranks[rank]); (got == nil) != (want < 0) || got != nil && int(got.Rank) != want {
			t.Errorf("like rank %d is %v", rank, got)
		}
	}
}
