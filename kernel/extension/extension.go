// Package extension inserts extensions into the slots of jobs, runs them there, and removes them.
//
// A Set belongs to one job on one node. It holds the chains of extensions in the job's slots, and
// the job's regions: memory that its ranks and extensions share. The state of an extension is in
// such memory too, so that ranks can map it and a restarted node kernel can adopt it. All memory of
// a set counts against one budget. The machine itself, job 0, has a set too, whose extensions act
// on the events of every job.
//
// At an event the machine's extensions in the slot run first, then the job's, in each set in the
// order of insertion. The first verdict that is not the slot's default is the answer.
//
// A run that faults has no verdict, so the next extension runs. After slot.FaultLimit faults an
// extension is removed. The Manager remembers removed extensions with the reason.
//
// Locks, outermost first: Set.mu guards the tables of a set, Manager.mu the tables of the node;
// history.mu and pace.mu are taken last. Extension.lending is held for reading while memory of maps
// is lent and for writing at its release, with none of the others. Chains are read without a lock:
// they are replaced, never changed. The removal of an extension waits for its current run (package
// nimble) and for lent memory. Watchers of a slot are called without a lock.
package extension

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
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
	// rememberRemoved is the number of removed extensions, of all jobs, that are remembered.
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
	serve    bool // it takes extensions for the slots of the allocator, and no others
	log      func(format string, args ...any)
	machine  *Set
	recorder *record.Recorder // nil: runs are not recorded
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

// NewManager makes the manager of a node with this number of cores. Extensions run on e. log is
// called for every note, also concurrently.
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

// NewAllocator is NewManager for the machine's allocator. The manager takes extensions in the slots
// of the allocator only, and the managers of nodes take none there.
func NewAllocator(e engine.Engine, log func(format string, args ...any)) (*Manager, error) {
	m, err := NewManager(e, 1, log)
	if err == nil {
		m.serve = true
	}
	return m, err
}

// RecordTo sets the recorder of runs and faults. It must be called before the first Insert.
func (m *Manager) RecordTo(r *record.Recorder) { m.recorder = r }

// services makes the table of services that extensions in a slot may call.
func services(row slot.Row) (*service.Table, error) {
	var offered []service.Service
	for _, s := range append(append(service.Linux(), callService), handlingServices...) {
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

// Remove removes an extension of any job: see Set.Remove.
func (m *Manager) Remove(handle id.Handle, by string) error {
	m.mu.Lock()
	sets := slices.Collect(maps.Values(m.sets))
	m.mu.Unlock()
	for _, s := range sets {
		if err := s.Remove(handle, by); !errors.Is(err, ErrNotFound) {
			return err
		}
	}
	return fmt.Errorf("extension %d: %w", handle, ErrNotFound)
}

// List describes all extensions of the node, removed ones last. It waits for insertions that have
// begun until their extensions are in their slots.
func (m *Manager) List() []Info {
	m.mu.Lock()
	sets := slices.Collect(maps.Values(m.sets))
	m.mu.Unlock()
	for _, s := range sets {
		s.settle()
	}
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

// settle waits for the insertion that is under way.
func (s *Set) settle() {
	s.mu.Lock() // held by Insert until the extension is in its slot
	defer s.mu.Unlock()
}

// newHandle returns a handle that no extension of the node has, or reserves an adopted one if that
// is not 0.
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
	Passed  string // why no better engine was chosen; empty: there is none
	Trusted bool
	Stats   nimble.Stats
	Dropped uint64 // messages with its verdict slot.Drop
	Removed string // why it was removed; empty: it was not
	Waits   string // why it does not run yet; empty: it does
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
	region string           // see Region
	lent   []*memory.Memory // adopted memory of its maps, closed at its release
	own    int64            // bytes of its maps that are not regions
	alone  run              // of it, for other events than messages
	faults atomic.Uint64    // including answers that are not verdicts
	drops  atomic.Uint64

	guard     atomic.Pointer[sync.Locker]        // nil: there is none
	elsewhere struct{ runs, time atomic.Uint64 } // reported to Ran; time in nanoseconds
	where     atomic.Pointer[whereabouts]        // nil: it runs in the node kernel

	lending  sync.RWMutex // held for reading while memory of its maps is used outside a run
	released bool
}

// Handle returns the extension's number on this node.
func (x *Extension) Handle() id.Handle { return x.handle }

// Job returns the job to which the extension belongs, or Machine.
func (x *Extension) Job() id.Job { return x.set.job }

// Slot returns the slot of the extension.
func (x *Extension) Slot() slot.Name { return x.row.Name }

// Section returns the section of its program, such as message/interface.
func (x *Extension) Section() string { return x.spec.Section }

// Region returns the name of one of its maps that is a region of the job; empty: none is.
func (x *Extension) Region() string { return x.region }

// Label names the extension in messages.
func (x *Extension) Label() string { return fmt.Sprintf("extension %d (%s)", x.handle, x.name) }

// Stats returns the statistics of the extension, including Ran. An answer that is not a verdict of
// its slot counts as a fault.
func (x *Extension) Stats() nimble.Stats {
	s := x.Extension.Stats()
	s.Faults = x.faults.Load()
	s.Runs += x.elsewhere.runs.Load()
	s.Time += time.Duration(x.elsewhere.time.Load())
	return s
}

// Ran counts runs of its program outside this package, such as in the kernel, and their total time.
// Their instructions are not counted.
func (x *Extension) Ran(runs uint64, took time.Duration) {
	x.elsewhere.runs.Add(runs)
	x.elsewhere.time.Add(uint64(took))
}

// Guard makes runs that begin from now on hold a lock, because the program also runs outside of
// this process, on the same memory. The program must not call other extensions.
func (x *Extension) Guard(l sync.Locker) { x.guard.Store(&l) }

// whereabouts says where else than in the node kernel a program runs, or why it does not.
type whereabouts struct{ also, why string }

// RunsAlso notes where else the extension's program runs. An empty name with a reason says why it
// does not; without either, nothing is noted.
func (x *Extension) RunsAlso(name, why string) { x.where.Store(&whereabouts{name, why}) }

// Dropped counts messages that the program has dropped outside this package.
func (x *Extension) Dropped(n uint64) { x.drops.Add(n) }

func (x *Extension) info() Info {
	i := Info{
		Handle: x.handle, Number: x.number, Job: x.set.job, Slot: x.row.Name, Name: x.name, Engine: x.Engine(), Trusted: x.Trusted(), Stats: x.Stats(),
		Passed: passed(x.Extension), Dropped: x.drops.Load(),
	}
	if w := x.where.Load(); w != nil {
		if w.also != "" {
			i.Engine += "+" + w.also
		}
		i.Passed = strings.Join(slices.DeleteFunc([]string{i.Passed, w.why}, func(s string) bool { return s == "" }), "; ")
	}
	return i
}

// passed says in one line why no better engine was chosen.
func passed(x *nimble.Extension) string {
	var why []string
	for _, err := range x.Passed() {
		why = append(why, err.Error())
	}
	return strings.Join(why, "; ")
}

// Spec returns the program as it was read, without the changes made for its insertion.
func (x *Extension) Spec() *object.Spec { return x.spec }

// Options returns the options of its insertion, including the memory of its maps.
func (x *Extension) Options() nimble.Options { return x.given }

// Set holds the extensions and regions of one job on one node. It is safe for concurrent use.
type Set struct {
	manager *Manager
	job     id.Job
	budget  int64                // bytes
	chains  map[slot.Name]*chain // of all slots
	pace    *pace

	removing sync.WaitGroup // extensions that have left the chain and are not released yet
	crosses  atomic.Bool    // see Cross

	mu      sync.Mutex
	regions map[string]*memory.Memory
	places  map[string]Place // of regions
	used    int64            // bytes of regions, and of maps that are not regions
	closed  bool
	keeper  keep.Keeper // nil: nothing outlives this node kernel
}

// String names the owner of the set.
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
	Name     string    // its name; empty: the program's name in the object
	Slot     slot.Name // must be the slot that the object's section names, if it does; empty: that slot
	Object   []byte    // an ELF file
	Settings []Setting
	Trusted  bool   // run it unchecked; allowed for the machine only
	Number   uint64 // chosen by the caller, reported in Info

	// The handle and the memory of the maps of an extension that a previous node kernel has
	// inserted.
	Handle   id.Handle
	Memories map[string]*memory.Memory
}

// Insert verifies an extension, appends it to its slot's chain and stores it with the set's keeper.
// A map with the name of a region is that region. Errors wrap ErrRefused or ErrNoRoom, unless the
// keeper failed.
func (s *Set) Insert(r Request) (*Extension, error) {
	x, err := s.insert(r)
	if err != nil {
		s.manager.note(s, 0, r.Name, "refused: %s", strings.TrimPrefix(err.Error(), ErrRefused.Error()+": "))
		return nil, err
	}
	if err := s.keep(x, r); err != nil {
		return nil, errors.Join(err, s.Remove(x.handle, "it cannot be kept"))
	}
	s.manager.changed(s.job, x.row.Name) // after it was kept: a watcher may remove it
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
	if row.Serve != s.manager.serve {
		return nil, fmt.Errorf("%w: %s", ErrRefused, elsewhere(row))
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
	x.alone.extension = x
	x.Extension, x.handle, x.given = inner, s.manager.newHandle(r.Handle), options
	for _, m := range spec.Maps {
		x.maps = append(x.maps, m.Name)
		own := inner.Map(m.Name).Memory()
		if own != s.regions[m.Name] {
			x.own += int64(len(own.Bytes()))
		} else {
			x.region = m.Name
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

// elsewhere says where the extensions of a slot run that do not run here.
func elsewhere(row slot.Row) string {
	if row.Serve {
		return fmt.Sprintf("slot %s is the allocator's, not a node's: an operator inserts it into the machine (margay ext insert OBJECT)", row.Name)
	}
	return fmt.Sprintf("slot %s is a node's, not the allocator's", row.Name)
}

// SlotOf returns the slot of a request, or an error about its object.
func SlotOf(r Request) (slot.Name, error) {
	spec, err := pick(r)
	if err != nil {
		return "", err
	}
	return slotOf(r, spec), nil
}

// pick finds the only program of the object, or the only one for the request's slot.
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

// options makes the options for inserting a program. The caller holds Set.mu.
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
				return o, fmt.Errorf("set map %q to %d entries: the program has no such map, or the number is not in [1, 2^32-1]", setting.Name, setting.Value)
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

// variable converts a setting's value to the size of the variable.
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

// Remove takes an extension out of its slot, waits for its current run and for lent memory, and
// releases it. by is the reason, for the log and for Info. The error wraps ErrNotFound if the set
// has no such extension.
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

// release waits until the extension is no longer in use, and releases its resources.
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

// jobEnded is the reason of most removals. They are not remembered.
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

// Maps returns the names of an extension's maps.
func (x *Extension) Maps() []string { return x.maps }

// Lend calls f with a map of the extension, whose memory stays mapped until f returns. The error is
// f's, or wraps ErrNotFound if there is no such map or the extension was released.
func (x *Extension) Lend(name string, f func(*state.Map) error) error {
	x.lending.RLock()
	defer x.lending.RUnlock()
	m := x.Map(name)
	if m == nil || x.released {
		return fmt.Errorf("map %q: %w", name, ErrNotFound)
	}
	return f(m)
}

// Close removes all extensions and regions at the end of the job. No run may begin any more.
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
