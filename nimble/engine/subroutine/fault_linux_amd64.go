package subroutine

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync"

	"golang.org/x/sys/unix"

	"margay/nimble/engine"
	"margay/nimble/isa"
)

// A bad access of a trusted program raises a signal. Go's handler turns it into a
// panic, which preserves neither the registers nor the place, so that every access
// would have to record them. Here another handler is in front of Go's. When the
// fault is in emitted code, and the cpu has the address of an exit path for it,
// the handler stores the address of the instruction in the cpu and continues the
// thread at that exit path. It changes nothing else and calls nothing. It passes
// any other fault to Go's handler, with the stack and registers unchanged.
//
// The handler is installed with the flags, the mask and the restorer of Go's when
// the first program with unchecked accesses is threaded, and stays installed. Go
// installs its handlers of the signals that it turns into panics once, before
// main; os/signal does not change those. The data that the handler reads does not
// change once it is installed: bounds of emitted code, and the next handlers.
var codeStart, codeSize, afterSegv, afterBus uintptr

// onFault is the handler. Only the kernel calls it.
func onFault()

var _ = onFault // in assembly

// onFaultAddress returns the address of onFault.
func onFaultAddress() uintptr

// action is Linux's struct sigaction (kernel ABI).
type action struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

// errTaken reports that other code in this process has replaced the handler.
var errTaken = errors.New("another handler of SIGSEGV or SIGBUS was installed")

// faults records whether the handler is installed.
var faults struct {
	sync.Mutex
	installed bool
}

// catchFaults makes bad accesses of emitted code return to Go. It returns an error
// if the handler cannot be installed or was replaced.
func catchFaults() error {
	faults.Lock()
	defer faults.Unlock()
	if faults.installed {
		for _, signal := range []unix.Signal{unix.SIGSEGV, unix.SIGBUS} {
			if now, err := handlerOf(signal); err != nil || now.handler != onFaultAddress() {
				return errors.Join(errTaken, err)
			}
		}
		return nil
	}
	segv, err := handlerOf(unix.SIGSEGV)
	if err != nil {
		return err
	}
	bus, err := handlerOf(unix.SIGBUS)
	if err != nil {
		return err
	}
	const simple = 1 // SIG_DFL is 0, SIG_IGN is 1: not addresses
	if segv.handler <= simple || bus.handler <= simple {
		return errors.New("SIGSEGV and SIGBUS have no handler of the Go runtime")
	}
	codeStart, codeSize = executable.bounds()
	afterSegv, afterBus = segv.handler, bus.handler
	segv.handler, bus.handler = onFaultAddress(), onFaultAddress()
	if err := handle(unix.SIGSEGV, &segv); err != nil {
		return err
	}
	faults.installed = true
	return handle(unix.SIGBUS, &bus)
}

// strayed returns the fault of the bad access at which emitted code returned.
func (c *code) strayed(m *engine.Machine, k *cpu, left int64) error {
	offset := int(k.at - uint64(c.base))
	after := sort.Search(len(c.strays), func(n int) bool { return int(c.strays[n].hole) > offset })
	bad := &c.strays[after-1]
	slot := int(bad.slot)
	i := c.program.At(slot)
	form := i.Op.Form()
	if (form == isa.FormAtomic || form == isa.FormAtomicFetch) && atomicOpcode(i.Op) == 0 {
		k.reg[0] = k.spill[0] // see fetch
	}
	return stop(m, left-int64(bad.owed), engine.Memory, slot, k.operand(i), nil)
}

// uncheck installs the signal handler and the exit path of code with unchecked
// accesses.
func (c *code) uncheck(t *threader) error {
	if len(t.strays) == 0 {
		return nil
	}
	if err := catchFaults(); err != nil {
		return fmt.Errorf("unchecked accesses: %w", err)
	}
	c.strays, c.stray = slices.Clone(t.strays), uint64(c.base)+uint64(t.toStray)
	return nil
}
