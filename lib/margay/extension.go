package margay

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/rights"
	"margay/kernel/abi/wire"
)

// ExtensionSpec describes an extension to insert.
type ExtensionSpec struct {
	Name      string            // what it is called in lists; empty for the name in the object
	Slot      string            // empty for the one that the object's section names; if that names one, it can be no other
	Object    []byte            // the ELF file that clang made
	Constants map[string]uint64 // values of its constants (const volatile variables)
	Entries   map[string]uint32 // numbers of entries of its maps
}

// Extension is an extension that this rank has inserted. It acts on the events of this node alone,
// and vanishes with the job.
type Extension struct {
	job    *Job
	handle uint32
}

// Stats counts the work of an extension since its insertion or the last start of the node kernel.
type Stats struct {
	Runs         uint64
	Instructions uint64
	Faults       uint64
	Time         time.Duration
	LastFault    string // empty while there was none
}

// State is memory that this rank shares with others: a region, or a map of an extension.
type State struct {
	Bytes   []byte // mapped; others may change it at any time
	Entries int    // of a map; 0 for a region
	Stride  int    // bytes from one entry of a map to the next
}

// Insert inserts an extension into the node kernel of this node. The error of a refused extension
// is ErrRefused and contains the index of the offending instruction.
func (j *Job) Insert(s ExtensionSpec) (*Extension, error) {
	q := wire.Request{Op: wire.OpInsert, Name: s.Name, Where: s.Slot}
	for name, value := range s.Constants {
		q.Settings = append(q.Settings, wire.Setting{Kind: wire.SetConstant, Name: name, Value: value})
	}
	for name, n := range s.Entries {
		q.Settings = append(q.Settings, wire.Setting{Kind: wire.SetEntries, Name: name, Value: uint64(n)})
	}
	object, err := memoryFile(s.Object)
	if err != nil {
		return nil, err
	}
	defer object.Close()
	reply, _, err := j.ask(q, object)
	if err != nil {
		return nil, fmt.Errorf("margay: insert extension: %w", err)
	}
	return &Extension{job: j, handle: reply.Handle}, nil
}

// memoryFile makes a file in memory.
func memoryFile(content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("object", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("margay: make file in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "object")
	if _, err := f.WriteAt(content, 0); err != nil {
		f.Close()
		return nil, fmt.Errorf("margay: write file in memory: %w", err)
	}
	return f, nil
}

// Handle is the extension's number on its node, as margay ext list shows it.
func (x *Extension) Handle() int { return int(x.handle) }

// Remove removes the extension. When it returns, the extension is not running and will not run
// again.
func (x *Extension) Remove() error {
	if _, _, err := x.job.ask(wire.Request{Op: wire.OpRemove, Handle: x.handle}, nil); err != nil {
		return fmt.Errorf("margay: remove extension %d: %w", x.handle, err)
	}
	return nil
}

// Stats returns the extension's counters. ErrNotFound means that it was removed, perhaps after too
// many faults.
func (x *Extension) Stats() (Stats, error) {
	reply, _, err := x.job.ask(wire.Request{Op: wire.OpStats, Handle: x.handle}, nil)
	if err != nil {
		return Stats{}, fmt.Errorf("margay: statistics of extension %d: %w", x.handle, err)
	}
	v := reply.Values
	return Stats{Runs: v[0], Instructions: v[1], Faults: v[2], Time: time.Duration(v[3]), LastFault: reply.Text}, nil
}

// State maps a map of the extension: the memory that it works on.
func (x *Extension) State(name string) (State, error) {
	s, err := x.job.mapState(wire.Request{Op: wire.OpState, Handle: x.handle, Name: name})
	if err != nil {
		return State{}, fmt.Errorf("margay: map %s of extension %d: %w", name, x.handle, err)
	}
	return s, nil
}

// Region maps memory that the job's ranks on this node share under a name, initially zero. An
// extension that is inserted later and has a map of that name works on it. A size of 0 requires an
// existing region.
func (j *Job) Region(name string, size int) (State, error) {
	s, err := j.mapState(wire.Request{Op: wire.OpRegion, Name: name, Value: uint64(size)})
	if err != nil {
		return State{}, fmt.Errorf("margay: region %s: %w", name, err)
	}
	return s, nil
}

func (j *Job) mapState(q wire.Request) (State, error) {
	reply, files, err := j.ask(q, nil)
	if err != nil {
		return State{}, err
	}
	defer rights.Close(files)
	if len(files) != 1 {
		return State{}, fmt.Errorf("the node kernel sent %d descriptors", len(files))
	}
	memory, err := mapBytes(files[0], int(reply.Values[0]))
	if err != nil {
		return State{}, err
	}
	return State{Bytes: memory, Entries: int(reply.Values[1]), Stride: int(reply.Values[2])}, nil
}
