package boot

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"margay/internal/check"
	"margay/kernel/abi/id"
)

var (
	server = netip.MustParseAddr("10.66.0.2")
	second = netip.MustParseAddr("10.66.0.9")
	start  = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
)

func host(n int) Host {
	return Host{Node: id.Node(n), MAC: MAC{0x52, 0x54, 0, 0x66, 0, byte(n)}, Address: netip.AddrFrom4([4]byte{10, 66, 1, byte(n)})}
}

func leases(t testing.TB, nodes int) *Leases {
	t.Helper()
	l := NewLeases(false)
	for n := range nodes {
		if err := l.Add(host(n)); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// seeded returns the random numbers of a test.
func seeded(t *testing.T) *rand.Rand { return rand.New(rand.NewPCG(check.Seed(t), 0)) }

func TestLeases(t *testing.T) {
	good := Question{Kind: Request, MAC: host(1).MAC, Machine: "m1", Wants: host(1).Address, Server: server, Means: ByScript}
	cases := []struct {
		name   string
		change func(*Question)
		kind   Kind
		counts Counts
	}{
		{"request", func(*Question) {}, Ack, Counts{}},
		{"discover", func(q *Question) { *q = Question{Kind: Discover, MAC: q.MAC, Means: ByUEFI} }, Offer, Counts{}},
		{"request again, without a server", func(q *Question) { q.Server = netip.Addr{} }, Ack, Counts{}},
		{"unknown MAC", func(q *Question) { q.MAC[5] = 99 }, Other, Counts{Unknown: 1}},
		{"another's address", func(q *Question) { q.Wants = host(2).Address }, Nak, Counts{Wrong: 1}},
		{"no address", func(q *Question) { q.Wants = netip.Addr{} }, Nak, Counts{Wrong: 1}},
		{"second server", func(q *Question) { q.Server = second }, Other, Counts{Elsewhere: 1}},
		{"nothing to boot", func(q *Question) { q.Means, q.Why = Nothing, "why" }, Other, Counts{Unfit: 1}},
		{"declined", func(q *Question) { q.Kind = Decline }, Other, Counts{Declined: 1}},
		{"information", func(q *Question) { q.Kind = Other }, Other, Counts{}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			l, q := leases(t, 3), good
			c.change(&q)
			a := l.Handle(start, server, q)
			if a.Kind != c.kind || l.Counts() != c.counts {
				t.Errorf("answer %+v, counts %+v", a, l.Counts())
			}
			if a.Known != (q.MAC == good.MAC) || a.Known && a.Host != host(1) {
				t.Errorf("answer %+v", a)
			}
			if refused := c.counts != (Counts{}); refused != (a.Refusal != "") {
				t.Errorf("refusal %q", a.Refusal)
			}
		})
	}
}

// Another machine gets a MAC address only when the first has not used it for a while, or its node
// starts again.
func TestDuplicateMAC(t *testing.T) {
	l := leases(t, 2)
	ask := func(at time.Duration, machine string) Kind {
		return l.Handle(start.Add(at), server, Question{Kind: Discover, MAC: host(1).MAC, Machine: machine, Means: ByScript}).Kind
	}
	for i, step := range []struct {
		at      time.Duration
		machine string
		want    Kind
	}{
		{0, "a", Offer}, {1, "b", Other}, {holdTime - 1, "a", Offer}, {holdTime + 1, "b", Other}, {2*holdTime - 1, "b", Offer}, {2 * holdTime, "a", Other},
	} {
		if got := ask(step.at, step.machine); got != step.want {
			t.Errorf("step %d: %v, want %v", i, got, step.want)
		}
	}
	l.Starting(1)
	if ask(2*holdTime, "a") != Offer || l.Counts().Duplicate != 3 {
		t.Errorf("after a new start, with %+v", l.Counts())
	}
}

// However many strangers ask, nodes get their addresses and nothing is remembered of the strangers.
func TestStarvation(t *testing.T) {
	l, random := leases(t, 3), seeded(t)
	const strangers = 100_000
	for i := range strangers {
		mac := MAC{2, byte(i), byte(i >> 8), byte(i >> 16), byte(random.Uint32()), byte(random.Uint32())}
		if a := l.Handle(start, server, Question{Kind: Kind(1 + i%2), MAC: mac, Means: ByScript}); a.Kind != Other {
			t.Fatalf("%x gets %+v", mac, a)
		}
	}
	if l.Counts().Unknown != strangers || len(l.owners) != 0 {
		t.Errorf("%+v, %d owners", l.Counts(), len(l.owners))
	}
	for n := range 3 {
		if a := l.Handle(start, server, Question{Kind: Discover, MAC: host(n).MAC, Means: ByScript}); a.Kind != Offer || a.Host != host(n) {
			t.Errorf("node %d gets %+v", n, a)
		}
	}
}

// Random questions of good and bad clients: an address is only ever given to its node, by a client
// that may have it, and a good client is always answered.
func TestLeasesModel(t *testing.T) {
	const nodes, machines = 4, 3
	l, random := leases(t, nodes), seeded(t)
	last := map[int]map[string]time.Time{} // when a machine has used the MAC address of a node
	holder := map[int]string{}
	now := start
	for step := range 20_000 {
		now = now.Add(time.Duration(random.Int64N(int64(holdTime) / 4)))
		n := random.IntN(nodes + 2)
		q := Question{
			Kind: Kind(random.IntN(7)), MAC: host(n).MAC, Machine: strconv.Itoa(random.IntN(machines)), Means: Means(random.IntN(int(ByHTTP) + 1)), Why: "why",
			Wants: host(random.IntN(2) + max(0, n-1)).Address,
		}
		switch random.IntN(4) {
		case 0:
			q.Server = server
		case 1:
			q.Server = second
		}
		if random.IntN(50) == 0 && n < nodes {
			l.Starting(id.Node(n))
			delete(holder, n)
		}
		a := l.Handle(now, server, q)
		asks := q.Kind == Discover || q.Kind == Request || q.Kind == Decline
		mine := !q.Server.IsValid() || q.Server == server
		owner, owned := holder[n]
		duplicate := owned && owner != q.Machine && now.Sub(last[n][owner]) < holdTime
		want := Other
		if n < nodes && asks && mine && !duplicate {
			holder[n] = q.Machine
			if last[n] == nil {
				last[n] = map[string]time.Time{}
			}
			last[n][q.Machine] = now
			switch {
			case q.Kind == Decline, q.Means == Nothing:
			case q.Kind == Discover:
				want = Offer
			case q.Wants == host(n).Address:
				want = Ack
			default:
				want = Nak
			}
		}
		if a.Kind != want || a.Known != (n < nodes) || a.Known && a.Host != host(n) {
			t.Fatalf("step %d: %+v gets %+v, want kind %v", step, q, a, want)
		}
		if (a.Refusal == "") != (want == Offer || want == Ack || a.Known && !asks) {
			t.Fatalf("step %d: %+v: refusal %q", step, q, a.Refusal)
		}
	}
	if len(l.owners) > nodes {
		t.Errorf("%d owners", len(l.owners))
	}
}

func TestBadHosts(t *testing.T) {
	for name, spoil := range map[string]func([]Host){
		"same MAC":      func(h []Host) { h[1].MAC = h[0].MAC },
		"same address":  func(h []Host) { h[1].Address = h[0].Address },
		"no MAC":        func(h []Host) { h[1].MAC = MAC{} },
		"group MAC":     func(h []Host) { h[1].MAC[0] |= 1 },
		"no address":    func(h []Host) { h[1].Address = netip.Addr{} },
		"IPv6 address":  func(h []Host) { h[1].Address = netip.MustParseAddr("fd00::1") },
		"same as first": func(h []Host) { h[1] = h[0] },
	} {
		h := []Host{host(0), host(1)}
		spoil(h)
		l := NewLeases(false)
		if err := errors.Join(l.Add(h[0]), l.Add(h[1])); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// A guest can be added again, with another text. A node cannot.
func TestAddAgain(t *testing.T) {
	for _, proxy := range []bool{false, true} {
		l, guest := NewLeases(proxy), Host{Guest: true, MAC: host(1).MAC, Address: host(1).Address}
		for _, guest.Says = range []string{"", "wait", "wait"} {
			if err := l.Add(guest); err != nil {
				t.Errorf("proxy %t: %v", proxy, err)
			}
			if got := l.hosts[guest.MAC].Says; got != guest.Says {
				t.Errorf("proxy %t: it says %q, want %q", proxy, got, guest.Says)
			}
		}
		if l.Add(host(1)) == nil {
			t.Errorf("proxy %t: a node takes the card of a guest", proxy)
		}
	}
}

func TestProgress(t *testing.T) {
	p := NewProgress()
	for i, step := range []struct {
		status Status
		news   bool
	}{
		{Status{Stage: Asked, Why: "a"}, true}, {Status{Stage: Asked, Why: "a"}, false}, {Status{Stage: Asked, Why: "b"}, true},
		{Status{Stage: Leased}, true}, {Status{Stage: Leased}, false},
		{Status{Stage: Loader, Percent: 100}, true}, {Status{Stage: Entered}, true}, {Status{Stage: Entered}, false},
		{Status{Stage: Loader, Percent: 100}, false},
		{Status{Stage: Queued, Why: "2"}, true}, {Status{Stage: Queued, Why: "2"}, false}, {Status{Stage: Queued, Why: "1"}, true},
		{Status{Stage: Script, Percent: 100}, true},
		{Status{Stage: Kernel}, true}, {Status{Stage: Kernel, Percent: 9}, false}, {Status{Stage: Kernel, Percent: 10}, true},
		{Status{Stage: Kernel, Percent: 5}, false}, {Status{Stage: Script, Percent: 100}, false},
		{Status{Stage: Kernel, Percent: 95}, true}, {Status{Stage: Kernel, Percent: 100}, true}, {Status{Stage: Kernel, Percent: 100}, false},
		{Status{Stage: Image, Percent: 120}, true},
		{Status{Stage: Leased}, true}, {Status{Stage: Kernel, Percent: 1}, true}, // it boots again
		{Status{Stage: Entered}, true}, {Status{Stage: Kernel, Percent: 1}, true}, // and again, by the iPXE of its card
	} {
		if news := p.Reached(7, step.status); news != step.news {
			t.Errorf("step %d, %+v: news %v", i, step.status, news)
		}
	}
	p.Starting(7)
	if !p.Reached(7, Status{Stage: Asked}) || !p.Reached(8, Status{Stage: Leased}) {
		t.Error("a node that starts has no news")
	}
}
