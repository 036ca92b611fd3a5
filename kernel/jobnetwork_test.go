package kernel

import (
	"fmt"
	"math/bits"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"margay/kernel/abi/id"
	"margay/kernel/abi/layout"
	"margay/kernel/abi/node"
)

// layoutOn returns the layout of a rank on each of some nodes.
func layoutOn(t *testing.T, nodes ...id.Node) layout.Layout {
	t.Helper()
	var places []layout.Place
	for rank, n := range nodes {
		places = append(places, layout.Place{Rank: id.Rank(rank), Node: n, Core: 1})
	}
	l, err := layout.Condense(places, func(n id.Node) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 77, 0, byte(n) + 1}), 1)
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A step with the network of its allocation has its number, and the names of all its nodes, of
// which its own must be one.
func TestJoinedNetwork(t *testing.T) {
	n := &Node{config: Config{Boot: node.Config{Node: 2, Fabric: node.TrustedTCP}}}
	s := JobSpec{Job: 9, Network: true, Layout: layoutOn(t, 2)}
	if job, nodes := s.network(); job != 9 || nodes.Nodes() != 1 {
		t.Errorf("a network of its own: job %d, %d nodes", job, nodes.Nodes())
	}
	s.Joined = &Joined{Job: 7, Layout: layoutOn(t, 0, 2, 3)}
	if job, nodes := s.network(); job != 7 || nodes.Nodes() != 3 {
		t.Errorf("a joined network: job %d, %d nodes", job, nodes.Nodes())
	}
	want := "127.0.0.1 localhost\n10.88.0.1 node0\n10.88.0.2 node2\n10.88.0.3 node3\n"
	if got := n.hosts(s); got != want {
		t.Errorf("the names are\n%s", got)
	}
	if err := n.checkJobNetwork(s); err != nil {
		t.Error(err)
	}
	s.Joined.Layout = layoutOn(t, 0, 3)
	if n.checkJobNetwork(s) == nil {
		t.Error("a network that this node is not in")
	}
}

// Jobs have the numbers of VXLAN that are not 0, in turn.
func TestVXLANNumber(t *testing.T) {
	for job, want := range map[id.Job]int{1: 1, 7: 7, 1<<24 - 1: 1<<24 - 1, 1 << 24: 1, 1<<24 + 1: 2, 1<<25 - 2: 1<<24 - 1, 1<<32 - 1: 255} {
		if got := vxlanNumber(job); got != want || got == noJobVXLAN {
			t.Errorf("job %d has %d, want %d", job, got, want)
		}
	}
}

// Routes lead to the nodes of the job, to each once, and to nothing else.
func TestJobRoutes(t *testing.T) {
	for _, nodes := range []int{1, 2, 3, 4, 7, 64, 255, 256, 1000, mostJobNodes} {
		routes := jobRoutes(nodes)
		next, _ := jobAddress(0)
		for _, r := range routes {
			if r.Addr() != next || r.Masked() != r {
				t.Fatalf("%d nodes: route to %v, want one that begins at %v", nodes, r, next)
			}
			for range 1 << (32 - r.Bits()) {
				next = next.Next()
			}
		}
		if end, _ := jobAddress(nodes); next != end || len(routes) > 2*bits.Len(uint(nodes)) {
			t.Errorf("%d nodes: %d routes, the next one would begin at %v", nodes, len(routes), next)
		}
	}
}

// Entries are entered some at a time, and the error of one names its node.
func TestEnterAll(t *testing.T) {
	for _, wrong := range []int{-1, 0, 1, entriesAtOnce - 1, 2*entriesAtOnce + 1, 1000} {
		socket, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
		if err != nil {
			t.Fatal(err)
		}
		var entries []jobEntry
		for node := range id.Node(1001) {
			entries = append(entries, jobEntry{node, nl.NewNetlinkRequest(unix.NLMSG_NOOP, 0)})
		}
		want := "<nil>"
		if wrong >= 0 {
			link := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: 1 << 30}} // there is none, and without rights none may be asked for
			entries[wrong] = entriesOf(id.Node(wrong), link, 1, netip.MustParseAddr("10.77.0.2"))[1]
			want = fmt.Sprintf("add node%d: ", wrong)
		}
		if err := enterAll(socket, entries); !strings.HasPrefix(fmt.Sprint(err), want) {
			t.Errorf("entry %d is wrong: %v", wrong, err)
		}
		socket.Close()
	}
}
