package observe_test

import (
	"fmt"
	"strings"
	"testing"

	"margay/cluster/control"
	"margay/tools/margay/margaytest"
)

// Ctrl-Z gives the terminal back before the shell has it, and fg brings the screen back. So does fg
// after a stop that nothing can see.
func TestTopStops(t *testing.T) {
	const enter, leave = "\x1b[?1049h", "\x1b[?25h\x1b[?1049l"
	looks := int64(0)
	margaytest.Play(t, "m", func(c *control.Conn, f *control.Frame) {
		looks++
		c.Answer(f, &control.Samples{Nodes: []*control.NodeSample{{TimeNs: looks * 1e9, Cores: []*control.CoreSample{{Core: 1}}}}}, nil)
	})
	x := margaytest.OnTerminal(t)
	x.Press("$margay top --interval 100ms; echo status $?\n")
	x.Await(enter)
	x.Await("1 cores busy")
	for round := range 5 {
		before := len(x.Text())
		x.Press(margaytest.CtrlZ)
		x.Await(leave)
		x.Await("Stopped")
		x.Press(fmt.Sprintf("stty -a | grep -c ' icanon.* echo ' ; echo lines $((%d + 1))\n", round))
		x.Await(fmt.Sprintf("\nlines %d", round+1))
		if text := x.Text()[before:]; strings.Contains(text, enter) || strings.LastIndex(text, "cores busy") > strings.Index(text, leave) {
			t.Fatalf("stopped, it draws on: %q", text)
		}
		x.Press("fg\n")
		x.Await(enter)
		x.Await("1 cores busy")
	}
	x.Press(margaytest.CtrlZ)
	x.Await("Stopped")
	x.Press("bg; kill -STOP %1; echo in the background\n")
	x.Await("\nin the background")
	x.Press("fg\n")
	x.Await(enter)
	x.Await("1 cores busy")
	x.Press("q")
	x.Await(leave)
	x.Await("$ ")
	x.Press("echo over\n")
	x.Await("\nover")
}
