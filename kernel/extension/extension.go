// Package extension puts extensions into the slots of jobs, runs them there, and takes them out again.
//
// A Set belongs to one job on one node: the chains of extensions in the job's slots, and the job's regions, which are
// memory that its ranks and its extensions share. What an extension remembers lives in such memory too, so that a rank can
// map it and a restarted node kernel can find it again. All memory of a set counts against one bound. The machine itself, job
// 0, has a set too, whose extensions act on the events of every job.
//
// At an event the machine's extensions in that slot are asked first, then those of the job; in each set in the order in which
// they were inserted. The first verdict that is not the slot's default is the answer.
//
// An extension that faults is not asked again about that event, which goes the slot's default way; after slot.FaultLimit
// faults it is removed. The Manager remembers removed extensions and why, for those who ask.
//
// Locks, outermost first: Set.mu guards the tables of a set, Manager.mu those of the node; history.mu and pace.mu are taken last.
// Extension.lending is held while memory of maps is lent, and for writing when it is given back, with none of the others. The chains are read without a lock: they are replaced, never changed. An
// extension's own locks make its removal wait for the run under way (package nimble) and for those who were lent its memory.
// Whoever watches a slot is called with no lock held.
package extension

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"margay/internal/printable"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/keep"
	"margay/kernel/record"
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
	services map[slot.Name]*service.Table
	cores    int
	log      func(format string, args ...any)
	machine  *Set
	recorder *record.Recorder // nil: none
	history  *history

	mu      sync.Mutex
	last    id.Handle
	sets    map[id.Job]*Set
	removed []Info // the newest last
	watch   map[slot.Name]func(job id.Job)
}

// Machine is the job that stands for the machine itself.
const Machine = 0

// machineBudget bounds the memory of the machine's own set, in bytes.
const machineBudget = 16 << 20

// NewManager makes the manager of a node with so many cores. Extensions run on the given engine.
func NewManager(e engine.Engine, cores int, log func(format string, args ...any)) (*Manager, error) {
	m := &Manager{
		engine: e, services: make(map[slot.Name]*service.Table), cores: cores, log: log, sets: make(map[id.Job]*Set),
		watch: make(map[slot.Name]func(id.Job)), history: newHistory(),
	}
	for _, row := range slot.Table {
		table, err := services(row)
		if err != nil {
			return nil, err
		}
		m.services[row.Name] = table
	}
	m.machine = m.Open(Machine, machineBudget)
	return m, nil
}

// RecordTo has the runs and faults of extensions recorded. It is to be called before any is inserted.
func (m *Manager) RecordTo(r *record.Recorder) { m.recorder = r }

// services makes the table of what extensions in a slot may call.
func services(row slot.Row) (*service.Table, error) {
	var offered []service.Service
	for _, s := range append(service.Linux(), callService) {
		if slices.Contains(row.Services, s.Name) {
			offered = append(offered, s)
		}
	}
	return service.NewTable(offered...)
}

// Open makes the set of a job. Its memory may grow to budget bytes.
func (m *Manager) Open(job id.Job, budget int64) *Set {
	s := &Set{
		manager: m, job: job, budget: budget, regions: make(map[string]*memory.Memory), places: make(map[string]Place),
		chains: make(map[slot.Name]*chain), pace: newPace(),
	}
	for _, row := range slot.Table {
		s.chains[row.Name] = new(chain)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sets[job] = s
	return s
}

// Set returns the set of a job, nil if there is none.
func (m *Manager) Set(job id.Job) *Set {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sets[job]
}

// Remove takes an extension out, whichever job it belongs to.
func (m *Manager) Remove(handle id.Handle, by string) error {
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
		for _, x := range s.extensions() {
			list = append(list, x.info())
		}
	}
	slices.SortFunc(list, func(a, b Info) int { return cmp.Compare(a.Handle, b.Handle) })
	return append(list, m.removed...)
}

// newHandle returns a number that no extension of the node has; adopted handles are not given away again.
func (m *Manager) newHandle(adopted id.Handle) id.Handle {
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

func (m *Manager) forget(job id.Job) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sets, job)
}

// Info describes an extension.
type Info struct {
	Handle  id.Handle
	Number  uint64 // of the Request
	Job     id.Job
	Slot    slot.Name
	Name    string
	Engine  string
	Passed  string // why not a better engine; empty: there is none
	Trusted bool
	Stats   nimble.Stats
	Dropped uint64 // messages that it had thrown away
	Removed string // why it is no longer there; empty while it is
	Waits   string // why it is not asked yet; empty: it is
}

// Extension is an extension in a slot.
type Extension struct {
	*nimble.Extension
	handle id.Handle
	number uint64 // of the Request
	set    *Set
	row    slot.Row
	place  uint8 // of row in slot.Table
	name   string
	spec   *object.Spec
	given  nimble.Options
	maps   []string         // names of its maps
	lent   []*memory.Memory // memory of its maps that it does not own
	own    int64            // bytes of its maps that are no regions
	faults atomic.Uint64    // answers that are no verdicts among them
	drops  atomic.Uint64

	elsewhere struct{ runs, time atomic.Uint64 } // of Ran

	lending  sync.RWMutex // held for reading while memory of its maps is used outside a run
	released bool
}

// Handle is the extension's number on this node.
func (x *Extension) Handle() id.Handle { return x.handle }

// Job is the job whose the extension is, or Machine.
func (x *Extension) Job() id.Job { return x.set.job }

// Label names the extension for people.
func (x *Extension) Label() string { return fmt.Sprintf("extension %d (%s)", x.handle, x.name) }

// Stats returns what the extension has done. An answer that is no verdict of its slot is a fault.
func (x *Extension) Stats() nimble.Stats {
	s := x.Extension.Stats()
	s.Faults = x.faults.Load()
	s.Runs += x.elsewhere.runs.Load()
	s.Time += time.Duration(x.elsewhere.time.Load())
	return s
}

// Ran counts runs that somebody else has made of its program, and that took so long together. Nobody counts their instructions.
func (x *Extension) Ran(runs uint64, took time.Duration) {
	x.elsewhere.runs.Add(runs)
	x.elsewhere.time.Add(uint64(took))
}

func (x *Extension) info() Info {
	return Info{
		Handle: x.handle, Number: x.number, Job: x.set.job, Slot: x.row.Name, Name: x.name, Engine: x.Engine(), Trusted: x.Trusted(), Stats: x.Stats(),
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

// Spec is the program as it was read, before it was changed for its insertion.
func (x *Extension) Spec() *object.Spec { return x.spec }

// Options are with what it was inserted, the memory of its maps included.
func (x *Extension) Options() nimble.Options { return x.given }

// Set holds the extensions and regions of one job on one node. It is safe for concurrent use.
type Set struct {
	manager *Manager
	job     id.Job
	budget  int64                // bytes
	chains  map[slot.Name]*chain // of all slots
	pace    *pace

	removing sync.WaitGroup // extensions that are out of the chain and not yet released

	mu      sync.Mutex
	regions map[string]*memory.Memory
	places  map[string]Place // of regions
	used    int64            // bytes of regions and of maps that are no regions
	closed  bool
	keeper  keep.Keeper // nil: nothing outlives this node kernel
}

// String names whom the set belongs to.
func (s *Set) String() string {
	if s.job == Machine {
		return "machine"
	}
	return fmt.Sprintf("job %d", s.job)
}

// Setting changes an extension before it is inserted.
type Setting struct {
	Name    string
	Value   uint64
	Entries bool // it sets the number of a map's entries, not a variable
}

// Request asks for an extension.
type Request struct {
	Name     string    // what it is called; empty for the name in the object
	Slot     slot.Name // empty for the one that the object's section names; if that names one, it can be no other
	Object   []byte    // an ELF file
	Settings []Setting
	Trusted  bool   // run it unchecked; for the machine alone
	Number   uint64 // of whoever inserts, who finds it in Info again

	// For an extension that a node kernel before this one had inserted: its handle and the memory of its maps.
	Handle   id.Handle
	Memories map[string]*memory.Memory
}

// Insert verifies an extension, puts it at the end of its slot's chain and leaves it with the set's keeper. A map that
// bears the name of a region is that region.
func (s *Set) Insert(r Request) (*Extension, error) {
	x, err := s.insert(r)
	if err != nil {
		s.manager.note(s, 0, r.Name, "refused: %v", err)
		return nil, err
	}
	if err := s.keep(x, r); err != nil {
		return nil, errors.Join(err, s.Remove(x.handle, "it cannot be kept"))
	}
	s.manager.changed(s.job, x.row.Name) // after it was kept: whoever is told may have it removed
	return x, nil
}

func (s *Set) insert(r Request) (*Extension, error) {
	spec, err := pick(r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	row, err := slot.Find(slotOf(r, spec))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if row.Name == slot.Boot && !r.Trusted {
		return nil, fmt.Errorf("%w: slot %s takes only what a node is to insert when it boots (margay machine up --extension)", ErrRefused, row.Name)
	}
	if s.job != Machine && r.Trusted {
		return nil, fmt.Errorf("%w: only the machine has trusted extensions; what a job inserts is checked when it runs", ErrRefused)
	}
	if made := slot.Name(spec.Slot()); made != row.Name && slot.Declared(made) {
		return nil, fmt.Errorf("%w: program %s is made for slot %s, as its section says, and not for slot %s", ErrRefused, spec.Name, made, row.Name)
	}
	name := cmp.Or(r.Name, spec.Name)
	if printable.Line(name) != name {
		return nil, fmt.Errorf("%w: its name %q cannot be printed", ErrRefused, name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("%w: the job has ended", ErrRefused)
	}
	if len(s.extensions()) >= MaxExtensions {
		return nil, fmt.Errorf("%w: a job has at most %d extensions on a node", ErrNoRoom, MaxExtensions)
	}
	x := &Extension{
		set: s, row: row, name: name, spec: spec, number: r.Number,
		place: uint8(slices.IndexFunc(slot.Table, func(r slot.Row) bool { return r.Name == row.Name })),
	}
	options, err := s.options(x, r, spec, row)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	inner, err := nimble.Insert(spec, options)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	x.Extension, x.handle, x.given = inner, s.manager.newHandle(r.Handle), options
	for _, m := range spec.Maps {
		x.maps = append(x.maps, m.Name)
		own := inner.Map(m.Name).Memory()
		if own != s.regions[m.Name] {
			x.own += int64(len(own.Bytes()))
		}
		given := options.Maps[m.Name]
		given.Memory = own
		options.Maps[m.Name] = given
	}
	s.used += x.own
	for _, m := range r.Memories {
		x.lent = append(x.lent, m)
	}
	s.chains[row.Name].add(x)
	s.manager.note(s, x.handle, x.name, "inserted into slot %s, engine %s", row.Name, x.Engine())
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
func (s *Set) options(x *Extension, r Request, spec *object.Spec, row slot.Row) (nimble.Options, error) {
	o := nimble.Options{
		Trusted: r.Trusted, Engine: s.manager.engine, Services: s.manager.services[row.Name], Cores: s.manager.cores,
		Limits:    nimble.Limits{Fuel: row.Fuel, MaxTime: row.Time, MaxMemory: uint64(max(1, s.budget-s.used))},
		Context:   verify.Context{Size: uint64(row.Context), Readable: true, Writable: true},
		Maps:      make(map[string]nimble.MapOptions),
		Variables: make(map[string]any),
		Print: func(line string) {
			s.manager.note(s, x.handle, x.name, "prints: %s", line)
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
func (s *Set) Remove(handle id.Handle, by string) error {
	s.mu.Lock()
	x, err := s.Find(handle)
	if err != nil {
		s.mu.Unlock()
		return err
	}
	s.chains[x.row.Name].remove(x)
	s.used -= x.own
	keeper := s.keeper
	s.removing.Add(1)
	defer s.removing.Done()
	s.mu.Unlock()
	s.manager.note(s, handle, x.name, "removed: %s", by)
	s.manager.changed(s.job, x.row.Name)
	err = x.release()
	if by == jobEnded {
		return err
	}
	info := x.info()
	info.Removed = by
	s.manager.remember(info)
	if keeper != nil {
		err = errors.Join(err, keeper.Drop(Item(handle)))
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
func (s *Set) Find(handle id.Handle) (*Extension, error) {
	for _, x := range s.extensions() {
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
	s.place(name)
	s.used += int64(size)
	return m, nil
}

// Close removes everything: the job has ended. No run may begin any more.
func (s *Set) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	var errs []error
	for _, x := range s.extensions() {
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
