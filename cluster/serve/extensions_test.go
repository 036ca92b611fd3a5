package serve

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// has sets the extensions that a node reports: the state of each, by number. Its handles are the
// numbers plus 10.
func (n *playedNode) has(states map[uint64]string) {
	list := new(control.Extensions)
	for number, state := range states {
		list.Extensions = append(list.Extensions, &control.ExtensionState{Number: number, Handle: uint32(10 + number), State: state})
	}
	n.answers["ListExtensions"] = list
}

// withExtensions is a machine with this number of inserted extensions.
func withExtensions(t *testing.T, nodes, extensions int) (*machine, *playedClient) {
	m := up(t, nodes)
	for _, n := range m.played {
		n.answers = make(map[string]proto.Message)
		n.has(nil)
	}
	c := m.client()
	for number := range extensions {
		for _, n := range m.played {
			n.answers["InsertExtension"] = &control.Extensions{Extensions: []*control.ExtensionState{
				{Number: uint64(1 + number), Handle: uint32(11 + number), State: active, Slot: "message", Name: fmt.Sprint("x", 1+number)},
			}}
		}
		must[*control.Extensions](c, &control.InsertExtension{Node: control.None, Name: fmt.Sprint("x", 1+number)})
	}
	for _, n := range m.played {
		take[*control.InsertExtension](&n.recorder)
	}
	return m, c
}

// inserted returns the names of the extensions that a node was asked to insert.
func (n *playedNode) inserted() string {
	text := ""
	for _, x := range take[*control.InsertExtension](&n.recorder) {
		text += fmt.Sprint(x.Number, x.Name, " ")
	}
	return text
}

// removed returns the handles that a node was asked to remove.
func (n *playedNode) removed() string {
	text := ""
	for _, x := range take[*control.RemoveExtension](&n.recorder) {
		text += fmt.Sprint(x.Handle, " ")
	}
	return text
}

// A node that boots again gets the machine's extensions, in order, and gets jobs only after that. A
// node that restarted without a boot still has them, or had them removed for their faults.
func TestExtensionsOfNodeThatBoots(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			m, c := withExtensions(t, 2, 3)
			if restarted {
				m.restart()
				c = m.client()
				m.played[0].has(map[uint64]string{1: active, 2: active, 3: active})
				m.played[0].connect()
			}
			n := m.played[1]
			n.boot, n.mute["InsertExtension"] = "another boot", true
			n.connect()
			if state := c.node(1); state.Health != control.NodeHealth_NODE_LATE || c.freeCores() != 2 {
				t.Errorf("a node without its extensions is %v", state)
			}
			n.mute["InsertExtension"] = false
			n.connect()
			if got := n.inserted(); got != "1x1 1x1 2x2 3x3 " { // the first time it did not answer
				t.Errorf("it got %s", got)
			}
			if c.freeCores() != 4 {
				t.Errorf("with them it is %v", c.node(1))
			}
			n.has(map[uint64]string{1: active, 2: "removed: it made 16 faults", 3: active})
			n.connect()
			if got := n.inserted() + m.played[0].inserted() + n.removed(); got != "" {
				t.Errorf("then %s", got)
			}
		})
	}
}

// A removed extension is removed from nodes that are away, too.
func TestExtensionRemovedWhileNodeIsAway(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			m, c := withExtensions(t, 2, 2)
			must[*control.Done](c, &control.RemoveExtension{Node: 0, Handle: 11})
			n := m.played[1]
			n.silence()
			time.Sleep(13 * time.Second)
			list := must[*control.Extensions](c, &control.ListExtensions{Node: 1}).Extensions
			if len(list) != 2 || list[0].Handle != 11 || list[0].Name != "x1" || list[0].State != "its node is away" {
				t.Errorf("of a node that is away is listed %v", list)
			}
			must[*control.Done](c, &control.RemoveExtension{Node: 1, Handle: 11})
			if _, err := c.ask(&control.RemoveExtension{Node: 1, Handle: 11}); err == nil {
				t.Error("it was removed twice")
			}
			if restarted {
				m.restart()
				c = m.client()
				m.played[0].has(map[uint64]string{2: active})
				m.played[0].connect()
			}
			n.has(map[uint64]string{1: active, 2: active})
			n.connect()
			if got := n.removed() + n.inserted(); got != "11 " || c.freeCores() != 4 {
				t.Errorf("the node that is back was told %s", got)
			}
			n.boot = "another boot"
			n.has(nil)
			n.connect()
			if got := n.inserted(); got != "2x2 " {
				t.Errorf("when it boots it gets %s", got)
			}
			// No node should have the first any longer, so it is forgotten.
			if left, err := m.server.store.extensions(); err != nil || len(left) != 1 || left[0].Request.Number != 2 {
				t.Errorf("recorded are %v, %v", left, err)
			}
		})
	}
}

// A node that was away during an insertion gets the extension when it is back.
func TestExtensionInsertedWhileNodeIsAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, c := withExtensions(t, 2, 0)
		m.played[0].answers["InsertExtension"] = &control.Extensions{Extensions: []*control.ExtensionState{{Number: 1, Handle: 11, State: active}}}
		m.played[1].silence()
		time.Sleep(3 * time.Second) // it is late, and connected
		must[*control.Extensions](c, &control.InsertExtension{Node: control.None, Name: "x"})
		if got := m.played[0].inserted() + m.played[1].inserted(); got != "1x " {
			t.Errorf("inserted: %s", got)
		}
		m.played[1].tell(&control.Heartbeat{Number: 1})
		if got := m.played[1].inserted(); got != "1x " || c.freeCores() != 4 {
			t.Errorf("inserted later: %s", got)
		}
	})
}

// An extension that every node refuses is not remembered. A node is not asked again for an
// extension that it has refused or that belongs to another node.
func TestExtensionRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, c := withExtensions(t, 3, 1)
		for _, n := range m.played {
			n.refused["InsertExtension"] = errors.New("it is no extension")
		}
		if _, err := c.ask(&control.InsertExtension{Node: control.None, Name: "bad"}); err == nil {
			t.Error("nobody has said that it is refused")
		}
		delete(m.played[1].refused, "InsertExtension")
		if _, err := c.ask(&control.InsertExtension{Node: control.None, Name: "odd"}); err == nil {
			t.Error("nobody has said that it is refused on two nodes")
		}
		must[*control.Extensions](c, &control.InsertExtension{Node: 1, Name: "its own"})
		for _, n := range m.played {
			n.inserted()
			n.boot = "another boot"
			n.connect()
		}
		for i, want := range []string{"1x1 ", "1x1 3odd 4its own ", "1x1 "} {
			if got := m.played[i].inserted(); got != want {
				t.Errorf("node %d got %s", i, got)
			}
		}
		if c.freeCores() != 6 || !m.logged("node0 does not get extension x1 of the machine: ") {
			t.Error("the nodes are not up, or nobody says that they lack something")
		}
		m.played[0].connect()
		if got := m.played[0].inserted(); got != "" {
			t.Errorf("node 0 was asked again for %s", got)
		}
	})
}

// A node that comes up while the first extension of the machine is inserted gets it, too.
func TestExtensionInsertedWhileNodeComesUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, c := withExtensions(t, 3, 0)
		n := m.played[2]
		n.conn.Close()
		synctest.Wait()
		m.played[0].mute["InsertExtension"] = true
		for _, n := range m.played {
			n.answers["InsertExtension"] = &control.Extensions{Extensions: []*control.ExtensionState{{Number: 1, Handle: 11, State: active}}}
		}
		asked := make(chan error)
		go func() {
			_, err := c.ask(&control.InsertExtension{Node: control.None, Name: "x"})
			asked <- err
		}()
		synctest.Wait()
		n.boot = "another boot"
		n.connect()
		if err := <-asked; err == nil {
			t.Error("nobody has said that node 0 does not answer")
		}
		if got := n.inserted(); got != "1x " || c.freeCores() != 6 {
			t.Errorf("the node that has come up got %s", got)
		}
	})
}

// A node that leaves while an extension is inserted says nothing about the next node of its number.
func TestExtensionInsertedWhileNodeLeaves(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, c := withExtensions(t, 2, 0)
		m.rosterHolder()
		m.played[0].answers["InsertExtension"] = &control.Extensions{Extensions: []*control.ExtensionState{{Number: 1, Handle: 11, State: active}}}
		m.played[1].mute["InsertExtension"] = true
		asked := make(chan error)
		operator := m.client()
		go func() {
			_, err := operator.ask(&control.InsertExtension{Node: control.None, Name: "x"})
			asked <- err
		}()
		synctest.Wait()
		must[*control.NodesLeaving](c, leave(false, 1))
		synctest.Wait()
		c.has(0)
		if err := <-asked; err == nil {
			t.Error("node 1 has not answered")
		}
		must[*control.NodesAdded](c, &control.GrowMachine{Count: 1})
		n := m.played[1]
		n.answers = map[string]proto.Message{"InsertExtension": m.played[0].answers["InsertExtension"]}
		n.has(nil)
		n.connect()
		synctest.Wait()
		if got := n.inserted(); got != "1x " {
			t.Errorf("the next node 1 got %q", got)
		}
	})
}

// A node that takes long to insert an extension, for example because Linux verifies a scheduler,
// still gets it.
func TestExtensionInsertedSlowly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, c := withExtensions(t, 2, 0)
		for _, n := range m.played {
			n.answers["InsertExtension"] = &control.Extensions{Extensions: []*control.ExtensionState{{Number: 1, Handle: 11, State: active}}}
		}
		m.played[1].slow = map[string]time.Duration{"InsertExtension": 30 * time.Second}
		if list := must[*control.Extensions](c, &control.InsertExtension{Node: control.None, Name: "x"}).Extensions; len(list) != 2 {
			t.Errorf("inserted are %v", list)
		}
	})
}

// A node that does not answer an insertion loses the extension again, at once or when it is back,
// and the client gets an error.
func TestInsertionUnanswered(t *testing.T) {
	for _, lost := range []bool{false, true} {
		for _, ofJob := range []bool{false, true} {
			bubble(t, func(t *testing.T) {
				m, c := withExtensions(t, 1, 0)
				n := m.played[0]
				request := &control.InsertExtension{Node: control.None, Name: "x"}
				if ofJob {
					request.Job = m.client().run(spec(1))
				}
				n.mute["InsertExtension"] = true
				n.has(map[uint64]string{1: active})
				asked := make(chan error)
				go func() {
					_, err := c.ask(request)
					asked <- err
				}()
				synctest.Wait()
				if lost {
					n.conn.Close()
				}
				if err := <-asked; err == nil || !strings.Contains(err.Error(), "if the extension got there, it is removed") {
					t.Errorf("the inserter is told %v", err)
				}
				if lost {
					n.hosts(request.Job, control.JobPhase_JOB_RUNNING)
					n.connect()
				}
				synctest.Wait()
				if got := n.inserted() + n.removed(); got != "1x 11 " {
					t.Errorf("it is told to insert and remove %s", got)
				}
				n.has(nil)
				n.boot = "another boot"
				n.connect()
				synctest.Wait()
				if got := n.inserted() + n.removed(); got != "" {
					t.Errorf("then %s", got)
				}
				if left, err := m.server.store.extensions(); err != nil || len(left) != 0 {
					t.Errorf("recorded are %v, %v", left, err)
				}
			})
		}
	}
}

// An extension that changes while a node already has its extensions and ends an old job is changed
// on the node before it gets jobs.
func TestExtensionsOfNodeThatEndsJobs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, c := withExtensions(t, 2, 1)
		n := m.played[1]
		n.has(map[uint64]string{1: active})
		n.mute["Forget"] = true
		n.hosts(17, control.JobPhase_JOB_RUNNING)
		n.connect()
		must[*control.Done](c, &control.RemoveExtension{Node: 1, Handle: 11})
		if got := n.removed(); got != "11 " {
			t.Errorf("it is told to remove %s", got)
		}
		must[*control.Extensions](c, &control.InsertExtension{Node: control.None, Name: "x"})
		if got := n.inserted(); got != "2x " {
			t.Errorf("it is told to insert %s", got)
		}
		if free := c.freeCores(); free != 2 {
			t.Errorf("%d cores are free", free)
		}
	})
}

// Nodes have the active extensions of a job for a moment longer than serve has the job. They are
// not listed any more. Those that were removed are.
func TestExtensionsOfEndedJobs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c, node := m.client(), m.played[0]
		job := must[*control.RunReply](c, &control.RunRequest{Spec: detachedSpec(1), Exec: new(control.Exec)}).Job
		node.answers = map[string]proto.Message{"ListExtensions": &control.Extensions{Extensions: []*control.ExtensionState{
			{Job: job, Handle: 1, State: active}, {Job: job + 1, Handle: 2, State: active}, {Handle: 3, State: active}, {Job: job + 1, Handle: 4, State: "removed: it made 16 faults"},
		}}}
		var listed []uint32
		for _, x := range must[*control.Extensions](c, &control.ListExtensions{Node: control.None}).Extensions {
			listed = append(listed, x.Handle)
		}
		if !slices.Equal(listed, []uint32{1, 3, 4}) {
			t.Errorf("listed are %v", listed)
		}
	})
}
