package extension

import (
	"errors"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/id"
	"margay/kernel/record"
	"margay/nimble"
	"margay/nimble/engine"
	"margay/nimble/memory"
	"margay/nimble/service"
)

// callService runs another extension of the job, named by its handle, on memory of the caller. It
// returns the answer or an error code: ENOENT if there is no such extension, or it was not inserted
// before the caller (which excludes cycles); EFAULT if it faults; EPERM if it is trusted and the
// caller is not; EINVAL if the memory is shorter than a context of its slot; ELOOP if calls nest
// too deeply.
var callService = service.Service{
	Name: "extension_call",
	Args: []service.Kind{service.Scalar, service.Writable, service.Length},
	Func: call,
}

func call(c *service.Call) (uint64, error) {
	by := c.Data.(*run)
	caller := by.extension
	x, err := caller.set.Find(id.Handle(c.Args[0]))
	if err != nil {
		if err := caller.set.Stray(id.Handle(c.Args[0])); err != nil {
			caller.set.manager.note(caller.set, caller.handle, caller.name, "its call is refused: %v", err)
		}
		return service.Errno(unix.ENOENT), nil
	}
	if c.Args[0] != uint64(x.handle) || x.handle >= caller.handle {
		return service.Errno(unix.ENOENT), nil
	}
	begin := x.set.manager.recorder.Begin()
	if guard := x.guard.Load(); guard != nil {
		(*guard).Lock()
		defer (*guard).Unlock()
	}
	r0, err := x.Invoke(c, &nimble.Event{
		Context: memory.Region{Base: c.Args[1], Length: c.Args[2], Readable: true, Writable: true}, Data: &run{x, by.handling},
	})
	_, fault := errors.AsType[*engine.Fault](err)
	if fault || err == nil || errors.Is(err, nimble.ErrBudget) {
		x.ran(begin, record.Event{Kind: record.Called, Core: uint16(c.Core), Peer: uint32(caller.handle), What: r0})
	}
	switch {
	case err == nil:
		return r0, nil
	case fault:
		x.Fault(err)
		return service.Errno(unix.EFAULT), nil
	case errors.Is(err, nimble.ErrClosed):
		return service.Errno(unix.ENOENT), nil
	case errors.Is(err, nimble.ErrUntrusted):
		return service.Errno(unix.EPERM), nil
	case errors.Is(err, nimble.ErrContext):
		return service.Errno(unix.EINVAL), nil
	case errors.Is(err, nimble.ErrTooDeep):
		return service.Errno(unix.ELOOP), nil
	}
	return 0, err
}
