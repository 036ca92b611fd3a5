package kernel

import (
	"os"
	"strings"

	"margay/kernel/abi/id"
	"margay/kernel/abi/layout"
	"margay/kernel/hardware"
	"margay/kernel/message"
	"margay/kernel/task/spare"
)

// crowd finds the ranks of the same job on other nodes that share CPUs with the ranks on this node.
// All hosted nodes of one host have the same CPUs, assigned by node number, so a hosted node knows
// where the ranks of the others run. It looks no further than the answer needs: each of a thousand
// nodes has a thousand others.
func (n *Node) crowd(s JobSpec) message.Crowd {
	c := crowd{self: n.config.Boot.Node, cpus: make(map[id.CPU]*occupied), grouped: groups()}
	for p := range s.Layout.On(c.self) {
		c.add(p.Node, n.cpusOf(p))
	}
	if n.ownLinux() || n.config.Boot.Host != "" {
		return c.of()
	}
	for p := range s.Layout.All() {
		if c.settled() {
			break
		}
		if p.Node != c.self {
			c.add(p.Node, n.cpusOf(p))
		}
	}
	return c.of()
}

// restOf returns how long this node waits, for the sake of the job's other nodes on the same host,
// before it prepares for the next job.
func (n *Node) restOf(s JobSpec) spare.Rest {
	place, ok := s.Layout.PlaceOf(n.config.Boot.Node)
	if !ok || n.ownLinux() || n.config.Boot.Host != "" {
		return spare.Rest{}
	}
	return spare.RestOf(place, s.Layout.Nodes(), max(1, len(n.allowed)))
}

// cpusOf returns the CPUs of the cores of a rank, which is on this node or on another hosted one.
func (n *Node) cpusOf(p layout.Place) (cpus []id.CPU) {
	for _, core := range p.Cores() {
		switch {
		case p.Node != n.config.Boot.Node:
			cpus = append(cpus, hardware.Slot(n.allowed, n.config.Boot.Cores, p.Node, core))
		case int(core) < len(n.cores): // taskSpec refuses others
			cpus = append(cpus, n.cores[core].CPU)
		}
	}
	return cpus
}

// groups reports whether Linux schedules each session as a group. If so, yielding does not help the
// ranks of other nodes.
func groups() bool {
	text, err := os.ReadFile("/proc/sys/kernel/sched_autogroup_enabled")
	return err == nil && strings.TrimSpace(string(text)) != "0"
}

// crowd holds the CPUs of a job's ranks.
type crowd struct {
	self    id.Node
	cpus    map[id.CPU]*occupied
	grouped bool
}

// occupied is a CPU that ranks have.
type occupied struct {
	load  float64 // ranks that have it, where each is spread evenly over its CPUs
	nodes map[id.Node]bool
}

// add adds a rank with its CPUs, which may name one several times.
func (c *crowd) add(node id.Node, cpus []id.CPU) {
	for _, cpu := range cpus {
		o := c.cpus[cpu]
		if o == nil {
			o = &occupied{nodes: make(map[id.Node]bool)}
			c.cpus[cpu] = o
		}
		o.load += 1 / float64(len(cpus))
		o.nodes[node] = true
	}
}

// settled reports whether no further rank changes the crowd.
func (c *crowd) settled() bool {
	now := c.of()
	return now == message.Strewn || now == message.Together && !c.grouped
}

// of returns the crowd of this node's ranks.
func (c *crowd) of() (all message.Crowd) {
	const most = 1.001 // 1, but for rounding
	for _, o := range c.cpus {
		if !o.nodes[c.self] || o.load <= most {
			continue
		}
		if len(o.nodes) > 1 && c.grouped {
			return message.Strewn
		}
		all = message.Together
	}
	return all
}
