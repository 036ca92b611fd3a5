package extension

import (
	"fmt"

	"margay/nimble/memory"
)

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

// AdoptRegion adds a region that a previous node kernel made.
func (s *Set) AdoptRegion(name string, p Place, m *memory.Memory) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p < 0 || p >= MaxRegions {
		return fmt.Errorf("region %q: it has no place %d", name, p)
	}
	s.regions[name], s.places[name] = m, p
	s.used += int64(len(m.Bytes()))
	return nil
}
