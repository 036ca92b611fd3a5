package border

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/extension"
	"margay/kernel/keep"
	"margay/nimble"
	"margay/nimble/engine/linux"
	"margay/nimble/state"
)

// member is an extension of the chain. Border.mu guards it.
type member struct {
	*extension.Extension
	why    error // why it cannot run on the interface; nil: it may
	slow   error // why messages pass the node kernels though it is there; nil: they do not
	part   *linux.Part
	maps   []*linux.Map // by index of the program's maps
	covers bool         // the maps are the extension's memory
	there  bool         // all messages from the interface are judged there
	tally  *shared[tally]
	was    tally  // as it was last reported
	late   uint64 // frames that took all of their time because of it, but for reports without any

	entered time.Time // in this node kernel

	since time.Time     // begin of the interval in which its share of a processor is measured
	spent time.Duration // of its runs there until then
}

// enter makes the maps of an extension. Those that an earlier node kernel has left become its
// memory at once. The caller holds the lock.
func (b *Border) enter(x *extension.Extension) *member {
	now := time.Now()
	m := &member{Extension: x, entered: now, since: now}
	kept := b.adopted[memberItem(m.Handle())] != nil
	if err := b.prepare(m); err != nil {
		m.refuse(err)
	}
	if m.ofJob() && m.why == nil {
		time.AfterFunc(settleTime, b.poke)
	}
	if !kept || !m.covers { // a program with its handle has another one, or does not share its memory
		b.loaded = slices.DeleteFunc(b.loaded, func(h id.Handle) bool { return h == m.Handle() })
	}
	return m
}

// settleTime is how old a job's extension is when the program gets it. Most jobs that live shorter
// gain nothing from it.
const settleTime = 2 * time.Second

// ripe reports whether the program may get the extension. One that the program of an earlier node
// kernel had is there.
func (m *member) ripe() bool {
	return m.why == nil && (!m.ofJob() || time.Since(m.entered) >= settleTime)
}

// Bounds for extensions of jobs. All extensions share the program, to which Linux allows 64 maps
// and 256 functions.
const (
	mostOfJob     = 4       // extensions of one
	mostMaps      = 8       // of an extension
	mostFunctions = 16      // the same
	mostElement   = 1 << 10 // bytes of an element of a map that it replaces: Linux copies it at once
)

func (b *Border) prepare(m *member) error {
	if m.ofJob() && !b.config.Jobs { // first: that costs nothing
		return errors.New("extensions of jobs may run there only on a machine that was made with --offload")
	}
	if err := b.makeMaps(); err != nil {
		return err
	}
	program, err := nimble.Verify(m.Spec(), m.Options())
	if err != nil {
		return err
	}
	if size := program.Context().Size; size > slot.PacketSize {
		return fmt.Errorf("it was verified for a context of %d bytes, more than %d", size, slot.PacketSize)
	}
	if m.part, err = linux.NewSettledPart(program); err != nil {
		return err
	}
	name := memberItem(m.Handle())
	if kept := b.adopted[name]; kept != nil { // its memory is there
		delete(b.adopted, name)
		defer kept.CloseFiles()
		return m.adopt(b.turns(m), kept)
	}
	if err := b.admits(m); err != nil {
		return err
	}
	for i, spec := range program.Maps() {
		contents := spec.Contents
		if !spec.ReadOnly {
			if spec.Kind != state.Array {
				return fmt.Errorf("map %q is a %v", spec.Name, spec.Kind)
			}
			contents = m.Map(spec.Name).Memory().Bytes()
		}
		made, err := m.part.NewMap(i, contents)
		if err != nil {
			return err
		}
		m.maps = append(m.maps, made)
	}
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Name: "tally", Type: ebpf.Array, KeySize: 4, ValueSize: tallySize, MaxEntries: 1, Flags: unix.BPF_F_MMAPABLE})
	if err != nil {
		return fmt.Errorf("make map: %w", err)
	}
	if err := m.count(counts); err != nil || !m.ofJob() {
		return err
	}
	m.tally.is.Own = 1
	return b.share(m)
}

func (m *member) ofJob() bool { return m.Job() != extension.Machine }

// admits returns why a job's extension cannot run on the interface, apart from what Linux says.
func (b *Border) admits(m *member) error {
	if !m.ofJob() {
		return nil
	}
	if name := m.Region(); name != "" {
		return fmt.Errorf("its map %q is a region, which is not Linux's", name)
	}
	others := 0
	for _, other := range b.members {
		if other.Job() == m.Job() && other.why == nil {
			others++
		}
	}
	if others >= mostOfJob {
		return fmt.Errorf("its job has %d extensions there", others)
	}
	p := m.part.Program()
	if maps, functions := len(p.Maps()), len(p.Functions()); maps > mostMaps || functions > mostFunctions {
		return fmt.Errorf("it has %d maps and %d functions; at most %d and %d may be there", maps, functions, mostMaps, mostFunctions)
	}
	if err := m.copies(); err != nil {
		return err
	}
	return m.part.Lacks()
}

// copies returns an error if the extension may replace elements of a map that are large.
func (m *member) copies() error {
	p := m.part.Program()
	for _, s := range p.Services() {
		if s.Name != "map_update_elem" {
			continue
		}
		for _, spec := range p.Maps() {
			if spec.ValueSize > mostElement {
				return fmt.Errorf("it calls %s, and map %q has elements of %d bytes; at most %d are copied there", s.Name, spec.Name, spec.ValueSize, mostElement)
			}
		}
	}
	return nil
}

// share makes the maps in Linux the extension's memory, also for the next node kernel. The caller
// holds the lock.
func (b *Border) share(m *member) error {
	if err := b.keepMember(m); err != nil { // first: the memory that is covered becomes empty
		return err
	}
	if err := m.cover(b.turns(m), false); err != nil {
		b.drop(memberItem(m.Handle()))
		return err
	}
	return nil
}

// turns returns the lock that excludes runs of the extension on the interface.
func (b *Border) turns(m *member) sync.Locker {
	if m.ofJob() {
		return turn{b, m.Job()}
	}
	return b
}

// count takes over the map with the extension's tally.
func (m *member) count(counts *ebpf.Map) (err error) {
	if m.tally, err = share[tally](counts); err != nil {
		counts.Close()
		return err
	}
	m.was = m.tally.is.read()
	m.was.Faults = 0 // this node kernel has not counted them, and the program asks until it has FAULTS
	m.spent = time.Duration(m.was.Time)
	return nil
}

// adopt takes over the tally and the maps that an earlier node kernel has left.
func (m *member) adopt(turns sync.Locker, kept *keep.Item) error {
	var names []string
	if err := json.Unmarshal(kept.Words, &names); err != nil {
		return fmt.Errorf("%s: %w", kept.Name, err)
	}
	if len(kept.Files) != 1+len(names) {
		return fmt.Errorf("%s: %d files, want %d", kept.Name, len(kept.Files), 1+len(names))
	}
	for i, spec := range m.part.Program().Maps() {
		at := slices.Index(names, spec.Name)
		var made *linux.Map
		var err error
		if spec.ReadOnly {
			made, err = m.part.NewMap(i, spec.Contents)
		} else if at < 0 {
			return fmt.Errorf("%s: it has no map %q", kept.Name, spec.Name)
		} else if fd, failed := duplicate(kept.Files[1+at]); failed != nil {
			err = failed
		} else {
			made, err = m.part.AdoptMap(i, fd)
		}
		if err != nil {
			return err
		}
		m.maps = append(m.maps, made)
	}
	counts, err := adoptMap(kept.Files[0])
	if err != nil {
		return err
	}
	if err := m.count(counts); err != nil {
		return err
	}
	return m.cover(turns, true)
}

// cover puts the maps in Linux in the place of the extension's memory, and makes its runs take
// turns with the program. full: the maps have its data. Linux, which lacks this service, has
// accepted it, so it calls no other extension.
func (m *member) cover(turns sync.Locker, full bool) error {
	m.Guard(turns)
	err := m.Alone(func() error {
		for i, spec := range m.part.Program().Maps() {
			if spec.ReadOnly {
				continue
			}
			own := m.Map(spec.Name).Memory()
			if !full {
				if err := m.maps[i].Write(own.Bytes()); err != nil {
					return err
				}
			}
			if err := own.Cover(m.maps[i].FD()); err != nil {
				return err
			}
		}
		return nil
	})
	m.covers = err == nil
	return err
}

// keepMember leaves the tally and the maps of an extension with PID 1.
func (b *Border) keepMember(m *member) (err error) {
	names, fds := []string{}, []int{m.tally.FD()}
	for i, spec := range m.part.Program().Maps() {
		if !spec.ReadOnly {
			names, fds = append(names, spec.Name), append(fds, m.maps[i].FD())
		}
	}
	item := keep.Item{Name: memberItem(m.Handle())}
	defer item.CloseFiles()
	if item.Words, err = json.Marshal(names); err != nil {
		return err
	}
	if item.Files, err = files(fds); err != nil {
		return err
	}
	return b.config.Keeper.Keep(item)
}

// judges reports whether the extension judges all messages from the interface there, and notes why
// not.
func (m *member) judges(loaded bool) bool {
	switch {
	case m.why != nil:
		m.RunsAlso("", fmt.Sprintf("not on the interface: %v", m.why))
	case !loaded:
		m.RunsAlso("", "not yet on the interface: Linux verifies it")
	case m.slow != nil:
		m.RunsAlso("", fmt.Sprintf("no longer on the interface: %v", m.slow))
	default:
		return true
	}
	return false
}

// refuse notes why an extension does not run here, and closes what was made for it.
func (m *member) refuse(why error) {
	m.why = why
	m.close()
}

// close closes the maps. The memory of the extension stays what it is.
func (m *member) close() {
	for _, each := range m.maps {
		each.Close()
	}
	m.maps = nil
	if m.tally != nil {
		m.tally.Close()
		m.tally = nil
	}
}

// leave keeps the program from asking an extension that was removed, and PID 1 from keeping its
// maps. The caller holds the lock.
func (b *Border) leave(m *member) {
	if m.covers {
		b.drop(memberItem(m.Handle()))
	}
	if m.tally == nil {
		return
	}
	m.report()
	atomic.StoreUint32(&m.tally.is.Off, 1)
	if slices.Contains(b.builds, m) {
		b.gone = append(b.gone, m)
	} else {
		m.close()
	}
	b.stale = b.stale || m.ofJob() && b.has(m) // its memory is large, and others will follow
}

// Report adds what the program has counted to the statistics of the extensions.
func (b *Border) Report() {
	b.mu.Lock()
	for _, m := range b.members {
		if m.tally != nil {
			m.report()
		}
	}
	changed := b.settle()
	b.mu.Unlock()
	if changed {
		b.announce()
	}
}

// A run that takes longer than slowTime, in the program's clock, is slow. Each one counts slowCost,
// and each other one pays 1 back. At slowLimit, messages pass the node kernels again.
// A frame that takes all of frameTime counts like a slow run, too. The extension of a job must not
// take more than a part of a processor in shareEach.
const (
	slowTime  = 500 * time.Microsecond
	slowCost  = 4
	slowLimit = 64
	frameTime = 4 * time.Millisecond

	shareEach = time.Second
	sharePart = 3 // the program itself allows SHARE
)

// report is Report for an extension. The caller holds the lock.
func (m *member) report() {
	now := m.tally.is.read()
	if now.Runs != m.was.Runs {
		m.Ran(now.Runs-m.was.Runs, time.Duration(now.Time-m.was.Time))
	}
	m.Dropped(now.Drops - m.was.Drops)
	for range now.Faults - m.was.Faults {
		m.Fault(m.fault(&now))
	}
	if now.Slow >= slowLimit && m.slow == nil {
		m.slow = fmt.Errorf("more than one in %d of its runs there took longer than %v", slowCost+1, slowTime)
	}
	if passed := time.Since(m.since); passed >= shareEach && m.ofJob() {
		if spent := time.Duration(now.Time) - m.spent; spent > passed/sharePart && m.slow == nil {
			m.slow = fmt.Errorf("its runs there took %v in %v", spent.Round(time.Millisecond), passed.Round(time.Millisecond))
		}
		m.since, m.spent = m.since.Add(passed), time.Duration(now.Time)
	}
	n := uint64(now.Late - m.was.Late)
	if n == 0 {
		m.late -= min(m.late, 1)
	}
	if m.late += n; m.late >= slowLimit/slowCost && m.slow == nil {
		m.slow = fmt.Errorf("it took more than %v for each of %d frames", frameTime, m.late)
	}
	m.was = now
}

// fault returns the error of the last fault. The interface allows the verdicts of slot packet.
func (m *member) fault(k *tally) error {
	row, err := slot.Find(slot.Packet)
	if err != nil {
		return err
	}
	if answer := slot.Verdict(k.Answer); !row.Allows(answer) {
		return fmt.Errorf("answer %d is not a verdict of slot %s", answer, m.Section())
	}
	return fmt.Errorf("it stops a message of the libraries, for handler %d, from rank %d to rank %d", k.Handler, k.Source, k.Target)
}
