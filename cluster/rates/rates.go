// Package rates turns two looks at what nodes have done so far into what they do.
package rates

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"margay/cluster/control"
)

// View is what the machine did in some time. All rates are per second.
type View struct {
	Seconds    float64     `json:"seconds"`   // the time, as the first node's clock has it
	Recording  []uint32    `json:"recording"` // nodes whose events are being recorded
	Trouble    string      `json:"trouble"`   // why nodes are not there
	Cores      []Core      `json:"cores"`
	Extensions []Extension `json:"extensions"`
}

// Core is an application core.
type Core struct {
	Node       uint32  `json:"node"`
	Core       uint32  `json:"core"`
	Shared     bool    `json:"shared"` // with other work than this node's; its interrupts are counted as well
	Interrupts float64 `json:"interrupts"`
	Turns      float64 `json:"turns"`   // times that the scheduler gave it to another rank
	Rescues    uint64  `json:"rescues"` // ranks that had waited for too long, since the node kernel was started
	Ranks      []Rank  `json:"ranks"`   // those that have it, the one that uses most of it first
}

// Rank is a process.
type Rank struct {
	Job         uint32  `json:"job"`
	Rank        uint32  `json:"rank"`
	PID         int64   `json:"pid"` // on its node
	Threads     uint32  `json:"threads"`
	Why         string  `json:"why"`         // why it has the core; empty: unknown
	CPU         float64 `json:"cpu_percent"` // of a core
	Voluntary   float64 `json:"voluntary_switches"`
	Involuntary float64 `json:"involuntary_switches"`
	Sent        float64 `json:"messages_sent"`
	Arrived     float64 `json:"messages_arrived"`
	Further     bool    `json:"further"` // this is not its first core, which has its figures
	Hidden      bool    `json:"hidden"`  // it is of a user whose figures the caller may not see
}

// Extension is an extension in a slot.
type Extension struct {
	Node   uint32  `json:"node"`
	Handle uint32  `json:"handle"`
	Job    uint32  `json:"job"` // 0: the machine's own
	Slot   string  `json:"slot"`
	Name   string  `json:"name"`
	Runs   float64 `json:"runs"`
	Time   float64 `json:"ns_per_run"`
	Faults uint64  `json:"faults"` // since its insertion
}

type rankKey struct{ job, rank uint32 }

// Between returns the rates between two samples. A node that is not in both is omitted; a process
// that is not in both has no rates yet.
func Between(before, after *control.Samples) *View {
	v := &View{Trouble: after.Trouble, Recording: []uint32{}, Cores: []Core{}, Extensions: []Extension{}}
	for _, now := range after.Nodes {
		at := slices.IndexFunc(before.Nodes, func(n *control.NodeSample) bool { return n.Node == now.Node })
		if at < 0 || before.Nodes[at].TimeNs < 0 || now.TimeNs <= before.Nodes[at].TimeNs {
			v.Trouble = strings.TrimPrefix(fmt.Sprintf("%s\nnode%d: it gave no figures at the first of the two looks", v.Trouble, now.Node), "\n")
			continue
		}
		n := node{was: before.Nodes[at], is: now, seconds: time.Duration(now.TimeNs - before.Nodes[at].TimeNs).Seconds()}
		v.Seconds = cmp.Or(v.Seconds, n.seconds)
		if now.Recording {
			v.Recording = append(v.Recording, now.Node)
		}
		n.cores(v)
		n.extensions(v)
	}
	return v
}

// node is two looks at a node.
type node struct {
	was, is *control.NodeSample
	seconds float64
}

// rate is the growth of a counter per second. A counter that is smaller than before has restarted.
func (n *node) rate(was, is uint64) float64 {
	if is < was {
		was = 0
	}
	return float64(is-was) / n.seconds
}

func (n *node) cores(v *View) {
	was := make(map[uint32]*control.CoreSample)
	for _, c := range n.was.Cores {
		was[c.Core] = c
	}
	had := make(map[rankKey]*control.RankSample)
	for _, r := range n.was.Ranks {
		had[rankKey{r.Job, r.Rank}] = r
	}
	for _, c := range n.is.Cores {
		core := Core{Node: n.is.Node, Core: c.Core, Shared: c.Shared, Rescues: c.Rescues, Ranks: []Rank{}}
		if was := was[c.Core]; was != nil {
			core.Interrupts, core.Turns = n.rate(was.Interrupts, c.Interrupts), n.rate(was.Switches, c.Switches)
		}
		for _, r := range n.is.Ranks {
			if r.Core == c.Core {
				core.Ranks = append(core.Ranks, n.rank(had[rankKey{r.Job, r.Rank}], r))
			}
			if slices.Contains(r.More, c.Core) {
				core.Ranks = append(core.Ranks, Rank{Job: r.Job, Rank: r.Rank, PID: r.Pid, Further: true, Hidden: r.Pid == 0, Why: fmt.Sprintf("see core %d", r.Core)})
			}
		}
		slices.SortStableFunc(core.Ranks, func(a, b Rank) int { return cmp.Compare(b.CPU, a.CPU) })
		v.Cores = append(v.Cores, core)
	}
}

func (n *node) rank(was, is *control.RankSample) Rank {
	if is.Pid == 0 { // serve leaves the place only
		return Rank{Job: is.Job, Rank: is.Rank, Hidden: true, Why: "of another user"}
	}
	r := Rank{Job: is.Job, Rank: is.Rank, PID: is.Pid, Threads: is.Threads, Why: is.Why}
	if was == nil || was.Pid != is.Pid {
		return r
	}
	r.CPU = 100 * n.rate(uint64(was.CpuNs), uint64(is.CpuNs)) / 1e9
	r.Voluntary, r.Involuntary = n.rate(was.Voluntary, is.Voluntary), n.rate(was.Involuntary, is.Involuntary)
	r.Sent, r.Arrived = n.rate(was.Sent, is.Sent), n.rate(was.Arrived, is.Arrived)
	return r
}

func (n *node) extensions(v *View) {
	had := make(map[uint32]*control.ExtensionState)
	for _, x := range n.was.Extensions {
		had[x.Handle] = x
	}
	for _, x := range n.is.Extensions {
		e := Extension{Node: n.is.Node, Handle: x.Handle, Job: x.Job, Slot: x.Slot, Name: x.Name, Faults: x.Faults}
		if x.Runs > 0 {
			e.Time = float64(x.TimeNs) / float64(x.Runs)
		}
		if was := had[x.Handle]; was != nil {
			e.Runs = n.rate(was.Runs, x.Runs)
		}
		v.Extensions = append(v.Extensions, e)
	}
}

// Totals are sums over the machine.
type Totals struct {
	Nodes, Cores, Busy int     // busy cores have a rank
	Sent, Arrived      float64 // messages a second
	Runs               float64 // of extensions, a second
}

// Totals sums up.
func (v *View) Totals() (t Totals) {
	nodes := make(map[uint32]bool)
	for _, c := range v.Cores {
		nodes[c.Node] = true
		t.Cores++
		if len(c.Ranks) > 0 {
			t.Busy++
		}
		for _, r := range c.Ranks {
			t.Sent += r.Sent
			t.Arrived += r.Arrived
		}
	}
	for _, x := range v.Extensions {
		t.Runs += x.Runs
	}
	t.Nodes = len(nodes)
	return t
}

// Order says by what cores are sorted.
type Order string

// The orders. All but ByCore have the greatest first.
const (
	ByCore       Order = "core"
	ByCPU        Order = "cpu"
	ByMessages   Order = "messages"
	BySwitches   Order = "switches"
	ByInterrupts Order = "interrupts"
)

// Orders are all of them.
var Orders = []Order{ByCore, ByCPU, ByMessages, BySwitches, ByInterrupts}

// Sort sorts the cores by a key; equal ones stay in the order of their numbers.
func (v *View) Sort(by Order) {
	key := func(c Core) (sum float64) {
		if by == ByInterrupts {
			return c.Interrupts
		}
		for _, r := range c.Ranks {
			switch by {
			case ByCPU:
				sum += r.CPU
			case ByMessages:
				sum += r.Sent + r.Arrived
			case BySwitches:
				sum += r.Voluntary + r.Involuntary
			}
		}
		return sum
	}
	slices.SortStableFunc(v.Cores, func(a, b Core) int {
		return cmp.Or(cmp.Compare(key(b), key(a)), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Core, b.Core))
	})
}
