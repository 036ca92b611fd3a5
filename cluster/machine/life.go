package machine

import (
	"fmt"
	"time"
)

// life decides when the holder starts a node again. It is a state machine without input and output,
// and not safe for concurrent use: starts, ends, registrations and orders go in with the time, and
// verdicts come out.
//
// A node that ends before it has registered is started again at once, bootRetries times in a row. A
// node that ends after it has registered is started again after a pause, but only mostEnds times
// within endsWindow: a node that ends more often would keep ending. A node that turns itself off,
// whose start fails, or that is switched off, stays off. Only an order starts a node that stays
// off.
type life struct {
	boots    uint32      // starts so far
	up       bool        // it has registered since its last start
	failures int         // ends in a row before it had registered
	ends     []time.Time // the last ends after it had registered, within endsWindow
	off      string      // why it was switched off; empty: it was not
}

const (
	bootRetries = 2
	mostEnds    = 3
	endsWindow  = 10 * time.Minute
	restPause   = time.Second // before a node that was up is started again; twice as long each time
)

// verdict says whether and when a node that has ended is started again.
type verdict struct {
	Again  bool
	Pause  time.Duration // before it is started again
	Reason string        // why it is not, if there is more to say
}

// start notes that the node is being started.
func (l *life) start() {
	l.boots++
	l.up = false
}

// registered notes that the node has registered.
func (l *life) registered() { l.up, l.failures = true, 0 }

// end returns the verdict on a node that has ended. off: it has turned itself off.
func (l *life) end(off bool, now time.Time) verdict {
	was := l.up
	l.up = false
	switch {
	case off || l.off != "":
		return verdict{}
	case !was:
		l.failures++
		return verdict{Again: l.failures <= bootRetries}
	}
	for len(l.ends) > 0 && now.Sub(l.ends[0]) >= endsWindow {
		l.ends = l.ends[1:]
	}
	l.ends = append(l.ends, now)
	if len(l.ends) > mostEnds {
		return verdict{Reason: fmt.Sprintf("it has ended %d times within %v", len(l.ends), endsWindow)}
	}
	return verdict{Again: true, Pause: restPause << (len(l.ends) - 1)}
}

// order notes an order to start the node: earlier failures no longer count.
func (l *life) order() { l.failures, l.ends, l.off = 0, nil, "" }

// switchOff notes an order to switch the node off, for a reason.
func (l *life) switchOff(why string) { l.off = why }
