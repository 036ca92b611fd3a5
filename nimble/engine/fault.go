package engine

import (
	"fmt"

	"margay/nimble/object"
)

// Kind is why a run was stopped.
type Kind string

// The kinds of fault. Division by zero is not a fault (RFC 9669, section 4.1).
const (
	Fuel      Kind = "fuel"      // the next block costs more than is left
	Time      Kind = "time"      // the run took longer than MaxTime
	Memory    Kind = "memory"    // an access that no region allows, or to unmapped memory
	Alignment Kind = "alignment" // an atomic operation at an address that is not a multiple of its size
	Depth     Kind = "depth"     // a local call deeper than allowed
	Argument  Kind = "argument"  // an argument that a service does not accept
	Service   Kind = "service"   // a service returned an error
	Kernel    Kind = "kernel"    // the engine linux could not begin the run
)

// Fault says where and why a run was stopped.
type Fault struct {
	Kind   Kind
	PC     int         // index of the instruction, in slots
	Line   object.Line // its source line, if known
	Addr   uint64      // Memory, Alignment: the address; Argument: the value
	Region string      // the region at or next to Addr, if any
	Offset int64       // Addr relative to the start of Region
	Fuel   uint64      // fuel left
	Err    error       // Argument, Service, Kernel: the cause; Fuel: why the run could not begin with so little
}

// Error returns pc, address, kind and fuel, then region, line and cause if known.
func (f *Fault) Error() string {
	text := fmt.Sprintf("pc=%d addr=%#x kind=%s fuel=%d", f.PC, f.Addr, f.Kind, f.Fuel)
	switch {
	case f.Region != "":
		text += fmt.Sprintf(" region=%s%+d", f.Region, f.Offset)
	case f.Kind == Memory && f.Addr < near: // through a null pointer
		text += fmt.Sprintf(" region=null%+d", f.Addr)
	}
	if line := f.Line.String(); line != "" {
		text += " line=" + line
	}
	if f.Err != nil {
		text += ": " + f.Err.Error()
	}
	return text
}

// Unwrap returns the cause.
func (f *Fault) Unwrap() error { return f.Err }
