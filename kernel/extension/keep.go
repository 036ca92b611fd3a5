package extension

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/keep"
	"margay/nimble/memory"
	"margay/nimble/state"
)

// keptExtensions and an extension's handle are the name under which its object and the memory of its maps are kept.
const keptExtensions = "extension/"

// Item is the name under which an extension is kept.
func Item(handle id.Handle) string { return fmt.Sprint(keptExtensions, handle) }

// Kept reports whether an item of this name is an extension.
func Kept(name string) bool { return strings.HasPrefix(name, keptExtensions) }

// words are kept with an extension.
type words struct {
	Name     string
	Slot     slot.Name
	Settings []Setting
	Trusted  bool
	Number   uint64
	Maps     []string // in the order of the files after the first
}

// KeepWith leaves every extension that is inserted from now on with a keeper, until it is removed. When the job ends, nothing
// is taken back.
func (s *Set) KeepWith(k keep.Keeper) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keeper = k
}

// Machine returns the set of the machine itself.
func (m *Manager) Machine() *Set { return m.machine }

// keep leaves an extension with the keeper, unless it came from there: its object, and the memory that holds its state.
func (s *Set) keep(x *Extension, r Request) error {
	s.mu.Lock()
	keeper := s.keeper
	s.mu.Unlock()
	if keeper == nil || r.Handle != 0 {
		return nil
	}
	item, err := s.item(x, r)
	defer item.CloseFiles()
	if _, gone := s.Find(x.handle); gone != nil {
		return nil // its faults were faster
	}
	if err != nil {
		return err
	}
	if err := keeper.Keep(item); err != nil {
		return err
	}
	if _, gone := s.Find(x.handle); gone != nil { // or as fast
		return keeper.Drop(item.Name)
	}
	return nil
}

// item makes what is kept of an extension. Its files are open also after an error.
func (s *Set) item(x *Extension, r Request) (keep.Item, error) {
	item := keep.Item{Name: Item(x.handle)}
	object, err := memory.Create("object", len(r.Object))
	if err != nil {
		return item, err
	}
	defer object.Close()
	copy(object.Bytes(), r.Object)
	f, err := keep.File(object)
	if err != nil {
		return item, err
	}
	item.Files = []*os.File{f}
	w := words{Name: r.Name, Slot: r.Slot, Settings: r.Settings, Trusted: r.Trusted, Number: r.Number}
	for _, name := range x.Maps() {
		err := x.Lend(name, func(m *state.Map) error {
			if region, err := s.Region(name, 0); err == nil && region == m.Memory() {
				return nil // kept as a region
			}
			f, err := keep.File(m.Memory())
			if err == nil {
				w.Maps = append(w.Maps, name)
				item.Files = append(item.Files, f)
			}
			return err
		})
		if err != nil {
			return item, err
		}
	}
	item.Words, err = json.Marshal(w)
	return item, err
}

// Adopt takes up the extensions that a node kernel before this one had left with the keeper, in the order in which they were
// inserted. Items that are no extensions are passed over; all stay the caller's. Regions that are maps are to be adopted
// before.
func (s *Set) Adopt(items []*keep.Item) error {
	kept := make(map[id.Handle]*keep.Item)
	for _, item := range items {
		if number, ok := strings.CutPrefix(item.Name, keptExtensions); ok {
			handle, err := strconv.ParseUint(number, 10, 32)
			if err != nil {
				return fmt.Errorf("%s is no extension", item.Name)
			}
			kept[id.Handle(handle)] = item
		}
	}
	for _, handle := range slices.Sorted(maps.Keys(kept)) {
		if err := s.adopt(handle, kept[handle]); err != nil {
			return err
		}
	}
	return nil
}

func (s *Set) adopt(handle id.Handle, item *keep.Item) error {
	var w words
	if err := json.Unmarshal(item.Words, &w); err != nil {
		return fmt.Errorf("%s: %w", item.Name, err)
	}
	if len(item.Files) != 1+len(w.Maps) {
		return fmt.Errorf("%s with %d files was not kept whole", item.Name, len(item.Files))
	}
	object, err := item.Memory(0, -1)
	if err != nil {
		return err
	}
	defer object.Close()
	r := Request{
		Name: w.Name, Slot: w.Slot, Object: slices.Clone(object.Bytes()), Settings: w.Settings, Trusted: w.Trusted, Number: w.Number,
		Handle: handle, Memories: make(map[string]*memory.Memory),
	}
	for i, name := range w.Maps {
		var m *memory.Memory
		if m, err = item.Memory(1+i, -1); err != nil {
			break
		}
		r.Memories[name] = m
	}
	if err == nil {
		_, err = s.Insert(r)
	}
	if err != nil {
		for _, m := range r.Memories {
			err = errors.Join(err, m.Close())
		}
	}
	return err
}
