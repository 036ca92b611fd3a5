package sched

import (
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/nimble/memory"
)

// bench is a core under test, with a simulated clock and tasks.
type bench struct {
	t testing.TB
	*Core
	has     ID // the watcher's running task
	now     id.Time
	ran     map[ID]time.Duration
	waiting map[ID]uint32
	faults  []string
	removed string
}

func newBench(t testing.TB, ranks int, policies ...*Policy) *bench {
	b := &bench{t: t, now: 1e9, ran: make(map[ID]time.Duration), waiting: make(map[ID]uint32)}
	c, err := NewCore(3, func(id ID) (time.Duration, uint32) { return b.ran[id], b.waiting[id] })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	b.Core = c
	c.Switched = func(_ id.Time, to ID, why string) {
		if to == b.has || why == "" {
			t.Errorf("told that the core goes from %v to %v: %q", b.has, to, why)
		}
		b.has = to
	}
	c.SetPolicies(b.now, policies)
	for rank := range ranks {
		if err := c.Add(b.now, rankID(rank)); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func rankID(rank int) ID { return ID{Job: 7, Rank: id.Rank(rank)} }

// policy makes a policy of a function, which need not write the fields that it does not change.
func (b *bench) policy(handle id.Handle, f func(*slot.SchedContext) slot.Verdict) *Policy {
	return &Policy{
		Handle: handle, Name: "test",
		Decide: func(context memory.Region, core id.Core) (slot.Verdict, error) {
			raw := memory.View(context.Base, context.Length)
			var s slot.SchedContext
			if _, err := binary.Decode(raw, binary.LittleEndian, &s); err != nil || core != 3 || s.Core != 3 {
				b.t.Errorf("core %d, context of core %d, %v", core, s.Core, err)
			}
			v := f(&s)
			if _, err := binary.Encode(raw, binary.LittleEndian, &s); err != nil {
				b.t.Error(err)
			}
			return v, nil
		},
		Fault:  func(err error) { b.faults = append(b.faults, err.Error()) },
		Remove: func(why string) { b.removed = why },
	}
}

// pass advances the time: the running task computes, and ticks come when they are due.
func (b *bench) pass(d time.Duration) { b.passTicks(d, math.MaxInt) }

// passTicks is pass until there have been so many ticks.
func (b *bench) passTicks(d time.Duration, ticks int) {
	for end := b.now.Add(d); ticks > 0; ticks-- {
		p := b.Plan()
		next := min(end, p.Next)
		if p.Run >= 0 {
			b.ran[b.Tasks()[p.Run]] += time.Duration(next - b.now)
		}
		b.now = next
		if next == end {
			return
		}
		b.Tick(b.now)
		if b.Plan().Next <= b.now {
			b.t.Fatalf("at %d the next tick is at %d", b.now, b.Plan().Next)
		}
	}
}

// runs checks the running task and its quantum.
func (b *bench) runs(what string, rank int, quantum time.Duration) {
	b.t.Helper()
	p := b.Plan()
	if p.Run != rank {
		b.t.Errorf("%s: task %d runs, not %d", what, p.Run, rank)
	}
	if got := p.Next.Sub(b.now); quantum < 0 != (p.Next == slot.Infinite) || quantum >= 0 && got != quantum {
		b.t.Errorf("%s: the next tick is in %v, not in %v", what, got, quantum)
	}
}

const never = -1

// A new watcher gets the running task of a shared core and the start of its turn.
func TestTellAgain(t *testing.T) {
	b := newBench(t, 1)
	type turn struct {
		at id.Time
		to ID
	}
	var told []turn
	b.Switched = func(at id.Time, to ID, _ string) { told = append(told, turn{at, to}) }
	b.TellAgain()
	if told != nil {
		t.Errorf("who has the core alone is told: %v", told)
	}
	b.now++
	b.Add(b.now, rankID(1))
	told = nil
	began := b.now
	b.pass(3 * time.Millisecond)
	running := rankID(b.Plan().Run)
	b.TellAgain()
	if len(told) != 1 || told[0].to != running || told[0].at > began {
		t.Errorf("told %v, while %v has had it since %d at the latest", told, running, began)
	}
}

// Without a policy a task that is alone is left alone, and several take turns.
func TestTurns(t *testing.T) {
	b := newBench(t, 1)
	b.runs("alone", 0, never)
	b.now = b.now.Add(time.Hour)
	b.Add(b.now, rankID(1))
	b.runs("after an hour somebody comes", 1, Turn)
	b.pass(3 * time.Millisecond)
	b.Add(b.now, rankID(2))
	b.runs("in the middle of a turn", 1, 7*time.Millisecond)
	b.Block(b.now, rankID(2))
	b.runs("a task that waits blocks", 1, 7*time.Millisecond)
	b.Block(b.now, rankID(1))
	b.runs("the one that runs blocks", 0, never)
	b.now = b.now.Add(time.Minute)
	b.Wake(b.now, rankID(2))
	b.runs("one wakes up", 2, Turn)
	b.Wake(b.now, rankID(1))
	b.pass(30 * time.Second)
	for rank := range 3 {
		if got := b.ran[rankID(rank)]; got < 9*time.Second || got > 11*time.Second {
			t.Errorf("of 30 s, rank %d had %v", rank, got)
		}
	}
	for rank := range 3 {
		b.Remove(b.now, rankID(rank))
	}
	b.runs("all gone", -1, never)
	if i := b.Info(); i.Rescues != 0 || i.Why != "turns" || i.Running != -1 || len(i.Tasks) != 0 {
		t.Errorf("%+v", i)
	}
}

func TestFull(t *testing.T) {
	b := newBench(t, slot.MaxTasks)
	if err := b.Add(b.now, rankID(slot.MaxTasks)); err == nil || !strings.Contains(err.Error(), "at most 8") {
		t.Error(err)
	}
	b.Remove(b.now, rankID(3))
	if err := b.Add(b.now, rankID(2)); err == nil || !strings.Contains(err.Error(), "already") {
		t.Error(err)
	}
	if err := b.Add(b.now, rankID(9)); err != nil {
		t.Error(err)
	}
	if tasks := b.Tasks(); tasks[3] != rankID(4) || tasks[7] != rankID(9) {
		t.Errorf("tasks %v", tasks)
	}
}

// A policy gets the event, and its own data.
func TestContext(t *testing.T) {
	b := newBench(t, 2)
	var got slot.SchedContext
	p := b.policy(1, func(s *slot.SchedContext) slot.Verdict {
		got = *s
		s.Tasks[1].Data += 5
		s.Hold = 1
		return 1
	})
	b.SetPolicies(b.now, []*Policy{p})
	if got.Why != slot.Change || got.Count != 2 || got.Target != slot.NoTask || got.Now != uint64(b.now) ||
		got.Quantum != slot.Infinite || got.Hold != 0 {
		t.Errorf("change: %+v", got)
	}
	if x := got.Tasks[0]; x.State != slot.Running || x.Job != 7 || x.Rank != 0 || x.Since != uint64(b.now) || x.Data != 0 {
		t.Errorf("task 0: %+v", x)
	}
	b.now++
	b.ran[rankID(1)] = 77
	b.waiting[rankID(1)] = 4
	b.Arrived(b.now, rankID(1))
	if got.Why != slot.Arrival || got.Target != 1 || got.Hold != 1 {
		t.Errorf("arrival: %+v", got)
	}
	if x := got.Tasks[1]; x.State != slot.Running || x.Messages != 4 || x.Ran != 77 || x.Since != uint64(b.now-1) || x.Data != 5 {
		t.Errorf("task 1: %+v", x)
	}
	if x := got.Tasks[0]; x.State != slot.Held {
		t.Errorf("task 0: %+v", x)
	}
	b.Block(b.now, rankID(0)) // ignored: the task is held
	b.Wake(b.now, rankID(0))
	if got.Why != slot.Arrival {
		t.Errorf("asked for reason %d, about a task that is held", got.Why)
	}
	b.Block(b.now, rankID(1))
	if got.Why != slot.Block || got.Target != 1 || got.Tasks[1].State != slot.Blocked {
		t.Errorf("block: %+v", got)
	}
	b.runs("it has chosen who waits", -1, never)
	b.Wake(b.now, rankID(1))
	if got.Why != slot.Wake || got.Target != 1 {
		t.Errorf("wake: %+v", got)
	}
	b.runs("and who is awake again", 1, never)
	b.Remove(b.now, rankID(0))
	if got.Why != slot.Ending || got.Target != slot.NoTask || got.Count != 1 || got.Tasks[0].Rank != 1 || got.Tasks[0].Data != 20 {
		t.Errorf("ending: %+v", got)
	}
	b.Add(b.now, rankID(0))
	if x := got.Tasks[1]; x.Data != 0 || x.Rank != 0 {
		t.Errorf("it is new: %+v", x)
	}
}

// An overrun is deducted from the task's next quantum, but at most half of it.
func TestLateTurns(t *testing.T) {
	roundrobin := func(b *bench) *Policy {
		return b.policy(1, func(s *slot.SchedContext) slot.Verdict {
			s.Quantum = uint64(10 * time.Millisecond)
			return slot.Verdict(1 - max(0, b.Info().Running))
		})
	}
	for name, policies := range map[string]func(*bench) []*Policy{
		"turns":  func(*bench) []*Policy { return nil },
		"policy": func(b *bench) []*Policy { return []*Policy{roundrobin(b)} },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 2)
			b.SetPolicies(b.now, policies(b))
			b.pass(20 * time.Millisecond)
			had := [2]time.Duration{b.ran[rankID(0)], b.ran[rankID(1)]}
			for range 1000 {
				p := b.Plan()
				late := time.Duration(p.Run) * 3 * time.Millisecond // the second one is let go late every time
				b.ran[rankID(p.Run)] += p.Next.Sub(b.now) + late
				b.now = p.Next.Add(late)
				b.Tick(b.now)
			}
			first, second := b.ran[rankID(0)]-had[0], b.ran[rankID(1)]-had[1]
			if diff := second - first; diff < -20*time.Millisecond || diff > 20*time.Millisecond || first < 4*time.Second {
				t.Errorf("they had %v and %v", first, second)
			}

			p := b.Plan()
			b.ran[rankID(p.Run)] += p.Next.Sub(b.now) + time.Minute // a long pause of everything
			b.now = p.Next.Add(time.Minute)
			b.Tick(b.now)
			b.passTicks(time.Second, 1)
			b.runs("after a minute", p.Run, 5*time.Millisecond)
			b.passTicks(time.Second, 2)
			b.runs("after that", p.Run, 5*time.Millisecond)
			b.passTicks(time.Second, 2)
			b.runs("all is forgiven", p.Run, 10*time.Millisecond)
		})
	}
}

// The first policy that has an opinion decides; each has its own data.
func TestChainOfPolicies(t *testing.T) {
	b := newBench(t, 2)
	opinion := slot.Default
	asked := 0
	first := b.policy(1, func(s *slot.SchedContext) slot.Verdict {
		s.Tasks[0].Data++
		s.Hold, s.Quantum = 2, 5 // of no importance without an opinion
		return opinion
	})
	second := b.policy(2, func(s *slot.SchedContext) slot.Verdict {
		if s.Tasks[0].Data != 0 {
			t.Error("it sees another one's data")
		}
		asked++
		s.Quantum = uint64(time.Second)
		return 0
	})
	b.SetPolicies(b.now, []*Policy{first, second})
	b.runs("the second decides", 0, time.Second)
	opinion = 0
	b.Arrived(b.now, rankID(0))
	b.runs("the first decides", 0, MinQuantum)
	if asked != 1 || b.Plan().Hold != 2 {
		t.Errorf("the second was asked %d times, %b are held", asked, b.Plan().Hold)
	}
	b.SetPolicies(b.now, nil)
	b.runs("nobody decides, and a quantum is not over", 0, MinQuantum)
	if b.Plan().Hold != 0 {
		t.Error("somebody is still held")
	}
}

// Quanta have bounds, and a longer one never ends.
func TestQuantum(t *testing.T) {
	for quantum, want := range map[uint64]time.Duration{
		0: MinQuantum, 1: MinQuantum, uint64(MinQuantum) + 1: MinQuantum + 1, uint64(MaxQuantum): MaxQuantum, uint64(MaxQuantum) + 1: never,
		1 << 63: never, slot.Infinite: never, slot.Infinite - 1: never,
	} {
		b := newBench(t, 1)
		b.SetPolicies(b.now, []*Policy{b.policy(1, func(s *slot.SchedContext) slot.Verdict {
			s.Quantum = quantum
			return 0
		})})
		b.runs("quantum", 0, want)
	}
}

// Invalid answers are faults, and the next policy decides.
func TestNonsense(t *testing.T) {
	for name, c := range map[string]struct {
		answer slot.Verdict
		hold   uint64
		says   string
	}{
		"no such task":   {2, 0, "task 2 of 2"},
		"no task at all": {1 << 40, 0, "of 2"},
		"a held one":     {1, 0xff02, "which it holds"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 2)
			b.SetPolicies(b.now, []*Policy{b.policy(1, func(s *slot.SchedContext) slot.Verdict {
				s.Hold = c.hold
				return c.answer
			})})
			if len(b.faults) != 1 || !strings.Contains(b.faults[0], c.says) {
				t.Errorf("faults %q", b.faults)
			}
			b.runs("turns", 0, Turn)
			b.pass(time.Second)
			if b.ran[rankID(1)] < 400*time.Millisecond || b.Info().Rescues != 0 {
				t.Errorf("ran %v, %+v", b.ran, b.Info())
			}
		})
	}
	b := newBench(t, 2)
	p := b.policy(1, nil)
	p.Decide = func(memory.Region, id.Core) (slot.Verdict, error) { return 0, errors.New("out of fuel") }
	b.SetPolicies(b.now, []*Policy{p})
	b.runs("a fault that has been counted", 0, Turn)
	if len(b.faults) != 0 {
		t.Errorf("it was counted twice: %q", b.faults)
	}
	b.SetPolicies(b.now, []*Policy{b.policy(2, func(s *slot.SchedContext) slot.Verdict {
		s.Hold = ^uint64(0) &^ 1 // tasks that there are not
		return 0
	})})
	if b.Plan().Hold != 2 {
		t.Errorf("%b are held of two", b.Plan().Hold)
	}
}

// A policy does not answer for a CPU that none of its tasks had.
func TestStarvationLimitWithoutCPU(t *testing.T) {
	b := newBench(t, 2)
	b.SetPolicies(b.now, []*Policy{b.policy(1, func(*slot.SchedContext) slot.Verdict { return 0 })})
	for range 2 * RescueLimit {
		b.now = b.now.Add(StarvationLimit)
		b.Tick(b.now)
		b.runs("a rescue", 1, Turn)
		b.now = b.now.Add(Turn)
		b.Tick(b.now)
	}
	if len(b.faults) != 0 || b.removed != "" || b.Info().Rescues != 2*RescueLimit {
		t.Errorf("faults %q, removed %q, %+v", b.faults, b.removed, b.Info())
	}
}

// A plan that is followed late is not a fault: the policy is asked before a task counts as
// starving. The waiting time continues from its old value.
func TestStarvationLimitWhenLate(t *testing.T) {
	const late = 3 * StarvationLimit
	for name, policies := range map[string]func(*bench) []*Policy{
		"turns": func(*bench) []*Policy { return nil },
		"policy": func(b *bench) []*Policy {
			return []*Policy{b.policy(1, func(s *slot.SchedContext) slot.Verdict {
				s.Quantum = uint64(10 * time.Millisecond)
				return slot.Verdict(1 - max(0, b.Info().Running))
			})}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 2)
			b.SetPolicies(b.now, policies(b))
			for range 4 * RescueLimit {
				p := b.Plan()
				b.ran[rankID(p.Run)] += p.Next.Sub(b.now) + late
				b.now = p.Next.Add(late)
				b.Tick(b.now)
				if i := b.Info(); b.Plan().Run == p.Run || i.Rescues != 0 {
					t.Fatalf("after task %d, %d has the core, with %d rescues", p.Run, b.Plan().Run, i.Rescues)
				}
			}
			if len(b.faults) != 0 {
				t.Errorf("faults %q", b.faults)
			}
		})
	}
	b := newBench(t, 2)
	starve := func(s *slot.SchedContext) slot.Verdict {
		s.Quantum = uint64(time.Second)
		return 0
	}
	b.SetPolicies(b.now, []*Policy{b.policy(1, starve)})
	b.now = b.now.Add(time.Second + late)
	b.Tick(b.now)
	b.runs("after a second, late", 0, time.Second)
	b.now = b.now.Add(time.Second)
	b.Tick(b.now)
	b.runs("after two", 1, Turn)
}

// A ready task that is not held gets a turn, and the policy that denied it one has a fault, and is
// removed.
func TestStarvationLimit(t *testing.T) {
	b := newBench(t, 3)
	p := b.policy(1, func(*slot.SchedContext) slot.Verdict { return 0 })
	b.SetPolicies(b.now, []*Policy{p})
	b.runs("until the starvation limit", 0, StarvationLimit)
	b.pass(StarvationLimit)
	b.Tick(b.now)
	b.runs("a rescue", 1, Turn)
	b.Arrived(b.now, rankID(0))
	b.runs("nobody may cut it short", 1, Turn)
	b.pass(Turn)
	b.Tick(b.now)
	b.runs("the next rescue", 2, Turn)
	b.pass(time.Millisecond)
	b.Block(b.now, rankID(2))
	b.runs("who is rescued may wait himself", 0, StarvationLimit-time.Millisecond)
	if len(b.faults) != 2 || !strings.Contains(b.faults[0], "rank 1 was ready") || b.removed != "" {
		t.Errorf("faults %q, removed %q", b.faults, b.removed)
	}
	b.pass(3 * StarvationLimit)
	if len(b.faults) != RescueLimit-1 || !strings.HasPrefix(b.removed, "it let tasks starve 4 times") || b.Info().Rescues < RescueLimit {
		t.Errorf("faults %q, removed %q, %+v", b.faults, b.removed, b.Info())
	}
	for _, id := range []ID{rankID(1)} {
		if b.ran[id] < 2*Turn {
			t.Errorf("rank %d had %v", id.Rank, b.ran[id])
		}
	}
}

// Held tasks do not starve, for as long as it takes.
func TestHold(t *testing.T) {
	b := newBench(t, 2)
	hold := uint64(2)
	b.SetPolicies(b.now, []*Policy{b.policy(1, func(s *slot.SchedContext) slot.Verdict {
		s.Hold = hold
		return 0
	})})
	b.runs("for ever", 0, never)
	b.pass(time.Hour)
	if b.Info().Rescues != 0 || b.ran[rankID(1)] != 0 {
		t.Errorf("ran %v, %+v", b.ran, b.Info())
	}
	hold = 0
	b.Arrived(b.now, rankID(1))
	b.runs("let go", 0, StarvationLimit)
	if b.Plan().Hold != 0 || len(b.faults) != 0 {
		t.Errorf("%b are held, faults %q", b.Plan().Hold, b.faults)
	}
}

// For any policy, the plan is valid, and no task starves that it does not hold.
func FuzzHostile(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 9, 255, 3, 2, 1})
	f.Add([]byte("\x01\x01\x01\x10\x05\x20\x30\x00\x00\x00\x07\x06\x05\x04\x03\x02\x01"))
	f.Fuzz(func(t *testing.T, script []byte) {
		at := 0
		next := func() uint64 {
			if len(script) == 0 {
				return 0
			}
			at++
			return uint64(script[at%len(script)]) * (1 + uint64(at)/uint64(len(script)))
		}
		b := newBench(t, 1+int(next()%slot.MaxTasks))
		hostile := func(handle id.Handle) *Policy {
			return b.policy(handle, func(s *slot.SchedContext) slot.Verdict {
				*s = slot.SchedContext{Core: s.Core, Count: uint32(next()), Quantum: next() * next() * next(), Hold: next() * next(), Now: next()}
				for i := range s.Tasks {
					s.Tasks[i] = slot.SchedTask{State: slot.TaskState(next()), Since: next(), Data: next()}
				}
				return slot.Verdict(next() % 10)
			})
		}
		b.SetPolicies(b.now, []*Policy{hostile(1), hostile(2)})
		for range 100 {
			id := rankID(int(next() % slot.MaxTasks))
			switch next() % 7 {
			case 0:
				b.Block(b.now, id)
			case 1:
				b.Wake(b.now, id)
			case 2:
				b.Arrived(b.now, id)
			case 3:
				b.Remove(b.now, id)
			case 4:
				_ = b.Add(b.now, id)
			default:
				b.passTicks(time.Duration(next())*time.Millisecond, 50)
			}
			b.check()
		}
	})
}

// check compares the plan with the states of the tasks.
func (b *bench) check() {
	b.t.Helper()
	p, info := b.Plan(), b.Info()
	if p.Run != info.Running || p.Run >= len(info.Tasks) || p.Next < b.now {
		b.t.Fatalf("plan %+v of %+v", p, info)
	}
	var running ID
	if p.Run >= 0 {
		running = ID{id.Job(info.Tasks[p.Run].Job), id.Rank(info.Tasks[p.Run].Rank)}
	}
	if b.has != running {
		b.t.Fatalf("the watcher was told %v, the plan is %+v", b.has, p)
	}
	for i, x := range info.Tasks {
		if p.Hold>>i&1 != 0 != (x.State == slot.Held) || (p.Run == i) != (x.State == slot.Running) || id.Time(x.Since) > b.now {
			b.t.Fatalf("task %d is %+v, the plan %+v", i, x, p)
		}
		most, waited := StarvationLimit+slot.MaxTasks*Turn, b.now.Sub(id.Time(x.Since))
		if x.State == slot.Ready && waited > most {
			b.t.Fatalf("task %d has waited for %v", i, waited)
		}
	}
	if p.Hold>>len(info.Tasks) != 0 {
		b.t.Fatalf("%b are held of %d", p.Hold, len(info.Tasks))
	}
}

// The account of each task, which takes time to read, is read once per event.
func TestMeasure(t *testing.T) {
	asked := 0
	c, err := NewCore(1, func(ID) (time.Duration, uint32) {
		asked++
		return 0, 0
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for rank := range 3 {
		if err := c.Add(1, rankID(rank)); err != nil {
			t.Fatal(err)
		}
	}
	for what, f := range map[string]func(){
		"arrival": func() { c.Arrived(2, rankID(1)) },
		"block":   func() { c.Block(3, rankID(0)) },
		"tick":    func() { c.Tick(c.Plan().Next) },
		"info":    func() { c.Info() },
	} {
		asked = 0
		f()
		if asked != 3 {
			t.Errorf("%s: asked %d times", what, asked)
		}
	}
}
