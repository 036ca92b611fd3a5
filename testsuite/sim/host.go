package sim

import "time"

// host is the processors of one host. All work that is there at a time shares them alike, as Linux
// divides them: with more works than processors, each gets the same part.
type host struct {
	processors int64
	others     int64 // works of other programs, which never end
	queue      queue // the work that is there, by the progress at that it is done
	order      uint64
	progress   int64         // of each work since the time 0, in picoseconds
	now        time.Duration // when progress was right
	version    int32         // of the event that was scheduled last
}

// advance computes the progress until now.
func (h *host) advance(now time.Duration) {
	if k := int64(len(h.queue)); k > 0 {
		all := k + h.others
		h.progress += int64(now-h.now) * 1000 * min(h.processors, all) / all
	}
	h.now = now
}

// add adds some work, after which an event happens.
func (h *host) add(now, work time.Duration, e Event) {
	h.advance(now)
	h.order++
	h.queue.push(entry{time.Duration(h.progress + int64(work)*1000), h.order, e})
}

// next returns when the next work is done if no other is added, and false if there is none. Only
// the event of the last version that it returned is valid.
func (h *host) next() (at time.Duration, version int32, ok bool) {
	k := int64(len(h.queue))
	if k == 0 {
		return 0, 0, false
	}
	all := k + h.others
	left, rate := max(0, int64(h.queue[0].at)-h.progress)*all, 1000*min(h.processors, all)
	h.version++
	return h.now + time.Duration((left+rate-1)/rate), h.version, true
}

// done takes the next work if it is done now.
func (h *host) done(now time.Duration) (Event, bool) {
	h.advance(now)
	if len(h.queue) == 0 || int64(h.queue[0].at) > h.progress {
		return Event{}, false
	}
	return h.queue.pop().event, true
}
