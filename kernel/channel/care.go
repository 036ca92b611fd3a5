package channel

import (
	"net/netip"
	"time"

	"margay/internal/train"
	"margay/kernel/abi/id"
	"margay/kernel/abi/mirror"
)

// TendEach is how often Tend must be called while there are mirrored channels.
const TendEach = 20 * time.Millisecond

// Bounds of care for a rank, in calls of Tend and in datagrams.
const (
	mostPatience = 50            // between two retransmissions for a rank that does not call its library
	takenEach    = 256           // datagrams taken from the socket of a rank that has ended
	takenLast    = 4 * takenEach // and when it ends, which is more than fit into its socket
	sentEach     = 128           // datagrams sent for a pair, whatever the rank writes into its words
)

// care is the state of a far as the node kernel last saw it.
type care struct {
	seen     [4]uint64   // words of the rank
	idle     int         // looks since they changed
	patience int         // looks until the next retransmission
	end      *mirror.End // of a rank that has ended
	last     *uint64     // bytes that the other rank had received when it ended; nil: not known to have ended
	lost     bool        // and it had not received all of them
}

// Lost is a message of a local rank that a rank of another node ended without receiving.
type Lost struct{ Source, Target id.Rank }

// Tend retransmits datagrams for ranks that have not called their libraries for a while, and takes
// datagrams for ranks that have ended. It returns the lost messages. now is the time since an
// arbitrary moment.
func (t *Table) Tend(now time.Duration) (lost []Lost) {
	t.mu.Lock()
	defer t.mu.Unlock()
	buffer := make([]byte, mirror.Most)
	for local, ended := range t.ended {
		if ended && t.sockets[local] != nil {
			t.takeFor(local, buffer, now, false)
		}
	}
	for _, f := range t.fars {
		if f.Place < 0 {
			continue
		}
		if !f.sealed && f.in.Seal().Load() != 0 {
			if err := t.seal(f); err != nil {
				t.config.Log("%v", err)
			}
		}
		f.advance(t)
		if f.end == nil {
			f.tend(t, buffer, now)
		}
		if f.missing() {
			lost = append(lost, Lost{t.config.Ranks[f.Local].Number, f.Rank})
		}
	}
	return lost
}

// Peek calls look for each datagram that waits in the socket of a rank that has not ended, and
// leaves it there. It may be a stranger's. Like Tend, it must be called every TendEach while there
// are mirrored channels: the rank may compute, and another one has asked for an operation on its
// window (package onesided). It must not be called by two goroutines at the same time, or beside
// Close.
func (t *Table) Peek(look func(b []byte, from netip.AddrPort)) {
	for _, s := range t.filled() {
		for from, datagrams := range s.peek.Peek(takenLast) {
			for b := range datagrams {
				look(b, netip.AddrPortFrom(netip.AddrFrom4(from.Addr), uint16(from.Port)))
			}
		}
	}
}

// filled returns the sockets of ranks that have not ended in which there are datagrams.
func (t *Table) filled() (all []*socket) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for local, s := range t.sockets {
		if s == nil || t.ended[local] || !s.waits() {
			continue
		}
		if s.peek == nil {
			s.peek = train.NewReceiver(int(s.file.Fd()))
		}
		all = append(all, s)
	}
	return all
}

// tend sends for a rank that may not call its library, if nothing has changed for a while. A rank
// that writes messages between any two looks, and never polls, gets no help.
func (f *far) tend(t *Table, buffer []byte, now time.Duration) {
	seen := [4]uint64{f.out.Position().Load(), f.out.Acked().Load(), f.in.Arrived().Load(), f.in.Acknowledged().Load()}
	due := seen[0] != seen[1] || seen[2] != seen[3] || f.out.Blocked().Load() != 0
	if seen != f.seen || !due {
		f.seen, f.idle, f.patience = seen, 0, 1
		return
	}
	if f.idle++; f.idle < f.patience {
		return
	}
	f.idle, f.patience = 0, min(2*f.patience, mostPatience)
	e := mirror.NewEnd(f.out, f.in, f.peer(t))
	e.Ask()
	e.Flood()
	f.emit(e, t, buffer, now)
}

// emit sends the datagrams that are due at an end of f.
func (f *far) emit(e *mirror.End, t *Table, buffer []byte, now time.Duration) {
	for range sentEach {
		b := e.Emit(buffer[:0], now)
		if len(b) == 0 {
			return
		}
		t.sockets[f.Local].send(b, f.to(t))
	}
}

// missing reports once that the other rank ended before it received all messages.
func (f *far) missing() bool {
	if f.lost || f.last == nil || f.out.Position().Load() <= *f.last {
		return false
	}
	f.lost = true
	return true
}

// Last is the number of bytes that a local rank had received through the mirrored channel from
// another rank when it ended.
type Last struct {
	Rank  id.Rank
	Bytes uint64
}

// LastOf returns the bytes that a local rank had received when it ended; nothing before then.
func (t *Table) LastOf(local int) (all []Last) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.fars {
		if f.Local == local && t.ended[local] {
			all = append(all, Last{f.Rank, f.in.Arrived().Load()})
		}
	}
	return all
}

// LastFar notes the bytes that a rank of another node had received from a local rank when it ended.
func (t *Table) LastFar(local int, last Last) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f := t.farOf(local, last.Rank); f != nil && (f.last == nil || last.Bytes < *f.last) {
		f.last = &last.Bytes
	}
}

// takeOver takes the mirrored channels' ends of a rank that has ended. Datagrams already in its
// socket count as received. The caller holds the lock.
func (t *Table) takeOver(local int) {
	for _, f := range t.fars {
		if f.Local == local && f.Place >= 0 && f.end == nil {
			f.end = mirror.NewEnd(f.out, f.in, f.peer(t))
		}
	}
	if s := t.sockets[local]; s != nil {
		_ = train.Disconnect(int(s.file.Fd())) // it sends to one address less at worst
		t.takeFor(local, make([]byte, mirror.Most), 0, true)
	}
}

// takeFor takes datagrams for a rank that has ended, and sends those that are due. The rank
// receives further data only if whole is set. The caller holds the lock.
func (t *Table) takeFor(local int, buffer []byte, now time.Duration, whole bool) {
	most := takenEach
	if whole {
		most = takenLast
	}
	for most > 0 {
		datagrams, from, ok := t.sockets[local].receive()
		if !ok {
			break
		}
		taken := 0
		for b := range datagrams {
			t.takeOne(local, b, from, now, whole)
			taken++
		}
		most -= max(taken, 1) // an empty datagram is a train of none
	}
	for _, f := range t.fars {
		if f.Local == local && f.end != nil {
			f.end.Hurry()
			f.emit(f.end, t, buffer, now)
		}
	}
}

// takeOne takes one datagram, possibly from a stranger, for a rank that has ended. The caller holds
// the lock.
func (t *Table) takeOne(local int, b []byte, from netip.AddrPort, now time.Duration, whole bool) {
	h, data, err := mirror.Parse(b)
	if err != nil {
		return
	}
	for _, f := range t.fars {
		if f.Local != local || f.end == nil || f.Own.Number != h.Number || f.Own.Key != h.Key^f.in.Seal().Load() || f.to(t) != from {
			continue
		}
		if h.Ask = h.Ask || len(data) > 0; !whole {
			data = nil
		}
		f.end.Arrive(&h, data, now)
	}
}
