package share

import (
	"slices"
	"time"

	"margay/kernel/abi/fuse"
)

// Pending is a request without an answer.
type Pending struct {
	Folder uint8
	Number uint64
	Body   []byte
	cost   int
	held   bool // not to be sent yet

	// Of a Queue:
	header   fuse.Header
	behind   bool        // a write that Linux does not wait for
	extent   fuse.Extent // of a write behind
	answered int         // bytes of a write behind that Linux takes for written
}

// Requests are the requests of a relay that are not answered. It is a state machine without input
// and output, and not safe for concurrent use.
type Requests struct {
	patience time.Duration
	window   int
	used     int
	next     uint64     // number of the next request
	pending  []*Pending // by number; nil: answered
	floor    uint64     // number of the first of pending
	away     bool       // there is no stream
	since    time.Time  // then: since when
	lost     bool
}

// NewRequests returns an empty table. After patience without a stream all requests have failed for
// good. The time of the first stream runs from now on.
func NewRequests(patience time.Duration, now time.Time) *Requests {
	return &Requests{patience: patience, window: MinWindow, away: true, since: now}
}

// Room reports whether a request may be added.
func (r *Requests) Room(body []byte) bool {
	return r.lost || r.used == 0 || r.used+fuse.Cost(body) <= r.window && r.next-r.floor < MaxAhead
}

// Add adds a request, and keeps its body. There must be room for it. Add returns nil if requests
// have failed for good.
func (r *Requests) Add(folder uint8, body []byte) *Pending {
	if r.lost {
		return nil
	}
	p := &Pending{Folder: folder, Number: r.next, Body: body, cost: fuse.Cost(body)}
	r.pending = append(r.pending, p)
	r.next++
	r.used += p.cost
	return p
}

// Frame returns the frame of a request, as it is sent now. It returns false if the request has been
// answered.
func (r *Requests) Frame(p *Pending) (Frame, bool) {
	f := Frame{Kind: Request, Folder: p.Folder, Number: p.Number, Floor: r.floor, Body: p.Body}
	return f, p.Number >= r.floor && r.pending[p.Number-r.floor] == p
}

// Answered removes a request that is answered, and returns it. It returns nil if there is none, as
// for an answer that comes twice.
func (r *Requests) Answered(number uint64) *Pending {
	if number < r.floor || number >= r.next {
		return nil
	}
	i := number - r.floor
	p := r.pending[i]
	if p == nil {
		return nil
	}
	r.pending[i] = nil
	r.used -= p.cost
	done := 0
	for done < len(r.pending) && r.pending[done] == nil {
		done++
	}
	r.pending = r.pending[done:]
	r.floor += uint64(done)
	return p
}

// Connected notes a stream with a window. It returns the requests that must be sent over it, in
// this order.
func (r *Requests) Connected(window int) []*Pending {
	r.away, r.window = false, window
	return slices.DeleteFunc(r.open(), func(p *Pending) bool { return p.held })
}

// Disconnected notes the end of the stream.
func (r *Requests) Disconnected(now time.Time) {
	if !r.away {
		r.away, r.since = true, now
	}
}

// Expire returns the requests that have failed because there was no stream for too long. All later
// ones fail, too.
func (r *Requests) Expire(now time.Time) []*Pending {
	if r.lost || !r.away || now.Sub(r.since) < r.patience {
		return nil
	}
	r.lost = true
	failed := r.open()
	r.pending, r.floor, r.used = nil, r.next, 0
	return failed
}

// Lost reports whether all requests fail.
func (r *Requests) Lost() bool { return r.lost }

func (r *Requests) open() []*Pending {
	return slices.DeleteFunc(slices.Clone(r.pending), func(p *Pending) bool { return p == nil })
}
