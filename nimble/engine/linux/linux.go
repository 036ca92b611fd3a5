// Package linux is the engine that gives programs to the kernel of this
// machine, as an accelerator: what its verifier accepts runs as its own machine
// code, everything else is refused with a reason and runs on another engine.
//
// # What agrees and what does not
//
// For a program that is accepted, r0, the context and the maps are after a run
// what they are on the portable engine. What the kernel does not do in the same
// way is refused here, or by its verifier: per-core maps and the number of the
// core (the kernel's core is not the event's), maps shared with other
// processes, services that are not Linux's, and every access that is not proved
// to be inside its region. An untrusted program is loaded without CAP_PERFMON,
// so that the kernel also refuses to make a number of an address. A trusted one
// may do that, and then the number is another one than elsewhere.
//
// Fuel is not charged and the limit of time not looked at: the verifier has
// followed every path of the program to its end, which is at most a million
// instructions away, counting what it follows twice once. A program that was
// accepted has no faults. A run that the kernel cannot begin is a fault of kind
// kernel.
//
// # How a program runs
//
// It is a socket filter that is run by BPF_PROG_TEST_RUN, which needs nothing
// to be attached to and can repeat a program. Its own context, a packet, is not
// used. Instead there are two maps of one element, control and context, that
// are mapped into this process. A prologue fetches r1 to r5 from control and
// makes everything zero that is zero at entry elsewhere: registers, and of each
// function's stack what it may touch. The exits of the first function become
// jumps to an epilogue that puts r0, all 64 bits of it, into control. r1 is a
// pointer only if the program was verified for contexts of a certain length;
// then each run must bring a writable context of that length.
//
// The maps of the extension have twins in the kernel. Their bytes are copied
// there before a run and back after it, so nobody else may write them during
// the run. Runs of one Code follow each other.
//
// # Loading
//
// A program is loaded once, when it is threaded; a refused one is loaded once,
// too. Linux 6.18 was seen to hang for good when thousands of programs were
// loaded and freed within seconds. So Thread waits when it is called too often
// in this process: see pace.
package linux

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"margay/nimble/engine"
	"margay/nimble/state"
	"margay/nimble/verify"
)

// pace is how often programs are loaded: 200 in a row, then 50 in a second.
var pace = rate.NewLimiter(50, 200)

// New returns the engine, or an error that says why there is none here.
func New() (engine.Engine, error) {
	has, err := capabilities()
	if err != nil {
		return nil, err
	}
	if !has.effective(unix.CAP_BPF) {
		return nil, errors.New("needs CAP_BPF: this process may not load programs into the kernel")
	}
	return linux{}, nil
}

type linux struct{}

// Name implements engine.Engine.
func (linux) Name() string { return "linux" }

// Thread implements engine.Engine. The Code is a Repeater.
func (linux) Thread(p *verify.Program, maps []*state.Map) (engine.Code, error) {
	if p.Len() == 0 || len(p.Maps()) != len(maps) {
		return nil, errors.New("linux: needs a verified program and its maps")
	}
	c, err := load(p, maps)
	if err != nil {
		return nil, fmt.Errorf("linux: %w", err)
	}
	return c, nil
}
