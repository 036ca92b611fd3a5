package serve

import (
	"fmt"
	"net/netip"
	"slices"

	"margay/cluster/control"
	"margay/internal/nodeset"
	"margay/kernel/abi/id"
)

// An allocation is a job that has nothing on its nodes. Its command runs at its client. Its cores
// are for other jobs, its steps: a core is the allocation's (node.uses) until a step takes it, and
// is the allocation's again when the step has ended. Nodes take steps for ordinary jobs, and never
// learn of the allocation.
//
// The ranks of an allocation all end with its command (EndAllocation). Whatever ends an allocation
// ends its steps. A step frees its cores itself, if it outlives the allocation by a moment.

// checkStep refuses an allocation that would be more than one, and a step that has no allocation.
// The caller holds Server.mu.
func (s *Server) checkStep(spec *control.JobSpec) error {
	switch {
	case spec.Allocation && (spec.Step != 0 || spec.Detach || spec.Hold || spec.Spares > 0 || spec.Launch != "" || spec.Task != nil || spec.Terminal != nil ||
		spec.Stdin != control.StdinMode_STDIN_NONE || len(spec.Out)+len(spec.Shared) > 0):
		return control.Failf(control.Code_CODE_BAD_REQUEST, "an allocation runs nothing on its nodes: it has no input, files, spares or tasks")
	case spec.Joins && (spec.Step == 0 || !spec.Network):
		return control.Failf(control.Code_CODE_BAD_REQUEST, "only a step with a network can join its allocation's")
	case spec.Step == 0:
		return nil
	case spec.Spares > 0 || spec.Launch != "":
		return control.Failf(control.Code_CODE_BAD_REQUEST, "a step of an allocation has no spares: --spares is for jobs outside of it")
	}
	a := s.allocation(spec.Step)
	if a == nil {
		return control.Failf(control.Code_CODE_BAD_REQUEST, "there is no allocation %d: it has ended, or never was (margay ps; margay alloc makes one)", spec.Step)
	}
	if spec.Limited && spec.Uid != a.spec.Uid { // it was not there yet when the request was checked
		return control.Failf(control.Code_CODE_REFUSED, "allocation %d is another user's", a.number)
	}
	if spec.Arch != a.spec.Arch {
		return control.Failf(control.Code_CODE_BAD_REQUEST, "%s is built for %s, and allocation %d has nodes of %s", spec.Path, spec.Arch, a.number, a.spec.Arch)
	}
	shape := shapeOf(spec)
	for _, node := range shape.only {
		if !a.has(node) {
			return control.Failf(control.Code_CODE_BAD_REQUEST, "node%d is not in allocation %d, which has %s", node, a.number, nodeset.Condense(a.nodes()))
		}
	}
	if !slices.ContainsFunc(a.places, func(p *control.Place) bool { return shape.mayUse(p.Node) }) {
		return control.Failf(control.Code_CODE_BAD_REQUEST, "-x leaves no node of allocation %d, which has %s", a.number, nodeset.Condense(a.nodes()))
	}
	return nil
}

// allocation returns an allocation that has not ended, or nil. The caller holds Server.mu.
func (s *Server) allocation(number uint32) *job {
	if a := s.jobs[number]; a != nil && a.spec.Allocation && a.phase == control.JobPhase_JOB_RUNNING && !a.finishing {
		return a
	}
	return nil
}

// allocationOf returns the allocation that gets the cores of a job when it ends, or 0. The caller
// holds Server.mu.
func (s *Server) allocationOf(j *job) uint32 {
	if a := s.allocation(j.spec.Step); a != nil {
		return a.number
	}
	return 0
}

// stepOffers lists the cores of an allocation that are free. The caller holds Server.mu.
func (s *Server) stepOffers(allocation uint32, free func(n *node, core uint32) bool) (offers []offer) {
	a := s.allocation(allocation)
	if a == nil {
		return nil
	}
	seen := make(map[seatOf]bool)
	for _, p := range a.places {
		n := s.nodes[p.Node]
		if len(offers) == 0 || offers[len(offers)-1].node != p.Node {
			offers = append(offers, offer{node: p.Node})
		}
		o := &offers[len(offers)-1]
		for _, core := range coresOf(p) {
			if seen[seatOf{n, core}] { // ranks of an allocation can share one
				continue
			}
			if n.info == nil || !slices.Contains(n.info.Cores, core) { // an operator has given it another duty
				continue
			}
			seen[seatOf{n, core}] = true
			o.total++
			if free(n, core) {
				o.cores = append(o.cores, core)
			}
		}
	}
	return offers
}

// noRoomForStep reports why a step does not fit into its allocation. The caller holds Server.mu.
func (s *Server) noRoomForStep(spec *control.JobSpec, lacks string) error {
	text := fmt.Sprintf("in allocation %d, %s", spec.Step, lacks)
	if steps := s.holders(spec); len(steps) > 0 {
		text += fmt.Sprintf("; %s %s the others (--wait waits for them)", agree(len(steps), "step", "steps")+" "+numbers(steps), agree(len(steps), "has", "have"))
	}
	return control.Failf(control.Code_CODE_NO_ROOM, "%s", text)
}

// grant lets an allocation begin.
func (s *Server) grant(j *job, request *control.Frame, client *control.Conn) {
	if !s.runs(j) {
		select {
		case <-j.done:
			client.Answer(request, nil, j.failure)
		case <-s.context.Done():
		}
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	j.enter(control.Phase_PHASE_RUN)
	client.Answer(request, &control.RunReply{Job: j.number, Places: j.places, Loaded: true}, nil)
	if s.jobs[j.number] == j && !j.finishing {
		j.tellClient()
	}
}

// endAllocation notes how the command of an allocation has ended, which is how its ranks end. The
// caller holds Server.mu.
func (s *Server) endAllocation(j *job, exit *control.ExitStatus) {
	if !j.spec.Allocation || j.ended() || j.phase != control.JobPhase_JOB_RUNNING {
		return
	}
	end := &control.ExitStatus{Code: exit.GetCode() & 0xff, Signal: exit.GetSignal() & 0x7f, TimeNs: exit.GetTimeNs()}
	for i := range j.ranks {
		j.exited(i, end)
	}
	s.finishIfComplete(j)
}

// endSteps ends the steps of a job that ends. The caller holds Server.mu.
func (s *Server) endSteps(j *job) {
	if !j.spec.Allocation {
		return
	}
	for _, step := range s.jobs {
		if step.spec.Step == j.number {
			s.fail(step, endedWith(step))
		}
	}
}

// endedWith is why a step ends that has no allocation any more.
func endedWith(step *job) *control.Failure {
	return control.Failf(control.Code_CODE_KILLED, "job %d was ended with its allocation, job %d", step.number, step.spec.Step)
}

// networkOf returns the nodes of an allocation, whose network they have.
func (s *Server) networkOf(allocation uint32) (*control.Layout, error) {
	s.mu.Lock()
	a := s.allocation(allocation)
	if a == nil {
		s.mu.Unlock()
		return nil, control.Failf(control.Code_CODE_FAILED, "its allocation, job %d, has ended", allocation)
	}
	addresses := make(map[id.Node]netip.AddrPort)
	for _, p := range a.places {
		if info := s.nodes[p.Node].info; info != nil {
			addresses[id.Node(p.Node)], _ = netip.ParseAddrPort(info.Address) // register has tried it
		}
	}
	s.mu.Unlock()
	return layoutOf(a.places, addresses)
}
