package job

import (
	"bytes"
	"strings"
	"testing"

	"margay/cluster/control"
)

// TestTraces merges recorded stacks of two nodes.
func TestTraces(t *testing.T) {
	lib, app := &control.CodeFile{Path: "/lib/libmpi.so.12"}, &control.CodeFile{Path: "/home/u/app"}
	waits := &control.CodeStack{Files: []int32{0, 1}, Addresses: []uint64{0x10, 0x20}}
	tr := newTraces(7)
	tr.add(t.Context(), 1, &control.Stacks{
		Files: []*control.CodeFile{app, lib},
		Groups: []*control.StackGroup{
			{Stack: &control.CodeStack{Files: []int32{1, 0}, Addresses: []uint64{0x10, 0x20}}, Ranks: []uint32{2, 3}, Threads: []uint32{1, 2}, Main: []bool{true, true}},
			{Stack: &control.CodeStack{Files: []int32{-1}, Addresses: []uint64{0x99}, Cut: true}, Ranks: []uint32{2, 3}, Threads: []uint32{4, 1}, Main: []bool{false, false}},
		},
		Left: 2,
	})
	tr.add(t.Context(), 0, &control.Stacks{
		Files: []*control.CodeFile{lib, app},
		Groups: []*control.StackGroup{
			{Stack: waits, Ranks: []uint32{0}, Threads: []uint32{1}, Main: []bool{true}},
			{Stack: &control.CodeStack{Files: []int32{1}, Addresses: []uint64{0x30}}, Ranks: []uint32{1}, Threads: []uint32{1}, Main: []bool{true}},
		},
		Unread: []*control.UnreadRank{{Rank: 4, Why: "not\x1bpermitted"}},
	})
	tr.finish()
	var out bytes.Buffer
	tr.print(&out, false)
	if got, want := out.String(), `ranks 0,2-3 (3), and 1 other thread:
    0x10 in libmpi.so.12
    0x20 in app
rank 1:
    0x30 in app
5 other threads of ranks 2-3 (2):
    0x99
    ...
rank 4 on node0 cannot be read: not?permitted
2 threads are left out
`; got != want {
		t.Errorf("printed:\n%s", got)
	}
}

// TestTracesHostile adds answers whose lists do not fit each other.
func TestTracesHostile(t *testing.T) {
	tr := newTraces(1)
	tr.add(t.Context(), 0, &control.Stacks{Groups: []*control.StackGroup{
		{}, {Ranks: []uint32{1, 2}, Threads: []uint32{0}, Main: []bool{true}},
		{Ranks: []uint32{1}, Stack: &control.CodeStack{Files: []int32{5, -7}, Addresses: []uint64{1, 2, 3}}},
	}})
	tr.finish()
	var out bytes.Buffer
	tr.print(&out, true)
	if !strings.Contains(out.String(), "rank 1:\n") {
		t.Errorf("printed:\n%s", &out)
	}
}

// TestIdle omits threads of Go's runtime that wait for work.
func TestIdle(t *testing.T) {
	for functions, want := range map[string]bool{
		"runtime.futex runtime.mcall": true, "internal/runtime/syscall.Syscall6 runtime.netpoll": true, "runtime.futex main.main": false, "runtime.gopark runtime.main": false, "": false,
	} {
		g := new(trace)
		for _, name := range strings.Fields(functions) {
			g.Frames = append(g.Frames, traceFrame{Function: name})
		}
		if g.idle() != want {
			t.Errorf("%q: %v", functions, g.idle())
		}
	}
}

func TestParseRanks(t *testing.T) {
	if ranks, err := parseRanks([]string{"4-6,1", "5"}); err != nil || len(ranks) != 4 || ranks[0] != 1 || ranks[3] != 6 {
		t.Errorf("%v, %v", ranks, err)
	}
	for _, bad := range []string{"x", "node1", "-1", "3-1", ""} {
		if ranks, err := parseRanks([]string{bad}); err == nil {
			t.Errorf("%q is %v", bad, ranks)
		}
	}
}
