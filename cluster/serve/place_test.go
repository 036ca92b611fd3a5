package serve

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/permit"
	"margay/cluster/placement"
	"margay/ext/place/pack"
	"margay/ext/place/spread"
	"margay/internal/check"
	"margay/kernel/abi/slot"
	"margay/kernel/extension/extensiontest"
)

// An extension orders nodes. Whatever it says, every rank has a free core of a node that the job
// may use, within the bounds that the user has set, and ranks are numbered in the order of nodes.
func TestInTurn(t *testing.T) {
	random := rand.New(rand.NewPCG(check.Seed(t), 1))
	chosen := 0
	for range 20_000 {
		var offers []offer
		for node := range uint32(1 + random.IntN(6)) {
			o := offer{node: node, total: 1 + random.IntN(6)}
			for core := range uint32(o.total) {
				if random.IntN(3) > 0 {
					o.cores = append(o.cores, 1+core)
				}
			}
			offers = append(offers, o)
		}
		s := shape{ranks: 1 + random.IntN(12)}
		switch random.IntN(4) {
		case 0:
			s.perNode = 1 + random.IntN(3)
		case 1:
			s.nodes = 1 + random.IntN(min(3, s.ranks))
		}
		switch random.IntN(3) {
		case 0:
			s.perCore = 1 + random.IntN(3)
		case 1:
			s.each = 1 + random.IntN(2)
		}
		if random.IntN(3) == 0 {
			s.without = []uint32{uint32(random.IntN(4))}
		}
		candidates := s.candidates(offers)
		var turns []placement.Turn
		for _, i := range random.Perm(len(candidates)) {
			turns = append(turns, placement.Turn{Candidate: i, Ranks: []uint32{1, 1 + random.Uint32N(4), random.Uint32() | 1}[random.IntN(3)]})
		}
		usual, places := allocate(offers, s), s.places(s.inTurn(candidates, turns))
		if s.perNode == 0 && (usual == nil) != (places == nil) {
			t.Fatalf("%+v on %+v fits by default: %v, with turns %v: %v", s, offers, usual, turns, places)
		}
		if places != nil {
			chosen++
			checkPlaces(t, s, offers, places)
		}
		if t.Failed() {
			t.Fatalf("%+v on %+v with turns %v: %v", s, offers, turns, places)
		}
	}
	if chosen < 5000 {
		t.Errorf("only %d jobs were placed", chosen)
	}
}

// checkPlaces checks the places of a whole job.
func checkPlaces(t *testing.T, s shape, offers []offer, places []*control.Place) {
	t.Helper()
	onNode, onCore := make(map[uint32]int), make(map[[2]uint32]int)
	last := uint32(0)
	for i, p := range places {
		o := offers[p.Node]
		if int(p.Rank) != i || p.Node < last || !s.mayUse(p.Node) || len(coresOf(p)) != max(1, s.each) {
			t.Errorf("rank %d is on %v", i, p)
		}
		last = p.Node
		onNode[p.Node]++
		for _, core := range coresOf(p) {
			if !slices.Contains(o.cores, core) {
				t.Errorf("rank %d has core %d of node%d, which is not free", i, core, p.Node)
			}
			onCore[[2]uint32{p.Node, core}]++
		}
	}
	most := max(1, s.perCore)
	if s.each == 0 && s.perCore == 0 && s.perNode > 0 {
		most = slot.MaxTasks
	}
	for core, n := range onCore {
		if n > most || s.each > 0 && n > 1 {
			t.Errorf("%d ranks share core %d of node%d", n, core[1], core[0])
		}
	}
	for node, n := range onNode {
		if s.perNode > 0 && n > s.perNode {
			t.Errorf("%d ranks are on node%d", n, node)
		}
	}
	if len(places) != s.ranks || s.nodes > 0 && s.perNode == 0 && len(onNode) != s.nodes {
		t.Errorf("%d ranks are on %d nodes", len(places), len(onNode))
	}
}

// inserts puts an extension into slot place and returns its handle.
func (c *playedClient) inserts(name string, object []byte) uint32 {
	list := must[*control.Extensions](c, &control.InsertExtension{Node: control.None, Name: name, Object: object}).Extensions
	if len(list) != 1 || list[0].Node != control.Allocator || list[0].Name != name || list[0].Slot != "place" || list[0].State != active || list[0].Engine != "portable" {
		c.m.t.Fatalf("inserted is %v", list)
	}
	return list[0].Handle
}

// nodesOf starts a job and returns the nodes of its ranks.
func (c *playedClient) nodesOf(spec *control.JobSpec) string {
	var nodes []string
	for _, p := range must[*control.RunReply](c, &control.RunRequest{Spec: spec}).Places {
		nodes = append(nodes, fmt.Sprint(p.Node))
	}
	return strings.Join(nodes, " ")
}

// placers returns the listed extensions of the allocator, as text.
func (c *playedClient) placers() string {
	text := ""
	for _, x := range must[*control.Extensions](c, &control.ListExtensions{Node: control.None}).Extensions {
		if x.Node == control.Allocator {
			state, _, _ := strings.Cut(x.State, ":")
			text += fmt.Sprintf("%d %s %s %d; ", x.Handle, x.Name, state, x.Faults)
		}
	}
	return text
}

// quiet makes nodes answer questions about extensions: they have none.
func (m *machine) quiet() {
	for _, n := range m.played {
		n.answers = map[string]proto.Message{"ListExtensions": new(control.Extensions), "ExtensionLog": new(control.ExtensionNotes)}
	}
}

// again restarts serve, connects all nodes, and returns a new client.
func (m *machine) again() *playedClient {
	m.restart()
	for _, n := range m.played {
		n.connect()
	}
	return m.client()
}

// An extension chooses the nodes of jobs until it is removed, also after a restart of serve.
func TestPlacers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 3)
		m.quiet()
		c := m.client()
		if got := c.nodesOf(detachedSpec(1)); got != "0" {
			t.Errorf("without an extension a job is on %s", got)
		}
		packer := c.inserts("packer", pack.Object)
		spreader := c.inserts("spreader", spread.Object)
		if got := c.placers(); got != fmt.Sprintf("%d packer active 0; %d spreader active 0; ", packer, spreader) {
			t.Errorf("inserted are %s", got)
		}
		must[*control.Done](c, &control.RemoveExtension{Node: control.Allocator, Handle: packer})
		if _, err := c.ask(&control.RemoveExtension{Node: control.Allocator, Handle: packer}); err == nil || !strings.Contains(err.Error(), "no extension") {
			t.Errorf("it was removed twice: %v", err)
		}
		if got := c.nodesOf(detachedSpec(2)); got != "1 2" {
			t.Errorf("spread ranks are on %s", got)
		}
		c = m.again()
		if got := c.placers(); got != fmt.Sprintf("%d spreader active 0; ", spreader) {
			t.Errorf("after a restart %s", got)
		}
		if got := c.nodesOf(detachedSpec(2)); got != "0 1" { // the other jobs were not running yet, and have ended
			t.Errorf("then the ranks are on %s", got)
		}
		notes := must[*control.ExtensionNotes](c, &control.ExtensionLog{Node: control.None}).Notes
		if len(notes) != 1 || notes[0].Node != control.Allocator || notes[0].Handle != spreader || !strings.Contains(notes[0].Text, "inserted into slot place") {
			t.Errorf("the log is %v", notes)
		}
		must[*control.Done](c, &control.RemoveExtension{Node: control.Allocator, Handle: spreader})
		if got := c.nodesOf(detachedSpec(1)); got != "0" {
			t.Errorf("without the extension a job is on node%s", got)
		}
		if got := m.again().placers(); got != "" {
			t.Errorf("at last %s", got)
		}
	})
}

// The user's words about nodes, drained nodes and spares count as they do without an extension.
func TestPlacersWithin(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 5)
		m.quiet()
		c := m.client()
		c.inserts("last", extensiontest.Object(t, extensiontest.Program{Section: "place", Name: "last", Code: []string{"mov r0, 99", "ldxw r1, [r1+0]", "sub r0, r1", "exit"}}))
		must[*control.NodesDrained](c, &control.DrainNodes{Nodes: []uint32{4}})
		s := detachedSpec(1)
		s.Only = []uint32{0, 1}
		if got := c.nodesOf(s); got != "1" {
			t.Errorf("of nodes 0 and 1 it is on %s", got)
		}
		s = detachedSpec(1)
		s.Without = []uint32{3}
		if got := c.nodesOf(s); got != "2" {
			t.Errorf("without node3 it is on %s", got)
		}
		s = detachedSpec(3)
		s.PerNode = 2
		if got := c.nodesOf(s); got != "2 3 3" {
			t.Errorf("two a node, it is on %s", got)
		}
		s = spec(1)
		s.Spares, s.Launch = 1, "a launch"
		if got := c.nodesOf(s); got != "1" {
			t.Errorf("with a spare it is on %s", got)
		}
		if free := c.freeCores(); free != 1 {
			t.Errorf("%d cores are free", free)
		}
	})
}

// Jobs do not suffer from an extension that makes faults, and it is forgotten after the last one.
func TestHostilePlacer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, slot.FaultLimit/2)
		m.quiet()
		c := m.client()
		handle := c.inserts("loop", extensiontest.Object(t, extensiontest.Program{Section: "place", Name: "loop", Code: []string{"ja -1"}}))
		for fault := range slot.FaultLimit {
			if got := c.placers(); got != fmt.Sprintf("%d loop active %d; ", handle, fault) {
				t.Errorf("before %d faults: %s", fault+1, got)
			}
			if got := c.nodesOf(detachedSpec(1)); got != fmt.Sprint(fault/2) {
				t.Errorf("job %d is on node%s", fault, got)
			}
		}
		synctest.Wait()
		if got := c.placers(); got != fmt.Sprintf("%d loop removed %d; ", handle, slot.FaultLimit) {
			t.Errorf("after the last fault: %s", got)
		}
		if !m.logged("fault 16: ") {
			t.Errorf("serve's log has %v", m.log)
		}
		if got := m.again().placers(); got != "" {
			t.Errorf("after a restart: %s", got)
		}
	})
}

// An extension in slot place is of no node and of no job, and nothing else is in the allocator.
func TestPlacerRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		m.quiet()
		c := m.client()
		if _, err := c.ask(&control.InsertExtension{Node: 0, Name: "x", Object: pack.Object}); err == nil || !strings.Contains(err.Error(), "leave out --node") {
			t.Errorf("on a node: %v", err)
		}
		wrong := &control.InsertExtension{Node: control.None, Name: "x", Object: pack.Object, Settings: []*control.ExtensionSetting{{Name: "colour"}}}
		if _, err := c.ask(wrong); err == nil || !strings.Contains(err.Error(), `no variable "colour"`) {
			t.Errorf("with a setting that it does not have: %v", err)
		}
		if _, err := c.ask(&control.InsertExtension{Job: 7, Node: control.None, Name: "x", Object: pack.Object}); err == nil || !strings.Contains(err.Error(), "no job 7") {
			t.Errorf("for a job: %v", err)
		}
		none[*control.InsertExtension](t, &m.played[0].recorder, "a node got it")
		if got := c.placers(); got != "" {
			t.Errorf("there are %s", got)
		}
		if got := m.again().placers(); got != "" {
			t.Errorf("after a restart there are %s", got)
		}
	})
}

// Nothing refuses a job because of an extension: neither a lack of spares, nor a limit of its user,
// nor a core that a node has not yet given up.
func TestPlacersSuit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 3)
		m.quiet()
		c := m.client()
		c.inserts("spreader", spread.Object)
		s := detachedSpec(3)
		s.Spares = 1
		if got := c.nodesOf(s); got != "0 0 1" {
			t.Errorf("with a spare it is on %s", got)
		}
	})
	offers := []offer{{node: 0, cores: []uint32{1}, total: 1}, {node: 1, cores: []uint32{1}, total: 1}}
	spec := &control.JobSpec{Ranks: 2, PerCore: 2, Limited: true}
	usual, chosen := allocate(offers, shapeOf(spec)), []*control.Place{{Core: 1}, {Rank: 1, Node: 1, Core: 1}}
	for _, k := range []struct {
		cores int    // of a user; 0: any number
		last  uint32 // the job that node1 has not forgotten; 0: none
		suits bool
	}{{0, 0, true}, {2, 0, true}, {1, 0, false}, {0, 5, false}} {
		s := &Server{config: Config{Access: permit.Policy{Cores: k.cores}}}
		s.nodes = []*node{{uses: make(map[uint32]use)}, {uses: map[uint32]use{1: {job: k.last}}}}
		if got := s.suits(spec, offers, chosen, usual); got != k.suits {
			t.Errorf("with %+v the places suit: %v", k, got)
		}
	}
}
