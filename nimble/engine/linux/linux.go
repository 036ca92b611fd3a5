// Package linux is the engine that loads programs into the Linux kernel of this
// machine, as an accelerator: a program that Linux's verifier accepts runs as
// machine code of Linux's compiler. Any other program is refused with a reason
// and runs on another engine.
//
// # Agreement
//
// After a run of an accepted program, r0, the context and the maps are the same
// as on the portable engine. Everything that Linux does differently is refused
// here, or by its verifier: per-core maps and the number of the core (the CPU of
// a run is not the event's core), maps shared with other processes, services that
// are not Linux's, and every access that is not proved to be inside its region.
// An untrusted program is loaded without CAP_PERFMON, so that Linux also refuses
// to turn an address into a number. A trusted program may do that, and sees other
// numbers than on other engines.
//
// Fuel and MaxTime are ignored: Linux's verifier has followed every path of the
// program to its end, within a million instructions (it does not repeat states
// that it has seen). An accepted program has no faults. If Linux cannot begin a
// run, the fault has kind kernel.
//
// # How a program runs
//
// It is a socket filter that runs by BPF_PROG_TEST_RUN, which needs no attachment
// and can repeat a program. Its own context, a packet, is not used. Instead there
// are two maps of one element, control and context, that are mapped into this
// process. A prologue loads r1 to r5 from control, and zeroes everything that is
// zero at entry on other engines: registers, and the part of each function's
// stack that it may access. The exits of the first function become jumps to an
// epilogue that stores all 64 bits of r0 in control. r1 is a pointer only if the
// program was verified for contexts of a certain length; then each run needs a
// context of at least that length, with the permissions of that verify.Context.
//
// The maps of the extension have twins in the kernel. Their bytes are copied
// there before a run and back after it, so no other code may write them during
// the run. Concurrent runs of one Code wait for each other.
//
// # Loading
//
// A program is loaded once, when it is threaded, also if it is refused. Linux
// 6.18 hung forever when thousands of programs were loaded and freed within
// seconds, so Thread waits if it is called too often in this process: see pace.
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

// pace limits loading: bursts of 200 programs, then 50 per second.
var pace = rate.NewLimiter(50, 200)

// New returns the engine. It returns an error if the calling thread lacks CAP_BPF.
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
