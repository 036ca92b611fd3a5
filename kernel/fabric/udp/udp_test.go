package udp

import (
	"net"
	"testing"
	"time"

	"margay/internal/check"
	"margay/kernel/abi/id"
	"margay/kernel/fabric"
	"margay/kernel/fabric/fabrictest"
	"margay/kernel/fabric/tcp"
)

// start makes a node of a machine at an address; change may change its configuration.
func start(t testing.TB, m *fabrictest.Machine, node id.Node, address string, h fabric.Handler, change func(*Config)) (*Transport, string) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: l.Addr().(*net.TCPAddr).IP})
	if err != nil {
		t.Fatal(err)
	}
	accept, connect := m.Credentials(t, node)
	config := Config{Self: node, Handler: h, Log: t.Logf, Death: 5 * time.Second,
		Streams: func(h fabric.Handler) fabric.Transport {
			return tcp.New(l, tcp.Config{Self: node, Accept: accept, Connect: connect, Peer: fabrictest.PeerNode, Handler: h, Log: t.Logf})
		}}
	if change != nil {
		change(&config)
	}
	return New(c, config), l.Addr().String()
}

func suite(change func(*Config)) fabrictest.Suite {
	return fabrictest.Suite{Leaks: check.Leaks, Machine: func(t testing.TB) fabrictest.New {
		m := fabrictest.NewMachine(t)
		return func(t testing.TB, node id.Node, address string, h fabric.Handler) (fabric.Transport, string) {
			return start(t, m, node, address, h, change)
		}
	}}
}

func TestContract(t *testing.T) {
	suite(nil).Run(t)
}

func TestContractTrusted(t *testing.T) {
	suite(func(c *Config) { c.Trusted = true }).Run(t)
}
