package border

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"margay/kernel/abi/id"
)

// The types here match skeleton.c, as a test checks.

// end is the key of the table of pairs: an end of mirrored channels on this node.
type end struct {
	Number uint32
	Port   [2]byte // as in a frame
	_      uint16
}

// peer is the other end, and what the extensions have answered about messages from there.
type peer struct {
	Key        uint64
	Seal       uint64
	Address    [4]byte // as in a frame
	Port       [2]byte // the same
	Forged     uint16
	Job        uint32
	SourceNode uint32
	SourceRank uint32
	TargetRank uint32
	Judged     uint64
	Trusted    uint64
	Total      uint32
	Next       uint32
	Digests    [records]uint32
}

// common is what the program and the node kernel share.
type common struct {
	Busy    uint32
	_       uint32
	Budget  uint64
	Met     uint64
	Refused uint64
	Judged  uint64
	Late    uint64
	Turns   [turns]uint32
	Due     [turns]uint64 // of time_ns
}

// turns is the number of words by which extensions of jobs take turns. Jobs whose numbers differ
// by a multiple of it share one.
const turns = 256

// Values of common.Busy and Turns. The program tries some times to take it, and does without if it
// is taken; the node kernel tries until it has it.
const (
	free     = 0
	byFrame  = 1
	byKernel = 2
)

// busy returns the word for the extensions of the machine, and turn the one for a job's.
func (s *common) busy() *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&s.Busy)) }

func (s *common) turn(job id.Job) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&s.Turns[job%turns]))
}

// setBudget sets how long extensions may take for a frame.
func (s *common) setBudget(d time.Duration) { atomic.StoreUint64(&s.Budget, uint64(d)) }

// tally is what the program counts for an extension. Off is for the node kernel to set.
type tally struct {
	Begun, Runs, Time, Drops, Faults, Answer uint64
	Handler, Source, Target                  uint32
	Slow, Off, Late, Own, _                  uint32
}

// tallySize is the size of tally, in bytes.
const tallySize = uint32(unsafe.Sizeof(tally{}))

// read returns what the program has counted, each number for itself.
func (t *tally) read() tally {
	n := atomic.LoadUint64
	return tally{
		Runs: n(&t.Runs), Time: n(&t.Time), Drops: n(&t.Drops), Faults: n(&t.Faults), Answer: n(&t.Answer),
		Handler: atomic.LoadUint32(&t.Handler), Source: atomic.LoadUint32(&t.Source), Target: atomic.LoadUint32(&t.Target),
		Slow: atomic.LoadUint32(&t.Slow), Late: atomic.LoadUint32(&t.Late),
	}
}

// shared is the mapped memory of a BPF array with one T.
type shared[T any] struct {
	*ebpf.Map
	bytes []byte
	is    *T
}

// share maps the memory of an array map, and owns the map from then on, unless there is an error.
func share[T any](m *ebpf.Map) (*shared[T], error) {
	var t T
	size := unsafe.Sizeof(t)
	if m.ValueSize() != uint32(size) || m.MaxEntries() != 1 {
		return nil, fmt.Errorf("map %v: %d elements of %d bytes, not one of %d", m, m.MaxEntries(), m.ValueSize(), size)
	}
	bytes, err := unix.Mmap(m.FD(), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %v into memory: %w", m, err)
	}
	return &shared[T]{m, bytes, (*T)(unsafe.Pointer(&bytes[0]))}, nil
}

// Close unmaps the memory and closes the map.
func (s *shared[T]) Close() error { return errors.Join(unix.Munmap(s.bytes), s.Map.Close()) }
