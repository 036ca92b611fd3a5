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

// keptExtensions and the handle of an extension form the name of its item.
const keptExtensions = "extension/"

// Item returns the name of the item that keeps an extension.
func Item(handle id.Handle) string { return fmt.Sprint(keptExtensions, handle) }

// Kept reports whether an item of this name is an extension.
func Kept(name string) bool { return strings.HasPrefix(name, keptExtensions) }

// words is the metadata of an extension's item.
type words struct {
	Name     string
	Slot     slot.Name
	Settings []Setting
	Trusted  bool
	Number   uint64
	Maps     []string // in the order of the files after the first
}

// KeepWith sets the keeper that stores every region made from now on, and every extension inserted
// from now on, until its removal. The end of the job does not drop its items.
func (s *Set) KeepWith(k keep.Keeper) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keeper = k
}

// Machine returns the set of the machine itself.
func (m *Manager) Machine() *Set { return m.machine }

// keep stores an extension with the keeper, unless it was adopted from there: its object, and the
// memory of its maps.
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
		return nil // expelled for its faults before it was kept
	}
	if err != nil {
		return err
	}
	if err := keeper.Keep(item); err != nil {
		return err
	}
	if _, gone := s.Find(x.handle); gone != nil { // or while it was being kept
		return keeper.Drop(item.Name)
	}
	return nil
}

// item makes the item of an extension. The caller must close its files, also after an error.
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

// Adopt adds the regions that a previous node kernel stored with the keeper, and inserts the
// extensions, in the order of their insertion. It ignores other items. The caller still owns all
// items.
func (s *Set) Adopt(items []*keep.Item) error {
	if err := s.adoptRegions(items); err != nil { // first, because maps can be regions
		return err
	}
	kept := make(map[id.Handle]*keep.Item)
	for _, item := range items {
		if number, ok := strings.CutPrefix(item.Name, keptExtensions); ok {
			handle, err := strconv.ParseUint(number, 10, 32)
			if err != nil {
				return fmt.Errorf("adopt %s: the name has no extension handle", item.Name)
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
		return fmt.Errorf("adopt %s: %d files, want %d", item.Name, len(item.Files), 1+len(w.Maps))
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
