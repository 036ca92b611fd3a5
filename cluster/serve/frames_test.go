package serve

import (
	"testing"
	"testing/synctest"

	"margay/cluster/control"
)

// What the connections of a user bring at a time is bounded in all. Small frames and other users do
// not wait.
func TestFrames(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1, letsIn(t))
		inlets := make([]*inlet, 3)
		for i := range inlets {
			inlets[i] = &inlet{frames: m.server.framesOf(7001), context: t.Context()}
		}
		for _, i := range inlets[:2] {
			if err := i.Enter(control.MaxFrame); err != nil {
				t.Fatal(err)
			}
		}
		entered := make(chan error, 1)
		go func() { entered <- inlets[2].Enter(control.MaxFrame) }()
		synctest.Wait()
		if len(entered) > 0 {
			t.Error("there is room for a third frame")
		}
		for _, i := range []*inlet{{frames: m.server.framesOf(7002), context: t.Context()}, {frames: inlets[0].frames, context: t.Context()}} {
			size := control.MaxFrame
			if i.frames == inlets[0].frames {
				size = smallFrame
			}
			if err := i.Enter(size); err != nil {
				t.Error(err)
			}
			i.Leave(size)
		}
		inlets[0].Leave(control.MaxFrame)
		if err := <-entered; err != nil {
			t.Error(err)
		}
	})
}
