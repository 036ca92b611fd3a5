package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// gatherTimeout is the minimum time that nodes have to answer a question, in addition to the
// duration that the question asks for.
const gatherTimeout = 8 * time.Second

// answerTimeout bounds how long a question to several nodes takes, in addition to the duration that
// the question asks for: a node may still answer as long as its silence does not make it dead.
func (s *Server) answerTimeout() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(gatherTimeout, s.config.Timing.deadAfter(s.pace()))
}

// upNodes lists the nodes that can be asked, or the named one.
func (s *Server) upNodes(named int64) ([]uint32, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var nodes []uint32
	for n := range s.members() {
		if n.up() && (named == control.None || named == int64(n.number)) {
			nodes = append(nodes, n.number)
		}
	}
	if len(nodes) == 0 {
		return nil, s.noNode(named)
	}
	return nodes, nil
}

// noNode reports why the named node, or any node, cannot be asked. The caller holds Server.mu.
func (s *Server) noNode(named int64) error {
	switch {
	case named == control.None:
		return control.Failf(control.Code_CODE_NOT_FOUND, "no node of machine %s is up (margay nodes)", s.config.Machine)
	case named < 0 || s.member(uint32(named)) == nil:
		return control.Failf(control.Code_CODE_NOT_FOUND, "%s", s.absentee(named))
	}
	return control.Failf(control.Code_CODE_NODE_LOST, "it is not up: %s (margay nodes)", s.nodes[named].why()).At(uint32(named))
}

// gather sends a question to nodes in parallel and passes each answer to take, one at a time. The
// error joins all failures.
func (s *Server) gather(nodes []uint32, timeout time.Duration, question proto.Message, take func(node uint32, answer proto.Message)) error {
	ctx, cancel := context.WithTimeout(s.context, timeout)
	defer cancel()
	var mu sync.Mutex
	var failed []error
	var asked sync.WaitGroup
	for _, n := range nodes {
		asked.Go(func() {
			answer, err := s.call(ctx, n, question)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = append(failed, err)
			} else {
				take(n, answer)
			}
		})
	}
	asked.Wait()
	if s.context.Err() != nil { // not the nodes' fault
		return context.Cause(s.context)
	}
	return errors.Join(failed...)
}

// noiseLimit is the longest noise measurement.
const noiseLimit = time.Minute

// noise lets nodes count the interruptions of their application cores.
func (s *Server) noise(m *control.Noise) (*control.NoiseReport, error) {
	d := time.Duration(m.DurationMs) * time.Millisecond
	if d <= 0 || d > noiseLimit {
		return nil, control.Failf(control.Code_CODE_BAD_REQUEST, "noise can be measured for up to %v", noiseLimit)
	}
	nodes, err := s.upNodes(int64(m.Node))
	if err != nil {
		return nil, err
	}
	report := new(control.NoiseReport)
	err = s.gather(nodes, d+s.answerTimeout(), m, func(node uint32, answer proto.Message) {
		if r, ok := answer.(*control.NoiseReport); ok {
			for _, core := range r.Cores {
				core.Node = node
			}
			report.Cores = append(report.Cores, r.Cores...)
		}
	})
	slices.SortFunc(report.Cores, func(a, b *control.CoreNoise) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Core, b.Core))
	})
	return report, err
}

// extensionNotes asks nodes for the events of their extensions, and adds the events of the
// allocator's extensions.
func (s *Server) extensionNotes(m *control.ExtensionLog) (*control.ExtensionNotes, error) {
	all := new(control.ExtensionNotes)
	if m.Node == control.None {
		all.Notes = s.placerNotes(m.After[control.Allocator])
	}
	nodes, err := s.upNodes(int64(m.Node))
	if err != nil && len(all.Notes) == 0 {
		return nil, err
	}
	known := make(map[uint32]uint64) // each node gets it
	for _, node := range nodes {
		known[node] = m.After[node]
	}
	m.After = known
	err = s.gather(nodes, s.answerTimeout(), m, func(node uint32, answer proto.Message) {
		if a, ok := answer.(*control.ExtensionNotes); ok {
			for _, n := range a.Notes {
				n.Node = node
			}
			all.Notes = append(all.Notes, a.Notes...)
		}
	})
	slices.SortStableFunc(all.Notes, func(a, b *control.ExtensionNote) int { return cmp.Compare(a.TimeNs, b.TimeNs) })
	return all, err
}

// takeSamples asks nodes for samples of their work. Missing answers of some nodes are not an error.
func (s *Server) takeSamples(m *control.TakeSamples) (*control.Samples, error) {
	nodes, err := s.upNodes(int64(m.Node))
	if err != nil {
		return nil, err
	}
	samples := new(control.Samples)
	err = s.gather(nodes, s.answerTimeout(), m, func(node uint32, answer proto.Message) {
		if x, ok := answer.(*control.Samples); ok && len(x.Nodes) == 1 {
			x.Nodes[0].Node = node
			samples.Nodes = append(samples.Nodes, x.Nodes[0])
		}
	})
	if len(samples.Nodes) > 0 {
		if m.Node == control.None {
			err = errors.Join(err, s.missing())
		}
		if err != nil {
			samples.Trouble, err = err.Error(), nil
		}
	}
	slices.SortFunc(samples.Nodes, func(a, b *control.NodeSample) int { return cmp.Compare(a.Node, b.Node) })
	s.widen(samples)
	return samples, err
}

// widen adds the cores that ranks have in addition to their first one.
func (s *Server) widen(samples *control.Samples) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range samples.Nodes {
		for _, r := range n.Ranks {
			r.More = nil
			if j := s.jobs[r.Job]; j != nil && j.hasRank(r.Rank, n.Node) {
				r.More = j.ranks[r.Rank].place.More
			}
		}
	}
}

// missing names the nodes that are not up, and why.
func (s *Server) missing() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []error
	for n := range s.members() {
		if !n.up() {
			all = append(all, fmt.Errorf("node%d: %s", n.number, n.why()))
		}
	}
	return errors.Join(all...)
}

// Sends a node a request whose only result is its completion.
func (s *Server) tell(node uint32, request proto.Message, timeout time.Duration) error {
	nodes, err := s.upNodes(int64(node))
	if err != nil {
		return err
	}
	return s.gather(nodes, timeout, request, func(uint32, proto.Message) {})
}

// How long a node's kernel may take to come back, and the interval at which that is checked.
const (
	restartTimeout = 30 * time.Second
	restartPause   = 10 * time.Millisecond
)

// restartKernel restarts the kernel of a node, and waits until the new kernel has registered.
func (s *Server) restartKernel(m *control.RestartKernel) error {
	before := s.registered(m.Node)
	if err := s.tell(m.Node, m, s.answerTimeout()); err != nil {
		return err
	}
	late := time.After(restartTimeout)
	for {
		if now := s.registered(m.Node); now != nil && now != before {
			return nil
		}
		select {
		case <-time.After(restartPause):
		case <-late:
			return control.Failf(control.Code_CODE_TIMEOUT, "its kernel has not come back within %v (margay nodes)", restartTimeout).At(m.Node)
		case <-s.context.Done():
			return context.Cause(s.context)
		}
	}
}

// registered returns the connection of a node that is up, or nil.
func (s *Server) registered(node uint32) *control.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.member(node); n != nil && n.health == control.NodeHealth_NODE_UP {
		return n.conn
	}
	return nil
}

// setDuties changes the duties of nodes' cores. Refusals of some nodes do not hide the changes on
// others.
func (s *Server) setDuties(m *control.SetDuties) error {
	nodes, err := s.upNodes(int64(m.Node))
	if err != nil {
		return err
	}
	s.awaitForgotten(nodes) // their cores look free
	return s.gather(nodes, s.answerTimeout(), m, func(number uint32, answer proto.Message) {
		set, ok := answer.(*control.DutiesSet)
		if !ok || set.Info == nil {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := s.member(number); n != nil && n.info != nil { // it has not left just now
			s.changed(n, set.Info)
		}
	})
}

// awaitForgotten waits until nodes have forgotten the jobs that have ended for their clients. A
// node has forgetTime for that.
func (s *Server) awaitForgotten(nodes []uint32) {
	s.mu.Lock()
	var ending []*job
	for _, j := range s.jobs {
		if j.announced && slices.ContainsFunc(nodes, j.on) {
			ending = append(ending, j)
		}
	}
	s.mu.Unlock()
	for _, j := range ending {
		select {
		case <-j.done:
		case <-s.context.Done():
			return
		}
	}
}

// changed updates the description of a node; its address does not change. watch records the
// description when it looks at the node the next time, because a node may describe itself as often
// as it likes. The caller holds Server.mu.
func (s *Server) changed(n *node, info *control.NodeInfo) {
	info.Address = n.info.Address
	if proto.Equal(info, n.info) {
		return
	}
	n.info, n.unsaved = info, true
	s.hinder(s.queue...)
	s.roomChanged()
}
