package serve

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// Bounds of what nodes are asked to do.
const (
	prepareTimeout = 30 * time.Second
	startTimeout   = 30 * time.Second
	forgetTimeout  = 10 * time.Second
)

// create allocates cores for a job and enters it in the table.
func (s *Server) create(spec *control.JobSpec, client *control.Conn) (*job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := shapeOf(spec).check(); err != nil {
		return nil, err
	}
	offers := s.offers()
	places := allocate(slices.DeleteFunc(offers, func(o offer) bool { return s.nodes[o.node].info.Arch != spec.Arch }), shapeOf(spec))
	if places == nil {
		return nil, s.noRoom(spec)
	}
	number, err := s.store.nextJob()
	if err != nil {
		return nil, err
	}
	j := newJob(number, spec, places)
	if spec.Detach {
		if j.spool, err = createSpool(s.config.Dir, number); err != nil {
			return nil, err
		}
	}
	j.client = client
	j.phase = control.JobPhase_JOB_PREPARED
	last := -1
	for _, p := range places {
		n := s.nodes[p.Node]
		n.use(number, p)
		if int(p.Node) != last {
			j.members = append(j.members, &control.Member{Node: p.Node, Address: n.info.Address})
			j.loading[p.Node] = true
			last = int(p.Node)
		}
	}
	s.jobs[number] = j
	s.save(j)
	return j, nil
}

// offers lists the free cores of the nodes that are up. The caller holds Server.mu.
func (s *Server) offers() []offer {
	var offers []offer
	for _, n := range s.nodes {
		if !n.up() {
			continue
		}
		o := offer{node: n.number, total: len(n.info.Cores)}
		for _, core := range n.info.Cores {
			if _, taken := n.uses[core]; !taken {
				o.cores = append(o.cores, core)
			}
		}
		offers = append(offers, o)
	}
	return offers
}

// noRoom says why a job does not fit, and what would. The caller holds Server.mu.
func (s *Server) noRoom(spec *control.JobSpec) error {
	var offers []offer
	up := s.offers()
	for _, o := range up {
		if s.nodes[o.node].info.Arch == spec.Arch {
			offers = append(offers, o)
		}
	}
	if len(up) > 0 && len(offers) == 0 {
		return control.Failf(control.Code_CODE_NOT_EXECUTABLE, "%s is for %s, but the nodes of machine %s are %s",
			spec.Path, spec.Arch, s.config.Machine, s.arches())
	}
	return control.Failf(control.Code_CODE_NO_ROOM, "%s (%d of %d nodes are up; see margay nodes)", shapeOf(spec).lacks(offers), len(up), len(s.nodes))
}

// arches names the architectures of the nodes. The caller holds Server.mu.
func (s *Server) arches() string {
	var arches []string
	for _, o := range s.offers() {
		arches = append(arches, s.nodes[o.node].info.Arch)
	}
	slices.Sort(arches)
	return strings.Join(slices.Compact(arches), " and ")
}

// launch brings a job from its creation to running. Any failure ends it; the client learns the reason from the job's state.
func (s *Server) launch(j *job, request *control.Frame, client *control.Conn) {
	secret := make([]byte, 16)
	_, _ = rand.Read(secret) // it never fails
	prepare := &control.Prepare{Job: j.number, Spec: j.spec, Places: j.places, Members: j.members, Secret: secret}
	if !s.step(j, prepareTimeout, prepare) {
		<-j.done // its cores are free when the client hears of it
		client.Answer(request, nil, j.failure)
		return
	}
	client.Answer(request, &control.RunReply{Job: j.number, Places: j.places}, nil)
	select {
	case <-j.loaded:
	case <-j.failed:
		return
	case <-s.context.Done():
		return
	}
	if !s.runs(j) || !s.step(j, startTimeout, &control.Start{Job: j.number}) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.jobs[j.number] == j {
		j.tellClient()
	}
}

// runs records that a job is running, before its nodes are asked: its ranks may say something before every node has answered.
// It reports false when the job has ended meanwhile.
func (s *Server) runs(j *job) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j.finishing {
		return false
	}
	j.phase = control.JobPhase_JOB_RUNNING
	s.save(j)
	return true
}

// step asks all nodes of a job for something and reports whether none has refused it. Otherwise the job has failed. A node that is
// lost meanwhile is dead before long, or back: then a running job's does it, and a launch is spoilt.
func (s *Server) step(j *job, timeout time.Duration, request proto.Message) bool {
	s.onAll(j, timeout, request, func(_ uint32, err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !errors.Is(err, &control.Failure{Code: control.Code_CODE_NODE_LOST}) {
			s.fail(j, toFailure(err))
		}
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	return j.failure == nil && !j.finishing
}

// onAll sends a request to all nodes of a job at the same time, waits for the answers, and reports each error.
func (s *Server) onAll(j *job, timeout time.Duration, request proto.Message, failed func(node uint32, err error)) {
	ctx, cancel := context.WithTimeout(s.context, timeout)
	defer cancel()
	var asked sync.WaitGroup
	for _, m := range j.members {
		asked.Go(func() {
			if _, err := s.call(ctx, m.Node, request); err != nil && s.context.Err() == nil {
				failed(m.Node, err)
			}
		})
	}
	asked.Wait()
}

// nodeLoaded takes a node's word that it has a job's files, or why not. The caller holds Server.mu.
func (s *Server) nodeLoaded(j *job, n *node, m *control.Loaded) {
	if m.Error != nil {
		s.fail(j, toFailure(m.Error.Err()))
		return
	}
	if !j.loading[n.number] {
		return
	}
	delete(j.loading, n.number)
	if len(j.loading) == 0 {
		close(j.loaded)
	}
}
