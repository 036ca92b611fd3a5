package machine

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"margay/cluster/roster"
	"margay/cluster/serve"
	"margay/cluster/trust"
	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
)

func TestDefaults(t *testing.T) {
	var s Spec
	if err := s.complete(); err != nil {
		t.Fatal(err)
	}
	want := Spec{Name: "default", Substrate: node.Virtual, Nodes: 4, Cores: 2, Boot: "kernel", MTU: 65535, Fabric: "tcp-trusted", Accel: "tcg", MemoryMiB: 512}
	if fmt.Sprint(s) != fmt.Sprint(want) {
		t.Errorf("an empty spec becomes %+v", s)
	}
	again := s
	if err := again.complete(); err != nil || fmt.Sprint(again) != fmt.Sprint(s) {
		t.Errorf("a complete spec becomes %+v, %v", again, err)
	}
	hosted := Spec{Substrate: node.Hosted}
	if err := hosted.complete(); err != nil || hosted.MTU != 0 || hosted.Profile != node.Isolated {
		t.Errorf("a hosted machine has the MTU %d and the profile %q, %v", hosted.MTU, hosted.Profile, err)
	}
}

// An invalid spec is refused, with the valid choices.
func TestBadSpecs(t *testing.T) {
	cases := []struct {
		spec Spec
		want string
	}{
		{Spec{Substrate: "metal"}, "--substrate metal needs the network that the nodes boot from: name its interface (--interface eth1)"},
		{Spec{Substrate: "cloud"}, `there is no substrate "cloud": use qemu, hosted, hosts or metal`},
		{Spec{Nodes: -1}, "a machine has 1 to 1000 nodes, not -1"},
		{Spec{Nodes: 1001}, "a machine has 1 to 1000 nodes, not 1001"},
		{Spec{Cores: -1}, "a node has 1 to 254 application cores, not -1"},
		{Spec{Cores: 255}, "a node has 1 to 254 application cores, not 255"},
		{Spec{Accel: "magic"}, `there is no accelerator "magic": use tcg, kvm or auto`},
		{Spec{Boot: "floppy"}, `there is no way to boot "floppy": use kernel, bios, uefi or http`},
		{Spec{Substrate: node.Hosted, Offload: true}, "nodes of the substrate hosted have the host's Linux, which no extension of a job may enter: leave out --offload"},
		{Spec{Fabric: node.UDP, Offload: true}, "on a wire that is not trusted no extension runs on an interface: --offload needs --fabric tcp-trusted or udp-trusted"},
		{Spec{Fabric: "ib"}, `there is no fabric "ib": use tcp, tcp-trusted, udp or udp-trusted, or auto`},
		{Spec{MemoryMiB: 127}, "a node needs 128 MiB of memory, not 127"},
		{Spec{Boot: BootHTTP, MemoryMiB: 191}, "a node that boots by UEFI firmware needs 192 MiB of memory, not 191"},
		{Spec{MemoryMiB: -1}, "a node needs 128 MiB of memory, not -1"},
		{Spec{Timing: serve.Timing{Boot: -time.Second}}, "a boot time-out of -1s and death after 0s: neither can be negative"},
		{Spec{Timing: serve.Timing{Dead: -time.Second}}, "a boot time-out of 0s and death after -1s: neither can be negative"},
	}
	for _, k := range cases {
		if err := k.spec.complete(); err == nil || err.Error() != k.want {
			t.Errorf("%+v: %v", k.spec, err)
		}
	}
}

// Every node of the largest machine has an address and a network card of its own, and all find
// serve.
func TestNetwork(t *testing.T) {
	addresses := map[string]bool{
		serveAddress.Addr().String(): true, serveMAC.String(): true, bootAddress.Addr().String(): true, bootMAC.String(): true,
	}
	for node := range id.Node(roster.Most) {
		p := nodeAddress(node)
		if !serveAddress.Contains(p.Addr()) || p.Bits() != serveAddress.Bits() {
			t.Fatalf("node %d has the address %v", node, p)
		}
		for _, a := range []string{p.Addr().String(), nodeMAC(node).String()} {
			if addresses[a] {
				t.Fatalf("node %d has the address %s, which another has", node, a)
			}
			addresses[a] = true
		}
	}
	if a := nodeAddress(0); a != netip.MustParsePrefix("10.66.1.0/16") {
		t.Errorf("node 0 has the address %v", a)
	}
}

// Nodes can read the configuration that they get at their start.
func TestBootConfig(t *testing.T) {
	for _, substrate := range []string{node.Virtual, node.Hosted} {
		s := Spec{Substrate: substrate, MemoryMiB: 200, Cores: 3, Secret: "secret", Lacks: []string{"x"}, Fabric: node.UDP}
		if err := s.complete(); err != nil {
			t.Fatal(err)
		}
		text, err := s.bootConfig(7, 1, []byte("certificate")).Encode()
		if err != nil {
			t.Fatal(err)
		}
		c, err := node.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if c.Node != 7 || c.Token != trust.NodeToken("secret", 7, 1) || strings.Contains(string(text), `"secret"`) || string(c.CA) != "certificate" || c.Serve != "10.66.0.1:7117" || c.Substrate != substrate || c.Fabric != node.UDP || len(c.Lacks) != 1 {
			t.Errorf("node 7 is told %+v", c)
		}
		if hosted := substrate == node.Hosted; hosted != (c.Cores == 3) || hosted != (c.Memory == 200<<20) || hosted != (c.Profile == node.Shared) {
			t.Errorf("on %s it is told %+v", substrate, c)
		}
		if substrate != node.Hosted {
			continue
		}
		for other := range id.Node(roster.Most) {
			if mac, ok := c.Neighbour(nodeAddress(other).Addr()); !ok || mac.String() != nodeMAC(other).String() {
				t.Fatalf("node%d has the hardware address %v, and node7 enters %v", other, nodeMAC(other), mac)
			}
		}
		if mac, ok := c.Neighbour(serveAddress.Addr()); !ok || mac.String() != serveMAC.String() {
			t.Errorf("serve has the hardware address %v, and node7 enters %v", serveMAC, mac)
		}
	}
}

func TestUnknownSubstrate(t *testing.T) {
	h := &holder{spec: Spec{Substrate: "cloud"}}
	if _, err := h.newSubstrate(nil); err == nil || !strings.Contains(err.Error(), "cloud") {
		t.Errorf("error %v", err)
	}
}

// Emulated nodes send heartbeats less often, and so do many hosted ones, unless a machine sets the
// interval.
func TestTiming(t *testing.T) {
	dead := serve.Timing{Dead: time.Minute}
	own := serve.Timing{Heartbeat: time.Millisecond}
	slow := serve.Timing{Heartbeat: time.Second, Late: 3 * time.Second, Dead: time.Minute}
	for name, c := range map[string]struct {
		spec Spec
		want serve.Timing
	}{
		"emulated":    {Spec{Substrate: node.Virtual, Accel: "tcg", Timing: dead}, slow},
		"virtualized": {Spec{Substrate: node.Virtual, Accel: "kvm", Timing: dead}, dead},
		"hosted":      {Spec{Substrate: node.Hosted, Accel: "tcg", Timing: dead}, serve.Timing{Dead: time.Minute, Space: 4 * time.Millisecond, Each: 200 * time.Millisecond}},
		"its own":     {Spec{Substrate: node.Virtual, Accel: "tcg", Timing: own}, own},
	} {
		if got := c.spec.timing(); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// Only hosted nodes, which share the processors of one host, take part in a launch in turns.
func TestAtOnce(t *testing.T) {
	for substrate, want := range map[string]int{node.Hosted: askedEach * runtime.GOMAXPROCS(0), node.Virtual: 0, node.Hosts: 0, node.Metal: 0} {
		if got := (&Spec{Substrate: substrate}).atOnce(); got != want {
			t.Errorf("%s: %d nodes at a time, not %d", substrate, got, want)
		}
	}
}

// The cache may drop a kernel while its machine is up.
func TestBootKernel(t *testing.T) {
	s := Spec{Kernel: "/vmlinuz", Direct: filepath.Join(t.TempDir(), "unpacked")}
	if got := s.first().start(); got != s.Kernel {
		t.Errorf("%s is started, which does not exist", got)
	}
	if err := os.WriteFile(s.Direct, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := s.first().start(); got != s.Direct {
		t.Errorf("%s is started", got)
	}
	if got := (&Spec{Kernel: "/vmlinuz"}).first().start(); got != "/vmlinuz" {
		t.Errorf("%s is started on KVM", got)
	}
}
