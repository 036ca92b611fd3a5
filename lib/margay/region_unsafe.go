package margay

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"margay/internal/rights"
	"margay/kernel/abi/wire"
)

// FixedRegion is Region at the same address in all ranks of this node that call it, in any
// language, so they can share pointers into the region. These must not point to the Go heap. A
// second call for the same region returns the same memory.
func (j *Job) FixedRegion(name string, size int) (State, error) {
	reply, files, err := j.ask(wire.Request{Op: wire.OpRegion, Name: name, Value: uint64(size)}, nil)
	if err != nil {
		return State{}, fmt.Errorf("margay: region %s: %w", name, err)
	}
	defer rights.Close(files)
	if len(files) != 1 {
		return State{}, fmt.Errorf("margay: region %s: the node kernel sent %d descriptors", name, len(files))
	}
	memory, err := j.mapAt(files[0], uintptr(reply.Values[3]), uintptr(reply.Values[0]))
	if err != nil {
		return State{}, fmt.Errorf("margay: region %s at %#x: %w", name, reply.Values[3], err)
	}
	return State{Bytes: memory}, nil
}

// mapAt maps shared memory at an address, unless it is already mapped.
func (j *Job) mapAt(f *os.File, address, length uintptr) ([]byte, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if memory := j.fixed[address]; memory != nil {
		return memory, nil
	}
	at, err := unix.MmapPtr(int(f.Fd()), 0, unsafe.Add(nil, address), length, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_FIXED_NOREPLACE)
	if errors.Is(err, unix.EEXIST) {
		err = errors.New("this process has other memory there")
	}
	if err != nil {
		return nil, err
	}
	memory := unsafe.Slice((*byte)(at), length)
	j.fixed[address] = memory
	return memory, nil
}
