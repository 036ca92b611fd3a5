package machine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"margay/cluster/boot"
	"margay/cluster/control"
	"margay/cluster/metal"
	"margay/cluster/power"
	"margay/cluster/power/file"
	"margay/internal/check"
	"margay/internal/uuid"
	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
)

// playedMetal is a metal substrate without a network.
type playedMetal struct {
	*metalNodes
	t     *testing.T
	alive atomic.Bool
	woke  chan id.Node
	met   chan boot.MAC
	shown chan string // tokens

	panics []string
}

func cardOf(n int) boot.MAC { return boot.MAC{0x52, 0x54, 0, 0, 1, byte(n)} }

func playMetal(t *testing.T, rack *file.Machine, known ...metal.Card) *playedMetal {
	t.Helper()
	return playMetalWith(t, false, rack, known...)
}

func playMetalWith(t *testing.T, proxy bool, rack *file.Machine, known ...metal.Card) *playedMetal {
	t.Helper()
	p := &playedMetal{t: t, woke: make(chan id.Node, 10), met: make(chan boot.MAC, 10), shown: make(chan string, 10)}
	spec := Spec{Name: "m", Substrate: node.Metal, Profile: node.Isolated, Secret: "secret", Metal: MetalSpec{
		Interface: "eth9", Proxy: proxy, Cards: filepath.Join(t.TempDir(), "cards.json"),
		Plan: metal.Plan{Server: netip.MustParsePrefix("10.8.0.1/24"), Range: netip.MustParsePrefix("10.8.0.0/24")},
	}}
	cards, err := metal.NewCards(spec.Metal.Plan, known)
	if err != nil {
		t.Fatal(err)
	}
	dir := Dir(t.TempDir())
	if err := errors.Join(os.Mkdir(dir.file("log"), 0o700), os.Mkdir(dir.file("nodes"), 0o700)); err != nil {
		t.Fatal(err)
	}
	p.metalNodes = &metalNodes{
		spec: spec, dir: dir, cert: []byte{1}, cards: cards, nodes: make(map[id.Node]*metalNode), left: make(map[boot.MAC]departed), spent: make(map[id.Node]time.Time), boot: new(bootServices), images: &images{dir: dir, spec: spec}, power: rack, ownCard: cardOf(255),
		alive: func(a netip.Addr) bool { return a.String() == "10.8.0.5" && p.alive.Load() },
		events: metalEvents{
			stage: func(id.Node, boot.Status) {}, woke: func(n id.Node) { p.woke <- n }, met: func(m boot.MAC) { p.met <- m },
			shown: func(number id.Node, mac boot.MAC, err error) { p.shown <- fmt.Sprint(number, " ", mac, " ", err) }, changed: func() {}, log: t.Logf, panicked: func(n id.Node, why string) { p.panics = append(p.panics, fmt.Sprint(n, " ", why)) },
		},
	}
	p.turns = power.NewTurns(power.Pace{})
	if rack != nil {
		p.turns = power.NewTurns(rack.Pace())
	}
	p.ctx, p.end = context.WithCancel(context.Background())
	if err := p.makeServices(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// within returns the next value of a channel.
func within[T any](t *testing.T, c <-chan T) (got T) {
	t.Helper()
	select {
	case got = <-c:
	case <-time.After(time.Minute):
		t.Fatal("nothing has come within a minute")
	}
	return got
}

// ask plays a card that asks for an address.
func (p *playedMetal) ask(n int) (refusal string) {
	return p.asks(time.Now(), boot.Question{Kind: boot.Discover, MAC: cardOf(n), Means: boot.ByScript})
}

// A node that nothing switches waits until it boots. It gets its configuration once. When it boots
// again, its last boot has ended, unless the node still answers: then another machine has its
// address.
func TestMetalByHand(t *testing.T) {
	p := playMetal(t, nil, metal.Card{Node: 3, MAC: cardOf(1).String()})
	if _, _, err := p.start(3, 1); !errors.Is(err, errAsleep) {
		t.Fatalf("start: %v", err)
	}
	if why := p.asks(time.Now(), boot.Question{Kind: boot.Other, MAC: cardOf(1), Means: boot.ByScript}); why == "" || p.nodes[3].phase != asleep {
		t.Errorf("it begins to boot when it gives an address back: %q", why)
	}
	if why := p.ask(1); why == "" {
		t.Error("it gets an answer before it is started")
	}
	if n := within(t, p.woke); n != 3 {
		t.Errorf("node%d has begun", n)
	}
	if why := p.ask(1); why == "" || len(p.woke) > 0 {
		t.Errorf("it gets an answer before it is started: %q", why)
	}
	_, ended, err := p.start(3, 1)
	if err != nil {
		t.Fatal(err)
	}
	if why := p.ask(1); why != "" {
		t.Errorf("it gets no answer: %s", why)
	}
	text, err := p.hand(3, false)
	if err != nil {
		t.Fatal(err)
	}
	archive, err := pack(text)
	for _, want := range []string{`"address": "10.8.0.5/24"`, `"mac": "` + cardOf(1).String(), `"serve": "10.8.0.1:7117"`, `"substrate": "metal"`, `"token"`} {
		if !strings.Contains(string(archive), want) {
			t.Errorf("no %s in the configuration: %v", want, err)
		}
	}
	if _, err := p.hand(3, false); err == nil {
		t.Error("it gets its configuration twice")
	}

	probing := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.nodes[3].probing
	}
	p.alive.Store(true)
	if why := p.ask(1); why == "" {
		t.Error("another machine with its card gets an answer while it is up")
	}
	check.AwaitFor(t, time.Minute, "end of the probe", func() bool { return !probing() })
	select {
	case e := <-ended:
		t.Fatalf("it has ended: %v", e)
	default:
	}
	p.alive.Store(false)
	if why := p.ask(1); why == "" {
		t.Error("it gets an answer before its last boot has ended")
	}
	if e := within(t, ended); e.Off || !strings.Contains(e.Reason, "boot again") {
		t.Errorf("it has ended: %+v", e)
	}
	if _, ended, err = p.start(3, 1); err != nil {
		t.Fatal(err)
	}
	if why := p.ask(1); why != "" {
		t.Errorf("on its second boot it gets no answer: %s", why)
	}

	p.stop(3)
	if e := within(t, ended); !strings.Contains(e.Reason, "by hand") {
		t.Errorf("it has ended: %+v", e)
	}
	if why := p.ask(1); why == "" {
		t.Error("it gets an answer when it was stopped")
	}
}

// A node that leaves without being switched off runs on, and keeps its number from others until its
// card asks for an address.
func TestMetalLeaves(t *testing.T) {
	p := playMetal(t, nil, metal.Card{Node: 3, MAC: cardOf(1).String()}, metal.Card{Node: 4, MAC: cardOf(2).String()})
	p.start(3, 1)
	p.ask(1)
	within(t, p.woke)
	if _, _, err := p.start(3, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := p.hand(3, false); err != nil {
		t.Fatal(err)
	}
	for _, n := range []id.Node{3, 4} {
		p.stop(n)
		p.remove(n)
	}
	if busy := p.busy(); !slices.Equal(busy, []uint32{3}) {
		t.Errorf("numbers %v are in use; node3 runs on, and node4 has not booted", busy)
	}
	if why := p.ask(1); why != "" {
		t.Errorf("its card is no stranger's: %s", why)
	}
	if busy := p.busy(); len(busy) != 0 {
		t.Errorf("numbers %v are in use after a boot", busy)
	}
}

// A node that is known by its machine has its number at the first question of any network card. It
// can boot from another one next time, and not at the same time.
func TestMetalByMachine(t *testing.T) {
	machine := uuid.ID{0x4c, 15: 1}
	for _, proxy := range []bool{false, true} {
		p := playMetalWith(t, proxy, nil, metal.Card{Node: 3, UUID: machine.String()})
		at := time.Now()
		ask := func(card int) (refusal string) {
			return p.asks(at, boot.Question{Kind: boot.Discover, MAC: cardOf(card), UUID: machine, Means: boot.ByScript})
		}
		begin := func(card int) <-chan exit {
			t.Helper()
			ask(card)
			if n := within(t, p.woke); n != 3 {
				t.Fatalf("node%d has begun", n)
			}
			_, ended, err := p.start(3, 1)
			if err != nil {
				t.Fatal(err)
			}
			if why := ask(card); why != "" {
				t.Fatalf("proxy %t: it gets no answer on card %d: %s", proxy, card, why)
			}
			return ended
		}
		if _, _, err := p.start(3, 1); !errors.Is(err, errAsleep) {
			t.Fatalf("start: %v", err)
		}
		ended := begin(1)
		if why := ask(2); why == "" {
			t.Errorf("proxy %t: its second card gets an answer at the same time", proxy)
		}
		text, err := p.hand(3, false)
		if err != nil || !strings.Contains(string(text), cardOf(1).String()) || !strings.Contains(string(text), "10.8.0.5/24") {
			t.Fatalf("proxy %t: %v: configuration %s", proxy, err, text)
		}
		at = at.Add(time.Hour)
		if why := ask(2); why == "" {
			t.Error("its second card gets an answer before its boot has ended")
		}
		within(t, ended)
		if _, _, err := p.start(3, 1); err != nil {
			t.Fatal(err)
		}
		if why := ask(2); why != "" {
			t.Errorf("proxy %t: its second card gets no answer in the next boot: %s", proxy, why)
		}
		if text, err := p.hand(3, false); err != nil || !strings.Contains(string(text), cardOf(2).String()) {
			t.Errorf("proxy %t: %v: configuration %s", proxy, err, text)
		}
		if why := p.asks(at, boot.Question{Kind: boot.Discover, MAC: cardOf(2), UUID: uuid.ID{1, 15: 9}, Means: boot.ByScript}); !strings.Contains(why, machine.String()) {
			t.Errorf("proxy %t: another machine with its card: %q", proxy, why)
		}
		if why := ask(1); !strings.Contains(why, "may still be up") {
			t.Errorf("proxy %t: its first card: %q", proxy, why)
		}
	}
}

// Machines can swap their cards while they are off, and have their numbers afterwards.
func TestMetalCardsSwap(t *testing.T) {
	machines := []uuid.ID{{0x4c, 15: 1}, {0x4c, 15: 2}}
	p := playMetal(t, nil, metal.Card{Node: 0, UUID: machines[0].String()}, metal.Card{Node: 1, UUID: machines[1].String()})
	ask := func(at time.Time, machine, card int) (refusal string) {
		return p.asks(at, boot.Question{Kind: boot.Discover, MAC: cardOf(card), UUID: machines[machine], Means: boot.ByScript})
	}
	at := time.Now()
	for n := range 2 {
		if _, _, err := p.start(id.Node(n), 1); !errors.Is(err, errAsleep) {
			t.Fatal(err)
		}
		ask(at, n, n)
		within(t, p.woke)
		if _, _, err := p.start(id.Node(n), 1); err != nil {
			t.Fatal(err)
		}
	}
	if why := ask(at, 0, 1); !strings.Contains(why, "has the network card of node1") {
		t.Errorf("at the same time: %q", why)
	}
	at = at.Add(time.Hour)
	for n := range 2 {
		if why := ask(at, n, 1-n); why != "" {
			t.Errorf("node%d with the card of the other one: %s", n, why)
		}
		if mac, address, ok := p.place(id.Node(n)); !ok || mac != cardOf(1-n) || address.Addr() != netip.AddrFrom4([4]byte{10, 8, 0, byte(2 + n)}) {
			t.Errorf("node%d has %v and %v", n, mac, address)
		}
	}
}

// A node that fetches keeps its card, however long it asks for no address: another machine may have
// the same UUID.
func TestMetalMachineFetches(t *testing.T) {
	machine := uuid.ID{0x4c, 15: 1}
	p := playMetal(t, nil, metal.Card{Node: 3, UUID: machine.String()})
	if _, _, err := p.start(3, 1); !errors.Is(err, errAsleep) {
		t.Fatalf("start: %v", err)
	}
	ask := func(at time.Time, card int) (refusal string) {
		return p.asks(at, boot.Question{Kind: boot.Discover, MAC: cardOf(card), UUID: machine, Means: boot.ByScript})
	}
	if why := p.ask(1); why != "" { // as a guest: its firmware says no UUID
		t.Fatal(why)
	}
	earlier := time.Now().Add(-time.Hour)
	ask(earlier, 1)
	if why := p.ask(2); why != "" {
		t.Errorf("a guest does not get the place of one that is a node: %s", why)
	}
	within(t, p.woke)
	if _, _, err := p.start(3, 1); err != nil {
		t.Fatal(err)
	}
	if why := ask(earlier, 1); why != "" {
		t.Error(why)
	}
	p.reached(3, boot.Status{Stage: boot.Image, Percent: 10})
	if why := ask(time.Now(), 4); !strings.Contains(why, "boots from another network card") {
		t.Errorf("another card of the machine gets an answer: %q", why)
	}
	if why := ask(time.Now().Add(2*time.Minute), 4); why != "" {
		t.Errorf("its other card, after a silence: %s", why)
	}
}

// Beside the DHCP server of a site, a node that is waited for gets a script that waits at once.
// Another server is reported if it names something to boot, otherwise it is the site's.
func TestMetalProxy(t *testing.T) {
	for _, proxy := range []bool{false, true} {
		p := playMetalWith(t, proxy, nil, metal.Card{Node: 3, MAC: cardOf(1).String()})
		p.start(3, 1)
		if why := p.ask(1); (why == "") != proxy {
			t.Errorf("proxy %t: before it is started: %q", proxy, why)
		}
		within(t, p.woke)
		if why := p.ask(1); (why == "") != proxy {
			t.Errorf("proxy %t: while it is being started: %q", proxy, why)
		}
		if _, _, err := p.start(3, 1); err != nil {
			t.Fatal(err)
		}
		if why := p.ask(1); why != "" {
			t.Errorf("proxy %t: when it is started: %q", proxy, why)
		}
		other := netip.MustParseAddr("10.8.0.9")
		p.asks(time.Now(), boot.Question{Kind: boot.Request, MAC: cardOf(1), Means: boot.ByScript, Server: other})
		p.mu.Lock()
		p.meets(time.Now(), metal.Offer{Server: netip.MustParseAddr("10.8.0.10"), Boots: true}, true)
		for n := range byte(2 * mostRivals) {
			p.meets(time.Now(), metal.Offer{Server: netip.AddrFrom4([4]byte{10, 8, 1, n})}, false)
		}
		p.mu.Unlock()
		notices := p.guests().Notices
		text := strings.Join(notices, "\n")
		if want := map[bool]int{false: mostRivals, true: 1}[proxy]; len(notices) != want || strings.Contains(text, other.String()) == proxy || !strings.Contains(text, "10.8.0.10, answers there and names") {
			t.Errorf("proxy %t: notices %q", proxy, notices)
		}
	}
}

// A stranger waits, and becomes a node. Its card stays its node's for later machines, until it
// leaves.
func TestMetalGuest(t *testing.T) {
	p := playMetal(t, nil, metal.Card{Node: 0, MAC: cardOf(1).String()})
	if why := p.asks(time.Now(), boot.Question{Kind: boot.Discover, MAC: cardOf(2), Why: "a printer"}); why != "a printer" {
		t.Errorf("a station that does not boot: %q", why)
	}
	if why := p.ask(255); why == "" {
		t.Error("this host gets an answer")
	}
	for range 2 {
		if why := p.ask(2); why != "" {
			t.Fatalf("a stranger gets no answer: %s", why)
		}
	}
	if g := p.guests(); len(g.Guests) != 0 {
		t.Errorf("guests %v, and none has fetched its script", g)
	}
	p.metalNodes.met(cardOf(2))
	p.metalNodes.met(cardOf(2))
	if m := within(t, p.met); m != cardOf(2) {
		t.Errorf("%v has come", m)
	}
	if g := p.guests(); len(g.Guests) != 1 || g.Guests[0].Mac != cardOf(2).String() {
		t.Errorf("guests %v", g)
	}
	if p.join(5, cardOf(1)) == nil || p.join(0, cardOf(2)) == nil || p.join(500, cardOf(2)) == nil {
		t.Error("a card twice, a node twice or a node without an address is accepted")
	}
	if err := p.join(1, cardOf(2)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.start(1, 1); err != nil {
		t.Errorf("a guest that waits boots by itself: %v", err)
	}
	if g := p.guests(); len(g.Guests) != 0 {
		t.Errorf("guests %v", g)
	}
	list, err := readCards(p.spec.Metal.Cards)
	if want := []metal.Card{{Node: 0, MAC: cardOf(1).String()}, {Node: 1, MAC: cardOf(2).String()}}; err != nil || !slices.Equal(list, want) {
		t.Errorf("recorded: %v, %v", list, err)
	}
	p.remove(1)
	if list, err := readCards(p.spec.Metal.Cards); err != nil || len(list) != 1 {
		t.Errorf("recorded after it has left: %v, %v", list, err)
	}
	if why := p.ask(2); why != "" {
		t.Errorf("after it has left it is no stranger: %s", why)
	}
	p.spec.Metal.Cards = filepath.Join(t.TempDir(), "missing", "cards.json")
	if p.join(1, cardOf(2)) == nil {
		t.Error("a card is not recorded, and its node joins")
	}
	for _, card := range []int{3, 2} {
		if why := p.ask(card); why != "" {
			t.Errorf("after a card was not recorded, a stranger gets no answer: %s", why)
		}
	}
}

// The machine file says how nodes are switched: a node that is on is reset, others are switched on.
// Stopping switches off.
func TestMetalPower(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "power")
	script := `#!/bin/sh
echo "$1" >>"` + dir + `/did"
case $1 in
status) cat "` + dir + `/state" ;;
off) echo off >"` + dir + `/state" ;;
*) echo on >"` + dir + `/state" ;;
esac
`
	write := func(name, text string, mode os.FileMode) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("power", script, 0o700)
	write("state", "on\n", 0o600)
	write("machine.yaml", "nodes: [{number: 2, mac: \""+cardOf(2).String()+"\"}]\npower: [{nodes: 2, driver: command, command: ["+program+"]}]\n", 0o600)
	f, err := file.Read(filepath.Join(dir, "machine.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	p := playMetal(t, f, metal.Card{Node: 2, MAC: cardOf(2).String()})
	did := func(what string) {
		t.Helper()
		check.AwaitFor(t, time.Minute, what, func() bool {
			text, _ := os.ReadFile(filepath.Join(dir, "did"))
			return slices.Contains(strings.Fields(string(text)), what)
		})
	}
	for _, way := range []power.Action{power.Reset, power.SwitchOn} {
		_, ended, err := p.start(2, 1)
		if err != nil {
			t.Fatal(err)
		}
		did(string(way))
		if why := p.ask(2); why != "" {
			t.Errorf("it gets no answer: %s", why)
		}
		p.stop(2)
		if e := within(t, ended); !strings.Contains(e.Reason, "switched off") {
			t.Errorf("it has ended: %+v", e)
		}
		did("off")
		write("did", "", 0o600)
	}
	write("power", "#!/bin/sh\nexit 3\n", 0o700)
	_, ended, err := p.start(2, 1)
	if err != nil {
		t.Fatal(err)
	}
	if e := within(t, ended); !e.Off || !strings.Contains(e.Reason, "switch it on: ") {
		t.Errorf("with a program that fails: %+v", e)
	}
}

// Nodes are switched on by turns. One that waits for its turn says so, and can be stopped. One that
// is up before its turn is not reset. The end of the machine waits for no turn.
func TestMetalPace(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "power")
	script := `#!/bin/sh
echo "$1 $2" >>"` + dir + `/did"
test "$1" != status || echo off
test "$1" != on || sleep 60 # it is on its way
`
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	var cards []metal.Card
	for i := range 3 {
		cards = append(cards, metal.Card{Node: id.Node(i), MAC: cardOf(i + 1).String()})
	}
	f, err := file.Parse([]byte("power: [{nodes: 0..2, driver: command, command: [" + program + "]}]\npace: {nodes: 1, gap: 10m}\n"))
	if err != nil {
		t.Fatal(err)
	}
	p := playMetal(t, f, cards...)
	waits := make(chan id.Node, 10)
	p.events.stage = func(number id.Node, s boot.Status) {
		if s.String() == "it waits for its turn to be switched on" {
			waits <- number
		}
	}
	did := func() string {
		text, _ := os.ReadFile(filepath.Join(dir, "did"))
		return string(text)
	}
	if _, _, err := p.start(0, 1); err != nil {
		t.Fatal(err)
	}
	check.AwaitFor(t, time.Minute, "first node that is switched on", func() bool { return strings.Contains(did(), "on node0\n") })
	_, ended, err := p.start(1, 1)
	if err != nil {
		t.Fatal(err)
	}
	if n := within(t, waits); n != 1 {
		t.Errorf("node%d waits", n)
	}
	p.stop(1)
	if e := within(t, ended); !strings.Contains(e.Reason, "switched off") {
		t.Errorf("the node that has waited has ended: %+v", e)
	}
	if _, ended, err = p.start(2, 1); err != nil {
		t.Fatal(err)
	}
	within(t, waits)
	if _, err := p.hand(2, false); err != nil {
		t.Fatal(err)
	}
	p.turns = power.NewTurns(power.Pace{})
	p.switchOn(2, p.nodes[2], p.nodes[2].ended) // its turn
	if text := did(); strings.Contains(text, "node2") {
		t.Errorf("the power of a node that is up was touched: %s", text)
	}
	if len(ended) != 0 {
		t.Errorf("it has ended: %v", <-ended)
	}
	if text := did(); strings.Contains(text, "on node1") || strings.Contains(text, "on node2") {
		t.Errorf("nodes were switched on before their turns: %s", text)
	}
}

// The holder of other substrates makes no machine a node.
func TestApproveRefused(t *testing.T) {
	h := &holder{substrate: new(hosted), spec: Spec{Name: "m"}}
	_, err := h.approve(t.Context(), t.Context(), &control.ApproveGuests{Macs: []string{cardOf(1).String()}})
	if said := (*control.Failure)(nil); !errors.As(err, &said) || !strings.Contains(err.Error(), "has no boot network") {
		t.Errorf("%v", err)
	}
}

// A machine whose image is for another one is not made a node, and the list of those that wait says
// why. With the right image it is met once more.
func TestMetalPinned(t *testing.T) {
	p := playMetal(t, nil)
	own := sha256.Sum256(p.cert)
	p.ask(1)
	guest := boot.Host{Guest: true, MAC: cardOf(1)}
	const why = "its image is for another machine than this m (margay image build --pin)"
	if refusal := p.pinned(guest, "0a"); refusal != why {
		t.Errorf("refused: %q", refusal)
	}
	p.metalNodes.met(cardOf(1))
	if g := p.guests().Guests; len(g) != 1 || g[0].Doubt != why {
		t.Errorf("guests %v", g)
	}
	if err := p.join(1, cardOf(1)); err == nil || err.Error() != cardOf(1).String()+" would not join: "+why {
		t.Errorf("it is made a node: %v", err)
	}
	for _, pin := range []string{"", hex.EncodeToString(own[:])} {
		if refusal := p.pinned(guest, pin); refusal != "" {
			t.Errorf("image for %q: %s", pin, refusal)
		}
	}
	p.metalNodes.met(cardOf(1))
	if m := within(t, p.met); m != cardOf(1) || len(p.met) > 0 {
		t.Errorf("%v has come", m)
	}
	if err := p.join(1, cardOf(1)); err != nil {
		t.Error(err)
	}
}
