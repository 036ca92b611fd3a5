//go:build guest && soak

package linux

import "testing"

// TestManyRandom is TestRandom on more programs.
func TestManyRandom(t *testing.T) { testRandom(t, 1500) }
