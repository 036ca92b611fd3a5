package main

import (
	"encoding/json"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// margay ext stats --json has the differences of what is counted.
func TestStatsJSON(t *testing.T) {
	var counted atomic.Uint64
	status, stdout, stderr := played(t, func(proto.Message) (proto.Message, error) {
		runs := counted.Add(100)
		return &control.Extensions{Extensions: []*control.ExtensionState{
			{Node: 1, Handle: 3, Job: 5, Slot: "sched", Name: "edf", Engine: "direct", State: "active", Runs: runs, Instructions: 7 * runs, TimeNs: int64(9 * runs), Faults: 1},
			{Node: 2, Handle: 3, State: "removed", Runs: runs},
		}}, nil
	}, "ext", "stats", "--json", "--interval=10ms")
	var rates []extensionRate
	if err := json.Unmarshal([]byte(stdout), &rates); status != 0 || err != nil || len(rates) != 1 || rates[0].Seconds < 0.01 {
		t.Fatalf("status %d, %v: %s%s", status, err, stdout, stderr)
	}
	rates[0].Seconds = 0
	if want := (extensionRate{Node: 1, Handle: 3, Job: 5, Slot: "sched", Name: "edf", Engine: "direct", Runs: 100, Instructions: 700, TimeNs: 900}); rates[0] != want {
		t.Errorf("%+v", rates[0])
	}
	if _, stdout, _ = played(t, func(proto.Message) (proto.Message, error) { return new(control.Extensions), nil }, "ext", "stats", "--json", "--interval=10ms"); stdout != "[]\n" {
		t.Errorf("without extensions: %q", stdout)
	}
}
