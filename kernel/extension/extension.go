// Package extension puts extensions into the slots of jobs, runs them there, and takes them out again.
//
// A Set belongs to one job on one node: the chain of extensions in the job's message slot, and the job's regions, which are
// memory that its ranks and its extensions share. What an extension remembers lives in such memory too, so that a rank can
// map it and a restarted node kernel can find it again. All memory of a set counts against one bound.
//
// An extension that faults is not asked again about that event, which goes the slot's default way; after slot.FaultLimit
// faults it is removed. The Manager remembers removed extensions and why, for those who ask.
//
// Locks: Set.mu guards the tables of a set. The chain is read without a lock: it is replaced, never changed. An extension's
// own locks make its removal wait for the run under way (package nimble) and for those who were lent its memory.
package extension

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"margay/kernel/slot"
	"margay/nimble"
	"margay/nimble/engine"
	"margay/nimble/memory"
	"margay/nimble/object"
	"margay/nimble/service"
	"margay/nimble/state"
	"margay/nimble/verify"
)

// Bounds of a set.
const (
	MaxExtensions = 16
	MaxRegions    = 64
	// rememberRemoved is how many removed extensions of all jobs are remembered.
	rememberRemoved = 64
)

// Errors of requests.
var (
	ErrNotFound = errors.New("no such extension")
	ErrRefused  = errors.New("the extension is refused")
	ErrNoRoom   = errors.New("no room for more")
)

// Manager makes the sets of a node. It is safe for concurrent use.
type Manager struct {
	engine   engine.Engine
	services *service.Table
	cores    int
	log      func(format string, args ...any)

	mu      sync.Mutex
	last    uint32 // handle
	sets    map[uint32]*Set
	removed []Info // the newest last
}

// NewManager makes the manager of a node with so many cores. Extensions run on the given engine.
func NewManager(e engine.Engine, cores int, log func(format string, args ...any)) (*Manager, error) {
	services, err := service.NewTable(append(service.Linux(), callService)...)
	if err != nil {
		return nil, err
	}
	return &Manager{engine: e, services: services, cores: cores, log: log, sets: make(map[uint32]*Set)}, nil
}

// Open makes the set of a job. Its memory may grow to budget bytes.
func (m *Manager) Open(job uint32, budget int64) *Set {
	s := &Set{manager: m, job: job, budget: budget, regions: make(map[string]*memory.Memory)}
	s.chain.Store(new([]*Extension))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sets[job] = s
	return s
}

// Set returns the set of a job, nil if there is none.
func (m *Manager) Set(job uint32) *Set {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sets[job]
}

// Remove takes an extension out, whichever job it belongs to.
func (m *Manager) Remove(handle uint32, by string) error {
	m.mu.Lock()
	sets := make([]*Set, 0, len(m.sets))
	for _, s := range m.sets {
		sets = append(sets, s)
	}
	m.mu.Unlock()
	for _, s := range sets {
		if err := s.Remove(handle, by); !errors.Is(err, ErrNotFound) {
			return err
		}
	}
	return fmt.Errorf("extension %d: %w", handle, ErrNotFound)
}

// List describes all extensions of the node, those that are gone last.
func (m *Manager) List() []Info {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []Info
	for _, s := range m.sets {
		for _, x := range *s.chain.Load() {
			list = append(list, x.info())
		}
	}
	slices.SortFunc(list, func(a, b Info) int { return int(a.Handle) - int(b.Handle) })
	return append(list, m.removed...)
}

// newHandle returns a number that no extension of the node has; adopted handles are not given away again.
func (m *Manager) newHandle(adopted uint32) uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if adopted != 0 {
		m.last = max(m.last, adopted)
		return adopted
	}
	m.last++
	return m.last
}

func (m *Manager) remember(i Info) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.removed = append(m.removed, i)
	if len(m.removed) > rememberRemoved {
		m.removed = m.removed[1:]
	}
}

func (m *Manager) forget(job uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sets, job)
}

// Info describes an extension.
type Info struct {
	Handle  uint32
	Job     uint32
	Slot    slot.Name
	Name    string
	Engine  string
	Passed  string // why not a better engine; empty: there is none
	Trusted bool
	Stats   nimble.Stats
	Dropped uint64 // messages that it had thrown away
	Removed string // why it is no longer there; empty while it is
}

// Extension is an extension in a slot.
type Extension struct {
	*nimble.Extension
	handle uint32
	set    *Set
	row    slot.Row
	name   string
	maps   []string         // names of its maps
	lent   []*memory.Memory // memory of its maps that it does not own
	own    int64            // bytes of its maps that are no regions
	faults atomic.Uint64    // answers that are no verdicts among them
	drops  atomic.Uint64

	lending  sync.RWMutex // held for reading while memory of its maps is used outside a run
	released bool
}

// Handle is the extension's number on this node.
func (x *Extension) Handle() uint32 { return x.handle }

// Stats returns what the extension has done. An answer that is no verdict of its slot is a fault.
func (x *Extension) Stats() nimble.Stats {
	s := x.Extension.Stats()
	s.Faults = x.faults.Load()
	return s
}

func (x *Extension) info() Info {
	return Info{
		Handle: x.handle, Job: x.set.job, Slot: x.row.Name, Name: x.name, Engine: x.Engine(), Trusted: x.Trusted(), Stats: x.Stats(),
		Passed: passed(x.Extension), Dropped: x.drops.Load(),
	}
}

// passed says in one line why not a better engine.
func passed(x *nimble.Extension) string {
	var why []string
	for _, err := range x.Passed() {
		why = append(why, err.Error())
	}
	return strings.Join(why, "; ")
}

// Set holds the extensions and regions of one job on one node. It is safe for concurrent use.
type Set struct {
	manager *Manager
	job     uint32
	budget  int64 // bytes

	chain atomic.Pointer[[]*Extension]

	removing sync.WaitGroup // extensions that are out of the chain and not yet released

	mu       sync.Mutex
	regions  map[string]*memory.Memory
	used     int64 // bytes of regions and of maps that are no regions
	closed   bool
	onRemove func(handle uint32) error
}

// OnRemove has f called whenever an extension has been removed before the end of the job, whoever wanted that.
func (s *Set) OnRemove(f func(handle uint32) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onRemove = f
}

// Setting changes an extension before it is inserted.
type Setting struct {
	Name    string
	Value   uint64
	Entries bool // it sets the number of a map's entries, not a variable
}

// Request asks for an extension.
type Request struct {
	Name     string // what it is called; empty for the name in the object
	Slot     slot.Name
	Object   []byte // an ELF file
	Settings []Setting

	// For an extension that a node kernel before this one had inserted: its handle and the memory of its maps.
	Handle   uint32
	Memories map[string]*memory.Memory
}

// Insert verifies an extension and puts it at the end of its slot's chain. Untrusted is all that can be had here. A map that
// bears the name of a region is that region.
func (s *Set) Insert(r Request) (*Extension, error) {
	spec, err := pick(r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	row, err := slot.Find(slotOf(r, spec))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("%w: the job has ended", ErrRefused)
	}
	if len(*s.chain.Load()) >= MaxExtensions {
		return nil, fmt.Errorf("%w: a job has at most %d extensions on a node", ErrNoRoom, MaxExtensions)
	}
	options, err := s.options(r, spec, row)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	inner, err := nimble.Insert(spec, options)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	x := &Extension{Extension: inner, handle: s.manager.newHandle(r.Handle), set: s, row: row, name: cmp.Or(r.Name, spec.Name)}
	for _, m := range spec.Maps {
		x.maps = append(x.maps, m.Name)
		if own := inner.Map(m.Name).Memory(); own != s.regions[m.Name] {
			x.own += int64(len(own.Bytes()))
		}
	}
	s.used += x.own
	for _, m := range r.Memories {
		x.lent = append(x.lent, m)
	}
	chain := append(slices.Clone(*s.chain.Load()), x)
	s.chain.Store(&chain)
	s.manager.log("job %d: extension %d (%s) inserted into slot %s, engine %s", s.job, x.handle, x.name, row.Name, x.Engine())
	return x, nil
}

// pick finds the one program of the object that is meant.
func pick(r Request) (*object.Spec, error) {
	specs, err := object.ELF(r.Object)
	if err != nil {
		return nil, err
	}
	var found *object.Spec
	for _, spec := range specs {
		if r.Slot != "" && len(specs) > 1 && slot.Name(spec.Slot()) != r.Slot {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("the object holds several programs (%s, %s): name the slot", found.Name, spec.Name)
		}
		found = spec
	}
	if found == nil {
		return nil, fmt.Errorf("the object holds no program for slot %q", r.Slot)
	}
	return found, nil
}

func slotOf(r Request, spec *object.Spec) slot.Name {
	if r.Slot != "" {
		return r.Slot
	}
	return slot.Name(spec.Slot())
}

// options works out how a program is inserted. The caller holds the lock.
func (s *Set) options(r Request, spec *object.Spec, row slot.Row) (nimble.Options, error) {
	o := nimble.Options{
		Engine: s.manager.engine, Services: s.manager.services, Cores: s.manager.cores,
		Limits:    nimble.Limits{Fuel: row.Fuel, MaxTime: row.Time, MaxMemory: uint64(max(1, s.budget-s.used))},
		Context:   verify.Context{Size: uint64(row.Context), Readable: true, Writable: true},
		Maps:      make(map[string]nimble.MapOptions),
		Variables: make(map[string]any),
		Print: func(line string) {
			s.manager.log("job %d: extension %s prints: %s", s.job, cmp.Or(r.Name, spec.Name), line)
		},
	}
	for _, m := range spec.Maps {
		options := nimble.MapOptions{Shared: true, Memory: s.regions[m.Name]}
		if old := r.Memories[m.Name]; old != nil {
			options.Memory = old
		}
		o.Maps[m.Name] = options
	}
	for _, setting := range r.Settings {
		if setting.Entries {
			options, ok := o.Maps[setting.Name]
			if !ok || setting.Value == 0 || setting.Value > 1<<32-1 {
				return o, fmt.Errorf("%d entries for map %q, which it has not or cannot have", setting.Value, setting.Name)
			}
			options.Entries = uint32(setting.Value)
			o.Maps[setting.Name] = options
			continue
		}
		value, err := variable(spec, setting)
		if err != nil {
			return o, err
		}
		o.Variables[setting.Name] = value
	}
	return o, nil
}

// variable gives a setting's value the size of the variable.
func variable(spec *object.Spec, setting Setting) (any, error) {
	for _, v := range spec.Variables {
		if v.Name != setting.Name {
			continue
		}
		switch {
		case v.Size == 8:
			return setting.Value, nil
		case v.Size == 4 && setting.Value <= 1<<32-1:
			return uint32(setting.Value), nil
		case v.Size == 2 && setting.Value <= 1<<16-1:
			return uint16(setting.Value), nil
		case v.Size == 1 && setting.Value <= 1<<8-1:
			return uint8(setting.Value), nil
		}
		return nil, fmt.Errorf("variable %q has %d bytes and cannot be %d", v.Name, v.Size, setting.Value)
	}
	return nil, fmt.Errorf("it has no variable %q", setting.Name)
}

// Remove takes an extension out of its slot and waits until it is no longer run. by says who wants that.
func (s *Set) Remove(handle uint32, by string) error {
	s.mu.Lock()
	chain := *s.chain.Load()
	at := slices.IndexFunc(chain, func(x *Extension) bool { return x.handle == handle })
	if at < 0 {
		s.mu.Unlock()
		return fmt.Errorf("extension %d: %w", handle, ErrNotFound)
	}
	x := chain[at]
	rest := slices.Delete(slices.Clone(chain), at, at+1)
	s.chain.Store(&rest)
	s.used -= x.own
	onRemove := s.onRemove
	s.removing.Add(1)
	defer s.removing.Done()
	s.mu.Unlock()
	s.manager.log("job %d: extension %d (%s) removed: %s", s.job, handle, x.name, by)
	err := x.release()
	if by == jobEnded {
		return err
	}
	info := x.info()
	info.Removed = by
	s.manager.remember(info)
	if onRemove != nil {
		err = errors.Join(err, onRemove(handle))
	}
	return err
}

// release waits until nobody uses the extension and gives back what it has.
func (x *Extension) release() error {
	x.lending.Lock()
	defer x.lending.Unlock()
	x.released = true
	errs := []error{x.Close()}
	for _, m := range x.lent {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// jobEnded is why most extensions go, which is not worth remembering.
const jobEnded = "its job has ended"

// Find returns an extension of the job.
func (s *Set) Find(handle uint32) (*Extension, error) {
	for _, x := range *s.chain.Load() {
		if x.handle == handle {
			return x, nil
		}
	}
	return nil, fmt.Errorf("extension %d: %w", handle, ErrNotFound)
}

// Maps names the maps of an extension.
func (x *Extension) Maps() []string { return x.maps }

// Lend calls f with a map of the extension, whose memory stays until f has returned. The error is f's, or that there is no
// such map any more.
func (x *Extension) Lend(name string, f func(*state.Map) error) error {
	x.lending.RLock()
	defer x.lending.RUnlock()
	m := x.Map(name)
	if m == nil || x.released {
		return fmt.Errorf("map %q: %w", name, ErrNotFound)
	}
	return f(m)
}

// Empty reports whether the message slot has no extension.
func (s *Set) Empty() bool { return len(*s.chain.Load()) == 0 }

// Message runs the message slot's chain on a context, which is a slot.MessageContext, and returns the first verdict that is
// not the default.
func (s *Set) Message(context memory.Region) slot.Verdict {
	for _, x := range *s.chain.Load() {
		r0, err := x.Run(nimble.Event{Context: context, Data: x})
		v := slot.Verdict(r0)
		switch {
		case errors.Is(err, nimble.ErrClosed):
		case err != nil:
			x.faulted(err)
		case x.row.Verdicts[v] == "":
			x.faulted(fmt.Errorf("it answered %d, which is no verdict of slot %s", r0, x.row.Name))
		case v != x.row.Default:
			if v == slot.Drop {
				x.drops.Add(1)
			}
			return v
		}
	}
	return slot.Deliver
}

// faulted counts a fault and has the extension removed when there were too many.
func (x *Extension) faulted(err error) {
	n := x.faults.Add(1)
	if n == 1 || n == slot.FaultLimit {
		x.set.manager.log("job %d: extension %d (%s): fault %d: %v", x.set.job, x.handle, x.name, n, err)
	}
	if n == slot.FaultLimit {
		// Not on this goroutine, which is in the middle of the chain.
		go func() { _ = x.set.Remove(x.handle, fmt.Sprintf("it made %d faults, the last: %v", n, err)) }()
	}
}

// Region returns the job's region of that name. With a size it is made if it is not there yet.
func (s *Set) Region(name string, size uint64) (*memory.Memory, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.regions[name]; m != nil {
		if size > uint64(len(m.Bytes())) {
			return nil, fmt.Errorf("region %q has %d bytes, not %d", name, len(m.Bytes()), size)
		}
		return m, nil
	}
	switch {
	case size == 0:
		return nil, fmt.Errorf("region %q: %w", name, ErrNotFound)
	case name == "" || s.closed || len(s.regions) >= MaxRegions:
		return nil, fmt.Errorf("region %q: %w: a job has at most %d regions on a node, each with a name", name, ErrNoRoom, MaxRegions)
	case size > uint64(max(0, s.budget-s.used)):
		return nil, fmt.Errorf("region %q: %w: %d bytes asked for, %d are left", name, ErrNoRoom, size, s.budget-s.used)
	}
	m, err := memory.Create(name, int(size))
	if err != nil {
		return nil, err
	}
	s.regions[name] = m
	s.used += int64(size)
	return m, nil
}

// AdoptRegion takes up a region that a node kernel before this one had made.
func (s *Set) AdoptRegion(name string, m *memory.Memory) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.regions[name] = m
	s.used += int64(len(m.Bytes()))
}

// Close removes everything: the job has ended. No run may begin any more.
func (s *Set) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	var errs []error
	for _, x := range *s.chain.Load() {
		if err := s.Remove(x.handle, jobEnded); !errors.Is(err, ErrNotFound) {
			errs = append(errs, err)
		}
	}
	s.removing.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, m := range s.regions {
		errs = append(errs, m.Close())
		delete(s.regions, name)
	}
	s.manager.forget(s.job)
	return errors.Join(errs...)
}
