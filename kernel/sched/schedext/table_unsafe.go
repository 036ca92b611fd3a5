package schedext

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"margay/kernel/abi/slot"
)

// The types here match skeleton.c, as a test checks. Three of them share memory with it.

// given is the node kernel's data about a core.
type given struct {
	Order           uint64
	Signals         uint64
	Frozen          uint64
	StarvationLimit uint64
	Core            uint32
	Watched         uint32
	Places          [slot.MaxTasks]givenPlace
}

type givenPlace struct {
	Serial   uint32
	Job      uint32
	Rank     uint32
	Messages uint32
}

// Bits of given.Signals. The first two are the first of one bit per place.
const (
	arrived        = 0
	thawed         = 8
	ended   uint64 = 1 << 16
	changed uint64 = 1 << 17
)

// coreState is the skeleton's data about a core.
type coreState struct {
	Order, Ready, Hold, Woken, Blocked uint64
	Now, Until, Mark, Spent, Served    uint64
	Due, Stood                         uint64
	Switches, Asked, Rescues, Lost     uint64
	Best, Found                        uint64
	Current, Runner, Alone             uint32
	Decider, Epoch, Guest, Again, Told uint32
	Late                               int64
	Places                             [slot.MaxTasks]placeState
}

type placeState struct {
	Serial  uint32
	State   uint32
	Ran     uint64
	Since   uint64
	Spent   uint64
	Stood   uint64
	End     uint64
	Overrun int64
}

// Values of coreState.
const (
	none    = 0xff
	nobody  = 0xffffffff
	starved = 0xfffffffe
)

// identity identifies the task of a thread.
type identity struct {
	Serial uint32
	CPU    uint16
	Place  uint16
}

// keep is the data of a policy for a core: its data about tasks, and its statistics.
type keep struct {
	Places                  [slot.MaxTasks]kept
	Runs, Time, Begun, Slow uint64
}

type kept struct {
	Serial uint32
	_      uint32
	Data   uint64
}

// event is an event from the skeleton.
type event struct {
	Kind   uint32
	CPU    uint32
	Epoch  uint32
	Who    uint32
	Answer uint64
	Hold   uint64
	Count  uint32
	Serial uint32
}

// Kinds of event.
const (
	eventHold = iota
	eventFault
	eventRescue
	eventExit
	eventSlow
	eventSwitch
	eventLeft
	eventBorn
)

// ending is Linux's reason for the skeleton's end.
type ending struct {
	Kind    uint32
	_       uint32
	Code    int64
	Reason  [128]byte
	Message [1024]byte
}

func (g *given) order() *atomic.Uint64   { return (*atomic.Uint64)(unsafe.Pointer(&g.Order)) }
func (g *given) signals() *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&g.Signals)) }
func (c *coreState) now() *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&c.Now)) }

func (g *given) watched() *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&g.Watched)) }
func (g *given) frozen() *atomic.Uint64  { return (*atomic.Uint64)(unsafe.Pointer(&g.Frozen)) }

func (p *givenPlace) messages() *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&p.Messages))
}

func (s *coreState) current() *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&s.Current)) }
func (s *coreState) hold() *atomic.Uint64    { return (*atomic.Uint64)(unsafe.Pointer(&s.Hold)) }
func (s *coreState) lost() *atomic.Uint64    { return (*atomic.Uint64)(unsafe.Pointer(&s.Lost)) }

// enter writes a new task to its place. It stores the serial last, which makes the entry valid.
func (g *given) enter(t *task) {
	p := &g.Places[t.place]
	p.Job, p.Rank = uint32(t.Job), uint32(t.Rank)
	p.messages().Store(0)
	(*atomic.Uint32)(unsafe.Pointer(&p.Serial)).Store(t.owner.Serial)
}

// shared is the mapped memory of a BPF array map of T.
type shared[T any] struct {
	bytes []byte
	all   []T
}

// share maps the memory of an array map.
func share[T any](m *ebpf.Map) (s shared[T], err error) {
	var t T
	if m.ValueSize() != uint32(unsafe.Sizeof(t)) {
		return s, fmt.Errorf("map %v: elements of %d bytes, not %d", m, m.ValueSize(), unsafe.Sizeof(t))
	}
	n := int(m.MaxEntries())
	s.bytes, err = unix.Mmap(m.FD(), 0, n*int(unsafe.Sizeof(t)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return s, fmt.Errorf("map %v into memory: %w", m, err)
	}
	s.all = unsafe.Slice((*T)(unsafe.Pointer(&s.bytes[0])), n)
	return s, nil
}

// Close unmaps the memory.
func (s *shared[T]) Close() error {
	if s.bytes == nil {
		return nil
	}
	b := s.bytes
	s.bytes, s.all = nil, nil
	if err := unix.Munmap(b); err != nil {
		return fmt.Errorf("unmap: %w", err)
	}
	return nil
}

// keeping is a map with one keep, and its memory.
type keeping struct {
	*ebpf.Map
	shared[keep]
}

func newKeeping() (*keeping, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "kept", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(unsafe.Sizeof(keep{})), MaxEntries: 1, Flags: unix.BPF_F_MMAPABLE,
	})
	if err != nil {
		return nil, fmt.Errorf("make map: %w", err)
	}
	memory, err := share[keep](m)
	if err != nil {
		m.Close()
		return nil, err
	}
	return &keeping{m, memory}, nil
}

// Close unmaps the memory and closes the map.
func (k *keeping) Close() error { return errors.Join(k.shared.Close(), k.Map.Close()) }
