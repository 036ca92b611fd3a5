package observe_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"margay/cluster/control"
	"margay/tools/margay/margaytest"
	"margay/tools/margay/show"
)

// margay top --once leaves out columns on a terminal that is too narrow for them.
func TestTopOnceFitsTerminal(t *testing.T) {
	var looked atomic.Uint64
	margaytest.Play(t, "m", func(c *control.Conn, f *control.Frame) {
		looks := looked.Add(1)
		sample := &control.NodeSample{TimeNs: int64(looks) * 1e9, Cores: []*control.CoreSample{{Core: 1, Interrupts: looks * 1e9}}}
		for i := range uint32(3) {
			sample.Ranks = append(sample.Ranks, &control.RankSample{Job: 123456, Rank: i, Core: 1, Pid: 1234567, Why: "weighted: its turn"})
		}
		c.Answer(f, &control.Samples{Nodes: []*control.NodeSample{sample}}, nil)
	})
	text := margaytest.Shown(t, "top", "--once", "--interval=200ms")
	if n := show.Widest(strings.Split(text, "\n")); n > 80 || !strings.Contains(text, "CPU%") {
		t.Errorf("%d columns:\n%s", n, text)
	}
	if _, stdout, _ := margaytest.Margay("", "top", "--once", "--interval=200ms"); show.Widest(strings.Split(stdout, "\n")) <= 80 {
		t.Errorf("elsewhere:\n%s", stdout)
	}
}

// What looks at a machine twice does not wait for the second look when the machine goes down.
func TestIntervalOfMachineGoingDown(t *testing.T) {
	for _, command := range []string{"top --once --interval 1h", "top --interval 1h", "ext stats --interval 1h"} {
		t.Run(command, func(t *testing.T) {
			m := margaytest.Play(t, "m", func(c *control.Conn, f *control.Frame) {
				switch f.Message().(type) {
				case *control.TakeSamples:
					c.Answer(f, &control.Samples{}, nil)
				case *control.ListExtensions:
					c.Answer(f, &control.Extensions{}, nil)
				}
			})
			p := margaytest.Shell(t, `exec "$0" `+command).Begin()
			for deadline := time.Now().Add(margaytest.Patience); m.Connected() < 2; time.Sleep(time.Millisecond) { // the second one waits
				if time.Now().After(deadline) {
					t.Fatal("nothing waits for the end of the machine")
				}
			}
			m.Down()
			margaytest.Wants(t, p.Status(), 125, p.Err.String(), "margay: the machine goes down\n")
		})
	}
}
