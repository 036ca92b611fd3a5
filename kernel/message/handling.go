package message

import (
	"encoding/binary"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/frame"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/abi/wire"
	"margay/kernel/flow"
)

// handling is a message that extensions handle, with their requests (extension.Handling). It
// belongs to the receiver and is reused for each message.
type handling struct {
	job     *Job
	message *frame.Message  // as the extensions have left it; of a long one, its beginning
	total   int             // bytes of its whole payload
	hops    uint8           // most times that it may have been forwarded
	changed []byte          // its payload, after a change
	sent    []frame.Message // sent by completed runs, followed by the current run
	kept    int             // number of them from completed runs
	change  int             // bytes of the payload that the run leaves; -1: it does not change the message
}

// ask lets the extensions decide about a message. They may change it, unless m is only its
// beginning. Afterwards, sent has the messages that they send for it.
func (h *handling) ask(m *frame.Message, total int, hops uint8) slot.Verdict {
	j := h.job
	h.begin(m, total, hops)
	v := j.config.Set.Message(&j.receiver.burst, j.receiver.event.Region(true), h)
	h.share(v == slot.Forward)
	return v
}

// begin puts a message into the context.
func (h *handling) begin(m *frame.Message, total int, hops uint8) {
	h.message, h.total, h.hops = m, total, hops
	h.sent, h.kept, h.change = h.sent[:0], 0, -1
	h.job.fill(m, total)
}

// Allow returns an error if an extension must not return this verdict about the message.
func (h *handling) Allow(v slot.Verdict) error {
	if v != slot.Forward {
		return nil
	}
	switch target := h.job.namedTarget(); {
	case int(target) >= len(h.job.place):
		return fmt.Errorf("it forwards a message to rank %d of %d", target, len(h.job.place))
	case target == h.message.Target:
		return fmt.Errorf("it forwards a message to rank %d, which it has come to", target)
	case h.message.Hops >= h.hops:
		return fmt.Errorf("it forwards a message to rank %d that has been forwarded %d times", target, h.message.Hops)
	}
	return nil
}

// Keep carries out the requests of the last run.
func (h *handling) Keep() {
	h.kept = len(h.sent)
	if h.change < 0 {
		return
	}
	b := h.job.receiver.event.Bytes()
	m := h.message
	m.Args = [2]uint64{binary.LittleEndian.Uint64(b[24:]), binary.LittleEndian.Uint64(b[32:])}
	h.changed = append(h.changed[:0], b[40:40+h.change]...)
	m.Payload, h.total, h.change = h.changed, h.change, -1
	h.job.fill(m, h.total)
}

// Discard drops the requests of the last run, and its changes to the context.
func (h *handling) Discard() {
	h.sent, h.change = h.sent[:h.kept], -1
	h.job.fill(h.message, h.total)
}

// Send sends a message to a rank.
func (h *handling) Send(to slot.Send, payload []byte) error {
	if to.Handler >= wire.MaxHandlers {
		return unix.EINVAL
	}
	m := frame.Message{Target: id.Rank(to.Rank), Handler: uint16(to.Handler), Args: to.Args}
	if to.Last != 0 {
		m.Used = slot.MaxCaused
	}
	return h.send(m, payload)
}

// Reply sends a message to the source of the handled one.
func (h *handling) Reply(to slot.Send, payload []byte) error {
	to.Rank = uint32(h.message.Source)
	return h.Send(to, payload)
}

// Put starts a put into a window.
func (h *handling) Put(to slot.Put, data []byte) error {
	if to.Window >= wire.MaxWindows || len(data) == 0 {
		return unix.EINVAL
	}
	q := wire.Remote{Kind: wire.RemotePut, Window: uint8(to.Window), Length: uint16(len(data)), Offset: to.Offset}
	return h.send(frame.Message{Target: id.Rank(to.Rank), Handler: wire.HandlerRemote, Args: q.Args(), Used: slot.MaxCaused}, data)
}

// send sends a message from the rank that the handled message is for.
func (h *handling) send(m frame.Message, payload []byte) error {
	room, err := h.Room(uint32(m.Target))
	switch {
	case err != nil:
		return err
	case room == 0:
		return unix.EDQUOT
	}
	m.Source, m.Extension, m.Hops = h.message.Target, true, h.message.Hops+1
	m.Payload = slices.Clone(payload)
	h.sent = append(h.sent, m)
	return nil
}

// Room returns how many messages the run may still send to a rank.
func (h *handling) Room(rank uint32) (int, error) {
	j := h.job
	switch {
	case int(rank) >= len(j.place):
		return 0, unix.EINVAL
	case h.message.Hops >= slot.MaxHops:
		return 0, unix.ELOOP
	}
	j.mu.Lock()
	room := j.flow.Room(flow.ChannelOf(id.Rank(rank), h.message.Hops+1))
	j.mu.Unlock()
	if !room {
		return 0, unix.EAGAIN
	}
	return min(slot.MaxSends, h.left()) - len(h.sent), nil
}

// left returns how many messages the handled one may cause.
func (h *handling) left() int { return slot.MaxCaused - int(h.message.Used) }

// share splits the messages that the handled one may still cause into equal parts: one for each
// message that was sent, except the last ones, and one for the handled message if it is forwarded.
func (h *handling) share(forwarded bool) {
	among := 0
	for i := range h.sent {
		if h.sent[i].Used == 0 {
			among++
		}
	}
	if forwarded {
		among++
	}
	if among == 0 {
		return
	}
	used := uint16(slot.MaxCaused - (h.left()-len(h.sent))/among)
	for i := range h.sent {
		h.sent[i].Used = max(h.sent[i].Used, used)
	}
	if forwarded {
		h.message.Used = used
	}
}

// Change sets the message's arguments and the first length bytes of its payload to those in the
// context, and drops the rest of the payload.
func (h *handling) Change(length uint64) error {
	if length > uint64(len(h.message.Payload)) || h.total > len(h.message.Payload) {
		return unix.EMSGSIZE
	}
	h.change = int(length)
	return nil
}

// ByExtension reports whether an extension has sent the message.
func (h *handling) ByExtension() bool { return h.message.Extension }

// Rank describes a rank.
func (h *handling) Rank(rank uint32) (slot.JobRank, error) {
	j := h.job
	if int(rank) >= len(j.place) {
		return slot.JobRank{}, unix.EINVAL
	}
	r := slot.JobRank{Ranks: uint32(len(j.place)), Nodes: uint32(len(j.config.Members)), Node: uint32(j.place[rank]), Next: slot.NoRank}
	if next := slices.Index(j.place[rank+1:], j.place[rank]); next >= 0 {
		r.Next = rank + 1 + uint32(next)
	}
	return r, nil
}

// Node describes a node of the job.
func (h *handling) Node(place uint32) (slot.JobNode, error) {
	j := h.job
	if int(place) >= len(j.config.Members) {
		return slot.JobNode{}, unix.EINVAL
	}
	n := slot.JobNode{Number: uint32(j.config.Members[place]), First: slot.NoRank}
	for rank, at := range j.place {
		if at != int(place) {
			continue
		}
		if n.Ranks++; n.First == slot.NoRank {
			n.First = uint32(rank)
		}
	}
	return n, nil
}

// cause sends messages that a message from source has caused. It does not wait.
func (j *Job) cause(o flow.Origin, source id.Rank, messages []frame.Message) {
	if len(messages) == 0 {
		return
	}
	j.held(source)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.flow.Cause(o, source, messages)
	j.passOnSoon()
}
