// Package border runs extensions in the slots packet and message on the interface of a node, for
// the messages that ranks of other nodes send to ranks of this one without the node kernels.
//
// A fixed skeleton (skeleton.c) is an XDP program on the interface. It takes the datagrams of
// mirrored channels (kernel/abi/mirror) apart, fills the context of the slot for each message, and
// asks the chain of extensions: the machine's, and those that belong to the message's job. Their
// instructions, as package verify accepted them, are spliced in. A chain is replaced without
// detaching the program. Linux verifies all of it, so no answer can do harm; an invalid one is
// counted as a fault. With extensions of jobs, Linux also proves that none learns an address of its
// memory.
//
// Linux may take seconds for that. A goroutine waits (step), and until then, and if Linux
// refuses, the extension runs in the node kernel only: Judges reports false, and messages of other
// nodes must pass the node kernels. Extensions join the program one by one, so that a refusal is
// about one.
//
// Nothing ends a run in Linux but its own end. When the runs for a frame have taken frameTime, the
// frame is cut off behind the messages that were judged, and the others are judged when they are
// sent again: there is progress however slow the runs are. An extension that is slow often, or one
// of a job that takes a third of a processor, leaves its messages to the node kernel. Whatever
// ranks send, the program runs the extensions of a job for half of the time at most: it judges none
// of the job's frames beyond that.
//
// # What it judges
//
// The table of pairs says which ends of mirrored channels are judged (Admit), by number and port,
// with the key of the end, the address of the other one, and the position of the ring up to which
// messages were judged. A digest of each record behind that, with a bit that says whether it was
// stopped, makes a message that is sent again get the same answer, and refuses other bytes in its
// place: a hostile sender cannot show the extensions one message and the rank another. A stopped
// message gets the number of a handler that libraries ignore (wire.HandlerStopped).
//
// The program changes the key of each datagram that it has judged by the seal of the pair, and the
// end takes no others (wire.Channel.Seal). What it does not understand passes unchanged, and is not
// taken.
//
// # Shared state
//
// The maps of an extension are made by Linux, and mapped in the place of the memory that the
// extension has in this process, so that runs here and there work on the same bytes. A job's are
// mapped when it is inserted, so that its ranks never map other memory. The runs exclude each other
// by words that both sides change atomically: the node kernel's runs hold the Border as a lock
// (extension.Extension.Guard), or for a job's extension, a turn. A frame that comes while that is
// held is not judged, unless it is given back within some microseconds, and so is lost, and sent
// again.
//
// PID 1 keeps the program's link, the table of pairs and the maps, so that the program goes on
// while the node kernel is restarted.
//
// Locks, outermost first: Border.mu guards programs and maps; Border.running and Border.turning are
// held during a run of an extension in this process.
package border

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"margay/kernel/abi/id"
	"margay/kernel/extension"
	"margay/kernel/keep"
)

// Config is what a Border needs.
type Config struct {
	// Interface returns the name and the index of the interface to the other nodes.
	Interface func() (name string, index int, err error)
	// Chain returns the extensions that may run on the interface, in the order in which they see a
	// message.
	Chain func() []*extension.Extension
	Jobs  bool // extensions of jobs may run there, too
	// Changed is called without locks when Judges may have changed, unless that is because of
	// Follow. It returns when the other nodes send accordingly.
	Changed func()
	Keeper  keep.Keeper // PID 1
	Log     func(format string, args ...any)
}

// Border is the program on the interface. It is a lock, too: see extension.Extension.Guard. It is
// safe for concurrent use.
type Border struct {
	config  Config
	running sync.Mutex
	turning [turns]sync.Mutex
	word    atomic.Pointer[common] // shared with the program; nil: there is none
	wake    chan struct{}          // the program may not be the one that it should be
	done    chan struct{}          // closed by Close
	ended   sync.WaitGroup

	mu      sync.Mutex
	maps    map[string]*ebpf.Map // of the skeleton; nil: they are not made
	states  *shared[common]
	link    link.Link   // nil: no program is attached
	name    string      // of the interface
	loaded  []id.Handle // of the extensions in the attached program; some may have been removed
	members []*member   // in the order of the chain
	builds  []*member   // that are in the program which is being built
	gone    []*member   // of these, removed ones, whose maps are open
	pairs   int         // that were admitted and have not left
	adopted map[string]*keep.Item
	watched bool // there is a goroutine that reports
	stale   bool // the program has extensions of jobs that were removed
}

// New makes a border without a program. Adopt may follow, and then Start.
func New(c Config) *Border {
	return &Border{config: c, wake: make(chan struct{}, 1), done: make(chan struct{}), adopted: make(map[string]*keep.Item)}
}

// The names under which PID 1 keeps the link with the skeleton's maps, and the maps of extensions,
// which are dropped without each other.
const (
	keptAll    = "border/"
	keptBorder = keptAll + "link"
)

func memberItem(h id.Handle) string { return fmt.Sprint(keptAll, h) }

// Kept reports whether an item of this name is a border's.
func Kept(name string) bool { return strings.HasPrefix(name, keptAll) }

// keptWords are the words of the border's item.
type keptWords struct {
	Interface string
	Loaded    []id.Handle
}

// keptMaps are the maps that are kept, in this order, behind the link. The other one is of use
// during a run only.
var keptMaps = []string{mapPeers, mapStates, mapContexts, mapTallies}

// Adopt takes over an item that an earlier node kernel has left with PID 1, with its files.
func (b *Border) Adopt(item *keep.Item) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if item.Name != keptBorder {
		b.adopted[item.Name] = item
		return nil
	}
	defer item.CloseFiles()
	if err := b.adopt(item); err != nil {
		b.drop(keptBorder) // so that another one can be attached
		return fmt.Errorf("adopt %s: %w", item.Name, err)
	}
	return nil
}

func (b *Border) adopt(item *keep.Item) error {
	var words keptWords
	if err := json.Unmarshal(item.Words, &words); err != nil {
		return err
	}
	if len(item.Files) != 1+len(keptMaps) {
		return fmt.Errorf("%d files, want %d", len(item.Files), 1+len(keptMaps))
	}
	maps, err := newMaps(mapWalks)
	if err != nil {
		return err
	}
	for i, name := range keptMaps {
		m, err := adoptMap(item.Files[1+i])
		if err != nil {
			closeAll(maps)
			return fmt.Errorf("map %s: %w", name, err)
		}
		maps[name] = m
	}
	fd, err := duplicate(item.Files[0])
	if err != nil {
		closeAll(maps)
		return err
	}
	l, err := link.NewFromFD(fd)
	if err != nil {
		closeAll(maps)
		return fmt.Errorf("link: %w", err)
	}
	if err := b.open(maps); err != nil {
		return errors.Join(err, l.Close())
	}
	b.states.is.busy().CompareAndSwap(byKernel, free) // the earlier one had it
	for job := range id.Job(turns) {
		b.states.is.turn(job).CompareAndSwap(byKernel, free)
	}
	b.link, b.name, b.loaded = l, words.Interface, words.Loaded
	return nil
}

func adoptMap(f *os.File) (*ebpf.Map, error) {
	fd, err := duplicate(f)
	if err != nil {
		return nil, err
	}
	return ebpf.NewMapFromFD(fd)
}

// duplicate returns a descriptor of what f is open on.
func duplicate(f *os.File) (int, error) { return unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0) }

func closeAll(maps map[string]*ebpf.Map) {
	for _, m := range maps {
		m.Close()
	}
}

// newMaps makes some of the skeleton's maps.
func newMaps(names ...string) (map[string]*ebpf.Map, error) {
	spec, err := readSpec()
	if err != nil {
		return nil, err
	}
	maps := make(map[string]*ebpf.Map)
	for _, name := range names {
		m, err := ebpf.NewMap(spec.Maps[name])
		if err != nil {
			closeAll(maps)
			return nil, fmt.Errorf("make map %s: %w", name, err)
		}
		maps[name] = m
	}
	return maps, nil
}

// open takes over the skeleton's maps, also if there is an error. The caller holds the lock.
func (b *Border) open(maps map[string]*ebpf.Map) error {
	states, err := share[common](maps[mapStates])
	if err != nil {
		closeAll(maps)
		return err
	}
	b.maps, b.states = maps, states
	states.is.setBudget(frameTime)
	b.word.Store(states.is)
	return nil
}

// makeMaps makes the skeleton's maps, if there are none. The caller holds the lock.
func (b *Border) makeMaps() error {
	if b.maps != nil {
		return nil
	}
	maps, err := newMaps(append(slices.Clone(keptMaps), mapWalks)...)
	if err != nil {
		return err
	}
	return b.open(maps)
}

// reportEach is how often the node kernel takes over what the program has counted.
const reportEach = 250 * time.Millisecond

// Start begins to load what Follow demands, after the last Adopt, and after Follow was called for
// the extensions that the earlier node kernel had. Until then the program that was adopted stays as
// it is.
func (b *Border) Start() {
	b.mu.Lock()
	for name, item := range b.adopted { // of extensions that are gone
		item.CloseFiles()
		b.drop(name)
	}
	clear(b.adopted)
	if b.link != nil {
		b.watch()
	}
	b.mu.Unlock()
	b.poke() // nothing may need the program that was adopted
	b.ended.Go(func() {
		for {
			select {
			case <-b.done:
				return
			case <-b.wake:
			}
			for b.step() {
			}
		}
	})
}

// watch starts the goroutine that reports while there are extensions, if there is none. The caller
// holds the lock.
func (b *Border) watch() {
	if b.watched {
		return
	}
	b.watched = true
	b.ended.Go(func() {
		tick := time.NewTicker(reportEach)
		defer tick.Stop()
		for {
			select {
			case <-b.done:
				return
			case <-tick.C:
			}
			b.Report()
			b.mu.Lock()
			b.watched = len(b.members) > 0
			over := !b.watched
			b.mu.Unlock()
			if over {
				return
			}
		}
	})
}

// drop makes PID 1 forget an item.
func (b *Border) drop(name string) {
	if err := b.config.Keeper.Drop(name); err != nil {
		b.config.Log("extensions on the interface: %v", err)
	}
}

// poke has the program looked after.
func (b *Border) poke() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// Lock waits until the program is not running any extension, and keeps it from doing so.
func (b *Border) Lock() {
	b.running.Lock()
	if s := b.word.Load(); s != nil {
		await(s.busy())
	}
}

// await takes a word that the program may have.
func await(word *atomic.Uint32) {
	for n := 1; !word.CompareAndSwap(free, byKernel); n++ {
		if n%64 == 0 {
			runtime.Gosched()
		}
	}
}

// Unlock ends Lock.
func (b *Border) Unlock() {
	if s := b.word.Load(); s != nil {
		s.busy().CompareAndSwap(byKernel, free)
	}
	b.running.Unlock()
}

// turn is the lock that runs of a job's extensions hold: see Border.
type turn struct {
	*Border
	job id.Job
}

// Lock implements sync.Locker.
func (t turn) Lock() {
	t.turning[t.job%turns].Lock()
	if s := t.word.Load(); s != nil {
		await(s.turn(t.job))
	}
}

// Unlock implements sync.Locker.
func (t turn) Unlock() {
	if s := t.word.Load(); s != nil {
		s.turn(t.job).CompareAndSwap(byKernel, free)
	}
	t.turning[t.job%turns].Unlock()
}

// Judges reports whether there are extensions, and the program asks all of them about the messages
// that pass it.
func (b *Border) Judges(all []*extension.Extension) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, x := range all {
		if !slices.ContainsFunc(b.members, func(m *member) bool { return m.Extension == x && m.there }) {
			return false
		}
	}
	return len(all) > 0
}

// Follow must be called when Config.Chain has changed. An extension that was removed is not asked
// any more when Follow returns. A new one is, if ever, after Config.Changed was called.
func (b *Border) Follow() {
	b.mu.Lock()
	defer b.mu.Unlock()
	chain, were := b.config.Chain(), b.members
	b.members = nil
	for _, m := range were {
		if slices.Contains(chain, m.Extension) {
			b.members = append(b.members, m)
		} else {
			b.leave(m)
		}
	}
	for i, x := range chain { // the members are in this order
		if i == len(b.members) || b.members[i].Extension != x {
			b.members = slices.Insert(b.members, i, b.enter(x))
		}
	}
	b.settle()
	b.show()
	b.poke()
}

// wanted returns the extensions that the next program should have, and which of them is new there:
// the oldest, if there are several; nil: none is. The caller holds the lock.
func (b *Border) wanted() (chain []*member, fresh *member) {
	for _, m := range b.members {
		if m.ripe() && !b.has(m) && (fresh == nil || m.Handle() < fresh.Handle()) {
			fresh = m
		}
	}
	for _, m := range b.members {
		if m.why == nil && (m == fresh || b.has(m)) {
			chain = append(chain, m)
		}
	}
	return chain, fresh
}

// has reports whether the program on the interface has an extension. The caller holds the lock.
func (b *Border) has(m *member) bool { return slices.Contains(b.loaded, m.Handle()) }

func handles(chain []*member) (all []id.Handle) {
	for _, m := range chain {
		all = append(all, m.Handle())
	}
	return all
}

// settle finds out where the extensions run, and reports whether that has changed. The caller holds
// the lock.
func (b *Border) settle() (changed bool) {
	for _, m := range b.members {
		there := m.judges(b.has(m))
		changed = changed || there != m.there
		m.there = there
	}
	return changed
}

// show notes for lists which extensions are on the interface. The caller holds the lock.
func (b *Border) show() {
	for _, m := range b.members {
		if m.there {
			m.RunsAlso(b.name, "")
		}
	}
}

// announce says that Judges may have changed. An extension is listed on the interface when the
// other nodes send accordingly.
func (b *Border) announce() {
	b.config.Changed()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.show()
}

// step brings the program on the interface nearer to what it should be, and reports whether it may
// not be there yet. Linux may need seconds for a program.
func (b *Border) step() (again bool) {
	b.mu.Lock()
	chain, fresh := b.wanted()
	if len(chain) == 0 && b.pairs == 0 {
		b.detach()
		b.mu.Unlock()
		return false
	}
	if fresh == nil && !b.stale { // those that it has in addition are not asked
		b.mu.Unlock()
		return false
	}
	parts, err := b.parts(chain)
	maps := b.maps
	b.builds = chain
	b.mu.Unlock()

	var program *ebpf.Program
	if err == nil {
		program, err = build(maps, parts, slices.ContainsFunc(chain, (*member).ofJob))
	}
	b.mu.Lock()
	for _, m := range b.gone {
		m.close()
	}
	b.builds, b.gone = nil, nil
	again, changed := b.loads(chain, program, err)
	b.mu.Unlock()
	if changed {
		b.announce()
	}
	return again
}

// loads attaches the program with a chain, which Linux has accepted or refused, and reports whether
// another one is needed and whether Judges has changed. The caller holds the lock.
func (b *Border) loads(chain []*member, program *ebpf.Program, err error) (again, changed bool) {
	if program != nil {
		defer program.Close() // the link has it
	}
	now, fresh := b.wanted()
	if !slices.Equal(chain, now) {
		return true, false
	}
	if err == nil {
		err = b.install(chain, program)
	}
	switch {
	case err == nil:
		b.loaded, b.stale = handles(chain), false
		b.keep()
		b.watch()
	case fresh == nil:
		b.stale = false // it cannot be helped
		b.config.Log("extensions on the interface: a program without those that were removed: %v", err)
	default:
		if lacks := fresh.part.Lacks(); lacks != nil {
			err = lacks
		}
		fresh.refuse(err)
	}
	return true, b.settle()
}

// Close detaches the program and closes everything. No extension may run.
func (b *Border) Close() error {
	close(b.done)
	b.ended.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range slices.Concat(b.members, b.gone) {
		m.close()
	}
	for _, item := range b.adopted {
		item.CloseFiles()
	}
	b.detach()
	if b.maps == nil {
		return nil
	}
	b.word.Store(nil)
	err := b.states.Close()
	delete(b.maps, mapStates) // closed with its memory
	closeAll(b.maps)
	b.maps = nil
	return err
}
