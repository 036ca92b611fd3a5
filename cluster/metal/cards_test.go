package metal_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"margay/cluster/boot"
	"margay/cluster/metal"
	"margay/internal/check"
	"margay/internal/uuid"
	"margay/kernel/abi/id"
)

func plan(server, addresses string) metal.Plan {
	return metal.Plan{Server: netip.MustParsePrefix(server), Range: netip.MustParsePrefix(addresses)}
}

func TestPlan(t *testing.T) {
	for _, c := range []struct {
		server, addresses string
		nodes, guests     int
		first, last       string // of nodes
		broadcast         string
	}{
		{"10.8.0.1/24", "10.8.0.0/24", 190, 63, "10.8.0.2/24", "10.8.0.191/24", "10.8.0.255"},
		{"10.8.0.3/28", "10.8.0.0/28", 10, 3, "10.8.0.1/28", "10.8.0.11/28", "10.8.0.15"},
		{"10.8.0.1/16", "10.8.4.0/28", 11, 3, "10.8.4.1/16", "10.8.4.11/16", "10.8.255.255"},
		{"10.8.0.1/16", "10.8.0.0/16", 1000, 64, "10.8.0.2/16", "10.8.3.233/16", "10.8.255.255"},
	} {
		p := plan(c.server, c.addresses)
		if err := p.Check(); err != nil || p.Nodes() != c.nodes || p.Guests() != c.guests || p.Broadcast().String() != c.broadcast {
			t.Errorf("%v: %d nodes, %d guests, all of them at %v, %v", p, p.Nodes(), p.Guests(), p.Broadcast(), err)
		}
		seen := map[netip.Addr]bool{p.Server.Addr(): true}
		for n := range id.Node(p.Nodes()) {
			a, ok := p.Node(n)
			if !ok || seen[a.Addr()] || !p.Range.Contains(a.Addr()) {
				t.Errorf("%v: node%d has %v", p, n, a)
			}
			if of, ok := p.Number(a.Addr()); of != n || !ok {
				t.Errorf("%v: %v is of node%d, %v, not of node%d", p, a, of, ok, n)
			}
			seen[a.Addr()] = true
		}
		first, _ := p.Node(0)
		last, _ := p.Node(id.Node(c.nodes - 1))
		if first.String() != c.first || last.String() != c.last {
			t.Errorf("%v: from %v to %v", p, first, last)
		}
		if a, ok := p.Node(id.Node(c.nodes)); ok {
			t.Errorf("%v: one node too many has %v", p, a)
		}
		after := netip.MustParsePrefix(c.last).Addr().Next()
		for _, a := range []netip.Addr{p.Server.Addr(), p.Range.Addr(), after, netip.MustParseAddr("10.9.0.2"), netip.MustParseAddr("fd00::2"), {}} {
			if n, ok := p.Number(a); ok {
				t.Errorf("%v: %v is of node%d", p, a, n)
			}
		}
	}
	for _, bad := range []metal.Plan{
		{}, plan("10.8.0.1/24", "10.9.0.0/24"), plan("10.8.0.1/24", "10.8.0.0/16"), plan("10.8.0.1/30", "10.8.0.0/30"), plan("10.8.0.1/24", "10.8.0.1/24"),
		plan("10.8.0.1/8", "10.0.0.0/8"), plan("fd00::1/64", "fd00::/64"),
	} {
		if bad.Check() == nil {
			t.Errorf("%v is accepted", bad)
		}
	}
}

func mac(n int) boot.MAC { return boot.MAC{0x52, 0x54, 0, 0, byte(n >> 8), byte(n)} }

// A flood of requests takes the places of guests, and nothing from nodes. A place is free again
// after a while, and at once for a guest that is made a node.
func TestStarvation(t *testing.T) {
	p := plan("10.8.0.1/28", "10.8.0.0/28")
	cards, err := metal.NewCards(p, []metal.Card{{Node: 4, MAC: mac(0).String()}})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for i := 1; i < 10000; i++ {
		address, _, err := cards.Ask(now, mac(i), uuid.ID{})
		if i <= p.Guests() != (err == nil) || err != nil && !errors.Is(err, metal.ErrFull) {
			t.Fatalf("guest %d gets %v, %v", i, address, err)
		}
	}
	if len(cards.Guests()) != 0 {
		t.Errorf("guests %v have not fetched a script", cards.Guests())
	}
	cards.Met(now, mac(1))
	if err := cards.Join(mac(1), 0); err != nil {
		t.Fatal(err)
	}
	if _, _, err := cards.Ask(now, mac(20000), uuid.ID{}); err != nil {
		t.Errorf("after a guest has become a node: %v", err)
	}
	if _, gone, err := cards.Ask(now.Add(2*time.Minute), mac(20001), uuid.ID{}); err != nil || len(gone) != p.Guests() {
		t.Errorf("after a while: %v, %v", gone, err)
	}
	if _, ok := cards.Node(mac(0)); !ok {
		t.Error("the node has no card any more")
	}
	for n := id.Node(0); int(n) < p.Nodes(); n++ {
		if err := cards.Join(mac(100+int(n)), n); (n == 0 || n == 4) != (err != nil) {
			t.Errorf("node%d: %v", n, err)
		}
	}
	if err := cards.Join(mac(999), id.Node(p.Nodes())); !errors.Is(err, metal.ErrFull) {
		t.Errorf("a node without an address: %v", err)
	}
}

func TestCardsRefuse(t *testing.T) {
	p := plan("10.8.0.1/28", "10.8.0.0/28")
	for name, all := range map[string][]metal.Card{
		"not a MAC":     {{Node: 0, MAC: "52:54"}},
		"a group":       {{Node: 0, MAC: "ff:ff:ff:ff:ff:ff"}},
		"the same card": {{Node: 0, MAC: "52:54:00:00:00:01"}, {Node: 1, MAC: "52:54:00:00:00:01"}},
		"the same node": {{Node: 0, MAC: "52:54:00:00:00:01"}, {Node: 0, MAC: "52:54:00:00:00:02"}},
		"no address":    {{Node: 100, MAC: "52:54:00:00:00:01"}},
		"nothing":       {{Node: 0}},
		"not a UUID":    {{Node: 0, UUID: "4c4c4544"}},
		"one machine":   {{Node: 0, UUID: machine(1).String()}, {Node: 1, UUID: strings.ToUpper(machine(1).String())}},
		"two machines":  {{Node: 0, UUID: machine(1).String()}, {Node: 0, UUID: machine(2).String()}},
		"card later":    {{Node: 0, UUID: machine(1).String()}, {Node: 0, MAC: "52:54:00:00:00:01"}},
		"too far":       {{Node: 100, UUID: machine(1).String()}},
	} {
		if _, err := metal.NewCards(p, all); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func machine(n int) uuid.ID { return uuid.ID{0x4c, 0x4c, 15: byte(n)} }

// A node is known by its card, by its machine, or by both, which must not contradict each other.
func TestFind(t *testing.T) {
	cards, err := metal.NewCards(plan("10.8.0.1/28", "10.8.0.0/28"), []metal.Card{
		{Node: 0, MAC: mac(0).String()}, {Node: 1, UUID: machine(1).String()}, {Node: 2, MAC: mac(2).String(), UUID: machine(2).String()},
	})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	find := func(at time.Duration, card int, from uuid.ID) string {
		n, known, err := cards.Find(mac(card), from)
		if err == nil && known {
			_, _, err = cards.Bind(now.Add(at), mac(card), n)
		}
		switch {
		case err != nil:
			return "refused"
		case !known:
			return "guest"
		}
		return fmt.Sprint("node", n)
	}
	for _, c := range []struct {
		name string
		at   time.Duration
		card int
		from uuid.ID
		want string
	}{
		{"known by its card", 0, 0, machine(9), "node0"},
		{"a stranger", 0, 9, uuid.ID{}, "guest"},
		{"a strange machine", 0, 9, machine(9), "guest"},
		{"known by its machine", 0, 1, machine(1), "node1"},
		{"in the other byte order", time.Second, 1, uuid.FromOption(append([]byte{0}, machineBytes(1)...)), "node1"},
		{"without a UUID, on the same card", time.Second, 1, uuid.ID{}, "node1"},
		{"on another card too early", 50 * time.Second, 3, machine(1), "refused"},
		{"on another card", 2 * time.Minute, 3, machine(1), "node1"},
		{"on the first card again", 4 * time.Minute, 1, machine(1), "node1"},
		{"its second card is free again", 4 * time.Minute, 3, machine(9), "guest"},
		{"another machine with its card", 4 * time.Minute, 1, machine(9), "refused"},
		{"known by both", 0, 2, machine(2), "node2"},
		{"known by both, without a UUID", 0, 2, uuid.ID{}, "node2"},
		{"its card in another machine", 0, 2, machine(9), "refused"},
		{"its machine with another card", 0, 4, machine(2), "refused"},
	} {
		if got := find(c.at, c.card, c.from); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	for _, c := range []struct {
		name string
		at   time.Duration
		card int
		from uuid.ID
		want bool
	}{
		{"of a card that was written down", time.Hour, 2, machine(9), false},
		{"of a stranger", time.Hour, 9, machine(9), false},
		{"too early", 4*time.Minute + 50*time.Second, 1, machine(9), false},
		{"in its own machine", time.Hour, 1, machine(1), false},
		{"in a machine without a UUID", time.Hour, 1, uuid.ID{}, false},
		{"in another machine", time.Hour, 1, machine(9), true},
		{"once more", time.Hour, 1, machine(9), false},
	} {
		if got := cards.Release(now.Add(c.at), mac(c.card), c.from); got != c.want {
			t.Errorf("release %s: %t", c.name, got)
		}
	}
	if got := find(time.Hour, 1, machine(9)); got != "guest" {
		t.Errorf("another machine with a card that was released: %s", got)
	}
	if list := cards.List(); len(list) != 3 || list[1].MAC != "" || list[1].UUID != machine(1).String() {
		t.Errorf("%v: a card that a machine has asked with is recorded", list)
	}
}

func machineBytes(n int) []byte {
	m := machine(n)
	return m[:]
}

// Whatever happens, a card is of one node or of one guest, no two of them have the same address,
// and a node has the same one after a restart.
func TestCardsModel(t *testing.T) {
	seed := check.Seed(t)
	random := rand.New(rand.NewPCG(seed, 0))
	p := plan("10.8.0.1/28", "10.8.0.0/28")
	cards, err := metal.NewCards(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1e9, 0)
	type seen struct {
		address     netip.Addr
		met         bool
		first, last time.Time
	}
	guests, nodes := map[boot.MAC]*seen{}, map[boot.MAC]id.Node{}
	machines, bound := map[uuid.ID]id.Node{}, map[id.Node]time.Time{} // of machines; nodes that have the card of their machine
	for step := range 1000 {
		m, n := mac(random.IntN(12)), id.Node(random.IntN(p.Nodes()+1))
		what := ""
		switch random.IntN(8) {
		case 0, 1:
			if _, ok := nodes[m]; ok {
				continue // callers ask for nodes first
			}
			what = fmt.Sprintf("%v asks", m)
			address, _, err := cards.Ask(now, m, uuid.ID{})
			switch g := guests[m]; {
			case g != nil && (err != nil || address != g.address):
				t.Fatalf("step %d: %s: %v, %v, it had %v", step, what, address, err, g.address)
			case g != nil:
				g.last = now
			case len(guests) == p.Guests() != (err != nil):
				t.Fatalf("step %d: %s: %v, with %d guests", step, what, err, len(guests))
			case err == nil:
				guests[m] = &seen{address: address, first: now, last: now}
			}
		case 2:
			what = fmt.Sprintf("%v fetches", m)
			g := guests[m]
			if _, first := cards.Met(now, m); first != (g != nil && !g.met) {
				t.Fatalf("step %d: %s: %v", step, what, first)
			}
			if g != nil {
				g.met, g.last = true, now
			}
		case 3:
			what = fmt.Sprintf("%v becomes node%d", m, n)
			_, has := nodes[m]
			taken := slices.Contains(slices.Collect(maps.Values(nodes)), n) || slices.Contains(slices.Collect(maps.Values(machines)), n)
			err := cards.Join(m, n)
			if want := !has && !taken && int(n) < p.Nodes(); want != (err == nil) {
				t.Fatalf("step %d: %s: %v", step, what, err)
			}
			if err == nil {
				nodes[m] = n
				delete(guests, m)
			}
		case 4:
			what = fmt.Sprintf("node%d leaves", n)
			cards.Leave(n)
			for other, number := range nodes {
				if number == n {
					delete(nodes, other)
				}
			}
			maps.DeleteFunc(machines, func(_ uuid.ID, number id.Node) bool { return number == n })
			delete(bound, n)
		case 6:
			u := machine(random.IntN(4) + 1)
			what = fmt.Sprintf("node%d is %v", n, u)
			_, has := machines[u]
			taken := slices.Contains(slices.Collect(maps.Values(nodes)), n) || slices.Contains(slices.Collect(maps.Values(machines)), n)
			err := cards.Add(metal.Card{Node: n, UUID: u.String()})
			if want := !has && !taken && int(n) < p.Nodes(); want != (err == nil) {
				t.Fatalf("step %d: %s: %v", step, what, err)
			}
			if err == nil {
				machines[u] = n
			}
		case 7:
			u := machine(random.IntN(4) + 1)
			what = fmt.Sprintf("%v asks as %v", m, u)
			number, known := machines[u]
			owner, has := nodes[m]
			byMachine := slices.Contains(slices.Collect(maps.Values(machines)), owner)
			got, found, err := cards.Find(m, u)
			switch {
			case has && byMachine && owner != number, has && byMachine && !known:
				if err == nil {
					t.Fatalf("step %d: %s: the card of another machine is not refused", step, what)
				}
				continue
			case has:
				number, known = owner, true
			}
			if err != nil || found != known || known && got != number {
				t.Fatalf("step %d: %s: node%d, %v, %v, want node%d, %v", step, what, got, found, err, number, known)
			}
			if !known {
				continue
			}
			last, early := bound[number]
			_, changed, err := cards.Bind(now, m, number)
			switch {
			case has:
				if changed || err != nil {
					t.Fatalf("step %d: %s: its own card: %v, %v", step, what, changed, err)
				}
				if early {
					bound[number] = now
				}
			case early && now.Sub(last) < time.Minute:
				if err == nil {
					t.Fatalf("step %d: %s: it has a second card at once", step, what)
				}
			default:
				if !changed || err != nil {
					t.Fatalf("step %d: %s: %v, %v", step, what, changed, err)
				}
				maps.DeleteFunc(nodes, func(_ boot.MAC, other id.Node) bool { return other == number })
				nodes[m], bound[number] = number, now
				delete(guests, m)
			}
		case 5:
			now = now.Add(time.Duration(random.IntN(90)) * time.Second)
			what = "time passes"
			gone := 0
			for old, g := range guests {
				limit := time.Minute
				if g.met {
					limit = 5 * time.Minute
				}
				if now.Sub(g.last) > limit {
					delete(guests, old)
					gone++
				}
			}
			if got := cards.Expire(now); len(got) != gone {
				t.Fatalf("step %d: %s: %v are gone, want %d", step, what, got, gone)
			}
		}
		for other, number := range nodes {
			if got, ok := cards.Node(other); !ok || got != number {
				t.Fatalf("step %d: %s: %v is node%d, want node%d", step, what, other, got, number)
			}
		}
		text, err := json.Marshal(cards.List())
		if err != nil {
			t.Fatal(err)
		}
		var list []metal.Card
		if err := json.Unmarshal(text, &list); err != nil || len(list) != len(nodes)+len(machines)-len(bound) {
			t.Fatalf("step %d: %s: %s, want %v: %v", step, what, text, nodes, err)
		}
		if again, err := metal.NewCards(p, list); err != nil || !slices.Equal(again.List(), list) {
			t.Fatalf("step %d: %s: after a restart %v", step, what, err)
		}
		met := 0
		addresses := map[netip.Addr]bool{p.Server.Addr(): true}
		numbers := map[id.Node]bool{}
		for number := range maps.Values(nodes) {
			numbers[number] = true
		}
		for number := range maps.Values(machines) {
			numbers[number] = true
		}
		for number := range numbers {
			a, _ := p.Node(number)
			addresses[a.Addr()] = true
		}
		for _, g := range guests {
			addresses[g.address] = true
			if g.met {
				met++
			}
		}
		if len(addresses) != 1+len(numbers)+len(guests) {
			t.Fatalf("step %d: %s: two of them have the same address: %v %v", step, what, nodes, guests)
		}
		if got := cards.Guests(); len(got) != met {
			t.Fatalf("step %d: %s: guests %v, want %d", step, what, got, met)
		}
	}
}
