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

// A bad access of a trusted program is a signal. The handler of Go makes a panic
// of it, which keeps neither registers nor the place, so that every access would
// have to note them. Here another handler is in front of that one. When the
// fault is in emitted code, and the cpu says that this has a way out for it, the
// handler stores the address of the instruction in the cpu and lets the thread
// go on at that way out. It changes nothing else and calls nothing. Any other
// fault it gives to the handler of Go, with the stack and registers as they were.
//
// The handler is installed with the flags, the mask and the return of Go's, when
// the first program with unchecked accesses is threaded, and stays. Go installs
// its own once, before main, for signals that it makes panics of; os/signal does
// not change those. What the handler reads never changes once it is installed:
// bounds of emitted code, and the next handlers.
var codeStart, codeSize, afterSegv, afterBus uintptr

// onFault is the handler. Only the kernel calls it.
func onFault()

var _ = onFault // in assembly

// onFaultAddress returns the address of onFault.
func onFaultAddress() uintptr

// action is the kernel's struct sigaction.
type action struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

// errTaken says that something else has replaced the handler.
var errTaken = errors.New("another handler of SIGSEGV or SIGBUS was installed")

// faults is whether the handler is installed.
var faults struct {
	sync.Mutex
	installed bool
}

// catchFaults makes bad accesses of emitted code leave it. It returns an error if
// they would not.
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
	const simple = 1 // SIG_DFL and SIG_IGN are no addresses
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

// strayed describes the bad access at which emitted code was left.
func (c *code) strayed(m *engine.Machine, k *cpu, left int64) error {
	offset := int(k.at - uint64(c.base))
	after := sort.Search(len(c.strays), func(n int) bool { return c.strays[n].hole > offset })
	slot := c.strays[after-1].slot
	i := c.program.At(slot)
	form := i.Op.Form()
	if (form == isa.FormAtomic || form == isa.FormAtomicFetch) && atomicOpcode(i.Op) == 0 {
		k.reg[0] = k.spill[0] // see fetch
	}
	return stop(m, left, engine.Memory, slot, k.operand(i), nil)
}

// uncheck finishes code with unchecked accesses.
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
