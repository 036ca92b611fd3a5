package extension

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/slot"
	"margay/nimble/service"
)

// Handling is a message that extensions handle, as the services of the message slot see it. What
// runs ask for is done when they have ended without a fault. The errors of its methods are of type
// unix.Errno.
type Handling interface {
	// Allow returns an error if an extension must not give that verdict.
	Allow(slot.Verdict) error

	// Keep does what the last run has asked for, and Discard forgets it.
	Keep()
	Discard()

	// Send sends a message to a rank, and Reply to the source of the handled one.
	Send(to slot.Send, payload []byte) error
	Reply(to slot.Send, payload []byte) error

	// Put starts a put into a window.
	Put(to slot.Put, data []byte) error

	// Change makes the arguments and so many bytes of the payload what they are in the context.
	Change(length uint64) error

	// Room returns how many messages the run may still send to a rank.
	Room(rank uint32) (int, error)

	// ByExtension reports whether an extension has sent the handled message.
	ByExtension() bool

	// Rank and Node describe the job.
	Rank(rank uint32) (slot.JobRank, error)
	Node(place uint32) (slot.JobNode, error)
}

// run is a run of an extension in the message slot, the Data of its service calls.
type run struct {
	extension *Extension
	handling  Handling // nil: there is no message
}

// errFuel ends a run that has no fuel for what it sends.
var errFuel = errors.New("no fuel is left for sending a message")

// handlingService makes a service from a method of Handling. Its result is what f returns, or an
// error code: ENOTSUP if there is no message.
func handlingService(name string, f func(*service.Call, Handling) (uint64, error), args ...service.Kind) service.Service {
	return service.Service{Name: name, Args: args, Func: func(c *service.Call) (uint64, error) {
		h := c.Data.(*run).handling
		if h == nil {
			return service.Errno(unix.ENOTSUP), nil
		}
		n, err := f(c, h)
		if errno, ok := errors.AsType[unix.Errno](err); ok {
			return service.Errno(errno), nil
		}
		return n, err
	}}
}

// handlingServices are the services that are about the handled message.
var handlingServices = []service.Service{
	handlingService("message_send", sends(Handling.Send), service.Readable, service.Length, service.Readable, service.Length),
	handlingService("message_reply", sends(Handling.Reply), service.Readable, service.Length, service.Readable, service.Length),
	handlingService("message_put", sends(Handling.Put), service.Readable, service.Length, service.Readable, service.Length),
	handlingService("message_change", func(c *service.Call, h Handling) (uint64, error) { return 0, h.Change(c.Args[0]) }, service.Scalar),
	handlingService("message_room", func(c *service.Call, h Handling) (uint64, error) {
		n, err := h.Room(uint32(c.Args[0]))
		return uint64(n), err
	}, service.Scalar),
	handlingService("message_sender", func(_ *service.Call, h Handling) (uint64, error) {
		if h.ByExtension() {
			return slot.FromExtension, nil
		}
		return slot.FromRank, nil
	}),
	handlingService("job_rank", describes(Handling.Rank), service.Scalar, service.Writable, service.Length),
	handlingService("job_node", describes(Handling.Node), service.Scalar, service.Writable, service.Length),
}

// sends makes a service of a method that sends something: its first two arguments are a T, the
// others the payload.
func sends[T any](send func(Handling, T, []byte) error) func(*service.Call, Handling) (uint64, error) {
	return func(c *service.Call, h Handling) (uint64, error) {
		var to T
		b, payload := c.Bytes(0), c.Bytes(2)
		switch {
		case len(b) != binary.Size(to):
			return 0, unix.EINVAL
		case len(payload) > slot.MaxMessage:
			return 0, unix.EMSGSIZE
		}
		if _, err := binary.Decode(b, binary.LittleEndian, &to); err != nil {
			return 0, err
		}
		cost := uint64(slot.SendFuel + len(payload))
		if left := c.Budget.Left(); left < cost {
			c.Budget.Take(left)
			return 0, errFuel
		}
		c.Budget.Take(cost)
		return 0, send(h, to, payload)
	}
}

// describes makes a service of a method that describes a part of the job in memory of the
// extension.
func describes[T any](describe func(Handling, uint32) (T, error)) func(*service.Call, Handling) (uint64, error) {
	return func(c *service.Call, h Handling) (uint64, error) {
		t, err := describe(h, uint32(c.Args[0]))
		switch b := c.Bytes(1); {
		case err != nil:
			return 0, err
		case len(b) != binary.Size(t):
			return 0, unix.EINVAL
		default:
			_, err = binary.Encode(b, binary.LittleEndian, t)
			return 0, err
		}
	}
}
