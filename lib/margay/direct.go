package margay

import (
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/onesided"
	"margay/kernel/abi/wire"
)

// direct is this rank's way to the windows of a rank of another node by datagrams to it or its node
// kernel. Job.sending guards it; requests are added and answered under Job.handling, too.
type direct struct {
	*onesided.Requester
	address address                      // of the node kernel
	to      unix.SockaddrInet4           // the same
	flights [onesided.Outstanding]flight // by number; guarded by Job.handling
	news    bool                         // requests were added that were not sent; the same
}

// newDirect returns the way that mirrored channels describe, nil if there is none.
func (j *Job) newDirect(m *wire.Mirror) *direct {
	if m.Windows == 0 {
		return nil
	}
	return &direct{
		Requester: onesided.NewRequester(onesided.Peer{
			Pair: onesided.Pair{Source: uint32(j.Rank()), Target: m.Rank}, Key: m.PeerKey, Largest: int(m.Largest),
		}),
		address: newAddress(m.Address, m.Windows), to: newSockaddr(m.Address, m.Windows),
	}
}

// way returns how a request about a window of a rank is sent: by datagrams, or for nil through the
// node kernels. It changes only when all requests to that rank are answered, so that they take
// effect in order; until then, wait is true. The caller holds Job.handling.
func (j *Job) way(rank int) (d *direct, wait bool) {
	f := j.mirrors.to[rank]
	if f == nil || f.direct == nil {
		return nil, false
	}
	if j.area.Path().Load()&wire.PathFar != 0 && f.out.Closed().Load() == 0 {
		return f.direct, j.remote.passing[rank] > 0
	}
	return nil, !f.direct.Idle()
}

// ask adds as much of a request as there is room for, and reports whether there was any. The caller
// holds Job.handling.
func (r *Request) ask(d *direct) (some bool, err error) {
	j := r.job
	j.sending.Lock()
	defer j.sending.Unlock()
	if j.finalized.Load() {
		return false, ErrClosed
	}
	for len(r.rest) > 0 && d.Room(r.kind) {
		piece := r.rest[:min(len(r.rest), d.Piece())]
		f, data := r.flight(piece)
		q := onesided.Request{Kind: r.kind, Window: uint8(r.place.window), Length: uint16(len(piece)), Offset: uint64(r.place.offset)}
		d.flights[d.Add(q, data)%onesided.Outstanding] = f
		r.sent(piece)
		j.remote.asked++
		some, d.news, j.remote.news = true, true, true
	}
	return some, nil
}

// sendAsked sends the requests that were added since the last call. Goroutines that sleep wake when
// one of them must be sent again. The caller holds Job.handling.
func (j *Job) sendAsked() {
	j.remote.news = false
	j.sending.Lock()
	defer j.sending.Unlock()
	for _, f := range j.mirrors.ends {
		if f.direct != nil && f.direct.news {
			f.direct.news = false
			j.mirrors.request(f)
		}
	}
	j.mirrors.hasten()
}

// request sends the requests to a rank that are due. The caller holds Job.sending.
func (m *mirrors) request(f *far) {
	d := f.direct
	for t := d.Emit(m.now()); len(t) > 0; t = d.Emit(m.now()) {
		switch {
		case !d.ToKernel():
			m.send(t, f)
		case len(t) == 1:
			m.disconnect() // the answer comes from a node kernel
			send(m.socket, t[0], &d.address)
		default:
			m.disconnect()
			m.trains.Send(t, &d.to)
		}
	}
}

// takeRequest takes a request about a window of this rank, which may be a stranger's. If it may
// have counted an event, goroutines that wait look again. The node kernel takes requests about
// windows that this process has not mapped. The caller holds Job.handling and Job.sending.
func (j *Job) takeRequest(b []byte, from address) {
	q, data, err := onesided.ParseRequest(b)
	if err != nil || int(q.Target) != j.Rank() || int(q.Source) >= j.Size() {
		return
	}
	f := j.mirrors.to[q.Source]
	if f == nil || f.key != q.Key || f.address != from {
		return
	}
	j.mu.Lock()
	memory := j.windows[window{int(q.Window), j.Rank()}]
	j.mu.Unlock()
	if memory == nil {
		return
	}
	j.mirrors.familiar++
	if j.mirrors.answers.Carry(f.journal, &q, data, f.peerKey, func(uint8) []byte { return memory }) {
		j.announce()
	}
}

// takeAnswer takes an answer, which may be a stranger's, and reports whether it has answered a
// request. The caller holds Job.handling and Job.sending.
func (j *Job) takeAnswer(b []byte, from address, now time.Duration) (some bool) {
	a, data, err := onesided.ParseAnswer(b)
	if err != nil || int(a.Source) != j.Rank() || int(a.Target) >= j.Size() {
		return false
	}
	f := j.mirrors.to[a.Target]
	if f == nil || f.direct == nil || f.key != a.Key || f.direct.address != from && f.address != from {
		return false
	}
	byRank := f.address == from
	if byRank {
		j.mirrors.familiar++
	}
	f.direct.Arrive(&a, data, byRank, now, func(number uint64, status wire.RemoteStatus, data []byte) {
		f.direct.flights[number%onesided.Outstanding].land(status, data)
		j.remote.asked--
		some = true
	})
	return some
}
