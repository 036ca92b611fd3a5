package kernel

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"margay/kernel/abi/frame"
	"margay/kernel/abi/id"
	"margay/kernel/abi/layout"
	"margay/kernel/fabric"
	"margay/kernel/message"
	"margay/kernel/pmi"
	"margay/kernel/task"
)

// mpiEnv returns variables for MPICH in a job that has no sysfs, and no network but its own. Ranks
// of one node use shared memory: over TCP, MPICH 4.0 may hang in MPI_Finalize. Where each node has
// one rank, UCX would fill 4 MB of it with zeros in vain.
func (s JobSpec) mpiEnv() []string {
	env := []string{"HWLOC_HIDE_ERRORS=2", "UCX_WARN_UNUSED_ENV_VARS=n"}
	transports := "self"
	if s.Layout.Ranks() > s.Layout.Nodes() {
		transports = "posix,self"
	}
	if !s.networked() {
		return append(env, "UCX_TLS="+transports)
	}
	return append(env, "UCX_TLS=tcp,"+transports, "UCX_NET_DEVICES="+jobInterface)
}

// pmiConfig describes a job's part of the process management interface; nil: the job has none.
func (n *Node) pmiConfig(s JobSpec) (*pmi.Config, error) {
	if !s.PMI {
		return nil, nil
	}
	place, ok := s.Layout.PlaceOf(n.config.Boot.Node)
	if !ok {
		return nil, fmt.Errorf("the job's nodes do not include this one")
	}
	c := &pmi.Config{Job: s.Job, Size: s.Layout.Ranks(), Place: place, Places: s.Layout.Nodes()}
	numbers := make(map[id.Node]int) // of nodes, in the order of their first ranks
	nodes := make([]int, 0, s.Layout.Ranks())
	for p := range s.Layout.All() {
		if _, known := numbers[p.Node]; !known {
			numbers[p.Node] = len(numbers)
		}
		nodes = append(nodes, numbers[p.Node])
		if p.Node == n.config.Boot.Node {
			c.Ranks = append(c.Ranks, p.Rank)
		}
	}
	c.Mapping = pmi.Mapping(nodes)
	return c, nil
}

// withMPI adds what MPICH needs to the environment of a job. Values that the job has come first.
func (s JobSpec) withMPI(env []string) []string {
	for _, variable := range s.mpiEnv() {
		name, _, _ := strings.Cut(variable, "=")
		if !slices.ContainsFunc(env, func(set string) bool { return strings.HasPrefix(set, name+"=") }) {
			env = append(slices.Clip(env), variable)
		}
	}
	return env
}

// pmiEnv returns the variables by which a rank finds the process management interface. local is its
// number among the ranks of its node, and locals is their count.
func pmiEnv(s JobSpec, p layout.Place, local, locals int) []string {
	return []string{
		fmt.Sprintf("PMI_FD=%d", task.PMIFD),
		fmt.Sprintf("PMI_RANK=%d", p.Rank),
		fmt.Sprintf("PMI_SIZE=%d", s.Layout.Ranks()),
		fmt.Sprintf("MPI_LOCALRANKID=%d", local),
		fmt.Sprintf("MPI_LOCALNRANKS=%d", locals),
	}
}

// Exchange implements task.Handler. It drops a message that cannot be sent now, and the init sends
// it again: thus a node kernel without a connection, or a slow peer, blocks nothing.
func (j *job) Exchange(place int, data []byte) {
	if place < 0 || place >= j.spec.Layout.Nodes() || len(data) > pmi.MaxMessage {
		return
	}
	n := j.node
	n.mu.Lock()
	t := n.transport
	n.mu.Unlock()
	if t == nil {
		return
	}
	b := append(frame.New(frame.Exchange, j.spec.Job, message.Key(j.spec.Secret)), data...)
	_ = t.Send(context.Background(), j.spec.Layout.Node(place), fabric.Prompt, b) // it never waits
}

// exchanged passes a frame of another node to the init of its job.
func (n *Node) exchanged(from id.Node, b []byte) {
	var f frame.Frame
	if err := f.Parse(b); err != nil || f.Kind != frame.Exchange {
		return
	}
	n.mu.Lock()
	j := n.jobs[f.Job]
	n.mu.Unlock()
	if j == nil || f.Key != message.Key(j.spec.Secret) || len(f.Data) > pmi.MaxMessage {
		return
	}
	select {
	case <-j.ready:
	default:
		return // it comes again
	}
	if place, ok := j.spec.Layout.PlaceOf(from); ok && j.container != nil && j.spec.PMI {
		j.container.Exchange(place, f.Data)
	}
}
