// Package mpir lets a debugger find the ranks of a job, by the MPIR Process Acquisition Interface,
// version 1.0: it is attached to the process that starts the job, and reads and writes variables
// there whose names and layouts the interface gives.
//
// The debugger sets MPIR_being_debugged, and a breakpoint in MPIR_Breakpoint. Publish fills
// MPIR_proctable, and calls MPIR_Breakpoint while the ranks are held. There the debugger attaches
// to the ranks that it wants. The caller lets all ranks go on when Publish has returned.
//
// The names must be in the symbol table of the program, and the types in its debug information: the
// linker must not strip it. go:linkname gives the variables these names, and no other package has
// them.
package mpir

import (
	"sync/atomic"
	_ "unsafe" // for go:linkname
)

// Process is a rank as a debugger finds it.
type Process struct {
	Host    string // where the debugger must start its server
	Program string // the path of its file
	PID     int    // on that host
}

// procdesc is MPIR_PROCDESC: pointers to C strings, and a C int.
type procdesc struct {
	host_name       *byte
	executable_name *byte
	pid             int32
}

//go:linkname proctable MPIR_proctable
var proctable *procdesc // by rank

//go:linkname proctableSize MPIR_proctable_size
var proctableSize int32

//go:linkname debugState MPIR_debug_state
var debugState int32

//go:linkname beingDebugged MPIR_being_debugged
var beingDebugged int32

// These mean something by being there.
var (
	//go:linkname iAmStarter MPIR_i_am_starter
	iAmStarter int32 // this process is not a rank

	//go:linkname acquiredPreMain MPIR_acquired_pre_main
	acquiredPreMain int32 // ranks are held before their first instruction

	//go:linkname partialAttachOK MPIR_partial_attach_ok
	partialAttachOK int32 // ranks that no debugger has attached to go on as well
)

// spawned is MPIR_DEBUG_SPAWNED, a value of MPIR_debug_state: the table is filled.
const spawned = 1

// breakpoint calls MPIR_Breakpoint, where the debugger waits.
func breakpoint()

// Debugged reports whether a debugger waits for the ranks.
func Debugged() bool { return atomic.LoadInt32(&beingDebugged) != 0 }

// Publish gives a debugger the ranks of a job, which are held, by their numbers. It returns when
// the debugger lets it go on, at once if there is none. A process can publish one job.
func Publish(ranks []Process) {
	table := make([]procdesc, len(ranks))
	for i, r := range ranks {
		table[i] = procdesc{cString(r.Host), cString(r.Program), int32(r.PID)}
	}
	if len(table) > 0 {
		proctable = &table[0]
	}
	proctableSize = int32(len(table))
	for _, there := range []*int32{&iAmStarter, &acquiredPreMain, &partialAttachOK} {
		atomic.StoreInt32(there, 1) // the linker leaves out what nothing uses
	}
	atomic.StoreInt32(&debugState, spawned)
	breakpoint()
}

// cString returns a copy that ends with a zero byte.
func cString(s string) *byte { return &append([]byte(s), 0)[0] }
