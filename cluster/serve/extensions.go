package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// An extension that an operator inserts into the machine belongs to its nodes, not only to the
// kernels that are running at that time. A node that boots again or was away gets missing
// extensions before it gets jobs, and loses extensions that were removed while it was away. A node
// keeps its extensions while its kernel restarts, and reports the number of each. An extension that
// was removed for its faults stays away as long as the node remembers that. If a node does not
// answer an insertion, into the machine or into a job, it loses the extension again and the client
// gets an error.

// active is the state of an extension that is in its slot.
const active = "active"

// noNode is the node of the request of an extension that no node should have.
const noNode = -2

// wants reports whether a node should have the extension. The caller holds Server.mu.
func wants(x *control.MachineExtension, node uint32) bool {
	return (x.Request.Node == control.None || uint32(x.Request.Node) == node) && !slices.Contains(x.Except, node)
}

// placedOn returns the index in Placed of the extension's current or last state on a node. The
// caller holds Server.mu.
func placedOn(x *control.MachineExtension, node uint32) int {
	return slices.IndexFunc(x.Placed, func(p *control.ExtensionState) bool { return p.Node == node })
}

// insertExtension inserts an extension into a slot of a running job or of the machine, on all its
// nodes or on the named one.
func (s *Server) insertExtension(m *control.InsertExtension) (*control.Extensions, error) {
	switch {
	case isPlacer(m):
		return s.insertPlacer(m)
	case m.Job == 0:
		return s.insertIntoMachine(m)
	}
	var err error
	if m.Number, err = s.store.nextExtension(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	j := s.jobs[m.Job]
	var nodes []uint32
	if j != nil && j.phase == control.JobPhase_JOB_RUNNING {
		for _, member := range j.members {
			if m.Node == control.None || uint32(m.Node) == member.Node {
				nodes = append(nodes, member.Node)
			}
		}
	}
	s.mu.Unlock()
	if len(nodes) == 0 {
		return nil, control.Failf(control.Code_CODE_NOT_FOUND, "no job %d runs there", m.Job)
	}
	list, err := s.gatherExtensions(nodes, m, control.ChangeTimeout)
	unsure, err := unanswered(err)
	if len(unsure) > 0 {
		s.running.Go(func() { // the machine's extensions may be changing for as long as a node may take
			s.placing.Lock()
			defer s.placing.Unlock()
			if err := s.takeBack(m, unsure); err != nil {
				s.config.Log("extension %s of job %d may stay on nodes %v: %v", m.Name, m.Job, unsure, err)
			}
		})
	}
	return list, err
}

// unanswered returns the nodes that may or may not have inserted the extension, and the error
// extended with that.
func unanswered(err error) (nodes []uint32, told error) {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil, err
	}
	var all []error
	for _, err := range joined.Unwrap() {
		var f *control.Failure
		if errors.As(err, &f) && (f.Code == control.Code_CODE_TIMEOUT || f.Code == control.Code_CODE_NODE_LOST) && f.Node != control.None {
			nodes = append(nodes, uint32(f.Node))
			err = control.Failf(f.Code, "%s; if the extension got there, it is removed", f.Text).At(uint32(f.Node))
		}
		all = append(all, err)
	}
	return nodes, errors.Join(all...)
}

// takeBack removes an extension from nodes that did not answer its insertion, now or when they are
// back. The caller holds Server.placing.
func (s *Server) takeBack(m *control.InsertExtension, nodes []uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	nodes = slices.DeleteFunc(nodes, func(number uint32) bool { return s.member(number) == nil }) // they have just left
	if len(nodes) == 0 {
		return nil
	}
	x := &control.MachineExtension{
		Request: &control.InsertExtension{Job: m.Job, Node: noNode, Name: m.Name, Number: m.Number}, Untold: nodes,
	}
	s.extensions = append(s.extensions, x)
	for _, n := range nodes {
		s.hasChanged(s.nodes[n])
	}
	return s.store.saveExtension(x, true)
}

// insertIntoMachine inserts an extension on the nodes that are up; nodes that come later get it
// then. A node that fails now is not asked again.
func (s *Server) insertIntoMachine(m *control.InsertExtension) (*control.Extensions, error) {
	s.placing.Lock()
	defer s.placing.Unlock()
	nodes, err := s.upNodes(int64(m.Node))
	if err != nil {
		return nil, err
	}
	if m.Number, err = s.store.nextExtension(); err != nil {
		return nil, err
	}
	list, err := s.gatherExtensions(nodes, m, control.ChangeTimeout)
	unsure, err := unanswered(err)
	switch {
	case len(list.Extensions) > 0:
	case len(unsure) > 0:
		return list, errors.Join(err, s.takeBack(m, unsure))
	default:
		return list, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x := &control.MachineExtension{Request: m}
	for _, state := range list.Extensions {
		if s.member(state.Node) != nil {
			x.Placed = append(x.Placed, state)
		}
	}
	for _, n := range nodes {
		if s.member(n) != nil && placedOn(x, n) < 0 { // one that has just left says nothing about the next of its number
			x.Except, x.Untold = append(x.Except, n), append(x.Untold, n)
		}
	}
	s.extensions = append(s.extensions, x)
	for n := range s.members() {
		if wants(x, n.number) && placedOn(x, n.number) < 0 || slices.Contains(unsure, n.number) {
			s.hasChanged(n)
		}
	}
	return list, errors.Join(err, s.store.saveExtension(x, true))
}

// removeExtension removes an extension from its slot. An extension of the machine is removed for
// good, also from nodes that are away: they remove it when they are back.
func (s *Server) removeExtension(m *control.RemoveExtension) error {
	if m.Node == control.Allocator {
		return s.removePlacer(m.Handle)
	}
	s.placing.Lock()
	defer s.placing.Unlock()
	s.mu.Lock()
	x := s.placedAs(m.Node, m.Handle)
	var err error
	var away bool
	if x != nil {
		x.Except, x.Untold = append(x.Except, m.Node), append(x.Untold, m.Node)
		err = s.recordExtension(x)
		if n := s.nodes[m.Node]; !n.up() {
			away = true
			s.hasChanged(n)
		}
	}
	s.mu.Unlock()
	if err != nil || away {
		return err
	}
	err = s.tell(m.Node, m, control.ChangeTimeout)
	gone := errors.Is(err, &control.Failure{Code: control.Code_CODE_NOT_FOUND}) // removed for its faults; from now on it stays removed
	if x == nil || err != nil && !gone {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x.Untold = without(x.Untold, m.Node)
	return s.recordExtension(x)
}

// placedAs returns the machine's extension that a node has under a handle, nil if there is none.
// The caller holds Server.mu.
func (s *Server) placedAs(node, handle uint32) *control.MachineExtension {
	for _, x := range s.extensions {
		if i := placedOn(x, node); i >= 0 && x.Placed[i].Handle == handle && wants(x, node) {
			return x
		}
	}
	return nil
}

// recordExtension records the current state of an extension of the machine, and forgets an
// extension that no node should have any longer. The caller holds Server.placing and Server.mu.
func (s *Server) recordExtension(x *control.MachineExtension) error {
	wanted := isWanted(x, s.roster.Nodes)
	if !wanted {
		s.extensions = slices.DeleteFunc(s.extensions, func(other *control.MachineExtension) bool { return other == x })
	}
	return s.store.saveExtension(x, wanted)
}

// isWanted reports whether one of the nodes should have an extension, or may have it and should
// not. The caller holds Server.mu.
func isWanted(x *control.MachineExtension, nodes []uint32) bool {
	return len(x.Untold) > 0 || slices.ContainsFunc(nodes, func(node uint32) bool { return wants(x, node) })
}

// leaveExtensions forgets what the machine's extensions say about a node that has left: the next
// node of its number gets them as any new node does. It returns the extensions that have changed.
// The caller holds Server.mu.
func (s *Server) leaveExtensions(number uint32) (changed []*control.MachineExtension) {
	for _, x := range s.extensions {
		named := x.Request.Node >= 0 && uint32(x.Request.Node) == number
		i := placedOn(x, number)
		if !named && i < 0 && !slices.Contains(x.Except, number) && !slices.Contains(x.Untold, number) {
			continue
		}
		if named {
			x.Request = proto.CloneOf(x.Request)
			x.Request.Node = noNode
		}
		if i >= 0 {
			x.Placed = slices.Delete(x.Placed, i, i+1)
		}
		x.Except, x.Untold = without(x.Except, number), without(x.Untold, number)
		changed = append(changed, x)
	}
	return changed
}

// catchUp inserts the machine's extensions that a node lacks, and removes the extensions that it
// should not have. The caller holds Server.mu.
func (s *Server) catchUp(n *node) {
	if len(s.extensions) > 0 {
		s.owe(n, "get the machine's extensions", func(conn *control.Conn) error { return s.place(n.number, conn) })
	}
}

// hasChanged calls catchUp for a node that was registering, or became up, when the machine's
// extensions changed. A node that is away catches up when it registers. The caller holds
// Server.placing and Server.mu.
func (s *Server) hasChanged(n *node) {
	if n.up() || n.conn != nil && n.owes > 0 {
		s.catchUp(n)
		s.ready(n)
	}
}

// place brings a node's extensions in line with the machine's. It returns an error if the node
// cannot be asked.
func (s *Server) place(node uint32, conn *control.Conn) error {
	s.placing.Lock()
	defer s.placing.Unlock()
	ctx, cancel := context.WithTimeout(s.context, control.ChangeTimeout)
	defer cancel()
	list, err := askFor[*control.Extensions](ctx, conn, &control.ListExtensions{Node: int32(node)})
	if err != nil {
		return err
	}
	has := make(map[uint64]*control.ExtensionState)
	for _, x := range list.Extensions {
		x.Node = node
		has[x.Number] = x
	}
	s.mu.Lock()
	extensions := slices.Clone(s.extensions)
	s.mu.Unlock()
	for _, x := range extensions {
		if err := s.placeOne(ctx, node, conn, x, has); err != nil {
			return err
		}
	}
	return nil
}

// placeOne is place for one extension. has are the extensions of the node, by their numbers.
func (s *Server) placeOne(ctx context.Context, node uint32, conn *control.Conn, x *control.MachineExtension, has map[uint64]*control.ExtensionState) error {
	s.mu.Lock()
	wanted, request := wants(x, node), x.Request // the node that the request names may leave at any time
	s.mu.Unlock()
	state := has[request.Number]
	var refused error
	switch {
	case wanted && state == nil:
		list, err := askFor[*control.Extensions](ctx, conn, request)
		if conn.Err() != nil || ctx.Err() != nil {
			return err
		}
		if refused = err; err == nil && len(list.Extensions) == 1 {
			state = list.Extensions[0]
			state.Node = node
		}
	case !wanted && state != nil && state.State == active:
		if _, err := conn.Call(ctx, &control.RemoveExtension{Node: node, Handle: state.Handle}); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[node].conn != conn {
		return control.ErrClosed
	}
	x.Untold = without(x.Untold, node)
	if refused != nil {
		s.config.Log("node%d does not get extension %s of the machine: %v", node, x.Request.Name, refused)
		x.Except = append(x.Except, node)
	}
	if i := placedOn(x, node); i >= 0 {
		x.Placed = slices.Delete(x.Placed, i, i+1)
	}
	if state != nil {
		x.Placed = append(x.Placed, state)
	}
	return s.recordExtension(x)
}

// askFor sends a request that is answered with an M.
func askFor[M proto.Message](ctx context.Context, conn *control.Conn, request proto.Message) (answer M, err error) {
	m, err := conn.Call(ctx, request)
	if err != nil {
		return answer, err
	}
	answer, ok := m.(M)
	if !ok {
		return answer, fmt.Errorf("%T was answered with %T", request, m)
	}
	return answer, nil
}

// without returns a list without a node.
func without(list []uint32, node uint32) []uint32 {
	return slices.DeleteFunc(list, func(n uint32) bool { return n == node })
}

// listExtensions asks nodes for their extensions, and adds the extensions of the allocator and of
// nodes that are away.
func (s *Server) listExtensions(m *control.ListExtensions) (*control.Extensions, error) {
	others := s.awayExtensions(m.Node)
	if m.Node == control.None {
		others = append(others, s.placers()...)
	}
	nodes, err := s.upNodes(int64(m.Node))
	if err != nil && len(others) == 0 {
		return nil, err
	}
	list, err := s.gatherExtensions(nodes, m, s.answerTimeout())
	s.leaveOutEnded(list)
	list.Extensions = append(list.Extensions, others...)
	sortExtensions(list)
	return list, err
}

// leaveOutEnded leaves out active extensions of jobs that have ended. Nodes forget them a moment
// later. One that was removed because of its faults is shown after its job, too.
func (s *Server) leaveOutEnded(list *control.Extensions) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list.Extensions = slices.DeleteFunc(list.Extensions, func(x *control.ExtensionState) bool {
		if x.Job == 0 || x.State != active {
			return false
		}
		j := s.jobs[x.Job]
		return j == nil || j.phase == control.JobPhase_JOB_ENDING
	})
}

// awayExtensions lists the machine's extensions on nodes that cannot be asked, or on the named one.
func (s *Server) awayExtensions(named int32) (list []*control.ExtensionState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.extensions {
		for _, p := range x.Placed {
			if (named == control.None || uint32(named) == p.Node) && wants(x, p.Node) && !s.nodes[p.Node].up() {
				state := proto.CloneOf(p)
				state.State = "its node is away"
				list = append(list, state)
			}
		}
	}
	return list
}

func (s *Server) gatherExtensions(nodes []uint32, question proto.Message, timeout time.Duration) (*control.Extensions, error) {
	list := new(control.Extensions)
	err := s.gather(nodes, timeout, question, func(node uint32, answer proto.Message) {
		if x, ok := answer.(*control.Extensions); ok {
			for _, e := range x.Extensions {
				e.Node = node
			}
			list.Extensions = append(list.Extensions, x.Extensions...)
		}
	})
	sortExtensions(list)
	return list, err
}

func sortExtensions(list *control.Extensions) {
	slices.SortFunc(list.Extensions, func(a, b *control.ExtensionState) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Handle, b.Handle))
	})
}
