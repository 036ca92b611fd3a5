package schedext

import (
	"reflect"
	"testing"

	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/sched"
)

// sharedCore returns an enforcer with a core that two ranks of job 7 share, rank 1 has, and no
// skeleton decides about. The enforcer asks a rank how many messages wait.
func sharedCore(waiting func() uint32) (*Enforcer, *core, *coreState) {
	c := &core{number: 1, cpu: 1}
	e := &Enforcer{cores: map[id.Core]*core{1: c}, skeleton: &skeleton{}}
	e.skeleton.allGiven.all, e.skeleton.allCores.all = make([]given, 2), make([]coreState, 2)
	state := e.skeleton.core(1)
	for place := range 2 {
		serial := uint32(place + 1)
		of := sched.Task{ID: sched.ID{Job: 7, Rank: id.Rank(place)}, Core: 1, Waiting: waiting}
		c.order = append(c.order, &task{Task: of, core: c, place: place, owner: identity{Serial: serial}})
		state.Places[place] = placeState{Serial: serial, State: uint32(place)} // ready, and running
	}
	state.Now, state.Current, state.Decider = 100, 1, nobody
	return e, c, state
}

// While a description of a core is made, the core may go to another task. One of them has it.
func TestSwitchDuringDescription(t *testing.T) {
	turn := func() {}
	e, c, state := sharedCore(func() uint32 { turn(); return 0 })
	turn = func() {
		state.Current = 1 - state.Current
		state.Places[0].State, state.Places[1].State = state.Places[1].State, state.Places[0].State
	}
	for range 2 {
		info := e.describe(c)
		for i, task := range info.Tasks {
			if want := i == info.Running; (task.State == slot.Running) != want {
				t.Errorf("task %d has the core: %v, and is %v", i, want, task.State)
			}
		}
		if info.Running < 0 {
			t.Error("no task has the core")
		}
		turn()
	}
}

// A watcher first gets the running task of a shared core, and then later switches, but no late
// event of an earlier switch.
func TestWatchBegins(t *testing.T) {
	e, c, state := sharedCore(func() uint32 { return 0 })

	type turn struct {
		at   id.Time
		rank id.Rank
	}
	var got []turn
	watch := func(core id.Core, at id.Time, to sched.ID, why string) {
		if core != 1 || to.Job != 7 || why != "turns" {
			t.Errorf("core %d goes to %v: %q", core, to, why)
		}
		got = append(got, turn{at, to.Rank})
	}
	switched := func(at uint64, serial uint32) {
		e.heard(event{Kind: eventSwitch, CPU: 1, Who: nobody, Answer: at, Serial: serial})
	}
	e.Watch(watch)
	switched(80, 2)
	switched(90, 1)  // these two were still on their way
	switched(100, 1) // the decision that was being made
	switched(120, 2)
	e.Watch(nil)
	switched(130, 1)
	if want := []turn{{100, 1}, {100, 0}, {120, 1}}; !reflect.DeepEqual(got, want) {
		t.Errorf("told %v, not %v", got, want)
	}

	got, c.order = nil, c.order[:1]
	state.Current = 0
	e.Watch(watch)
	if got != nil {
		t.Errorf("who has a core alone is told: %v", got)
	}
}
