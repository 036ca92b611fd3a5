package ext_test

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"margay/cluster/control"
	"margay/tools/margay/margaytest"
)

// A log that is followed goes on when its node is back, and ends when it cannot be written.
func TestFollowLog(t *testing.T) {
	var asked atomic.Int32
	margaytest.Play(t, "m", func(c *control.Conn, f *control.Frame) {
		n := asked.Add(1)
		if n == 2 || n == 3 {
			c.Answer(f, nil, control.Failf(control.Code_CODE_NODE_LOST, "node1 is away"))
			return
		}
		note := &control.ExtensionNote{Node: 1, Seq: uint64(n), Text: fmt.Sprintf("after %d", f.Message().(*control.ExtensionLog).After[1])}
		c.Answer(f, &control.ExtensionNotes{Notes: []*control.ExtensionNote{note}}, nil)
	})
	stdout := &fullAfter{writes: 2}
	var stderr bytes.Buffer
	status := margaytest.Run(t.Context(), []string{"ext", "log", "--follow"}, strings.NewReader(""), stdout, &stderr)
	margaytest.Wants(t, status, 125, stderr.String(), margaytest.ErrFull.Error())
	if text := stderr.String(); strings.Count(text, "node1 is away: asking again") != 1 {
		t.Errorf("it says %q", text)
	}
	if text := stdout.String(); strings.Count(text, "\n") != 2 || !strings.HasSuffix(text, "after 1\n") {
		t.Errorf("it prints %q", text)
	}
}

// A log that is followed ends with the machine, which is not asked again.
func TestFollowLogOfMachineGoingDown(t *testing.T) {
	var asked atomic.Int32
	margaytest.Play(t, "m", func(c *control.Conn, f *control.Frame) {
		if asked.Add(1) == 2 {
			c.Answer(f, nil, control.Failf(control.Code_CODE_DOWN, "the machine goes down"))
			return
		}
		c.Answer(f, &control.ExtensionNotes{Notes: []*control.ExtensionNote{{Seq: 1}}}, nil)
	})
	var stderr bytes.Buffer
	status := margaytest.Run(t.Context(), []string{"ext", "log", "--follow"}, strings.NewReader(""), &fullAfter{writes: 1}, &stderr)
	if text := stderr.String(); status != 125 || text != "margay: the machine goes down\n" {
		t.Errorf("status %d, it says %q", status, text)
	}
}

// fullAfter is a file on a disk that has room for some writes.
type fullAfter struct {
	bytes.Buffer
	writes int
}

func (f *fullAfter) Write(text []byte) (int, error) {
	if f.writes--; f.writes < 0 {
		return margaytest.Full{}.Write(text)
	}
	return f.Buffer.Write(text)
}

// The extensions of the allocator are named after serve, and not after a node.
func TestAllocator(t *testing.T) {
	margaytest.Play(t, "m", func(c *control.Conn, f *control.Frame) {
		switch m := f.Message().(type) {
		case *control.ListExtensions:
			c.Answer(f, &control.Extensions{Extensions: []*control.ExtensionState{
				{Node: 1, Handle: 3, Slot: "sched", Name: "edf", State: "active", LastFault: "one"},
				{Node: control.Allocator, Handle: 4, Slot: "place", Name: "pack", State: "active", LastFault: "another"},
			}}, nil)
		case *control.ExtensionLog:
			c.Answer(f, &control.ExtensionNotes{Notes: []*control.ExtensionNote{
				{Node: control.Allocator, Seq: 1, Handle: 4, Name: "pack", Text: "inserted"}, {Node: control.Allocator, Seq: 2, Text: "too many"}, {Node: 1, Seq: 3, Text: "too many"},
			}}, nil)
		case *control.RemoveExtension:
			if m.Node != control.Allocator || m.Handle != 4 {
				c.Answer(f, nil, control.Failf(control.Code_CODE_NOT_FOUND, "asked for %v", m))
				return
			}
			c.Answer(f, &control.Done{}, nil)
		}
	})
	for line, want := range map[string]string{
		"ext list": "(?s)\n1.3 .*\nserve.4 +machine +place +pack .*\n1.3: last fault: one\nserve.4: last fault: another\n", "ext log": "machine serve.4 \\(pack\\): inserted\n.* machine serve: too many\n.* machine node1: too many\n$",
		"ext remove serve.4": "^$",
	} {
		var stdout, stderr bytes.Buffer
		if status := margaytest.Run(t.Context(), strings.Fields(line), strings.NewReader(""), &stdout, &stderr); status != 0 || !regexp.MustCompile(want).MatchString(stdout.String()) {
			t.Errorf("%s: status %d, %s%s", line, status, stdout.String(), stderr.String())
		}
	}
	for _, wrong := range []string{"serve", "serve.x", "serve.-1", "server.4"} {
		var stderr bytes.Buffer
		if status := margaytest.Run(t.Context(), []string{"ext", "remove", wrong}, strings.NewReader(""), &stderr, &stderr); status == 0 {
			t.Errorf("ext remove %s: %s", wrong, stderr.String())
		}
	}
}
