package machine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"margay/cluster/boot"
	"margay/cluster/control"
	"margay/cluster/metal"
	"margay/cluster/power"
	"margay/cluster/power/file"
	"margay/cluster/trust"
	"margay/initramfs"
	"margay/internal/uuid"
	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
	"margay/qemu/console"
)

// metalEvents are the callbacks of a metal substrate. They are called by goroutines of their own,
// and without its lock, but for log, which is called with it as well and must not wait for it.
type metalEvents struct {
	stage    func(id.Node, boot.Status)
	woke     func(id.Node)                       // a node that was waited for has begun to boot
	met      func(boot.MAC)                      // a guest has come
	admitted func(id.Node, boot.MAC)             // a guest has brought the token of a node
	shown    func(id.Node, boot.MAC, error)      // a guest has brought a token of this machine that admits nothing, and why
	changed  func()                              // what guests returns has changed
	panicked func(number id.Node, reason string) // the console of a node says that its Linux has panicked
	log      func(format string, args ...any)
}

// metalNodes are machines of their own on a network of this host. The holder can switch some of
// them, and sees each of them boot.
type metalNodes struct {
	spec    Spec
	dir     Dir
	cert    []byte
	sign    func(statement []byte) []byte // with the key of the machine
	events  metalEvents
	wire    *metal.Wire
	boot    *bootServices
	images  *images
	power   *file.Machine // nil: no node can be switched
	turns   *power.Turns  // of nodes to be switched on; nil with it
	running sync.WaitGroup
	attends sync.WaitGroup // the goroutine that uses the interface
	end     context.CancelFunc
	ctx     context.Context

	alive func(netip.Addr) bool // reports whether a station answers

	mu      sync.Mutex
	cards   *metal.Cards
	nodes   map[id.Node]*metalNode
	left    map[boot.MAC]departed
	others  []rival
	spent   map[id.Node]time.Time // when a token of a node was shown last that admits nothing
	trouble string                // of the interface
	ownCard boot.MAC
}

// departed is a node that has left the machine, and runs on, with its address, because it was not
// switched off.
type departed struct {
	number id.Node
	since  time.Time
}

// departedTime bounds how long that is: a node reboots when it has lost serve for ten minutes.
const departedTime = 15 * time.Minute

// metalNode is a node from its start to its end. metalNodes.mu guards it.
type metalNode struct {
	phase   metalPhase
	term    uint32
	began   time.Time      // when it has begun to boot alone: for beginTime a start need not switch it on
	runs    bool           // its Linux may run: it has its configuration, and was not seen to end
	blind   bool           // its driver cannot switch it off
	probing bool           // it is being found out whether it is still up
	warned  time.Time      // when a request in its name was logged last
	ended   chan exit      // gets its end; nil: it does not run
	console *metal.Console // since it got its configuration; nil: it has got none since its start
	log     *console.Log   // the file of that console; nil with it
	notice  string         // about what it has booted; empty: nothing

	switching sync.Mutex   // one action on its power at a time; held before metalNodes.mu
	driver    power.Driver // nil: it is switched by hand
	patience  time.Duration
}

// beginTime is how long the firmware of a machine that has begun to boot asks on.
const beginTime = time.Minute

// boots reports whether the machine of a node has begun to boot unasked. The caller holds
// metalNodes.mu.
func (n *metalNode) boots() bool { return time.Since(n.began) < beginTime }

type metalPhase int

const (
	stopped metalPhase = iota // it gets no answer
	asleep                    // it waits until it is switched on by hand
	waking                    // it has asked for an address, and is being started
	booting                   // it gets what it boots
	handed                    // it has its configuration: it boots Linux, or is up
)

// errAsleep reports a node that cannot be started from here.
var errAsleep = errors.New("waiting until it is switched on by hand")

// newMetal opens the boot network and serves it.
func newMetal(s Spec, d Dir, a *trust.Authority, events metalEvents) (m *metalNodes, err error) {
	m = &metalNodes{spec: s, dir: d, cert: a.Certificate(), sign: a.Sign, events: events, nodes: make(map[id.Node]*metalNode), left: make(map[boot.MAC]departed), spent: make(map[id.Node]time.Time), boot: new(bootServices), images: &images{dir: d, spec: s}}
	m.ctx, m.end = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			err = errors.Join(err, m.close())
		}
	}()
	if s.Metal.File != "" {
		if m.power, err = file.Read(s.Metal.File); err != nil {
			return m, err
		}
		m.turns = power.NewTurns(m.power.Pace())
	}
	all, err := readCards(s.Metal.Cards)
	if err != nil {
		return m, err
	}
	if m.cards, err = metal.NewCards(s.Metal.Plan, all); err != nil {
		return m, err
	}
	if m.wire, err = metal.Open(s.Metal.Interface, s.Metal.Plan, servePort, s.Metal.Proxy); err != nil {
		return m, err
	}
	m.ownCard = m.wire.MAC()
	m.alive = func(a netip.Addr) bool { return m.wire.Alive(a, boot.HTTPPort) }
	if err := m.makeServices(); err != nil {
		return m, err
	}
	m.boot.run(m.wire.Sockets, events.log)
	m.attends.Go(m.attend)
	m.running.Go(m.expire)
	m.running.Go(func() {
		if err := boot.Receive(m.wire.Consoles, metal.MaxConsole, m.received, nil); m.ctx.Err() == nil {
			m.events.log("the consoles of nodes are not kept any more: %v", err)
		}
	})
	return m, nil
}

// makeServices makes the boot services, which are not run yet.
func (m *metalNodes) makeServices() error {
	config := boot.Config{
		Server: m.spec.Metal.Plan.Server, Cmdline: m.spec.Cmdline, Report: m.reached, Log: m.events.log,
		Broadcast: true, Proxy: m.spec.Metal.Proxy, Own: m.images.own, Node: m.hand, Pack: pack, Sign: m.sign, Asks: m.asks, Met: m.met, Pinned: m.pinned, Token: m.token,
	}
	if m.wire != nil {
		config.MAC, config.Send = m.wire.MAC(), m.wire.Send
	}
	if err := m.boot.openFiles(m.spec, &config); err != nil {
		return err
	}
	services, err := boot.New(config)
	m.boot.services = services
	return err
}

// asks decides whether a DHCP client gets an answer.
func (m *metalNodes) asks(now time.Time, q boot.Question) (refusal string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if q.MAC == m.ownCard {
		return "this host looks for other DHCP servers"
	}
	if q.Kind == boot.Other { // as firmware that gives an address back
		return "it asks for no address"
	}
	if q.Means == boot.Nothing {
		return q.Why
	}
	if own := m.spec.Metal.Plan.Server.Addr(); q.Server.IsValid() && q.Server != own && !m.spec.Metal.Proxy {
		m.meets(now, metal.Offer{Server: q.Server, Boots: true}, false)
	}
	delete(m.left, q.MAC) // its Linux has ended
	if number, known := m.cards.Node(q.MAC); known && m.node(number).phase != handed && m.cards.Release(now, q.MAC, q.UUID) {
		m.boot.services.Forget(q.MAC)
	}
	number, known, err := m.cards.Find(q.MAC, q.UUID)
	if err != nil {
		return err.Error()
	}
	if !known {
		return m.asksGuest(now, q)
	}
	n := m.node(number)
	if n.phase != stopped && n.phase != handed {
		if err := m.bind(now, number, n, q.MAC); err != nil {
			return err.Error()
		}
	}
	switch n.phase {
	case asleep:
		n.phase, n.began, n.runs = waking, time.Now(), false
		m.running.Go(func() { m.events.woke(number) })
		return m.detain(q.MAC)
	case waking:
		return m.detain(q.MAC)
	case stopped:
		return fmt.Sprintf("node%d is off", number)
	case handed:
		if !n.probing {
			n.probing = true
			ended := n.ended
			m.running.Go(func() { m.probe(number, n, ended) })
		}
		return fmt.Sprintf("node%d may still be up", number)
	}
	return ""
}

// bind gives a node that is known by its machine the network card that the machine asks with. The
// caller holds m.mu.
func (m *metalNodes) bind(now time.Time, number id.Node, n *metalNode, mac boot.MAC) error {
	was, changed, err := m.cards.Bind(now, mac, number)
	if !changed {
		return err
	}
	m.boot.services.Forget(was)
	m.events.log("node%d boots from the network card %v", number, mac)
	if n.phase != booting {
		m.boot.services.Forget(mac) // a guest's place is free from now on; its start makes the node known
		return nil
	}
	_, address, _ := m.place(number)
	return m.boot.services.Settle(boot.Host{Node: number, MAC: mac, Address: address.Addr()})
}

// detain keeps a machine waiting whose node is being started. Without an answer it asks again. But
// beside a server of the site it has an address without one, and would boot nothing: it gets the
// script that waits. The caller holds m.mu.
func (m *metalNodes) detain(mac boot.MAC) (refusal string) {
	const why = "its node is being started"
	if !m.spec.Metal.Proxy {
		return why
	}
	if err := m.boot.services.Add(boot.Host{Guest: true, Says: "This node is being started", MAC: mac}); err != nil {
		return err.Error()
	}
	return ""
}

// asksGuest gives an address to a machine that is not a node. The caller holds m.mu.
func (m *metalNodes) asksGuest(now time.Time, q boot.Question) (refusal string) {
	address, gone, err := m.cards.Ask(now, q.MAC, q.UUID)
	for _, mac := range gone {
		m.boot.services.Forget(mac)
	}
	if err == nil {
		err = m.boot.services.Add(boot.Host{Guest: true, MAC: q.MAC, Address: address})
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// probe finds out whether a node whose card asks for an address is still up. If it is not, it has
// begun to boot again, which is the end of its last boot.
func (m *metalNodes) probe(number id.Node, n *metalNode, ended chan exit) {
	address, _ := m.spec.Metal.Plan.Node(number)
	alive := m.alive(address.Addr())
	m.mu.Lock()
	defer m.mu.Unlock()
	n.probing = false
	switch {
	case n.phase != handed || n.ended != ended:
	case alive:
		now := time.Now()
		if now.Sub(n.warned) < warnPause {
			return
		}
		n.warned = now
		m.events.log("node%d: a request for an address came from its network card, but it is still up: another machine may use the card's address", number)
	default:
		n.began, n.runs = time.Now(), false
		m.over(number, n, ended, exit{Reason: "it has begun to boot again"})
	}
}

// warnPause bounds how often requests in the name of a node that is up are logged: any station can
// send them.
const warnPause = time.Minute

// met handles a guest that waits.
func (m *metalNodes) met(mac boot.MAC) {
	m.mu.Lock()
	machine, first := m.cards.Met(time.Now(), mac)
	doubt := m.cards.Doubted(mac)
	m.mu.Unlock()
	if !first {
		return
	}
	if doubt != "" {
		m.events.log("a machine with the network card %v has come, and would not join: %s", mac, doubt)
		m.running.Go(m.events.changed)
		return
	}
	says := ""
	if machine != (uuid.ID{}) {
		says = fmt.Sprintf(" and the UUID %v", machine)
	}
	m.events.log("a machine with the network card %v%s has come: margay node approve -m %s %[1]v makes it a node", mac, says, m.spec.Name)
	m.running.Go(func() {
		m.events.changed()
		m.events.met(mac)
	})
}

// pinned refuses a host its configuration whose image is for another machine: it would not take it.
func (m *metalNodes) pinned(h boot.Host, machine string) (refusal string) {
	if own := sha256.Sum256(m.cert); machine != "" && machine != hex.EncodeToString(own[:]) {
		refusal = fmt.Sprintf("its image is for another machine than this %s (margay image build --pin)", m.spec.Name)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cards.Doubt(h.MAC, refusal)
	return refusal
}

// reached passes on how far a node has got. While it gets further, its machine keeps its card.
func (m *metalNodes) reached(number id.Node, s boot.Status) {
	m.mu.Lock()
	m.cards.Uses(time.Now(), number)
	m.mu.Unlock()
	m.events.stage(number, s)
}

// hand returns the configuration of a node that boots, from a disk or over the network. It is given
// once for each boot: from then on, the card of the node gets no answer while the node is up.
func (m *metalNodes) hand(number id.Node, disk bool) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.node(number)
	if n.phase != booting {
		return nil, errors.New("it is not being started")
	}
	m.notice(n, "")
	if disk {
		m.drop(number, n)
	}
	b, err := m.images.of(number)
	if err != nil {
		return nil, err
	}
	config, err := m.config(number, n.term)
	if err != nil {
		return nil, err
	}
	config.Lacks = b.Lacks
	text, err := config.Encode()
	if err != nil {
		return nil, err
	}
	n.phase, n.runs = handed, true
	m.openConsole(number, n)
	return text, nil
}

// pack returns the archive with a configuration.
func pack(config []byte) ([]byte, error) { return initramfs.NodeArchive(configFiles(config)) }

// config returns the configuration of a node. The caller holds m.mu.
func (m *metalNodes) config(number id.Node, term uint32) (node.Config, error) {
	mac, address, ok := m.place(number)
	if !ok {
		return node.Config{}, fmt.Errorf("node%d has no network card or no address", number)
	}
	c := m.spec.bootConfig(number, term, m.cert)
	c.MAC, c.Address = mac.String(), address.String()
	c.Serve = netip.AddrPortFrom(m.spec.Metal.Plan.Server.Addr(), servePort).String()
	c.Console = node.Console{Address: netip.AddrPortFrom(m.spec.Metal.Plan.Server.Addr(), metal.ConsolePort).String(), MAC: m.ownCard.String()}
	return c, nil
}

// place returns the network card and the address of a node, if it has both. The caller holds m.mu.
func (m *metalNodes) place(number id.Node) (boot.MAC, netip.Prefix, bool) {
	mac, known := m.cards.MAC(number)
	address, inside := m.spec.Metal.Plan.Node(number)
	return mac, address, known && inside
}

// start implements substrate.
func (m *metalNodes) start(number id.Node, term uint32) (int, <-chan exit, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.node(number)
	n.term, n.phase = term, stopped
	if err := m.findDriver(number, n); err != nil {
		return 0, nil, err
	}
	switch {
	case n.boots():
	case n.driver == nil:
		n.phase = asleep
		return 0, nil, fmt.Errorf("%w: %s", errAsleep, m.unswitched(number))
	case n.blind && n.runs:
		n.phase = asleep
		m.running.Go(func() { m.wake(number, n) })
		return 0, nil, fmt.Errorf("%w: it may run on, and its driver cannot switch it off", errAsleep)
	}
	if _, err := m.images.of(number); err != nil {
		return 0, nil, err
	}
	if err := removeFiles(m.dir.stagedImage(number)); err != nil { // of an attempt that this start ends
		return 0, nil, err
	}
	mac, address, ok := m.place(number)
	if !ok && !m.cards.Named(number) {
		return 0, nil, errors.New("it has no network card or no address")
	}
	m.boot.services.Remove(number)
	if ok {
		if err := m.boot.services.Settle(boot.Host{Node: number, MAC: mac, Address: address.Addr()}); err != nil {
			return 0, nil, err
		}
	}
	m.endConsole(number, n)
	n.phase, n.ended = booting, make(chan exit, 1)
	if ended := n.ended; !n.boots() {
		m.running.Go(func() { m.switchOn(number, n, ended) })
	}
	n.began = time.Time{}
	return 0, n.ended, nil
}

// over ends a start of a node, unless it has ended. The caller holds m.mu.
func (m *metalNodes) over(number id.Node, n *metalNode, ended chan exit, e exit) {
	if ended == nil || n.ended != ended {
		return
	}
	n.phase, n.ended = stopped, nil
	m.boot.services.Remove(number)
	if n.log != nil {
		e.Console = n.log.Tail(consoleLines)
	}
	ended <- e
}

// node returns a node. The caller holds m.mu.
func (m *metalNodes) node(number id.Node) *metalNode {
	if m.nodes[number] == nil {
		m.nodes[number] = new(metalNode)
	}
	return m.nodes[number]
}

// join gives a network card to a node that is not started yet, and records that. A guest boots by
// itself when it is one.
func (m *metalNodes) join(number id.Node, mac boot.MAC) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	waits := slices.ContainsFunc(m.cards.Guests(), func(g metal.Guest) bool { return g.MAC == mac })
	if why := m.cards.Doubted(mac); why != "" {
		return fmt.Errorf("%v would not join: %s", mac, why)
	}
	card := metal.Card{Node: number, MAC: mac.String()}
	if entry, ok := m.entry(number); ok && m.isGuest(entry, mac) {
		card = cardOfFile(entry)
	}
	if err := m.cards.Admit(card, mac); err != nil {
		return err
	}
	m.boot.services.Forget(mac) // a guest's place is free from now on
	if err := writeCards(m.spec.Metal.Cards, m.cards.List()); err != nil {
		m.cards.Leave(number)
		return fmt.Errorf("record the network card of node%d: %w", number, err)
	}
	if waits {
		m.node(number).began = time.Now()
	}
	return nil
}

// remove implements substrate.
func (m *metalNodes) remove(number id.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.boot.services.Remove(number)
	if mac, ok := m.cards.MAC(number); ok {
		m.boot.services.Forget(mac) // it may be detained
		if m.node(number).runs {
			m.left[mac] = departed{number, time.Now()}
		}
	}
	m.removeConsole(number, m.node(number))
	m.cards.Leave(number)
	delete(m.nodes, number)
	if _, err := m.images.forget(number); err != nil {
		m.events.log("node%d has left: %v", number, err)
	}
	if err := writeCards(m.spec.Metal.Cards, m.cards.List()); err != nil {
		m.events.log("node%d stays in the file of network cards: %v", number, err)
	}
}

// busy returns the numbers, and with them the addresses, that no new node may have: nodes that have
// left the machine run on with them.
func (m *metalNodes) busy() (numbers []uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for mac, d := range m.left {
		if time.Since(d.since) > departedTime {
			delete(m.left, mac)
			continue
		}
		numbers = append(numbers, uint32(d.number))
	}
	return numbers
}

// guests returns the machines that wait, and the troubles of the boot network.
func (m *metalNodes) guests() *control.Guests {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := new(control.Guests)
	for _, g := range m.cards.Guests() {
		all.Guests = append(all.Guests, &control.Guest{Mac: g.MAC.String(), SinceNs: g.Since.UnixNano(), Doubt: g.Doubt})
	}
	if m.trouble != "" {
		all.Notices = append(all.Notices, m.trouble)
	}
	for _, number := range slices.Sorted(maps.Keys(m.nodes)) {
		if n := m.nodes[number]; n.notice != "" {
			all.Notices = append(all.Notices, n.notice)
		}
	}
	for _, o := range m.others {
		all.Notices = append(all.Notices, fmt.Sprintf("%s: %s: it can keep nodes from their boot", m.spec.Metal.Interface, otherServer(o.Offer)))
	}
	return all
}

// close implements substrate.
func (m *metalNodes) close() error {
	m.end()
	err := m.boot.close()
	m.attends.Wait()
	if m.wire != nil {
		err = errors.Join(err, m.wire.Close())
	}
	m.running.Wait()
	for number, n := range m.nodes {
		m.closeConsole(number, n)
	}
	return err
}
