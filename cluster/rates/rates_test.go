package rates

import (
	"fmt"
	"reflect"
	"testing"

	"margay/cluster/control"
)

func samples(time int64, f func(n *control.NodeSample)) *control.Samples {
	n := &control.NodeSample{Node: 2, TimeNs: time}
	f(n)
	return &control.Samples{Nodes: []*control.NodeSample{n}}
}

func TestBetween(t *testing.T) {
	before := samples(1e9, func(n *control.NodeSample) {
		n.Cores = []*control.CoreSample{{Core: 1, Interrupts: 100}, {Core: 2, Interrupts: 5}}
		n.Ranks = []*control.RankSample{
			{Job: 7, Rank: 3, Core: 1, Pid: 10, CpuNs: 5e9, Voluntary: 10, Involuntary: 20, Sent: 1000, Arrived: 50},
			{Job: 7, Rank: 4, Core: 1, Pid: 11, CpuNs: 1e9},
		}
		n.Extensions = []*control.ExtensionState{{Handle: 1, Runs: 10}}
	})
	after := samples(3e9, func(n *control.NodeSample) {
		n.Recording = true
		n.Cores = []*control.CoreSample{{Core: 1, Interrupts: 140}, {Core: 2, Interrupts: 5, Shared: true}, {Core: 3}, {Core: 4, Interrupts: 9}, {Core: 5}}
		n.Ranks = []*control.RankSample{
			{Job: 7, Rank: 3, Core: 1, Pid: 10, CpuNs: 5.5e9, Voluntary: 14, Involuntary: 20, Sent: 3000, Arrived: 40, Threads: 2, Why: "why"}, // message counters restarted
			{Job: 7, Rank: 4, Core: 1, Pid: 11, CpuNs: 2.5e9},
			{Job: 8, Rank: 0, Core: 2, More: []uint32{3}, Pid: 12, CpuNs: 9e9}, // new
			{Job: 9, Rank: 1, Core: 5},                                         // of another user
		}
		n.Extensions = []*control.ExtensionState{
			{Handle: 1, Job: 7, Slot: "message", Name: "a", Runs: 30, TimeNs: 60, Faults: 2}, {Handle: 2, Slot: "sched", Name: "b"},
		}
	})
	after.Nodes = append(after.Nodes, &control.NodeSample{Node: 5, TimeNs: 1}) // it was not there before
	got := Between(before, after)
	want := &View{
		Trouble:   "node5: it gave no figures at the first of the two looks",
		Seconds:   2,
		Recording: []uint32{2},
		Cores: []Core{
			{Node: 2, Core: 1, Interrupts: 20, Ranks: []Rank{
				{Job: 7, Rank: 4, PID: 11, CPU: 75},
				{Job: 7, Rank: 3, PID: 10, Threads: 2, Why: "why", CPU: 25, Voluntary: 2, Sent: 1000, Arrived: 20},
			}},
			{Node: 2, Core: 2, Shared: true, Ranks: []Rank{{Job: 8, PID: 12}}},
			{Node: 2, Core: 3, Ranks: []Rank{{Job: 8, PID: 12, Further: true, Why: "see core 2"}}},
			{Node: 2, Core: 4, Ranks: []Rank{}},
			{Node: 2, Core: 5, Ranks: []Rank{{Job: 9, Rank: 1, Hidden: true, Why: "of another user"}}},
		},
		Extensions: []Extension{
			{Node: 2, Handle: 1, Job: 7, Slot: "message", Name: "a", Runs: 10, Time: 2, Faults: 2}, {Node: 2, Handle: 2, Slot: "sched", Name: "b"},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nnot %+v", got, want)
	}
	if got, want := got.Totals(), (Totals{Nodes: 1, Cores: 5, Busy: 4, Sent: 1000, Arrived: 20, Runs: 10}); got != want {
		t.Errorf("in all %+v, not %+v", got, want)
	}
	if v := Between(after, before); len(v.Cores) != 0 { // time does not go back
		t.Errorf("%+v", v)
	}
}

func TestSort(t *testing.T) {
	v := &View{Cores: []Core{
		{Core: 3, Interrupts: 1, Ranks: []Rank{{CPU: 1, Sent: 1, Arrived: 1, Voluntary: 2}, {CPU: 1}}},
		{Core: 2, Interrupts: 2, Ranks: []Rank{{CPU: 3, Involuntary: 3}}},
		{Core: 1, Ranks: []Rank{{CPU: 1.5, Sent: 5}}},
	}}
	for order, want := range map[Order]string{
		ByCore: "[1 2 3]", ByCPU: "[2 3 1]", ByMessages: "[1 3 2]", BySwitches: "[2 3 1]", ByInterrupts: "[2 3 1]",
	} {
		v.Sort(order)
		var got []uint32
		for _, c := range v.Cores {
			got = append(got, c.Core)
		}
		if fmt.Sprint(got) != want {
			t.Errorf("by %s: %v, not %s", order, got, want)
		}
	}
}

// Whatever nodes say, there is an answer.
func FuzzBetween(f *testing.F) {
	f.Add(int64(0), int64(1), uint64(3), uint64(2), int64(-1))
	f.Fuzz(func(t *testing.T, t0, t1 int64, was, is uint64, cpu int64) {
		sample := func(time int64, count uint64) *control.Samples {
			return samples(time, func(n *control.NodeSample) {
				n.Cores = []*control.CoreSample{{Interrupts: count}}
				n.Ranks = []*control.RankSample{{Pid: 1, CpuNs: cpu, Sent: count}}
				n.Extensions = []*control.ExtensionState{{Runs: count}}
			})
		}
		v := Between(sample(t0, was), sample(t1, is))
		for _, order := range Orders {
			v.Sort(order)
		}
		for _, c := range v.Cores {
			if c.Interrupts < 0 || c.Ranks[0].CPU < 0 || c.Ranks[0].Sent < 0 {
				t.Errorf("%+v", c)
			}
		}
	})
}
