package wire

import "testing"

// This is a model of how a rank sleeps and is woken ("The board"): each step is one access to
// shared memory or one system call, and all orders of the steps of all processes are tried. The
// model takes memory to be sequentially consistent: both libraries and the node kernel access these
// words by atomic operations of that order.

// sleepWorld is a state of the model.
type sleepWorld struct {
	rank  int  // the next step of the rank that waits
	rung  bool // it knows that a doorbell was rung, and empties them
	sent  int  // messages in its channels and in its receive ring
	taken int  // those that it has handled

	waiting, asleep bool // its words
	bell, door      bool // the peer doorbell and the doorbell have something to read

	wakers [2]waker
}

// waker is a process that sends the rank one message. The node kernel wakes the rank for one that
// has died.
type waker struct {
	step   int
	kernel bool // the node kernel; else a rank, which may die at any time
	saw    bool // that the rank sleeps
	died   bool
}

// Steps of a waker.
const (
	wakerSends = iota
	wakerLooks // and decides
	wakerClaims
	wakerRings
	wakerEnds // only the node kernel is left to do something
	wakerGone
)

// Steps of the rank.
const (
	rankPolls = iota
	rankHushes
	rankSaysWaiting
	rankSaysAsleep
	rankLooksAgain
	rankBlocks
	rankTakesWaitingBack
	rankTakesAsleepBack
)

// sleepFault is a deliberate fault of the protocol.
type sleepFault int

const (
	noFault      sleepFault = iota
	noSecondLook            // the rank does not look again after it has said that it sleeps
	lateHush                // it empties its doorbells after it has looked again
	earlyLook               // a waker looks whether the rank sleeps before it sends
	noRouse                 // nothing wakes the rank for a waker that has died
)

// stepRank makes the rank's next step. It returns false if the rank cannot make it.
func (w *sleepWorld) stepRank(f sleepFault) bool {
	next := w.rank + 1
	switch w.rank {
	case rankPolls:
		if w.taken < w.sent {
			next = rankPolls
		}
		w.taken = w.sent
	case rankHushes:
		w.hush(f != lateHush)
	case rankLooksAgain:
		if f != noSecondLook && w.taken < w.sent {
			w.taken, next = w.sent, rankTakesWaitingBack
		}
	case rankSaysWaiting:
		w.waiting = true
	case rankSaysAsleep:
		w.asleep = true
	case rankBlocks:
		w.hush(f == lateHush)
		if !w.bell && !w.door {
			return false
		}
		w.rung = true
	case rankTakesWaitingBack:
		w.waiting = false
	case rankTakesAsleepBack:
		w.asleep, next = false, rankPolls
	}
	w.rank = next
	return true
}

func (w *sleepWorld) hush(now bool) {
	if now && w.rung {
		w.rung, w.bell, w.door = false, false, false
	}
}

// stepWaker makes the next step of a waker.
func (w *sleepWorld) stepWaker(i int, f sleepFault) {
	p := &w.wakers[i]
	at := p.step
	p.step++
	if f == earlyLook && at <= wakerLooks { // the two steps change places, and the second one decides
		at = wakerLooks - at
	}
	switch at {
	case wakerSends:
		w.sent++
	case wakerLooks:
		p.saw = w.asleep
		if p.kernel {
			p.saw = w.waiting
		}
	}
	if p.step == wakerClaims && !p.saw {
		p.step = wakerEnds
	}
	switch at {
	case wakerClaims:
		if !p.kernel && !w.asleep {
			p.step = wakerEnds
		} else if !p.kernel {
			w.asleep = false
		}
	case wakerRings:
		if p.kernel {
			w.door = true
		} else {
			w.bell = true
		}
	case wakerEnds:
		if p.died && f != noRouse && w.waiting {
			w.door = true
		}
	}
}

// next returns the states that may follow.
func (w sleepWorld) next(f sleepFault) (all []sleepWorld) {
	if n := w; n.stepRank(f) {
		all = append(all, n)
	}
	for i, p := range w.wakers {
		if p.step == wakerGone {
			continue
		}
		n := w
		n.stepWaker(i, f)
		all = append(all, n)
		if !p.kernel && p.step > wakerSends && p.step < wakerEnds { // it dies
			n := w
			n.wakers[i].step, n.wakers[i].died = wakerEnds, true
			all = append(all, n)
		}
	}
	return all
}

// explore visits all states until it finds one in which the rank sleeps for ever although there are
// messages, and returns how many it has seen.
func explore(f sleepFault, second waker) (states int, lost *sleepWorld) {
	start := sleepWorld{wakers: [2]waker{{}, second}}
	seen := map[sleepWorld]bool{start: true}
	for queue := []sleepWorld{start}; len(queue) > 0; {
		w := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		next := w.next(f)
		if len(next) == 0 && w.taken < w.sent {
			return len(seen), &w
		}
		for _, n := range next {
			if !seen[n] {
				seen[n] = true
				queue = append(queue, n)
			}
		}
	}
	return len(seen), nil
}

// No order of the steps of a rank that goes to sleep, of a rank that sends to it and may die, and
// of another one or the node kernel loses a wake-up; with each part of the protocol left out, some
// order does.
func TestNoWakeUpIsLost(t *testing.T) {
	for _, second := range []waker{{}, {kernel: true}} {
		states, lost := explore(noFault, second)
		if lost != nil {
			t.Errorf("the rank sleeps for ever: %+v", *lost)
		}
		if states < 1000 {
			t.Errorf("only %d states", states)
		}
		t.Logf("%d states", states)
		for _, f := range []sleepFault{noSecondLook, lateHush, earlyLook, noRouse} {
			if _, lost := explore(f, second); lost == nil {
				t.Errorf("with fault %d no wake-up is lost", f)
			}
		}
	}
}
