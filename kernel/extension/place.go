package extension

import (
	"fmt"

	"margay/nimble/memory"
)

// Where a job's ranks map regions that they want at the same address. That is far from where Linux, C libraries and the Go
// runtime put anything on the processors that Margay knows; the i-th region has the i-th piece, large enough for any.
const (
	firstRegion = 1 << 44
	regionRoom  = memory.MaxSize
)

// Place is the number of a region among those of its job on this node. It stays what it is when the node kernel is started again.
type Place int

// Address is where ranks that want the region at the same address map it.
func (p Place) Address() uint64 { return firstRegion + uint64(p)*regionRoom }

// PlaceOf returns the place of a region that is there.
func (s *Set) PlaceOf(name string) Place {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.places[name]
}

// place gives a region a place that no other has. The caller holds the lock.
func (s *Set) place(name string) {
	next := Place(0)
	for _, p := range s.places {
		next = max(next, p+1)
	}
	s.places[name] = next
}

// AdoptRegion takes up a region that a node kernel before this one had made.
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
