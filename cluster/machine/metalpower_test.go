package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"margay/cluster/boot"
	"margay/cluster/metal"
	"margay/cluster/power"
	"margay/cluster/power/file"
	"margay/cluster/power/wake"
	"margay/cluster/roster"
	"margay/internal/check"
	"margay/internal/uuid"
	"margay/kernel/abi/id"
)

// playedPower is the driver of one node.
type playedPower struct {
	mu    sync.Mutex
	state power.State
	did   []power.Action
	fails error         // switching off
	takes chan struct{} // switching off ends with it; nil: at once
	blind bool          // it switches on, and nothing else
}

func (p *playedPower) act(a power.Action, to power.State) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.did = append(p.did, a)
	if p.blind && a != power.SwitchOn {
		return power.ErrUnsupported
	}
	p.state = to
	return nil
}

func (p *playedPower) On(context.Context) error    { return p.act(power.SwitchOn, power.On) }
func (p *playedPower) Reset(context.Context) error { return p.act(power.Reset, power.On) }

func (p *playedPower) Off(ctx context.Context) error {
	if p.fails != nil {
		return p.fails
	}
	if p.takes != nil {
		select {
		case <-p.takes:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return p.act(power.SwitchOff, power.Off)
}

func (p *playedPower) Status(context.Context) (power.State, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.blind {
		return power.Unknown, power.ErrUnsupported
	}
	return p.state, nil
}

func (p *playedPower) actions() []power.Action {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.did)
}

// playPower is playMetal with node3, whose driver is played, and its holder.
func playPower(t *testing.T, d *playedPower) (p *playedMetal, h *holder, n *heldNode) {
	t.Helper()
	p = playMetal(t, nil, metal.Card{Node: 3, MAC: cardOf(1).String()})
	if d != nil {
		p.node(3).driver, p.node(3).patience = d, time.Minute
	}
	n = &heldNode{number: 3, term: 1}
	h = &holder{substrate: p.metalNodes, spec: p.spec, log: t.Logf, nodes: map[id.Node]*heldNode{3: n}, patience: time.Minute}
	return p, h, n
}

// boots has node3 get its configuration.
func (p *playedMetal) boots(h *holder, n *heldNode) (ended <-chan exit) {
	p.t.Helper()
	ended, err := h.startNode(n)
	if err != nil {
		p.t.Fatal(err)
	}
	if d, ok := p.node(3).driver.(*playedPower); ok {
		check.AwaitFor(p.t, time.Minute, "power", func() bool { return len(d.actions()) > 0 })
	}
	if why := p.ask(1); why != "" {
		p.t.Fatal(why)
	}
	if _, err := p.hand(3, false); err != nil {
		p.t.Fatal(err)
	}
	return ended
}

// A node whose controller does not switch it off goes on: when it boots again, its last boot has
// ended. The order fails at once.
func TestOffFails(t *testing.T) {
	d := &playedPower{state: power.On, fails: errors.New("no answer")}
	p, h, n := playPower(t, d)
	ended := p.boots(h, n)
	after, err := h.obey(n, ended, order{kind: switchOff, why: "switched off by root"})
	if after == nil || err == nil || !strings.Contains(err.Error(), "node3 does not end: switch it off: no answer") || n.life.off != "" {
		t.Fatalf("%v, %v; off: %q", after, err, n.life.off)
	}
	if why := p.ask(1); !strings.Contains(why, "may still be up") {
		t.Errorf("its next boot: %q", why)
	}
	if e := within(t, ended); !strings.Contains(e.Reason, "boot again") {
		t.Errorf("%+v", e)
	}
	// One that has not got its configuration is still given it.
	if ended, err = h.startNode(n); err != nil {
		t.Fatal(err)
	}
	if _, err = h.stopNode(n, ended); err == nil {
		t.Error("it is switched off")
	}
	if why := p.ask(1); why != "" {
		t.Errorf("it gets no answer: %s", why)
	}
	if _, err := p.hand(3, false); err != nil {
		t.Error(err)
	}
}

// An order to switch a node on that seems to be up finds out whether it is.
func TestSwitchedOffBehindOurBack(t *testing.T) {
	d := &playedPower{state: power.On}
	p, h, n := playPower(t, d)
	ended := p.boots(h, n)
	on := order{kind: switchOn, why: "switched on by root"}
	if after, err := h.obey(n, ended, on); after != ended || err != nil {
		t.Errorf("one that is on: %v", err)
	}
	d.mu.Lock()
	d.state, d.did = power.Off, nil
	d.mu.Unlock()
	if after, err := h.obey(n, ended, on); after == nil || after == ended || err != nil {
		t.Fatalf("one that is off: %v", err)
	}
	check.AwaitFor(t, time.Minute, "power", func() bool { return slices.Equal(d.actions(), []power.Action{power.SwitchOn}) })
	if why := p.ask(1); why != "" {
		t.Error(why)
	}
}

// A node that waits until it is switched on by hand can be switched off: when it boots it gets no
// answer, also when it has just begun to.
func TestOffWhileItWaits(t *testing.T) {
	for _, begun := range []bool{false, true} {
		p, h, n := playPower(t, nil)
		ended, err := h.startNode(n)
		if !errors.Is(err, errAsleep) || ended != nil {
			t.Fatal(err)
		}
		if begun {
			p.ask(1)
			within(t, p.woke)
		}
		if ended, err = h.obey(n, ended, order{kind: switchOff, why: "switched off by root"}); ended != nil || err != nil {
			t.Fatal(err)
		}
		if n.exit == nil || n.exit.Waits || n.exit.Reason != "switched off by root" {
			t.Errorf("serve was told %v", n.exit)
		}
		if begun {
			if ended, err = h.obey(n, nil, order{kind: switchOn, why: "it has begun to boot", woke: true}); ended != nil || err != nil {
				t.Errorf("%v, %v", ended, err)
			}
		}
		if why := p.ask(1); !strings.Contains(why, "is off") || len(p.woke) > 0 {
			t.Errorf("when it boots: %q", why)
		}
		if _, err = h.obey(n, nil, order{kind: switchOn, why: "switched on by root"}); !errors.Is(err, errAsleep) {
			t.Errorf("switched on: %v", err)
		}
		p.ask(1)
		within(t, p.woke)
		if ended, err = h.obey(n, nil, order{kind: switchOn, why: "it has begun to boot", woke: true}); ended == nil || err != nil {
			t.Errorf("it boots: %v, %v", ended, err)
		}
	}
}

// A node that can be switched on and not off runs on when it is ended. Its number is kept from
// others, and it starts again when its machine boots.
func TestBlindPower(t *testing.T) {
	d := &playedPower{blind: true}
	p, h, n := playPower(t, d)
	ended := p.boots(h, n)
	if _, err := h.obey(n, ended, order{kind: reboot, why: "by order"}); !errors.Is(err, errAsleep) {
		t.Fatalf("it starts before its machine boots: %v", err)
	}
	if _, err := p.hand(3, false); err == nil {
		t.Error("it gets a configuration before its machine boots")
	}
	check.AwaitFor(t, time.Minute, "second datagram", func() bool {
		on := 0
		for _, a := range d.actions() {
			if a == power.SwitchOn {
				on++
			}
		}
		return on == 2
	})
	p.ask(1)
	within(t, p.woke)
	ended, err := h.obey(n, nil, order{kind: switchOn, why: "it has begun to boot", woke: true})
	if err != nil {
		t.Fatal(err)
	}
	if why := p.ask(1); why != "" {
		t.Error(why)
	}
	if _, err := p.hand(3, false); err != nil {
		t.Error(err)
	}
	if _, err := h.stopNode(n, ended); err != nil {
		t.Error(err)
	}
	p.remove(3)
	if busy := p.busy(); !slices.Equal(busy, []uint32{3}) {
		t.Errorf("numbers %v are in use", busy)
	}
}

// The end of the machine waits until its nodes are switched off.
func TestCloseAwaitsOff(t *testing.T) {
	d := &playedPower{state: power.On, takes: make(chan struct{})}
	p, h, n := playPower(t, d)
	p.boots(h, n)
	p.stop(3)
	p.end() // as close begins
	time.AfterFunc(100*time.Millisecond, func() { close(d.takes) })
	if err := p.close(); err != nil {
		t.Error(err)
	}
	if did := d.actions(); len(did) == 0 || did[len(did)-1] != power.SwitchOff {
		t.Errorf("its power: %v", did)
	}
}

// The end of a machine names the nodes that could not be switched off.
func TestDownNamesLeftOn(t *testing.T) {
	base(t)
	d := &playedPower{state: power.On, fails: errors.New("no answer")}
	_, h, n := playPower(t, d)
	h.dir = created(t, "m")
	ctx, cancel := context.WithCancel(t.Context())
	var kept sync.WaitGroup
	kept.Go(func() { h.keepNode(ctx, n) })
	check.AwaitFor(t, time.Minute, "power", func() bool { return len(d.actions()) > 0 })
	cancel()
	kept.Wait()
	var told []string
	if err := Down(t.Context(), h.dir, func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) }); err != nil {
		t.Fatal(err)
	}
	if want := "node3 does not end: switch it off: no answer; it may run on"; !slices.Equal(told, []string{want}) {
		t.Errorf("told %q", told)
	}
}

// A node that was given up is switched on by the next order, though it had begun to boot unasked
// before.
func TestGivenUpIsSwitched(t *testing.T) {
	d := &playedPower{state: power.On}
	p, h, n := playPower(t, d)
	ended := p.boots(h, n)
	for again := true; again; {
		p.ask(1) // it boots again, before it was up
		if again = h.nodeExited(n, within(t, ended)).Again; again {
			ended = p.boots(h, n)
		}
	}
	p.mu.Lock()
	p.nodes[3].began = p.nodes[3].began.Add(-beginTime) // it stands still since
	p.mu.Unlock()
	if _, err := h.obey(n, nil, order{kind: reboot, why: "by order"}); err != nil {
		t.Fatal(err)
	}
	check.AwaitFor(t, time.Minute, "second reset", func() bool { return slices.Equal(d.actions(), []power.Action{power.Reset, power.Reset}) })
}

// A driver that could not be made, because its password was not readable, is made by the next
// start.
func TestPasswordLater(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	text := "power: [{nodes: 3, driver: ipmi, address: \"127.0.0.1:1\", user: u, password-file: secret}]\n"
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "machine.yaml"), []byte(text), 0o600), os.WriteFile(secret, []byte("x\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	f, err := file.Read(filepath.Join(dir, "machine.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	p := playMetal(t, f, metal.Card{Node: 3, MAC: cardOf(1).String()})
	n := p.node(3)
	if err := p.findDriver(3, n); err == nil || n.driver != nil {
		t.Errorf("%v, %v", n.driver, err)
	}
	if err := os.Chmod(secret, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.findDriver(3, n); err != nil || !strings.Contains(fmt.Sprintf("%+v", n.driver), "Password:x") {
		t.Errorf("%+v, %v", n.driver, err)
	}
	if p.patience() != 2*file.DefaultTimeout+stopWait {
		t.Errorf("it may take %v", p.patience())
	}
}

// A network card without an address of its own is woken on the boot network.
func TestWakeOnBootNetwork(t *testing.T) {
	entry := "{nodes: %d, driver: wake-on-lan, mac: \"" + cardOf(1).String() + "\"%s}"
	f, err := file.Parse([]byte("power: [" + fmt.Sprintf(entry, 3, "") + ", " + fmt.Sprintf(entry, 4, `, address: "10.9.0.255:7"`) + "]\n"))
	if err != nil {
		t.Fatal(err)
	}
	p := playMetal(t, f)
	for number, want := range map[id.Node]string{3: "10.8.0.255:9", 4: "10.9.0.255:7"} {
		n := p.node(number)
		if err := p.findDriver(number, n); err != nil {
			t.Fatal(err)
		}
		if card, ok := n.driver.(wake.Card); !ok || card.Broadcast.String() != want {
			t.Errorf("node%d is woken by %+v", number, n.driver)
		}
	}
}

// Servers that stations name do not hide one that has answered, and one that is silent is
// forgotten.
func TestRivals(t *testing.T) {
	p := playMetal(t, nil)
	now := time.Now()
	for n := range byte(mostRivals) {
		p.asks(now, boot.Question{Kind: boot.Request, MAC: cardOf(77), Means: boot.ByScript, Server: netip.AddrFrom4([4]byte{1, 2, 3, n})})
	}
	seen := metal.Offer{Server: netip.MustParseAddr("10.8.0.66"), Boots: true}
	notices := func() string { return strings.Join(p.guests().Notices, "\n") }
	note := func(at time.Time) (forgotten bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.meets(at, seen, true)
		return p.forgetRivals(at)
	}
	if note(now) || !strings.Contains(notices(), "10.8.0.66") || len(p.guests().Notices) != mostRivals {
		t.Error(notices())
	}
	if !note(now.Add(rivalTime+1)) || len(p.guests().Notices) != 1 || !strings.Contains(notices(), "10.8.0.66") {
		t.Error(notices())
	}
}

// serve gets to know which nodes can be ended and started again by hand alone.
func TestByHand(t *testing.T) {
	card := wake.Card{Address: net.HardwareAddr{0x52, 0x54, 0, 0, 1, 1}, Broadcast: netip.MustParseAddrPort("127.0.0.1:9")}
	for want, d := range map[string]power.Driver{"it has no entry below power in the machine file": nil, "its driver cannot switch it off": card} {
		p, h, n := playPower(t, nil)
		p.node(3).driver, p.node(3).patience = d, time.Minute
		_, _ = h.startNode(n)
		p.ask(1)
		if _, err := h.startNode(n); err != nil {
			t.Fatal(err)
		}
		if n.boot.ByHand != want {
			t.Errorf("its boot says %q, want %q", n.boot.ByHand, want)
		}
		if h.nodeExited(n, exit{Off: true}); n.exit.ByHand != want {
			t.Errorf("its end says %q", n.exit.ByHand)
		}
	}
	f, err := file.Parse([]byte("power: [{nodes: 3, driver: command, command: [/bin/true]}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	p := playMetal(t, f, metal.Card{Node: 3, MAC: cardOf(1).String()})
	if _, _, err := p.start(3, 1); err != nil || p.byHand(3) != "" {
		t.Errorf("one that is switched: %v, %q", err, p.byHand(3))
	}
}

// The answer to an order to start a node that has just begun to boot says that nothing is switched.
func TestBegun(t *testing.T) {
	d := &playedPower{state: power.On}
	p, h, n := playPower(t, d)
	if notices := h.begun(3); notices != nil {
		t.Errorf("a node that is off: %q", notices)
	}
	ended := p.boots(h, n)
	p.ask(1)
	within(t, ended)
	const want = "s ago, so nothing is switched; if it does not come up, margay node power reset -m m node3 resets it"
	if notices := h.begun(3); len(notices) != 1 || !strings.HasPrefix(notices[0], "node3 has begun to boot ") || !strings.HasSuffix(notices[0], want) {
		t.Errorf("one that boots again: %q", notices)
	}
	p.boots(h, n)
	if notices := h.begun(3); notices != nil {
		t.Errorf("one that runs: %q", notices)
	}
}

// machine up finds what the drivers of its file lack before a node needs one.
func TestCheckFile(t *testing.T) {
	m := MetalSpec{File: filepath.Join(t.TempDir(), "machine.yaml")}
	var told []string
	check := func(text string) error {
		t.Helper()
		if err := os.WriteFile(m.File, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return m.checkFile(func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) })
	}
	if err := check("power: [{nodes: 3, driver: command, command: [./absent]}]\n"); err == nil || !strings.HasPrefix(err.Error(), m.File+": node3: ") {
		t.Errorf("a program that is missing: %v", err)
	}
	if err := check("nodes: [{number: 1, mac: '52:54:00:00:00:01'}]\npower: [{nodes: 1..3, driver: command, command: [sh]}]\n"); err != nil || len(told) != 1 || !strings.Contains(told[0], " has node2-3 below power and not below nodes") {
		t.Errorf("%v, %q", err, told)
	}
	if err := (&MetalSpec{}).checkFile(nil); err != nil {
		t.Errorf("without a file: %v", err)
	}
}

// The end of a machine names the nodes that nothing switches off, in one line.
func TestDownNamesByHand(t *testing.T) {
	base(t)
	p := playMetal(t, nil, metal.Card{Node: 3, MAC: cardOf(1).String()}, metal.Card{Node: 4, MAC: cardOf(2).String()}, metal.Card{Node: 5, MAC: cardOf(3).String()})
	h := &holder{dir: created(t, "m"), substrate: p.metalNodes, log: t.Logf}
	for number, d := range map[id.Node]power.Driver{3: nil, 4: &playedPower{blind: true}, 5: &playedPower{state: power.On}} {
		p.node(number).driver, p.node(number).patience = d, time.Minute
		if d == nil {
			_, _, _ = p.start(number, 1)
			p.ask(1)
		}
		_, ended, err := p.start(number, 1)
		if err != nil {
			t.Fatal(err)
		}
		if why := p.ask(int(number) - 2); why != "" {
			t.Fatal(why)
		}
		if _, err := p.hand(number, false); err != nil {
			t.Fatal(err)
		}
		p.stop(number)
		within(t, ended)
	}
	h.serve = []string{"/bin/false"}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	h.run(ctx)
	var told []string
	if err := Down(t.Context(), h.dir, func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) }); err != nil {
		t.Fatal(err)
	}
	if want := "not switched off, because nothing here can do that: node3-4. Each runs on and reboots within ten minutes, unless it is switched off by hand"; !slices.Equal(told, []string{want}) {
		t.Errorf("told %q", told)
	}
}

// The machine file says for some numbers which machines they are. Such a machine has its number and
// its driver when it is approved, and no other machine has them.
func TestDriverFollowsIdentity(t *testing.T) {
	const known, other = "4c4c4544-0042-3510-8051-b4c04f4a4e32", "4c4c4544-0042-3510-8051-b4c04f4a4e33"
	f, err := file.Parse([]byte(fmt.Sprintf(`
nodes: [{number: 0, mac: %q}, {number: 1, mac: %q}, {number: 2, uuid: %s}, {number: 3, mac: %q, uuid: %s}]
power: [{nodes: 0..9, driver: command, command: [/bin/true]}]
`, cardOf(1).String(), cardOf(2).String(), known, cardOf(4).String(), other)))
	if err != nil {
		t.Fatal(err)
	}
	p := playMetal(t, f, metal.Card{Node: 0, MAC: cardOf(1).String()})
	h := &holder{dir: p.dir, spec: p.spec, roster: roster.New(1), substrate: p.metalNodes, log: t.Logf}
	guest := func(n int, machine string) boot.MAC {
		t.Helper()
		q := boot.Question{Kind: boot.Discover, MAC: cardOf(n), Means: boot.ByScript}
		if q.UUID, err = uuid.Parse(machine); err != nil {
			t.Fatal(err)
		}
		if why := p.asks(time.Now(), q); why != "" {
			t.Fatal(why)
		}
		p.metalNodes.met(q.MAC)
		return q.MAC
	}
	macs := []boot.MAC{cardOf(20), guest(3, known), cardOf(2), guest(4, "4c4c4544-0042-3510-8051-b4c04f4a4e34"), cardOf(21)}
	_, added, err := h.number(p.metalNodes, macs)
	if want := []uint32{4, 2, 1, 5, 6}; err != nil || !slices.Equal(added, want) {
		t.Fatalf("they become %v, %v, want %v", added, err, want)
	}
	for i, mac := range macs {
		if err := p.join(id.Node(added[i]), mac); err != nil {
			t.Fatal(err)
		}
		if why := p.byHand(id.Node(added[i])); why != "" {
			t.Errorf("node%d has no driver: %s", added[i], why)
		}
	}
	if len(p.guests().Guests) > 0 {
		t.Errorf("%v still wait", p.guests())
	}
	if number, known, err := p.cards.Find(cardOf(9), p.cards.Machine(2)); number != 2 || !known || err != nil {
		t.Errorf("with another card node2 is node%d, %v, %v", number, known, err)
	}
	if err := p.join(3, cardOf(22)); err != nil { // by a token of node3
		t.Fatal(err)
	}
	want := "its entry below power in the machine file is for the machine " + cardOf(4).String() + " and " + other + ", and it is another one"
	if why := p.byHand(3); why != want {
		t.Errorf("a stranger that is node3: %q", why)
	}
	if _, _, err := p.start(3, 1); !errors.Is(err, errAsleep) || p.node(3).driver != nil {
		t.Errorf("it has the driver %v, %v", p.node(3).driver, err)
	}
}
