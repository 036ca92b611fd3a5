package revival

import (
	"testing"
	"time"
)

// A process that keeps ending is started less and less often. One that was killed after it had
// worked for a while is back at once, however often that happens.
func TestPauses(t *testing.T) {
	p := Pauses{First: 50 * time.Millisecond, Last: 300 * time.Millisecond}
	for i, c := range []struct{ ran, pause time.Duration }{
		{0, 50}, {0, 100}, {300, 200}, {0, 300}, {300, 300}, {301, 50}, {0, 100}, {3000, 50}, {3000, 50},
	} {
		if got := p.After(c.ran * time.Millisecond); got != c.pause*time.Millisecond {
			t.Errorf("pause %d, after %d ms: %v, want %d ms", i, c.ran, got, c.pause)
		}
	}
}
