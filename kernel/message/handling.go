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
	from    id.Node         // whose node kernel has sent it
	message *frame.Message  // as the extensions have left it; of a long one, its beginning
	total   int             // bytes of its whole payload
	hops    uint8           // most times that it may have been forwarded
	changed []byte          // its payload, after a change
	sent    []frame.Message // sent by completed runs, followed by the current run
	kept    int             // number of them from completed runs
	change  int             // bytes of the payload that the run leaves; -1: it does not change the message
}

// begin makes a message from a node the handled one.
func (h *handling) begin(from id.Node, m *frame.Message, total int, hops uint8) {
	h.from, h.message, h.total, h.hops = from, m, total, hops
	h.sent, h.kept, h.change = h.sent[:0], 0, -1
}

// ask lets the extensions in slot packet or message decide about the message. They may change it,
// unless it is only a beginning. Afterwards, sent has the messages that they have sent for it, too.
func (h *handling) ask(name slot.Name) slot.Verdict {
	in := &h.job.receiver
	h.fill() // also after another slot: its extensions may have written anything
	context := in.event.Region(true)
	if name == slot.Message {
		context.Length = slot.MessageSize
	}
	return h.job.config.Set.Handle(name, &in.burst, context, h)
}

// fill writes the context of the slots message and packet.
func (h *handling) fill() {
	j, m, b := h.job, h.message, h.job.receiver.event.Bytes()
	binary.LittleEndian.PutUint32(b[0:], uint32(j.config.Job))
	binary.LittleEndian.PutUint32(b[4:], uint32(j.config.Nodes[m.Source]))
	binary.LittleEndian.PutUint32(b[8:], uint32(m.Source))
	binary.LittleEndian.PutUint32(b[12:], uint32(m.Target))
	binary.LittleEndian.PutUint32(b[16:], uint32(m.Handler))
	binary.LittleEndian.PutUint32(b[20:], uint32(len(m.Payload)))
	binary.LittleEndian.PutUint64(b[24:], m.Args[0])
	binary.LittleEndian.PutUint64(b[32:], m.Args[1])
	data := b[40:][:slot.MaxMessage]
	clear(data[copy(data, m.Payload):]) // an extension may have written there
	binary.LittleEndian.PutUint64(b[40+slot.MaxMessage:], uint64(h.total))
	binary.LittleEndian.PutUint32(b[slot.MessageSize:], uint32(h.from))
	binary.LittleEndian.PutUint32(b[slot.MessageSize+4:], uint32(m.Hops))
}

// namedTarget returns the rank that the context names.
func (h *handling) namedTarget() id.Rank {
	return id.Rank(binary.LittleEndian.Uint32(h.job.receiver.event.Bytes()[12:]))
}

// ofLibraries reports whether the message is the libraries' own. Extensions only look at these.
func (h *handling) ofLibraries() bool { return h.message.Handler >= wire.MaxHandlers }

// Allow returns an error if an extension must not return this verdict about the message.
func (h *handling) Allow(v slot.Verdict) error {
	if h.ofLibraries() && v != slot.Pass {
		return fmt.Errorf("it stops a message of the libraries, for handler %d, from rank %d to rank %d", h.message.Handler, h.message.Source, h.message.Target)
	}
	if v != slot.Forward {
		return nil
	}
	switch target := h.namedTarget(); {
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
	h.fill()
}

// Discard drops the requests of the last run, and its changes to the context.
func (h *handling) Discard() {
	h.sent, h.change = h.sent[:h.kept], -1
	h.fill()
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
	case h.ofLibraries():
		return 0, unix.ENOTSUP
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
	if h.ofLibraries() {
		return unix.ENOTSUP
	}
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
