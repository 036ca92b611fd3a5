package collective

import (
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"margay/internal/check"
	"margay/kernel/abi/wire"
)

// meetings is a job of leaders that meet in barriers. Notes may be late, out of order, lost and
// sent again, and come twice.
type meetings struct {
	t       *testing.T
	random  *rand.Rand
	leaders []*leader
	notes   []note
	entered [][]wire.Outcome // by barrier, from 1, and leader: how its node has entered
}

// leader is a leader of the model. Its rank is its place times 3.
type leader struct {
	*Exchange
	place    int
	decided  []wire.Outcome // by barrier
	over     bool           // it has ended
	gaveUp   bool
	diverted bool // a leader has ended without which this one's barrier cannot be decided
}

type note struct {
	source, target int // places
	args           [2]uint64
}

func newMeetings(t *testing.T, random *rand.Rand, size int) *meetings {
	m := &meetings{t: t, random: random}
	var ranks []uint32
	for place := range size {
		ranks = append(ranks, uint32(3*place))
	}
	for place := range size {
		m.leaders = append(m.leaders, &leader{Exchange: NewExchange(ranks, ranks[place]), place: place})
	}
	return m
}

// waits reports whether a leader is in a barrier.
func (l *leader) waits() bool { return l.Begun() > uint64(len(l.decided)) }

// gone reports whether a leader does nothing any more.
func (l *leader) gone() bool { return l.over || l.gaveUp || l.diverted }

// enter begins a leader's next barrier.
func (m *meetings) enter(l *leader) {
	number := len(l.decided) + 1
	if len(m.entered) < number {
		m.entered = append(m.entered, make([]wire.Outcome, len(m.leaders)))
	}
	v := wire.OutcomeQuiet
	if m.random.IntN(3*len(m.leaders)) == 0 {
		v = wire.OutcomeLoud
	}
	m.entered[number-1][l.place] = v
	l.Begin(uint64(number), v, m.random.IntN(4*len(m.leaders)) > 0)
}

// act lets a leader send the notes that are due, and decide.
func (m *meetings) act(l *leader) {
	for {
		to, n, ok := l.Next()
		if !ok {
			break
		}
		m.notes = append(m.notes, note{l.place, int(to / 3), n.Args()})
		l.Sent()
		if !l.gaveUp && m.random.IntN(8) == 0 {
			return
		}
	}
	if v, ok := l.Decided(); ok && l.waits() {
		m.decide(l, v)
	}
}

// decide checks an outcome: all nodes have entered, and it is the greatest of theirs.
func (m *meetings) decide(l *leader, v wire.Outcome) {
	l.decided = append(l.decided, v)
	number := len(l.decided)
	if v == wire.OutcomeAbandoned {
		if !slices.ContainsFunc(m.leaders, func(l *leader) bool { return l.gaveUp }) {
			m.t.Fatalf("leader %d: barrier %d is abandoned by nobody", l.place, number)
		}
		l.gaveUp = true // it fails at its ranks
		return
	}
	if slices.Contains(m.entered[number-1], 0) || v != slices.Max(m.entered[number-1]) {
		m.t.Fatalf("leader %d decides %d of barrier %d, entered as %v", l.place, v, number, m.entered[number-1])
	}
}

// carry delivers a note. It may come once more.
func (m *meetings) carry() {
	i := m.random.IntN(len(m.notes))
	n := m.notes[i]
	if l := m.leaders[n.target]; !l.over {
		if err := l.Arrive(uint32(3*n.source), n.args, 0); err != nil {
			m.t.Fatalf("leader %d: %v", n.target, err)
		}
	}
	if m.random.IntN(4) > 0 { // otherwise it comes once more
		m.notes = slices.Delete(m.notes, i, i+1)
	}
}

// bound diverts the leaders whose barriers lack the part of one that has ended.
func (m *meetings) bound() {
	for _, over := range m.leaders {
		for _, l := range m.leaders {
			if over.over && l.waits() && len(l.decided) >= len(over.decided) {
				l.diverted = true
			}
		}
	}
}

// run lets the leaders meet in so many barriers. ends ends one leader, if it is not nil.
func (m *meetings) run(barriers int, ends func(*leader)) {
	for range 100 * barriers * len(m.leaders) {
		l := m.leaders[m.random.IntN(len(m.leaders))]
		switch {
		case l.gone():
		case ends != nil && len(l.decided) < barriers && m.random.IntN(20*len(m.leaders)) == 0:
			ends(l)
			m.act(l)
			ends = nil
		case l.waits():
			m.act(l)
		case len(l.decided) < barriers:
			m.enter(l)
		}
		for range m.random.IntN(3) {
			if len(m.notes) > 0 {
				m.carry()
			}
		}
	}
	m.drain(barriers)
}

// drain ends a run: all notes come, all leaders that can go on do.
func (m *meetings) drain(barriers int) {
	for busy := true; busy; {
		busy = len(m.notes) > 0
		for len(m.notes) > 0 {
			m.carry()
		}
		for _, l := range m.leaders {
			if !l.gone() && !l.waits() && len(l.decided) < barriers {
				m.enter(l)
				busy = true
			}
			if !l.over && l.waits() {
				m.act(l)
			}
			busy = busy || len(m.notes) > 0
		}
	}
	m.bound()
}

// rounds returns how many random jobs a test runs.
func rounds() int {
	if os.Getenv("MARGAY_SOAK") != "" {
		return 100000
	}
	return 300
}

// All leaders decide all barriers alike, as all nodes have entered them, whatever becomes of notes
// on their way.
func TestMeetings(t *testing.T) {
	random := rand.New(rand.NewPCG(check.Seed(t), 1))
	for range rounds() {
		const barriers = 6
		m := newMeetings(t, random, 1+random.IntN(9))
		m.run(barriers, nil)
		for _, l := range m.leaders {
			if len(l.decided) != barriers {
				t.Fatalf("of %d, leader %d has decided %v and waits", len(m.leaders), l.place, l.decided)
			}
		}
	}
}

// The others decide the barriers that a leader has decided before it ends. In the next one the
// bound diverts them: none waits for a note that does not come.
func TestLeaderEnds(t *testing.T) {
	random := rand.New(rand.NewPCG(check.Seed(t), 2))
	for range rounds() {
		m := newMeetings(t, random, 2+random.IntN(8))
		m.run(6, func(l *leader) { l.over = true })
		ended := slices.IndexFunc(m.leaders, func(l *leader) bool { return l.over })
		for _, l := range m.leaders {
			if ended >= 0 && !l.over && (len(l.decided) < len(m.leaders[ended].decided) || l.waits() && !l.diverted) {
				t.Fatalf("leader %d has decided %v, the one that has ended %v", l.place, l.decided, m.leaders[ended].decided)
			}
		}
	}
}

// A barrier that a leader abandons is decided or abandoned at all others: none waits in it.
func TestLeaderAbandons(t *testing.T) {
	random := rand.New(rand.NewPCG(check.Seed(t), 3))
	for range rounds() {
		m := newMeetings(t, random, 2+random.IntN(8))
		number := 0
		m.run(6, func(l *leader) {
			if !l.waits() {
				m.enter(l)
			}
			number = int(l.Begun())
			l.gaveUp = true
			l.Abandon(l.Begun())
		})
		for _, l := range m.leaders {
			if len(l.decided) < number {
				t.Fatalf("leader %d waits in barrier %d, which was abandoned", l.place, number)
			}
		}
	}
}

// Notes that no leader sends are refused.
func TestNonsenseNotes(t *testing.T) {
	e := NewExchange([]uint32{0, 2, 5}, 2)
	e.Begin(7, wire.OutcomeQuiet, true)
	for name, k := range map[string]struct {
		source uint32
		note   wire.Note
	}{
		"no leader":      {1, wire.Note{Number: 7, Outcome: wire.OutcomeQuiet}},
		"another leader": {5, wire.Note{Number: 7, Outcome: wire.OutcomeQuiet}},
		"itself":         {2, wire.Note{Number: 7, Outcome: wire.OutcomeQuiet}},
		"far ahead":      {0, wire.Note{Number: 9, Outcome: wire.OutcomeQuiet}},
		"no round":       {0, wire.Note{Number: 7, Round: 2, Outcome: wire.OutcomeQuiet}},
		"no outcome":     {0, wire.Note{Number: 7}},
	} {
		if err := e.Arrive(k.source, k.note.Args(), 0); !errors.Is(err, wire.ErrNote) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, ok := e.Decided(); ok {
		t.Error("a barrier is decided by nonsense")
	}
}
