package kernel

import (
	"net/netip"
	"testing"

	"margay/kernel/abi/id"
	"margay/kernel/abi/layout"
	"margay/kernel/abi/node"
	"margay/kernel/hardware"
	"margay/kernel/message"
)

func TestCrowd(t *testing.T) {
	type rank struct {
		node id.Node
		cpus []id.CPU
	}
	for name, c := range map[string]struct {
		ranks []rank
		alone bool // Linux does not group sessions
		want  message.Crowd
	}{
		"none here":           {[]rank{{2, []id.CPU{0}}, {2, []id.CPU{0}}}, false, message.Apart},
		"one each":            {[]rank{{1, []id.CPU{0}}, {1, []id.CPU{1}}}, false, message.Apart},
		"two on one":          {[]rank{{1, []id.CPU{0}}, {1, []id.CPU{0}}}, false, message.Together},
		"beside another node": {[]rank{{1, []id.CPU{0}}, {2, []id.CPU{0}}}, false, message.Strewn},
		"without groups":      {[]rank{{1, []id.CPU{0}}, {2, []id.CPU{0}}}, true, message.Together},
		"others' crowd":       {[]rank{{1, []id.CPU{0}}, {2, []id.CPU{1}}, {3, []id.CPU{1}}}, false, message.Apart},
		"wide":                {[]rank{{1, []id.CPU{0, 1, 2}}, {1, []id.CPU{3, 4, 5}}}, false, message.Apart},
		"two on two":          {[]rank{{1, []id.CPU{0, 1}}, {1, []id.CPU{1, 0}}}, false, message.Apart},
		"three on three":      {[]rank{{1, []id.CPU{0, 1, 2}}, {1, []id.CPU{0, 1, 2}}, {1, []id.CPU{0, 1, 2}}}, false, message.Apart},
		"three on two":        {[]rank{{1, []id.CPU{0, 1}}, {1, []id.CPU{0, 1}}, {1, []id.CPU{0, 1}}}, false, message.Together},
		"slots go round":      {[]rank{{1, []id.CPU{0, 1, 0, 1}}}, false, message.Apart},
	} {
		crowd := crowd{self: 1, cpus: make(map[id.CPU]*occupied), grouped: !c.alone}
		for _, r := range c.ranks {
			crowd.add(r.node, r.cpus)
		}
		if got := crowd.of(); got != c.want {
			t.Errorf("%s: crowd %d, want %d", name, got, c.want)
		}
	}
}

// Hosted nodes of one host share its CPUs; nodes of different hosts share none.
func TestCrowdOfHosts(t *testing.T) {
	for host, alone := range map[string]bool{"": false, "a": true} {
		boot := node.Config{Substrate: node.Hosted, Node: 1, Cores: 1, Host: host}
		n := &Node{config: Config{Boot: boot}, allowed: []id.CPU{0}, cores: hardware.Slots([]id.CPU{0}, 1, 1)}
		s := JobSpec{Layout: laidOut(t, layout.Place{Rank: 0, Node: 1, Core: 1}, layout.Place{Rank: 1, Node: 2, Core: 1})}
		if got := n.crowd(s); (got == message.Apart) != alone {
			t.Errorf("host %q: crowd %d", host, got)
		}
	}
}

// A node of a thousand looks at a few ranks of the others.
func TestCrowdOfThousand(t *testing.T) {
	const nodes = 1000
	var places []layout.Place
	for node := range id.Node(nodes) {
		places = append(places, layout.Place{Rank: id.Rank(node), Node: node, Core: 1})
	}
	s := JobSpec{Layout: laidOut(t, places...)}
	n := &Node{config: Config{Boot: node.Config{Substrate: node.Hosted, Node: 700, Cores: 1}}, allowed: []id.CPU{0, 1, 2, 3}}
	n.cores = hardware.Slots(n.allowed, 1, 700)
	if n.crowd(s) == message.Apart {
		t.Error("its ranks are alone")
	}
	if allocations := testing.AllocsPerRun(10, func() { n.crowd(s) }); allocations > 100 {
		t.Errorf("it takes %v allocations", allocations)
	}
}

// laidOut is the layout of a job with these places, on nodes without addresses.
func laidOut(t testing.TB, places ...layout.Place) layout.Layout {
	t.Helper()
	return laidOutAt(t, func(id.Node) netip.AddrPort { return netip.AddrPort{} }, places...)
}

// laidOutAt is laidOut on nodes with addresses.
func laidOutAt(t testing.TB, address func(id.Node) netip.AddrPort, places ...layout.Place) layout.Layout {
	t.Helper()
	l, err := layout.Condense(places, address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
