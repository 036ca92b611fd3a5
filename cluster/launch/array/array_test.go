package array

import (
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"margay/internal/check"
)

// world is an array with its serve as a plain model, which knows the state of each task.
type world struct {
	t      *testing.T
	r      *rand.Rand
	m      *Machine
	limits Limits
	tasks  []uint32
	now    time.Time

	asked, placed map[uint32]bool
	ended         map[uint32]int // how often
	spoilt        map[uint32]int
	until         map[uint32]time.Time // not to be asked for before
	stopped       bool
}

// ask asks for all tasks whose turn it is, and checks that it is.
func (w *world) ask() {
	for {
		task, ok, wake := w.m.Next(w.now)
		if !ok {
			if !wake.IsZero() && !wake.After(w.now) {
				w.t.Errorf("wakes at %v, which is not after now", wake)
			}
			w.rests()
			return
		}
		switch {
		case w.stopped:
			w.t.Errorf("asks for task %d when stopped", task)
		case w.asked[task] || w.placed[task]:
			w.t.Errorf("asks for task %d, which is active", task)
		case w.ended[task] > 0:
			w.t.Errorf("asks for task %d, which has ended", task)
		case w.now.Before(w.until[task]):
			w.t.Errorf("asks for task %d before its pause is over", task)
		}
		w.asked[task] = true
		if most := w.limits.Asked + len(w.placed)/4; len(w.asked) > most {
			w.t.Errorf("%d tasks are asked, at most %d may be", len(w.asked), most)
		}
		if n := len(w.asked) + len(w.placed); w.limits.Active > 0 && n > w.limits.Active {
			w.t.Errorf("%d tasks are active, at most %d may be", n, w.limits.Active)
		}
	}
}

// rests checks that no task could be asked for now.
func (w *world) rests() {
	if n := len(w.asked) + len(w.placed); w.stopped || len(w.asked) >= w.limits.Asked+len(w.placed)/4 || w.limits.Active > 0 && n >= w.limits.Active {
		return
	}
	for _, task := range w.tasks {
		if !w.asked[task] && !w.placed[task] && w.ended[task] == 0 && !w.now.Before(w.until[task]) {
			w.t.Errorf("does not ask for task %d", task)
		}
	}
}

// some returns a random task of a set.
func (w *world) some(of map[uint32]bool) (uint32, bool) {
	var all []uint32
	for task := range of {
		all = append(all, task)
	}
	if len(all) == 0 {
		return 0, false
	}
	slices.Sort(all) // the order of a map is not from the seed
	return all[w.r.IntN(len(all))], true
}

// event lets one thing happen.
func (w *world) event() {
	switch k := w.r.IntN(20); {
	case k < 7:
		if task, ok := w.some(w.asked); ok {
			delete(w.asked, task)
			w.placed[task] = true
			w.m.Placed(task)
		}
	case k < 14:
		if task, ok := w.some(w.placed); ok {
			delete(w.placed, task)
			w.ended[task]++
			w.m.Ended(task)
		}
	case k < 15: // refused
		if task, ok := w.some(w.asked); ok {
			delete(w.asked, task)
			w.ended[task]++
			w.m.Ended(task)
		}
	case k < 17:
		of := w.asked
		if w.r.IntN(2) == 0 {
			of = w.placed
		}
		if task, ok := w.some(of); ok {
			delete(of, task)
			w.spoil(task)
		}
	case k < 18: // the connection is lost
		w.m.Lost(w.now)
		clear(w.asked)
	case w.r.IntN(400) == 0:
		w.m.Stop()
		w.stopped = true
	default:
		w.now = w.now.Add(time.Duration(w.r.IntN(300)) * time.Millisecond)
		stray := uint32(1 << 20) // what serve says of a task that is not active
		w.m.Placed(stray)
		w.m.Ended(stray)
		if w.m.Spoilt(w.now, stray) {
			w.t.Error("asks again for a task that is not active")
		}
	}
}

func (w *world) spoil(task uint32) {
	w.spoilt[task]++
	again := w.m.Spoilt(w.now, task)
	if again != (w.spoilt[task] < w.limits.Tries) {
		w.t.Errorf("task %d was spoilt %d times, and is asked again: %v", task, w.spoilt[task], again)
	}
	if !again {
		w.ended[task]++
	}
	w.until[task] = w.now.Add(w.limits.Pause << (w.spoilt[task] - 1))
}

func TestMachine(t *testing.T) {
	seeds := 200
	if os.Getenv("MARGAY_SOAK") != "" {
		seeds = 20000
	}
	if os.Getenv("MARGAY_SEED") != "" {
		seeds = 1
	}
	seed := check.Seed(t)
	for i := range uint64(seeds) {
		live(t, seed+i)
		if t.Failed() {
			t.Fatalf("MARGAY_SEED=%d", seed+i)
		}
	}
}

// live lets an array live until its end.
func live(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	limits := Limits{Active: r.IntN(8), Asked: 1 + r.IntN(5), Tries: 1 + r.IntN(4), Pause: 100 * time.Millisecond}
	tasks := make([]uint32, 1+r.IntN(60))
	for i := range tasks {
		tasks[i] = uint32(3 * i)
	}
	w := &world{
		t: t, r: r, m: New(slices.Clone(tasks), limits), limits: limits, tasks: tasks, now: time.Unix(1e9, 0), asked: make(map[uint32]bool), placed: make(map[uint32]bool),
		ended: make(map[uint32]int), spoilt: make(map[uint32]int), until: make(map[uint32]time.Time),
	}
	for events := 0; !w.m.Over(); events++ {
		if events > 100000 {
			t.Fatal("it never ends")
		}
		w.ask()
		w.event()
		if n := len(w.asked) + len(w.placed); w.m.Active() != n {
			t.Fatalf("%d tasks are active, it says %d", n, w.m.Active())
		}
	}
	left := w.m.Left()
	for _, task := range tasks {
		_, isLeft := slices.BinarySearch(left, task)
		if isLeft == (w.ended[task] == 1) {
			t.Errorf("task %d has ended %d times, and is left: %v", task, w.ended[task], isLeft)
		}
	}
	if len(left) > 0 && !w.stopped || len(w.asked)+len(w.placed) > 0 {
		t.Errorf("it is over, with %d tasks left, %d asked, %d placed", len(left), len(w.asked), len(w.placed))
	}
}
