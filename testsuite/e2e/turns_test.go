package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Tests mostly wait, so some run at the same time. Each test has a machine to itself: one that
// others have used before it, or one of its own. A shared machine is made for the first test that
// uses it and ended after the last: virtual nodes load a host of two CPUs heavily, even while they
// are idle.

// kind is a kind of turn, with its machines.
type kind struct {
	substrate    string
	nodes, cores int // of a shared machine; 0: the test makes its own machines
	flags        []string
	most         int // tests at a time
}

// patient is the flags of a machine that gives its nodes more than the usual 10 s before it
// declares them dead: virtual nodes are slow on a busy host. "mortal" has the usual time.
var patient = []string{"--dead-after", "30s"}

// The kinds, in descending order of the cost of their machines.
var (
	kinds = map[string]kind{
		"qemu":     {"qemu", 2, 2, patient, 1},
		"isolated": {"qemu", 1, 1, slices.Concat(patient, []string{"--profile", "isolated"}), 1},
		// Schedulers are tested on node0. Linux verifies extensions of jobs, for long.
		"sched_ext":   {"qemu", 2, 1, slices.Concat(patient, []string{"--profile", "sched", "--offload"}), 1},
		"mortal":      {"qemu", 2, 2, []string{"--memory", "256"}, 1}, // whose guests are stopped and killed
		"own virtual": {"qemu", 0, 0, nil, 1},
		"hosted":      {"hosted", 4, 2, nil, 2},
		"own":         {"hosted", 0, 0, nil, 2},
	}
	kindOrder = []string{"qemu", "isolated", "sched_ext", "mortal", "own virtual", "hosted", "own"}
)

const (
	mostTests   = 3 // that run
	mostVirtual = 2 // of them with virtual machines
	// arrival is how long the first test waits for the others, which all arrive once go test has
	// visited each of them. The order of the tests then does not depend on chance.
	arrival = 500 * time.Millisecond
)

// turn is the turn of a test.
type turn struct {
	kind    string
	real    bool // see realTime
	final   bool // see finally
	number  int
	ready   chan struct{}
	machine *machine // a shared one
}

// turnsOfTests assigns turns and shared machines.
type turnsOfTests struct {
	mu       sync.Mutex
	number   int
	started  bool
	waiting  []*turn
	running  []*turn
	expected map[string]int        // turns of a kind that are not over
	free     map[string][]*machine // shared machines that are up, and that no test uses
	made     map[string]int        // how many shared machines there have been
}

var turns = turnsOfTests{expected: make(map[string]int), free: make(map[string][]*machine), made: make(map[string]int)}

// expect announces a turn of a kind. Tests call it before t.Parallel.
func expect(kind string) *turn {
	turns.mu.Lock()
	defer turns.mu.Unlock()
	turns.number++
	turns.expected[kind]++
	return &turn{kind: kind, number: turns.number, ready: make(chan struct{})}
}

// realTime makes a turn one in which ranks on hosted nodes compute under a scheduler. Such ranks
// have real-time priorities, and tests measure the processor time that they get, so there is one
// such turn at a time.
func (w *turn) realTime() *turn {
	w.real = true
	return w
}

// finally makes a turn the last one of a kind of one machine, whose test ends that machine.
func (w *turn) finally() *turn {
	w.final = true
	return w
}

// take waits for a turn, which ends with the test, and returns its shared machine, if there is one.
func (w *turn) take(t *testing.T) *machine {
	t.Helper()
	begin := time.Now()
	turns.arrive(w)
	<-w.ready
	t.Cleanup(func() { turns.over(w) })
	t.Logf("waited %.1f s for its turn", time.Since(begin).Seconds()) // make test subtracts that
	k := kinds[w.kind]
	if k.nodes == 0 {
		return nil
	}
	if w.machine == nil {
		turns.mu.Lock()
		turns.made[w.kind]++
		name := fmt.Sprintf("%s%d", w.kind, turns.made[w.kind])
		turns.mu.Unlock()
		m := &machine{t: t, name: name, substrate: k.substrate, nodes: k.nodes, cores: k.cores}
		flags := k.flags
		if w.kind == "mortal" {
			flags = append(machineExtensions(t), flags...)
		}
		if r := m.upAs(inherit(t), k.substrate, flags...); r.code != 0 {
			if strings.Contains(r.stderr, "does not let an ordinary user make them") {
				t.Skip(r.stderr)
			}
			t.Fatalf("machine up: %v", r)
		}
		w.machine = m
	}
	m := *w.machine
	m.t = t
	t.Cleanup(m.logs)
	m.awaitUp()
	return &m
}

// arrive adds a test that waits for its turn.
func (s *turnsOfTests) arrive(w *turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = append(s.waiting, w)
	if s.started {
		s.next()
		return
	}
	if len(s.waiting) == 1 {
		time.AfterFunc(arrival, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.started = true
			s.next()
		})
	}
}

// next begins the turns that can begin, by kinds and then in the order of the source.
func (s *turnsOfTests) next() {
	slices.SortFunc(s.waiting, func(a, b *turn) int {
		if x, y := slices.Index(kindOrder, a.kind), slices.Index(kindOrder, b.kind); x != y {
			return x - y
		}
		return a.number - b.number
	})
	s.waiting = slices.DeleteFunc(s.waiting, func(w *turn) bool {
		if !s.mayRun(w) {
			return false
		}
		s.running = append(s.running, w)
		if n := len(s.free[w.kind]); n > 0 {
			w.machine, s.free[w.kind] = s.free[w.kind][n-1], s.free[w.kind][:n-1]
		}
		close(w.ready)
		return true
	})
}

// mayRun reports whether a turn can begin beside the running turns.
func (s *turnsOfTests) mayRun(w *turn) bool {
	if w.final && s.expected[w.kind] > 1 {
		return false
	}
	same, virtual := 0, 0
	for _, r := range s.running {
		if r.real && w.real {
			return false
		}
		if r.kind == w.kind {
			same++
		}
		if kinds[r.kind].substrate == "qemu" {
			virtual++
		}
	}
	return len(s.running) < mostTests && same < kinds[w.kind].most && (kinds[w.kind].substrate != "qemu" || virtual < mostVirtual)
}

// over ends a turn, and the shared machines of its kind after the last turn.
func (s *turnsOfTests) over(w *turn) {
	s.mu.Lock()
	if w.machine != nil {
		s.free[w.kind] = append(s.free[w.kind], w.machine)
	}
	s.expected[w.kind]--
	last := s.expected[w.kind] == 0
	s.mu.Unlock()
	if last {
		s.end(w.kind)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = slices.DeleteFunc(s.running, func(r *turn) bool { return r == w })
	s.next()
}

// end ends the shared machines of a kind that no test uses.
func (s *turnsOfTests) end(kind string) {
	s.mu.Lock()
	machines := s.free[kind]
	delete(s.free, kind)
	s.mu.Unlock()
	for _, m := range machines {
		out, err := exec.Command(filepath.Join(bin, "margay"), "-m", m.name, "machine", "down").CombinedOutput()
		if err != nil {
			fmt.Fprintf(os.Stderr, "e2e: machine down: %v\n%s", err, out)
		}
	}
}

// endAll ends all shared machines.
func (s *turnsOfTests) endAll() {
	for kind := range kinds {
		s.end(kind)
	}
}

// use makes a test run beside others and returns its shared machine of a kind.
func use(t *testing.T, kind string) *machine {
	t.Helper()
	w := expect(kind)
	t.Parallel()
	return w.take(t)
}

// ownMachine makes a test that makes its own machines run beside others. The kind is "own" or "own
// virtual".
func ownMachine(t *testing.T, kind string) {
	t.Helper()
	w := expect(kind)
	t.Parallel()
	w.take(t)
}

// useRealTime is use of a hosted machine in a turn of ranks with real-time priorities.
func useRealTime(t *testing.T) *machine {
	t.Helper()
	w := expect("hosted").realTime()
	t.Parallel()
	return w.take(t)
}

// ownRealTime is ownMachine for a hosted machine in such a turn.
func ownRealTime(t *testing.T) {
	t.Helper()
	w := expect("own").realTime()
	t.Parallel()
	w.take(t)
}

// turnOf is a subtest with a turn.
type turnOf struct {
	name string
	turn *turn
	test func(t *testing.T, m *machine)
}

// inTurns runs subtests in their turns, in parallel with each other and with other tests.
func inTurns(t *testing.T, tests ...turnOf) {
	t.Parallel()
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.test(t, c.turn.take(t))
		})
	}
}

// onBoth runs a test on shared machines of both substrates.
func onBoth(t *testing.T, test func(t *testing.T, m *machine)) {
	inTurns(t, turnOf{"hosted", expect("hosted"), test}, turnOf{"qemu", expect("qemu"), test})
}
