package message

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"

	"margay/kernel/abi/frame"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/abi/wire"
)

// serve carries out a request about a window of a rank of this node, without the rank, and forwards
// the answer to the source. It reports false for an answer, which is for the rank. The caller holds
// receiver.mu.
func (j *Job) serve(begin id.Time, a arrival, m *frame.Message) bool {
	q, err := wire.ParseRemote(m.Args, len(m.Payload))
	if err != nil {
		j.fault("rank %d has sent rank %d a message: %w", m.Source, m.Target, err)
		j.receiver.returns.Take(a.origin)
		return true
	}
	if q.Kind == wire.RemoteReply {
		return false
	}
	if m.Extension {
		a.rank.recordArrived(begin, a.origin, m, slot.Consume)
		j.put(q, m)
		j.receiver.returns.Take(a.origin)
		return true
	}
	a.rank.recordArrived(begin, a.origin, m, slot.Forward)
	answer := wire.Remote{Token: q.Token, Kind: wire.RemoteReply, Window: q.Window, Offset: q.Offset}
	data, status := j.access(q, m)
	answer.Status, answer.Length = status, uint16(len(data))
	if status == wire.RemoteOK && q.Kind.Atomic() {
		a.rank.endpoint.RouseSleeper()
	}
	reply := *m
	reply.Args, reply.Payload = answer.Args(), data
	j.forward(a.origin, reply, m.Source)
	return true
}

// put carries out a put of an extension, which expects no answer.
func (j *Job) put(q wire.Remote, m *frame.Message) {
	if q.Kind != wire.RemotePut {
		j.fault("an extension on node%d has sent rank %d a message: %w", j.config.Nodes[m.Source], m.Target, wire.ErrRemote)
		return
	}
	if _, status := j.access(q, m); status != wire.RemoteOK {
		j.fault("an extension on node%d has put %d bytes at offset %d into window %d of rank %d, which does not have them",
			j.config.Nodes[m.Source], q.Length, q.Offset, q.Window, m.Target)
	}
}

// access carries out a request in the memory of a window, and returns the data of the answer. Ranks
// may use the memory at the same time.
func (j *Job) access(q wire.Remote, m *frame.Message) ([]byte, wire.RemoteStatus) {
	window, err := j.config.Set.Region(wire.WindowName(int(q.Window), int(m.Target)), 0)
	if err != nil {
		return nil, wire.RemoteNoWindow
	}
	b := window.Bytes()
	if !q.Within(len(b)) {
		return nil, wire.RemoteOutside
	}
	switch q.Kind {
	case wire.RemotePut:
		copy(b[q.Offset:], m.Payload)
		return nil, wire.RemoteOK
	case wire.RemoteGet:
		return b[q.Offset:][:q.Length], wire.RemoteOK
	}
	word := (*atomic.Uint64)(unsafe.Pointer(&b[q.Offset]))
	return binary.LittleEndian.AppendUint64(nil, q.Kind.Access(word, m.Payload)), wire.RemoteOK
}
