package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/update"
	"margay/internal/printable"
)

// Package update decides what happens to the nodes of an update. serve advances it when it looks at
// its nodes (watch), records each state together with the drains that follow from it, and carries
// out the work of the stages that have some. Work asks nodes and the holder only while its stage
// goes on: the check and the request are made under one lock.

// Bounds on the parts of the work: how long the holder may take to make an image, how long a node
// may take for a piece of it and for loading it, and the size of a piece in bytes.
const (
	stageTimeout = 40 * time.Second // shorter than a client waits for the answer to UpdateNodes
	pieceTimeout = 30 * time.Second
	loadTimeout  = time.Minute
	pieceSize    = 256 << 10
)

// maxUpdateTimeout bounds the time-out of a stage.
const maxUpdateTimeout = 24 * time.Hour

// errPast ends work whose stage has ended. Its result does not count.
var errPast = errors.New("the stage has ended")

// updateNodes begins an update. The holder refuses it first where nodes cannot start another image.
func (s *Server) updateNodes(m *control.UpdateNodes) (*control.Update, error) {
	s.mu.Lock()
	u, err := s.begins(m)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	for _, n := range u.Nodes {
		if n.Stage != update.Waiting {
			continue
		}
		if _, err := askHolder[*control.ImageStaged](s, nil, &control.StageImage{Node: n.Node, Image: m.Image}); err != nil {
			return nil, err
		}
		break
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if u, err = s.begins(m); err != nil {
		return nil, err
	}
	if err := s.store.saveUpdate(u, nil); err != nil {
		return nil, s.onDisk(err)
	}
	s.update, s.working, s.troubles = u, make(map[uint32]control.UpdateStage), make(map[uint32]string)
	s.config.Log("%d nodes get image %s by order of %s", len(u.Nodes), u.Image, u.User)
	s.advanceUpdate()
	return proto.CloneOf(s.update), nil
}

// begins returns the state with which an update begins, unless one of its nodes cannot begin it.
// The caller holds Server.mu.
func (s *Server) begins(m *control.UpdateNodes) (*control.Update, error) {
	nodes, err := s.updatable(m)
	if err != nil {
		return nil, err
	}
	u := &control.Update{Image: m.Image, Rolling: min(m.Rolling, uint32(len(nodes))), TimeoutMs: m.TimeoutMs, User: printable.Line(m.User)}
	if u.TimeoutMs == 0 {
		u.TimeoutMs = s.config.Timing.Boot.Milliseconds()
	}
	for _, number := range nodes {
		n := s.nodes[number]
		next := &control.NodeUpdate{Node: number, Term: n.term, SinceNs: time.Now().UnixNano(), Out: n.drain != nil}
		update.Begin(next, m, n.info.GetImage())
		u.Nodes = append(u.Nodes, next)
	}
	return u, nil
}

// updatable returns the nodes of an update, in order, unless one of them cannot begin it. The
// caller holds Server.mu.
func (s *Server) updatable(m *control.UpdateNodes) ([]uint32, error) {
	if update.Running(s.update) {
		return nil, control.Failf(control.Code_CODE_REFUSED, "an update to image %s is going on, by %s", s.update.Image, s.update.User)
	}
	if m.TimeoutMs < 0 || m.TimeoutMs > maxUpdateTimeout.Milliseconds() || m.Image == "" {
		return nil, control.Failf(control.Code_CODE_BAD_REQUEST, "it has the time-out %d ms and the image %q", m.TimeoutMs, m.Image)
	}
	nodes, err := s.named(m.Nodes)
	if err != nil {
		return nil, err
	}
	for _, number := range nodes {
		switch n := s.nodes[number]; {
		case !n.up():
			return nil, control.Failf(control.Code_CODE_REFUSED, "it is not up: %s", n.why()).At(number)
		case n.leaves():
			return nil, control.Failf(control.Code_CODE_REFUSED, "it leaves the machine").At(number)
		}
	}
	return nodes, nil
}

// readUpdate returns the state of the last update.
func (s *Server) readUpdate() *control.Update {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.update == nil {
		return new(control.Update)
	}
	return proto.CloneOf(s.update)
}

// updateOf returns the state of a node in the last update, nil if it has none. The caller holds
// Server.mu.
func (s *Server) updateOf(node uint32) *control.NodeUpdate {
	for _, n := range s.update.GetNodes() {
		if n.Node == node {
			return n
		}
	}
	return nil
}

// drainedByUpdate reports whether a node is out of service only for an update. The caller holds
// Server.mu.
func (s *Server) drainedByUpdate(node uint32) bool {
	n := s.updateOf(node)
	return n != nil && update.Active(n.Stage) && !n.Out
}

// updated returns a node of an update, nil if it has left the machine. The caller holds Server.mu.
func (s *Server) updated(u *control.NodeUpdate) *node {
	if n := s.member(u.Node); n != nil && n.term == u.Term {
		return n
	}
	return nil
}

// current reports whether a node of the update is still in a stage. The caller holds Server.mu.
func (s *Server) current(was *control.NodeUpdate) bool {
	return slices.ContainsFunc(s.update.GetNodes(), func(n *control.NodeUpdate) bool { return update.At(n, was) })
}

// sight is what the state machine of updates knows of a node. The caller holds Server.mu.
func (s *Server) sight(u *control.NodeUpdate) update.Sight {
	n := s.updated(u)
	if n == nil {
		return update.Sight{Left: true}
	}
	return update.Sight{
		Up: n.up(), Gone: n.gone() || n.health == control.NodeHealth_NODE_REFUSED, Why: n.why(),
		Refused: n.health == control.NodeHealth_NODE_REFUSED,
		Off:     n.health == control.NodeHealth_NODE_OFF, Trouble: s.troubles[u.Node],
		Down: n.health == control.NodeHealth_NODE_DEAD && n.power == control.NodePower_POWER_OFF && !n.retry,
		Busy: len(n.uses) > 0, Boot: n.boot, Image: n.info.GetImage(),
	}
}

// advanceUpdate takes an update to its next state. The caller holds Server.mu.
func (s *Server) advanceUpdate() {
	if !update.Running(s.update) {
		return
	}
	s.setUpdate(update.Advance(s.update, s.started, time.Now(), s.sight))
	for _, n := range s.update.Nodes {
		s.workOn(n)
	}
}

// setUpdate records the next state of the update and applies it, and reports whether it could. A
// state that cannot be recorded does not count: it is computed again. The caller holds Server.mu.
func (s *Server) setUpdate(next *control.Update) bool {
	if proto.Equal(next, s.update) {
		return true
	}
	if err := s.changeUpdate(next, s.drainsOf(next)); err != nil {
		s.log.Printf("update to image %s: %v", next.Image, err)
		return false
	}
	return true
}

// changeUpdate records the next state of the update together with changes of drains, as setDrains
// does, and applies them; all of them, or none with an error. The caller holds Server.mu.
func (s *Server) changeUpdate(next *control.Update, drains map[uint32]*control.Drain) error {
	if proto.Equal(next, s.update) {
		return s.setDrains(drains)
	}
	if err := s.store.saveUpdate(next, drains); err != nil {
		return s.onDisk(err)
	}
	s.drainsChanged(drains)
	for i, n := range next.Nodes {
		before := s.update.Nodes[i].Stage
		if n.Stage == before {
			continue
		}
		delete(s.troubles, n.Node)
		s.config.Log("node%d: update to image %s: %s%s", n.Node, next.Image, n.Stage.Word(), because(n.Reason))
		if member := s.updated(n); member != nil {
			s.entered(member, n)
		}
	}
	s.update = next
	return nil
}

// drainsOf returns the changes of drains with which nodes enter their stages. A node that is out of
// service by another order stays as it is. The caller holds Server.mu.
func (s *Server) drainsOf(next *control.Update) map[uint32]*control.Drain {
	drains := make(map[uint32]*control.Drain)
	for i, n := range next.Nodes {
		member := s.updated(n)
		if n.Stage == s.update.Nodes[i].Stage || member == nil || member.leaves() || n.Out && member.drain != nil {
			continue
		}
		switch n.Stage {
		case update.Draining:
			drains[n.Node] = &control.Drain{Reason: "update to image " + next.Image, User: next.User, SinceNs: n.SinceNs}
		case update.Failed:
			drains[n.Node] = &control.Drain{Reason: printable.Short("update: "+n.Reason, maxReason), User: next.User, SinceNs: n.SinceNs}
		case update.Done:
			drains[n.Node] = nil
		}
	}
	return drains
}

// entered applies a stage to a node that enters it: while it starts an image its old boot is not
// accepted any more. The caller holds Server.mu.
func (s *Server) entered(n *node, u *control.NodeUpdate) {
	switch {
	case u.Stage == update.Starting && n.boot == u.Boot:
		n.leaving = u.Boot
		n.disconnect()
		n.turn(control.NodeHealth_NODE_BOOTING, "it starts another image")
		n.heard, n.started = time.Now(), time.Now()
	case n.leaving == u.Boot:
		n.leaving = ""
	}
}

// workOn begins the work of a node's stage, once. The caller holds Server.mu.
func (s *Server) workOn(n *control.NodeUpdate) {
	work := map[control.UpdateStage]func(*control.NodeUpdate, *control.Update) error{
		update.Loading: s.giveImage, update.Resetting: s.resetNode, update.Keeping: s.keepImage,
	}[n.Stage]
	if work == nil || s.working[n.Node] == n.Stage {
		return
	}
	member := s.updated(n)
	if member == nil || n.Stage == update.Loading && !member.up() {
		return
	}
	s.working[n.Node] = n.Stage
	u := s.update
	s.running.Go(func() {
		err := work(n, u)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.context.Err() != nil || !s.current(n) {
			return
		}
		passes := passing(err)
		if failure := (*control.Failure)(nil); errors.As(err, &failure) {
			err = errors.New(failure.Text) // the update names the node
		}
		if passes {
			s.troubles[n.Node] = err.Error()
			member.deeds.Printf("node%d: update to image %s: %v; trying again", n.Node, u.Image, err)
			delete(s.working, n.Node)
			return
		}
		if !s.setUpdate(update.Worked(s.update, n, err, time.Now())) {
			delete(s.working, n.Node)
		}
	})
}

// passing reports whether work that failed must be tried again: a connection was lost, as when a
// node has started its image before it could answer.
func passing(err error) bool {
	for _, code := range []control.Code{control.Code_CODE_NODE_LOST, control.Code_CODE_TIMEOUT, control.Code_CODE_RESTARTED} {
		if errors.Is(err, &control.Failure{Code: code}) {
			return true
		}
	}
	return false
}

// askHolder asks the holder for a stage of a node; nil: for a new update. An answer that does not
// come is a passing error.
func askHolder[M proto.Message](s *Server, n *control.NodeUpdate, request proto.Message) (answer M, err error) {
	ctx, cancel := context.WithTimeout(s.context, stageTimeout)
	defer cancel()
	asked, err := s.askHolderFor(n, request)
	if err != nil {
		return answer, err
	}
	m, err := asked.Answer(ctx)
	if said := (*control.Failure)(nil); err != nil && !errors.As(err, &said) {
		return answer, control.Failf(control.Code_CODE_RESTARTED, "the machine's holder has not answered: %v", err)
	}
	if err != nil {
		return answer, err
	}
	answer, ok := m.(M)
	if !ok {
		return answer, fmt.Errorf("%T was answered with %T", request, m)
	}
	return answer, nil
}

func (s *Server) askHolderFor(n *control.NodeUpdate, request proto.Message) (*control.Question, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case n != nil && !s.current(n):
		return nil, errPast
	case s.holder == nil:
		return nil, noHolder
	}
	return s.holder.Ask(request), nil
}

// giveImage gives a node the image of an update, and makes it start it.
func (s *Server) giveImage(n *control.NodeUpdate, u *control.Update) error {
	staged, err := askHolder[*control.ImageStaged](s, n, &control.StageImage{Node: n.Node, Image: u.Image})
	if err != nil {
		return err
	}
	if err := s.sendFile(n, staged.Kernel, false); err != nil {
		return err
	}
	if err := s.sendFile(n, staged.Initramfs, true); err != nil {
		return err
	}
	return s.callFor(n, loadTimeout, &control.StartImage{
		KernelHash: staged.KernelHash, InitramfsHash: staged.InitramfsHash, Cmdline: staged.Cmdline,
	})
}

// sendFile sends a file of an image to a node. The node checks what it gets.
func (s *Server) sendFile(u *control.NodeUpdate, path string, initramfs bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for offset := uint64(0); ; {
		data := make([]byte, pieceSize) // the queue of the connection keeps it
		n, err := io.ReadFull(f, data)
		if n == 0 {
			return nil
		}
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		if err := s.callFor(u, pieceTimeout, &control.ImagePiece{Initramfs: initramfs, Offset: offset, Data: data[:n]}); err != nil {
			return err
		}
		offset += uint64(n)
	}
}

// callFor sends a request to a node for the stage that it is in, and waits for the answer. The node
// must still have the boot that the image replaces.
func (s *Server) callFor(u *control.NodeUpdate, timeout time.Duration, request proto.Message) error {
	ctx, cancel := context.WithTimeout(s.context, timeout)
	defer cancel()
	q, err := s.askFor(u, request)
	if err != nil {
		return err
	}
	_, err = q.answer(ctx)
	return err
}

func (s *Server) askFor(u *control.NodeUpdate, request proto.Message) (*question, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.updated(u)
	switch {
	case n == nil || !s.current(u):
		return nil, errPast
	case n.boot != u.Boot:
		return nil, control.Failf(control.Code_CODE_NODE_LOST, "it has booted").At(u.Node)
	}
	return s.ask(u.Node, request), nil
}

// resetNode makes the holder end a node that has not come up with an image, and boot its old one.
func (s *Server) resetNode(n *control.NodeUpdate, u *control.Update) error {
	why := fmt.Sprintf("reset: image %s was not up in time", u.Image)
	return s.order(powerOrder{
		nodes: []uint32{n.Node}, ends: true, again: true, force: true, done: "reset",
		wanted: func() bool { return s.current(n) },
		ask:    func(node uint32) proto.Message { return &control.RebootNode{Node: node, Why: why, Once: n.SinceNs} },
	}, u.User)
}

// keepImage makes an image the one that a node boots from now on.
func (s *Server) keepImage(n *control.NodeUpdate, u *control.Update) error {
	_, err := askHolder[*control.Done](s, n, &control.KeepImage{Node: n.Node, Image: u.Image})
	return err
}
