package starter

import "time"

// Beat is what the holder writes to show that it lives.
const Beat = '\n'

// BeatInterval is how often the holder writes a Beat.
const BeatInterval = 5 * time.Second

// mostSilent is how many ticks of BeatInterval may pass in a row without a beat.
const mostSilent = 12

// silence decides when a holder is gone. It is a state machine without input and output: beats and
// ticks go in. Silence is counted in ticks, not in time: a host that stood still could not receive
// beats.
type silence struct{ ticks int }

// beat notes a sign of life.
func (s *silence) beat() { s.ticks = 0 }

// tick notes that BeatInterval has passed, and reports whether the holder is gone.
func (s *silence) tick() (gone bool) {
	s.ticks++
	return s.ticks > mostSilent
}
