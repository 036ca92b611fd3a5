package launch

import (
	"slices"
	"sync"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// orders are requests that must reach serve although it may be away: signals for ranks, and orders
// to end a job. Each is sent again over the next connection, in order, unless serve has answered
// it. So a signal is never lost with a connection, but the ranks may get it twice if serve is
// killed between passing it on and answering.
//
// orders are safe for concurrent use.
type orders struct {
	mu   sync.Mutex
	conn asker    // over which they go, once it is attached to the jobs
	open []*order // not answered, the oldest first
}

// order is a request that was given.
type order struct{ request proto.Message }

// asker is the part of a connection that orders use.
type asker interface {
	AskThen(request proto.Message, then func(proto.Message, error)) (call uint64, err error)
}

// give sends an order. Orders that it replaces are not sent again.
func (o *orders) give(request proto.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.open = slices.DeleteFunc(o.open, func(earlier *order) bool { return replaces(request, earlier.request) })
	given := &order{request}
	o.open = append(o.open, given)
	o.ask(given)
}

// over sends further orders over a connection, after those that serve has not answered.
func (o *orders) over(conn asker) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.conn = conn
	for _, given := range o.open {
		o.ask(given)
	}
}

// ask sends an order over the connection of the moment. If that has ended, over sends it again. The
// caller holds orders.mu.
func (o *orders) ask(given *order) {
	_, _ = o.conn.AskThen(given.request, func(proto.Message, error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.open = slices.DeleteFunc(o.open, func(other *order) bool { return other == given })
	})
}

// signalAll is the order that sends a signal to all ranks of a job.
func signalAll(job uint32, sig unix.Signal) *control.Signal {
	return &control.Signal{Job: job, Rank: control.None, Signal: int32(sig)}
}

// endJob is the order that ends a job, whatever its ranks do.
func endJob(job uint32) *control.Kill {
	return &control.Kill{Job: job, Rank: control.None, Force: true}
}

// replaces reports whether a signal makes one that waits void, as Linux has it: an equal one is the
// same, and of a stop and a continuation only the last counts.
func replaces(later, earlier proto.Message) bool {
	l, is := later.(*control.Signal)
	e, was := earlier.(*control.Signal)
	if !is || !was || l.Job != e.Job {
		return false
	}
	stop, stopped := stops(l.Signal), stops(e.Signal)
	continues, continued := l.Signal == int32(unix.SIGCONT), e.Signal == int32(unix.SIGCONT)
	return l.Signal == e.Signal || stop && continued || continues && stopped
}

// stops reports whether a signal stops programs.
func stops(sig int32) bool {
	switch unix.Signal(sig) {
	case unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU:
		return true
	}
	return false
}
