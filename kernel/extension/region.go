package extension

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"margay/kernel/keep"
	"margay/nimble/memory"
)

// keptRegions and the name of a region form the name of its item, whose metadata is its Place.
const keptRegions = "region/"

// RegionItem returns the name of the item that keeps a region.
func RegionItem(name string) string { return keptRegions + name }

// Address range in which a job's ranks map regions that they want at the same address. It is far
// from the mappings of Linux, C libraries and the Go runtime on the processors that Margay knows.
// Each region has a piece of regionRoom bytes, large enough for any.
const (
	firstRegion = 1 << 44
	regionRoom  = memory.MaxSize
)

// Place is the number of a region among the regions of its job on this node. It stays the same when
// the node kernel restarts.
type Place int

// Address returns the address at which ranks map the region if they want it at the same address.
func (p Place) Address() uint64 { return firstRegion + uint64(p)*regionRoom }

// PlaceOf returns the place of an existing region.
func (s *Set) PlaceOf(name string) Place {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.places[name]
}

// place assigns a region an unused place. The caller holds Set.mu.
func (s *Set) place(name string) {
	next := Place(0)
	for _, p := range s.places {
		next = max(next, p+1)
	}
	s.places[name] = next
}

// Region returns the job's region with this name. If there is none, it makes one of size bytes and
// stores it with the keeper, or for size 0 returns an error that wraps ErrNotFound.
func (s *Set) Region(name string, size uint64) (*memory.Memory, error) {
	s.mu.Lock()
	keeper := s.keeper
	m, item, err := s.region(name, size)
	s.mu.Unlock()
	if item != nil {
		defer item.CloseFiles()
		err = keeper.Keep(*item)
	}
	return m, err
}

// region also returns the item of a region that it has made, if there is a keeper. The caller holds
// Set.mu, and closes the files of the item.
func (s *Set) region(name string, size uint64) (m *memory.Memory, item *keep.Item, err error) {
	if m := s.regions[name]; m != nil {
		if size > uint64(len(m.Bytes())) {
			return nil, nil, fmt.Errorf("region %q has %d bytes, not %d", name, len(m.Bytes()), size)
		}
		return m, nil, nil
	}
	switch {
	case size == 0:
		return nil, nil, fmt.Errorf("region %q: %w", name, ErrNotFound)
	case name == "" || s.closed || len(s.regions) >= MaxRegions:
		return nil, nil, fmt.Errorf("region %q: %w: a job has at most %d regions on a node, each with a name", name, ErrNoRoom, MaxRegions)
	case size > uint64(max(0, s.budget-s.used)):
		return nil, nil, fmt.Errorf("region %q: %w: %d bytes asked for, %d are left", name, ErrNoRoom, size, s.budget-s.used)
	}
	if m, err = memory.Create(name, int(size)); err != nil {
		return nil, nil, err
	}
	s.regions[name] = m
	s.place(name)
	s.used += int64(size)
	if s.keeper != nil {
		item, err = regionItem(name, m, s.places[name])
	}
	return m, item, err
}

// regionItem makes the item of a region.
func regionItem(name string, m *memory.Memory, p Place) (*keep.Item, error) {
	words, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	f, err := keep.File(m)
	if err != nil {
		return nil, err
	}
	return &keep.Item{Name: RegionItem(name), Words: words, Files: []*os.File{f}}, nil
}

// adoptRegions adds the regions among the items of a previous node kernel.
func (s *Set) adoptRegions(items []*keep.Item) error {
	for _, item := range items {
		name, ok := strings.CutPrefix(item.Name, keptRegions)
		if !ok {
			continue
		}
		m, err := item.Memory(0, -1)
		if err != nil {
			return err
		}
		var p Place
		if err = json.Unmarshal(item.Words, &p); err != nil {
			err = fmt.Errorf("%s: its place: %w", item.Name, err)
		} else {
			err = s.adoptRegion(name, p, m)
		}
		if err != nil {
			m.Close()
			return err
		}
	}
	return nil
}

// adoptRegion adds a region that a previous node kernel made.
func (s *Set) adoptRegion(name string, p Place, m *memory.Memory) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p < 0 || p >= MaxRegions {
		return fmt.Errorf("region %q: place %d is out of range", name, p)
	}
	s.regions[name], s.places[name] = m, p
	s.used += int64(len(m.Bytes()))
	return nil
}
