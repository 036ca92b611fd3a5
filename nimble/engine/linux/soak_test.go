//go:build guest && soak

package linux

import "testing"

// TestManyRandom is TestRandom on more programs.
func TestManyRandom(t *testing.T) { testRandom(t, 1500) }

// TestAllFacts is TestFacts on all facts.
func TestAllFacts(t *testing.T) { testFacts(t, allFacts(t), 2000, 100) }
