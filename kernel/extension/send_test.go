package extension

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/slot"
	"margay/kernel/extension/extensiontest"
	"margay/nimble/service"
)

// notes is a Handling that notes its calls, and fails if err is set.
type notes struct {
	asked []string
	err   error
}

func (n *notes) note(format string, args ...any) error {
	n.asked = append(n.asked, fmt.Sprintf(format, args...))
	return n.err
}

func (n *notes) Allow(v slot.Verdict) error               { return n.note("allow %d", v) }
func (n *notes) Keep()                                    { _ = n.note("keep") }
func (n *notes) Discard()                                 { _ = n.note("discard") }
func (n *notes) Send(to slot.Send, payload []byte) error  { return n.note("send %v %q", to, payload) }
func (n *notes) Reply(to slot.Send, payload []byte) error { return n.note("reply %v %q", to, payload) }
func (n *notes) Put(to slot.Put, data []byte) error       { return n.note("put %v %q", to, data) }
func (n *notes) Change(length uint64) error               { return n.note("change %d", length) }
func (n *notes) Room(rank uint32) (int, error)            { return 7, n.note("room %d", rank) }
func (n *notes) ByExtension() bool                        { return true }
func (n *notes) Rank(rank uint32) (slot.JobRank, error) {
	return slot.JobRank{Ranks: 5, Next: rank}, n.note("rank %d", rank)
}
func (n *notes) Node(place uint32) (slot.JobNode, error) {
	return slot.JobNode{Number: place, First: 9}, n.note("node %d", place)
}

// pieces is memory in which each address is the number of a piece.
type pieces [][]byte

func (p pieces) View(addr, length uint64, _ bool) ([]byte, bool) {
	return p[addr][:length], length <= uint64(len(p[addr]))
}

// Each service checks its arguments, asks for what it stands for, charges for what it sends, and
// passes an error code on.
func TestSendingServices(t *testing.T) {
	m := newManager(t)
	x := insert(t, open(t, m, 7), deliver)
	send, _ := binary.Append(nil, binary.LittleEndian, slot.Send{Rank: 3, Handler: 4, Args: [2]uint64{5, 6}, Last: 7})
	put, _ := binary.Append(nil, binary.LittleEndian, slot.Put{Rank: 3, Window: 4, Offset: 5})
	out, data := make([]byte, 16), []byte("some data")
	long := make([]byte, slot.MaxMessage+1)
	memory := pieces{send, put, out, data, long}
	sized := func(at int) (uint64, uint64) { return uint64(at), uint64(len(memory[at])) }
	args := func(a, b int) (args [5]uint64) {
		args[0], args[1] = sized(a)
		args[2], args[3] = sized(b)
		return args
	}
	const all = 100_000
	for name, c := range map[string]struct {
		service string
		args    [5]uint64
		fails   error // of the Handling
		want    uint64
		asked   string
		left    uint64
	}{
		"send":             {"message_send", args(0, 3), nil, 0, `send {3 4 [5 6] 7} "some data"`, all - slot.SendFuel - 9},
		"send nothing":     {"message_send", [5]uint64{0, 32}, nil, 0, `send {3 4 [5 6] 7} ""`, all - slot.SendFuel},
		"no room":          {"message_send", args(0, 3), unix.EAGAIN, service.Errno(unix.EAGAIN), `send {3 4 [5 6] 7} "some data"`, all - slot.SendFuel - 9},
		"too long":         {"message_send", args(0, 4), nil, service.Errno(unix.EMSGSIZE), "", all},
		"another size":     {"message_send", args(1, 3), nil, service.Errno(unix.EINVAL), "", all},
		"no size":          {"message_send", [5]uint64{0, 0, 3, 9}, nil, service.Errno(unix.EINVAL), "", all},
		"reply":            {"message_reply", args(0, 3), nil, 0, `reply {3 4 [5 6] 7} "some data"`, all - slot.SendFuel - 9},
		"put":              {"message_put", args(1, 3), nil, 0, `put {3 4 5} "some data"`, all - slot.SendFuel - 9},
		"put elsewhere":    {"message_put", args(0, 3), nil, service.Errno(unix.EINVAL), "", all},
		"change":           {"message_change", [5]uint64{1 << 40}, nil, 0, "change 1099511627776", all},
		"room":             {"message_room", [5]uint64{1<<32 | 2}, nil, 7, "room 2", all},
		"room for no rank": {"message_room", [5]uint64{2}, unix.EINVAL, service.Errno(unix.EINVAL), "room 2", all},
		"sender":           {"message_sender", [5]uint64{}, nil, slot.FromExtension, "", all},
		"rank":             {"job_rank", [5]uint64{4, 2, 16}, nil, 0, "rank 4", all},
		"node":             {"job_node", [5]uint64{4, 2, 16}, nil, 0, "node 4", all},
		"no such node":     {"job_node", [5]uint64{4, 2, 16}, unix.EINVAL, service.Errno(unix.EINVAL), "node 4", all},
		"half a node":      {"job_node", [5]uint64{4, 2, 8}, nil, service.Errno(unix.EINVAL), "node 4", all},
	} {
		n, budget := &notes{err: c.fails}, fuel(all)
		call := &service.Call{Args: c.args, Data: &run{x, n}, Space: memory, Budget: &budget}
		s := m.services[slot.Message].Name(c.service)
		got, err := s.Call(call)
		var asked []string
		if c.asked != "" {
			asked = []string{c.asked}
		}
		if got != c.want || err != nil || !slices.Equal(n.asked, asked) || uint64(budget) != c.left {
			t.Errorf("%s: %d, %v, asked for %q, %d left", name, int64(got), err, n.asked, budget)
		}
		call.Data, budget = &x.alone, all
		if got, err := s.Call(call); err != nil || int64(got) >= 0 || !slices.Equal(n.asked, asked) {
			t.Errorf("%s, without a message: %d, %v", name, int64(got), err)
		}
	}
	if _, err := m.services[slot.Message].Name("job_node").Call(&service.Call{Args: [5]uint64{4, 2, 16}, Data: &run{x, new(notes)}, Space: memory}); err != nil ||
		!bytes.Equal(out[:8], []byte{4, 0, 0, 0, 9, 0, 0, 0}) {
		t.Errorf("%v, it describes %x", err, out)
	}
	budget := fuel(slot.SendFuel - 1)
	n := new(notes)
	_, err := m.services[slot.Message].Name("message_send").Call(&service.Call{Args: args(0, 3), Data: &run{x, n}, Space: memory, Budget: &budget})
	if !errors.Is(err, errFuel) || budget != 0 || n.asked != nil {
		t.Errorf("without fuel: %v, %d left, asked for %q", err, budget, n.asked)
	}
}

// What runs of a chain ask for is kept if they end well and may answer what they do, else
// discarded.
func TestKeptAndDiscarded(t *testing.T) {
	for name, c := range map[string]struct {
		chain   []extensiontest.Program
		refuses bool
		want    []string
		verdict slot.Verdict
	}{
		"well":       {[]extensiontest.Program{deliver, consume}, false, []string{"allow 0", "keep", "allow 1", "keep"}, slot.Consume},
		"fault":      {[]extensiontest.Program{faulty, drop}, false, []string{"discard", "allow 2", "keep"}, slot.Drop},
		"no verdict": {[]extensiontest.Program{nothing}, false, []string{"discard"}, slot.Deliver},
		"not so":     {[]extensiontest.Program{consume}, true, []string{"allow 1", "discard"}, slot.Deliver},
	} {
		t.Run(name, func(t *testing.T) {
			m := newManager(t)
			s := open(t, m, 1)
			for _, p := range c.chain {
				insert(t, s, p)
			}
			n := new(notes)
			if c.refuses {
				n.err = errors.New("not so")
			}
			var burst Burst
			defer burst.End()
			if v := s.Handle(slot.Message, &burst, event(t), n); v != c.verdict || !slices.Equal(n.asked, c.want) {
				t.Errorf("verdict %d, %q", v, n.asked)
			}
		})
	}
}
