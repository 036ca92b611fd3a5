package messagetest

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/slot"
	"margay/nimble"
	"margay/nimble/engine"
	"margay/nimble/service"
)

// Message is a message of a Job.
type Message struct {
	Source, Target int
	Handler        uint32
	Args           [2]uint64
	Payload        []byte
	Hops           int
	Extension      bool // an extension has sent it
}

// Put is a put that an extension has started.
type Put struct {
	slot.Put
	Data []byte
}

// Job is a job whose nodes have the same extension. Its messages come in any order, also those
// between the same two ranks. It is not safe for concurrent use.
type Job struct {
	Nodes     []*Extension
	Delivered []Message              // to ranks, in order
	Dropped   []Message              // by extensions
	Puts      []Put                  // that extensions have started
	Full      func(rank uint32) bool // there is no room for messages to a rank; nil: there is room
	Refused   int                    // messages that were not sent
	Lose      func(m *Message) bool  // a message is lost on its way; nil: none is
	place     []int                  // node of each rank
	under     []Message              // under way
	random    *rand.Rand
	t         testing.TB
}

// NewJob makes a job with a rank on each node in place.
func NewJob(t testing.TB, e engine.Engine, object []byte, options nimble.Options, seed uint64, place ...int) *Job {
	t.Helper()
	j := &Job{place: place, random: rand.New(rand.NewPCG(seed, 3)), t: t}
	for range slices.Max(place) + 1 {
		j.Nodes = append(j.Nodes, Insert(t, e, object, options))
	}
	return j
}

// Ranks returns the places of n ranks, perNode on each node.
func Ranks(n, perNode int) (place []int) {
	for rank := range n {
		place = append(place, rank/perNode)
	}
	return place
}

// Send sends a message of a rank.
func (j *Job) Send(source, target int, handler uint32, args [2]uint64, payload []byte) {
	j.under = append(j.under, Message{Source: source, Target: target, Handler: handler, Args: args, Payload: payload})
}

// Run has all messages arrive that are under way, and those that are sent for them.
func (j *Job) Run() {
	j.t.Helper()
	for len(j.under) > 0 {
		i := j.random.IntN(len(j.under))
		m := j.under[i]
		j.under = slices.Delete(j.under, i, i+1)
		if j.Lose == nil || !j.Lose(&m) {
			j.arrive(m)
		}
	}
}

// arrive runs the extension of a message's node.
func (j *Job) arrive(m Message) {
	j.t.Helper()
	x := j.Nodes[j.place[m.Target]]
	h := &handling{job: j, message: m, change: -1}
	context := slot.MessageContext{
		Job: 1, SourceNode: uint32(j.place[m.Source]), SourceRank: uint32(m.Source), TargetRank: uint32(m.Target), Handler: m.Handler,
		Length: uint32(len(m.Payload)), Args: m.Args, Total: uint64(len(m.Payload)),
	}
	copy(context.Data[:], m.Payload)
	x.data = h
	v := x.Ask(&context)
	x.data = nil
	if h.change >= 0 {
		b := x.context.Bytes()
		m.Payload = slices.Clone(b[40 : 40+h.change])
		m.Args = [2]uint64{binary.LittleEndian.Uint64(b[24:]), binary.LittleEndian.Uint64(b[32:])}
	}
	j.under = append(j.under, h.sent...)
	switch v {
	case slot.Deliver, slot.Upcall:
		j.Delivered = append(j.Delivered, m)
	case slot.Drop:
		j.Dropped = append(j.Dropped, m)
	case slot.Forward:
		m.Target, m.Hops = int(context.TargetRank), m.Hops+1
		j.under = append(j.under, m)
	}
}

// Took returns what was delivered to a rank, and forgets it.
func (j *Job) Took(rank int) (taken []Message) {
	j.Delivered = slices.DeleteFunc(j.Delivered, func(m Message) bool {
		if m.Target == rank {
			taken = append(taken, m)
		}
		return m.Target == rank
	})
	return taken
}

// handling is a run for a message of a Job.
type handling struct {
	job     *Job
	message Message
	sent    []Message
	change  int
}

// room returns how many messages may be sent to a rank.
func (h *handling) room(rank uint64) (int, error) {
	switch j := h.job; {
	case rank >= uint64(len(j.place)):
		return 0, unix.EINVAL
	case h.message.Hops >= slot.MaxHops:
		return 0, unix.ELOOP
	case j.Full != nil && j.Full(uint32(rank)):
		return 0, unix.EAGAIN
	}
	return slot.MaxSends - len(h.sent), nil
}

// send sends a message.
func (h *handling) send(to slot.Send, payload []byte) error {
	room, err := h.room(uint64(to.Rank))
	if err == nil && room == 0 {
		err = unix.EDQUOT
	}
	if err != nil {
		h.job.Refused++
		return err
	}
	h.sent = append(h.sent, Message{
		Source: h.message.Target, Target: int(to.Rank), Handler: to.Handler, Args: to.Args, Payload: slices.Clone(payload),
		Hops: h.message.Hops + 1, Extension: true,
	})
	return nil
}

// services returns the services that are about a message.
func services() []service.Service {
	sends := []service.Kind{service.Readable, service.Length, service.Readable, service.Length}
	describes := []service.Kind{service.Scalar, service.Writable, service.Length}
	return []service.Service{
		about("message_send", func(h *handling, c *service.Call) (uint64, error) {
			to, err := read[slot.Send](c)
			return 0, errors.Join(err, h.send(to, c.Bytes(2)))
		}, sends...),
		about("message_reply", func(h *handling, c *service.Call) (uint64, error) {
			to, err := read[slot.Send](c)
			to.Rank = uint32(h.message.Source)
			return 0, errors.Join(err, h.send(to, c.Bytes(2)))
		}, sends...),
		about("message_put", func(h *handling, c *service.Call) (uint64, error) {
			to, err := read[slot.Put](c)
			h.job.Puts = append(h.job.Puts, Put{to, slices.Clone(c.Bytes(2))})
			return 0, err
		}, sends...),
		about("message_change", func(h *handling, c *service.Call) (uint64, error) {
			if c.Args[0] > uint64(len(h.message.Payload)) {
				return 0, unix.EMSGSIZE
			}
			h.change = int(c.Args[0])
			return 0, nil
		}, service.Scalar),
		about("message_room", func(h *handling, c *service.Call) (uint64, error) {
			n, err := h.room(uint64(uint32(c.Args[0])))
			return uint64(n), err
		}, service.Scalar),
		about("message_sender", func(h *handling, _ *service.Call) (uint64, error) {
			if h.message.Extension {
				return slot.FromExtension, nil
			}
			return slot.FromRank, nil
		}),
		about("job_rank", func(h *handling, c *service.Call) (uint64, error) {
			place, rank := h.job.place, uint64(uint32(c.Args[0]))
			if rank >= uint64(len(place)) {
				return 0, unix.EINVAL
			}
			r := slot.JobRank{Ranks: uint32(len(place)), Nodes: uint32(len(h.job.Nodes)), Node: uint32(place[rank]), Next: slot.NoRank}
			if i := slices.Index(place[rank+1:], place[rank]); i >= 0 {
				r.Next = uint32(rank) + 1 + uint32(i)
			}
			return write(c, r)
		}, describes...),
		about("job_node", func(h *handling, c *service.Call) (uint64, error) {
			n := slot.JobNode{Number: uint32(c.Args[0]), First: slot.NoRank}
			if c.Args[0] >= uint64(len(h.job.Nodes)) {
				return 0, unix.EINVAL
			}
			for rank, place := range h.job.place {
				if place == int(c.Args[0]) {
					n.First = min(n.First, uint32(rank))
					n.Ranks++
				}
			}
			return write(c, n)
		}, describes...),
	}
}

// about makes a service.
func about(name string, f func(*handling, *service.Call) (uint64, error), args ...service.Kind) service.Service {
	return service.Service{Name: name, Args: args, Func: func(c *service.Call) (uint64, error) {
		h, ok := c.Data.(*handling)
		if !ok || h == nil {
			return service.Errno(unix.ENOTSUP), nil
		}
		n, err := f(h, c)
		if errno, ok := errors.AsType[unix.Errno](err); ok {
			return service.Errno(errno), nil
		}
		return n, err
	}}
}

// read reads the structure that the first two arguments describe.
func read[T any](c *service.Call) (t T, err error) {
	if len(c.Bytes(0)) != binary.Size(t) {
		return t, unix.EINVAL
	}
	_, err = binary.Decode(c.Bytes(0), binary.LittleEndian, &t)
	return t, err
}

// write writes a structure where the second and third argument say.
func write(c *service.Call, t any) (uint64, error) {
	if len(c.Bytes(1)) != binary.Size(t) {
		return 0, unix.EINVAL
	}
	_, err := binary.Encode(c.Bytes(1), binary.LittleEndian, t)
	return 0, err
}
