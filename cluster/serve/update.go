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
// out the work of the stages that have some.

// Bounds on the parts of the work: how long the holder may take to make an image, how long a node
// may take for a piece of it and for loading it, and the size of a piece in bytes.
const (
	stageTimeout = time.Minute
	pieceTimeout = 30 * time.Second
	loadTimeout  = time.Minute
	pieceSize    = 256 << 10
)

// updateNodes begins an update. The holder refuses it first where nodes cannot start another image.
func (s *Server) updateNodes(m *control.UpdateNodes) (*control.Update, error) {
	s.mu.Lock()
	nodes, err := s.updatable(m)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if _, err := s.stageImage(nodes[0], m.Image); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if nodes, err = s.updatable(m); err != nil {
		return nil, err
	}
	u := &control.Update{Image: m.Image, Rolling: m.Rolling, TimeoutMs: m.TimeoutMs, User: printable.Line(m.User)}
	if u.TimeoutMs == 0 {
		u.TimeoutMs = s.config.Timing.Boot.Milliseconds()
	}
	for _, number := range nodes {
		u.Nodes = append(u.Nodes, &control.NodeUpdate{Node: number, SinceNs: time.Now().UnixNano(), Out: s.nodes[number].drain != nil})
	}
	if err := s.store.saveUpdate(u); err != nil {
		return nil, s.onDisk(err)
	}
	s.update, s.working = u, make(map[uint32]control.UpdateStage)
	s.config.Log("%d nodes get image %s by order of %s", len(nodes), u.Image, u.User)
	s.advanceUpdate()
	return proto.CloneOf(s.update), nil
}

// updatable returns the nodes of an update, in order, unless one of them cannot begin it. The
// caller holds Server.mu.
func (s *Server) updatable(m *control.UpdateNodes) ([]uint32, error) {
	if update.Running(s.update) {
		return nil, control.Failf(control.Code_CODE_REFUSED, "an update to image %s is going on, by %s", s.update.Image, s.update.User)
	}
	if m.TimeoutMs < 0 || m.Image == "" {
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

// updating reports whether a node is out of service for an update. The caller holds Server.mu.
func (s *Server) updating(node uint32) bool {
	for _, n := range s.update.GetNodes() {
		if n.Node == node {
			return update.Active(n.Stage)
		}
	}
	return false
}

// keepOut makes nodes stay out of service after the update that goes on. The caller holds
// Server.mu.
func (s *Server) keepOut(nodes []uint32) {
	if !update.Running(s.update) {
		return
	}
	next := proto.CloneOf(s.update)
	for _, n := range next.Nodes {
		n.Out = n.Out || slices.Contains(nodes, n.Node) && !update.Ended(n.Stage)
	}
	s.setUpdate(next)
}

// sight is what the state machine of updates knows of a node. The caller holds Server.mu.
func (s *Server) sight(number uint32) update.Sight {
	n := s.member(number)
	if n == nil {
		return update.Sight{Gone: true, Why: "it has left the machine"}
	}
	return update.Sight{Up: n.up(), Gone: n.gone(), Why: n.why(), Busy: len(n.uses) > 0, Boot: n.boot, Image: n.info.GetImage()}
}

// advanceUpdate takes an update to its next state. The caller holds Server.mu.
func (s *Server) advanceUpdate() {
	if !update.Running(s.update) {
		return
	}
	s.setUpdate(update.Advance(s.update, time.Now(), s.sight))
	for _, n := range s.update.Nodes {
		s.workOn(n)
	}
}

// setUpdate records the next state of the update and applies it. A state that cannot be recorded
// does not count: it is computed again. Drains are recorded first. They can be repeated, but a node
// whose update is recorded as over would stay out of service. The caller holds Server.mu.
func (s *Server) setUpdate(next *control.Update) {
	if proto.Equal(next, s.update) {
		return
	}
	err := s.setDrains(s.drainsOf(next))
	if err == nil {
		err = s.store.saveUpdate(next)
	}
	if err != nil {
		s.config.Log("update to image %s: %v", next.Image, err)
		return
	}
	for i, n := range next.Nodes {
		before := s.update.Nodes[i].Stage
		if n.Stage == before {
			continue
		}
		s.config.Log("node%d: update to image %s: %s%s", n.Node, next.Image, n.Stage.Word(), because(n.Reason))
		if member := s.member(n.Node); member != nil {
			s.entered(member, n)
		}
	}
	s.update = next
}

// drainsOf returns the changes of drains with which nodes enter their stages. The caller holds
// Server.mu.
func (s *Server) drainsOf(next *control.Update) map[uint32]*control.Drain {
	drains := make(map[uint32]*control.Drain)
	for i, n := range next.Nodes {
		member := s.member(n.Node)
		if n.Out || n.Stage == s.update.Nodes[i].Stage || member == nil || member.leaves() {
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
	work := map[control.UpdateStage]func(uint32, *control.Update) error{
		update.Loading: s.giveImage, update.Resetting: s.resetNode, update.Keeping: s.keepImage,
	}[n.Stage]
	if work == nil || s.working[n.Node] == n.Stage {
		return
	}
	if member := s.member(n.Node); n.Stage == update.Loading && (member == nil || !member.up()) {
		return
	}
	s.working[n.Node] = n.Stage
	u := s.update
	s.running.Go(func() {
		err := work(n.Node, u)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.context.Err() != nil || !slices.ContainsFunc(s.update.Nodes, func(now *control.NodeUpdate) bool { return update.At(now, n) }) {
			return
		}
		if passing(err) {
			s.config.Log("node%d: update to image %s: %v; trying again", n.Node, u.Image, err)
			delete(s.working, n.Node)
			return
		}
		if failure := (*control.Failure)(nil); errors.As(err, &failure) {
			err = errors.New(failure.Text) // the update names the node
		}
		s.setUpdate(update.Worked(s.update, n, err, time.Now()))
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

// askHolder asks the holder. An answer that does not come is a passing error.
func askHolder[M proto.Message](s *Server, request proto.Message) (answer M, err error) {
	s.mu.Lock()
	holder := s.holder
	s.mu.Unlock()
	if holder == nil {
		return answer, noHolder
	}
	ctx, cancel := context.WithTimeout(s.context, stageTimeout)
	defer cancel()
	answer, err = askFor[M](ctx, holder, request)
	if said := (*control.Failure)(nil); err != nil && !errors.As(err, &said) {
		return answer, control.Failf(control.Code_CODE_RESTARTED, "the machine's holder has not answered: %v", err)
	}
	return answer, err
}

// stageImage makes the holder prepare an image for a node.
func (s *Server) stageImage(node uint32, image string) (*control.ImageStaged, error) {
	return askHolder[*control.ImageStaged](s, &control.StageImage{Node: node, Image: image})
}

// giveImage gives a node the image of an update, and makes it start it.
func (s *Server) giveImage(number uint32, u *control.Update) error {
	staged, err := s.stageImage(number, u.Image)
	if err != nil {
		return err
	}
	if err := s.sendFile(number, staged.Kernel, false); err != nil {
		return err
	}
	if err := s.sendFile(number, staged.Initramfs, true); err != nil {
		return err
	}
	return s.callWithin(loadTimeout, number, &control.StartImage{
		KernelHash: staged.KernelHash, InitramfsHash: staged.InitramfsHash, Cmdline: staged.Cmdline,
	})
}

// sendFile sends a file of an image to a node. The node checks what it gets.
func (s *Server) sendFile(number uint32, path string, initramfs bool) error {
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
		if err := s.callWithin(pieceTimeout, number, &control.ImagePiece{Initramfs: initramfs, Offset: offset, Data: data[:n]}); err != nil {
			return err
		}
		offset += uint64(n)
	}
}

func (s *Server) callWithin(timeout time.Duration, number uint32, request proto.Message) error {
	ctx, cancel := context.WithTimeout(s.context, timeout)
	defer cancel()
	_, err := s.call(ctx, number, request)
	return err
}

// resetNode makes the holder end a node that has not come up with an image, and boot its old one.
func (s *Server) resetNode(number uint32, u *control.Update) error {
	why := fmt.Sprintf("reset: image %s was not up in time", u.Image)
	return s.order(powerOrder{
		nodes: []uint32{number}, ends: true, again: true, force: true, done: "reset",
		ask: func(node uint32) proto.Message { return &control.RebootNode{Node: node, Why: why} },
	}, u.User)
}

// keepImage makes an image the one that a node boots from now on.
func (s *Server) keepImage(number uint32, u *control.Update) error {
	_, err := askHolder[*control.Done](s, &control.KeepImage{Node: number, Image: u.Image})
	return err
}
