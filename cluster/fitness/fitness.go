// Package fitness decides whether an idle node is well enough to be given jobs: whether it has
// memory and file system space left, and a clock that agrees with serve's.
//
//	well -- idle, and a limit is passed for Settle --> ill
//	ill  -- all limits are kept, with a margin, for Settle --> well
//
// Only idle nodes become ill: what a job uses is the job's. The first readings of a node decide at
// once. State is a state machine without input and output: readings go in with the time.
package fitness

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Settle is how long readings must contradict a state before it changes: a job that has just ended
// may still be freeing its memory.
const Settle = 5 * time.Second

// Limits are what an idle node must keep. The zero value has none.
type Limits struct {
	MemoryMiB int           `json:"memory_mib,omitempty"` // free memory, at least; 0: not checked
	SpaceMiB  int           `json:"space_mib,omitempty"`  // free space in /tmp, at least; 0: not checked
	Clock     time.Duration `json:"clock,omitempty"`      // between its clock and serve's, at most; 0: not checked
}

// Default is what a node has to keep unless the operator says otherwise. A virtual node sets its
// clock by one that counts whole seconds, and its /tmp has 16 MiB.
var Default = Limits{MemoryMiB: 16, SpaceMiB: 4, Clock: 5 * time.Second}

// mostMiB bounds the limits, so that they can be given in bytes.
const mostMiB = 1 << 30

// Parse reads limits such as memory=64,space=4,clock=2s, in MiB and with a unit of time. Limits
// that are not named have their defaults. 0 turns one limit off, and off turns all of them off.
func Parse(text string) (Limits, error) {
	if text == "off" {
		return Limits{}, nil
	}
	l := Default
	for item := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(item, "=")
		var err error
		switch name {
		case "memory":
			l.MemoryMiB, err = parseMiB(value)
		case "space":
			l.SpaceMiB, err = parseMiB(value)
		case "clock":
			if l.Clock, err = time.ParseDuration(value); err != nil || l.Clock < 0 {
				err = errors.New("it is a time with its unit, such as 2s")
			}
		default:
			err = errors.New("the limits are memory and space, in MiB, and clock; or off")
		}
		if err != nil {
			return Limits{}, fmt.Errorf("%q: %w", item, err)
		}
	}
	return l, nil
}

func parseMiB(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > mostMiB {
		return 0, errors.New("it is a number of MiB")
	}
	return n, nil
}

// String writes limits as Parse reads them.
func (l Limits) String() string {
	if l == (Limits{}) {
		return "off"
	}
	return fmt.Sprintf("memory=%d,space=%d,clock=%v", l.MemoryMiB, l.SpaceMiB, l.Clock)
}

// Vitals are readings of a node.
type Vitals struct {
	Memory     int64         // that is free, in bytes; negative: not known
	Space      int64         // that is free, in bytes; negative: not known
	Clock      time.Duration // how far its clock is ahead of serve's
	ClockError time.Duration // how far Clock may be wrong, in both directions; negative: Clock is not known
}

// complaint returns which limit is passed, and by how much; it is empty if none is. For a node that
// is ill there is a margin, so that it does not come and go with a value at the limit.
func (l Limits) complaint(v Vitals, ill bool) string {
	memory, space, clock := int64(l.MemoryMiB)<<20, int64(l.SpaceMiB)<<20, l.Clock
	if ill {
		memory, space, clock = memory+memory/4, space+space/4, clock-clock/4
	}
	offset := max(v.Clock, -v.Clock)
	switch {
	case v.Memory >= 0 && v.Memory < memory:
		return fmt.Sprintf("%d MiB of its memory are free, and %d MiB are needed", v.Memory>>20, l.MemoryMiB)
	case v.Space >= 0 && v.Space < space:
		return fmt.Sprintf("%d MiB are free in its /tmp, and %d MiB are needed", v.Space>>20, l.SpaceMiB)
	case l.Clock > 0 && v.ClockError >= 0 && offset-v.ClockError > clock:
		direction := "ahead of"
		if v.Clock < 0 {
			direction = "behind"
		}
		return fmt.Sprintf("its clock is %v %s the service node's, and %v are allowed", offset.Round(time.Millisecond), direction, l.Clock)
	}
	return ""
}

// State is the state of a node. The zero value describes a node without readings, which is well. It
// is not safe for concurrent use.
type State struct {
	ill   string    // the last reason; empty: it is well
	read  bool      // there were readings
	since time.Time // since when readings contradict the state; zero: they do not
}

// Ill returns why the node must not be given jobs; it is empty if the node is well.
func (s *State) Ill() string { return s.ill }

// Read takes readings of a node, and whether it is idle. It reports whether the node has become ill
// or well.
func (s *State) Read(now time.Time, l Limits, v Vitals, idle bool) (changed bool) {
	ill := s.ill != ""
	if !idle && !ill {
		s.since = time.Time{}
		return false
	}
	first := !s.read
	s.read = true
	complaint := l.complaint(v, ill)
	if (complaint != "") == ill {
		s.ill, s.since = complaint, time.Time{}
		return false
	}
	if s.since.IsZero() {
		s.since = now
	}
	if !first && now.Sub(s.since) < Settle {
		return false
	}
	s.ill, s.since = complaint, time.Time{}
	return true
}
