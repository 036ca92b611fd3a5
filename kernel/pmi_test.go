package kernel

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"margay/internal/check"
	"margay/kernel/abi/frame"
	"margay/kernel/abi/id"
	"margay/kernel/abi/layout"
	"margay/kernel/abi/node"
	"margay/kernel/message"
	"margay/kernel/pmi"
)

// mpiJob is a job of MPI with two ranks on each of so many nodes.
func mpiJob(t *testing.T, nodes int) JobSpec {
	var places []layout.Place
	for i := range nodes {
		node := id.Node(i)
		places = append(places, layout.Place{Rank: id.Rank(2 * i), Node: node}, layout.Place{Rank: id.Rank(2*i + 1), Node: node})
	}
	at := func(id.Node) netip.AddrPort { return netip.MustParseAddrPort("10.66.1.0:7118") }
	return JobSpec{Job: 7, PMI: true, Secret: []byte("12345678"), Layout: laidOutAt(t, at, places...)}
}

// A node gives an MPI job the places of its ranks, and the names and addresses by which they reach
// each other.
func TestMPIJob(t *testing.T) {
	n := &Node{config: Config{Boot: node.Config{Node: 2, Fabric: node.TrustedTCP}}}
	c, err := n.pmiConfig(mpiJob(t, 3))
	if err != nil || c.Place != 2 || c.Places != 3 || c.Size != 6 || !slices.Equal(c.Ranks, []id.Rank{4, 5}) || c.Mapping != "(vector,(0,3,2))" {
		t.Errorf("%+v, %v", c, err)
	}
	if got := n.hosts(mpiJob(t, 2)); got != "127.0.0.1 localhost\n10.88.0.1 node0\n10.88.0.2 node1\n" {
		t.Errorf("%q", got)
	}
	if got := n.hosts(mpiJob(t, 1)); got != "127.0.0.1 localhost\n127.0.0.1 node2\n" {
		t.Errorf("%q", got)
	}
	if got := rankEnv(mpiJob(t, 3), layout.Place{Rank: 5, Node: 2}, 1, c); !slices.Contains(got, "PMI_RANK=5") || !slices.Contains(got, "MPI_LOCALRANKID=1") || !slices.Contains(got, "MPI_LOCALNRANKS=2") {
		t.Errorf("%q", got)
	}
	alone := func(nodes ...id.Node) JobSpec { return JobSpec{Job: 7, PMI: true, Layout: layoutOn(t, nodes...)} }
	for _, c := range []struct {
		spec JobSpec
		want string
	}{
		{mpiJob(t, 2), "UCX_TLS=tcp,posix,self"}, {mpiJob(t, 1), "UCX_TLS=posix,self"}, {alone(2, 3), "UCX_TLS=tcp,self"}, {alone(2), "UCX_TLS=self"},
	} {
		if got := c.spec.withMPI(nil); !slices.Contains(got, c.want) {
			t.Errorf("%q, want %s", got, c.want)
		}
	}
	if got := mpiJob(t, 2).withMPI([]string{"A=1", "UCX_TLS=sm"}); !slices.Contains(got, "UCX_TLS=sm") || slices.Contains(got, "UCX_TLS=tcp,posix,self") || !slices.Contains(got, "UCX_NET_DEVICES=eth0") {
		t.Errorf("%q", got)
	}
}

// A job has a network only on a wire that is trusted, and needs none on one node.
func TestCheckJobNetwork(t *testing.T) {
	for _, fabric := range append(slices.Clone(node.Fabrics), "") {
		n := &Node{config: Config{Boot: node.Config{Fabric: fabric}}}
		if err := n.checkJobNetwork(mpiJob(t, 2)); errors.Is(err, ErrLacks) == node.TrustsWire(fabric) {
			t.Errorf("%q: %v", fabric, err)
		}
		if err := n.checkJobNetwork(mpiJob(t, 1)); err != nil {
			t.Errorf("%q, one node: %v", fabric, err)
		}
	}
	n := &Node{config: Config{Boot: node.Config{Node: 9, Fabric: node.TrustedTCP}}}
	if err := n.checkJobNetwork(mpiJob(t, 2)); err == nil {
		t.Error("a node that the job does not have")
	}
	n = &Node{config: Config{Boot: node.Config{Host: "a", Fabric: node.TrustedTCP}}}
	if err := n.checkJobNetwork(mpiJob(t, 2)); !errors.Is(err, ErrLacks) {
		t.Errorf("in the network of a host: %v", err)
	}
	if err := n.checkJobNetwork(mpiJob(t, 1)); err != nil {
		t.Errorf("in the network of a host, one node: %v", err)
	}
}

// Messages of package pmi travel between the inits of a job, and only of that job. A node kernel
// that has not joined the fabric drops them.
func TestExchange(t *testing.T) {
	check.Leaks(t)
	alone := &Node{jobs: make(map[id.Job]*job)}
	j := alone.newJob()
	j.spec = mpiJob(t, 2)
	j.Exchange(1, []byte("lost"))
	if _, err := alone.Stream(t.Context(), 1, "files"); !errors.Is(err, ErrLacks) {
		t.Errorf("a stream without a fabric: %v", err)
	}
	key := message.Key(j.spec.Secret)
	for _, b := range [][]byte{
		frame.New(frame.Exchange, 8, key), frame.New(frame.Exchange, 7, key+1), frame.New(frame.Exchange, 7, key), {byte(frame.Exchange)},
		append(frame.New(frame.Exchange, 7, key), make([]byte, pmi.MaxMessage+1)...),
	} {
		alone.jobs[7] = j
		alone.exchanged(1, b) // the job is not ready: it would panic if it went further
	}
	close(j.ready) // the job could not be made
	alone.exchanged(1, frame.New(frame.Exchange, 7, key))
	for _, place := range []int{-1, 2} {
		j.Exchange(place, nil)
	}

	a, b := connect(t, 4, node.TCP), connect(t, 5, node.TCP)
	far := a.newJob()
	others := laidOutAt(t, func(id.Node) netip.AddrPort { return netip.MustParseAddrPort(b.address) },
		layout.Place{Node: 3, Core: 1}, layout.Place{Rank: 1, Node: 5, Core: 1})
	far.spec = JobSpec{Job: 1, PMI: true, Layout: others}
	if err := a.claim(far); err != nil {
		t.Fatal(err)
	}
	far.Exchange(1, []byte("text"))
	far.Exchange(1, make([]byte, pmi.MaxMessage+1))
	if err := a.transport.Send(t.Context(), 5, 0, []byte("nonsense")); err != nil {
		t.Fatal(err)
	}
	check.Await(t, "the frame behind it", func() bool { return b.said("frame from node4: ") })
	if b.said("kind 14") {
		t.Error("the engine of messages got an exchange")
	}
}

// The notes for the next node kernel have what it needs of MPI.
func TestMPIJobInNotes(t *testing.T) {
	text, err := json.Marshal(mpiJob(t, 1))
	if err != nil || !strings.Contains(string(text), `"PMI":true`) {
		t.Errorf("%s, %v", text, err)
	}
}
