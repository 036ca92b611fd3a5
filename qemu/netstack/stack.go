// Package netstack gives a process an Ethernet port of its own: gVisor's TCP/IP stack on one stream
// connection, which carries frames in the framing of package ether. It connects the service node of
// a machine to the machine's switch. To the nodes it is another station; it needs no privilege and
// is invisible on the host's own network.
//
// The stack answers ARP and ping, and speaks TCP and UDP over IPv4 within its subnet. Connections
// and listeners are the ordinary ones of package net. The network configures nothing: the caller
// sets address and MTU.
//
//	conn -> Stack.receive -> gVisor -> net.Conn, net.Listener
//	conn <- link.WritePackets <- FIFO <- gVisor
//
// One goroutine reads the link and one writes it, so no lock of gVisor is held across its input or
// output.
package netstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/ethernet"
	"gvisor.dev/gvisor/pkg/tcpip/link/qdisc/fifo"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"margay/qemu/ether"
)

// Bounds of Config.MTU, in bytes.
const (
	DefaultMTU = 1500
	MinMTU     = 576
	MaxMTU     = 65535
)

// A Config is the identity of a stack on the network.
type Config struct {
	MAC     ether.MAC
	Address netip.Prefix // IPv4 address and subnet, such as 10.64.0.1/16
	MTU     int          // longest IP packet in bytes; zero means DefaultMTU
	// SendBuffer bounds what waits to be sent on a TCP connection, bytes; zero means that the stack
	// chooses, up to 8 MiB.
	SendBuffer int
	// Reset makes Close of a connection that was accepted reset it: what its peer has not taken
	// is lost. Otherwise the stack keeps that, for ever if the peer takes nothing.
	Reset bool
	// Neighbors are the Ethernet addresses of stations that the stack does not ask by ARP, because
	// a station without an address cannot answer.
	Neighbors map[netip.Addr]ether.MAC
}

func (c *Config) validate() error {
	if c.MTU == 0 {
		c.MTU = DefaultMTU
	}
	switch {
	case !c.MAC.Station():
		return fmt.Errorf("%v is not the address of one station", c.MAC)
	case !c.Address.IsValid() || !c.Address.Addr().Is4():
		return fmt.Errorf("address %v is not an IPv4 prefix", c.Address)
	case c.SendBuffer != 0 && c.SendBuffer < minBuffer:
		return fmt.Errorf("send buffer of %d bytes, want %d or more", c.SendBuffer, minBuffer)
	case c.MTU < MinMTU || c.MTU > MaxMTU:
		return fmt.Errorf("MTU %d, want %d to %d", c.MTU, MinMTU, MaxMTU)
	}
	return nil
}

// nicID is the number of the stack's only interface.
const nicID = 1

// minBuffer is the least Config.SendBuffer, bytes.
const minBuffer = 4 << 10

// sendQueue is the number of packets that may wait for the link. TCP treats a packet that finds no
// room as lost.
const sendQueue = 4096

// closeGrace bounds the time that Close waits for the resets of open connections to be sent.
const closeGrace = time.Second

// A Stack is a running network stack. Its methods may be called from several goroutines.
type Stack struct {
	cfg  Config
	conn net.Conn
	link *link
	ip   *stack.Stack
	runt atomic.Uint64

	done     chan struct{} // closed when the link is lost
	lost     sync.Once
	err      error          // why; written before done is closed
	reader   sync.WaitGroup // receive
	closing  sync.Once
	closeErr error
}

// New starts a stack on conn, which it then owns, even after an error. When the link is lost, Done
// is closed, and the caller closes the stack.
func New(conn net.Conn, cfg Config) (*Stack, error) {
	s := &Stack{conn: conn, done: make(chan struct{})}
	if err := cfg.validate(); err != nil {
		return nil, errors.Join(fmt.Errorf("netstack: %w", err), conn.Close())
	}
	s.cfg = cfg
	silence()
	s.link = newLink(conn, cfg, s.lose)
	s.ip = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
		HandleLocal:        true,
	})
	if err := s.configure(); err != nil {
		return nil, errors.Join(fmt.Errorf("netstack: %w", err), s.Close())
	}
	s.reader.Go(s.receive)
	return s, nil
}

// silence discards gVisor's messages on standard error, because any station can cause them at will.
var silence = sync.OnceFunc(func() {
	log.SetTarget(&log.GoogleEmitter{Writer: &log.Writer{Next: io.Discard}})
})

// configure brings up the interface and tunes TCP for a link with large queues and no loss.
func (s *Stack) configure() error {
	for _, option := range s.cfg.tcpOptions() {
		if err := s.ip.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			return fmt.Errorf("set %T: %v", option, err)
		}
	}
	port := ethernet.New(s.link)
	opts := stack.NICOptions{QDisc: fifo.New(port, 1, sendQueue)}
	if err := s.ip.CreateNICWithOptions(nicID, port, opts); err != nil {
		return fmt.Errorf("create interface: %v", err)
	}
	address := tcpip.AddressWithPrefix{
		Address:   tcpip.AddrFrom4(s.cfg.Address.Addr().As4()),
		PrefixLen: s.cfg.Address.Bits(),
	}
	pa := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: address}
	if err := s.ip.AddProtocolAddress(nicID, pa, stack.AddressProperties{}); err != nil {
		return fmt.Errorf("set address %v: %v", s.cfg.Address, err)
	}
	s.ip.SetRouteTable([]tcpip.Route{
		{Destination: address.Subnet(), NIC: nicID},
		{Destination: header.IPv4Broadcast.WithPrefix().Subnet(), NIC: nicID},
	})
	for ip, mac := range s.cfg.Neighbors {
		if err := s.AddNeighbor(ip, mac); err != nil {
			return err
		}
	}
	return nil
}

// AddNeighbor adds or replaces one of the Neighbors of the Config.
func (s *Stack) AddNeighbor(ip netip.Addr, mac ether.MAC) error {
	if !ip.Is4() {
		return fmt.Errorf("neighbor %v: not an IPv4 address", ip)
	}
	if err := s.ip.AddStaticNeighbor(nicID, ipv4.ProtocolNumber, tcpip.AddrFrom4(ip.As4()), tcpip.LinkAddress(mac[:])); err != nil {
		return fmt.Errorf("neighbor %v: %v", ip, err)
	}
	return nil
}

// tcpOptions returns the differences from gVisor's TCP defaults. RACK is off, because with it
// gVisor sends only a third as much after tail drops of a full switch queue.
func (c *Config) tcpOptions() []tcpip.SettableTransportProtocolOption {
	var (
		sack    = tcpip.TCPSACKEnabled(true)
		rack    = tcpip.TCPRecovery(0)
		send    = tcpip.TCPSendBufferSizeRangeOption{Min: minBuffer, Default: 1 << 20, Max: 8 << 20}
		receive = tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: 1 << 20, Max: 8 << 20}
		adapt   = tcpip.TCPModerateReceiveBufferOption(true)
	)
	if c.SendBuffer > 0 {
		send.Default, send.Max = c.SendBuffer, c.SendBuffer
	}
	return []tcpip.SettableTransportProtocolOption{&sack, &rack, &send, &receive, &adapt}
}

// receive reads frames until the link is lost.
func (s *Stack) receive() {
	r := ether.NewReader(s.conn)
	for {
		frame, err := r.Next()
		if err != nil {
			s.lose(err)
			return
		}
		if len(frame) < ether.HeaderLen {
			s.runt.Add(1)
			continue
		}
		s.link.inject(frame)
	}
}

// lose records why the link was lost; the first reason stays.
func (s *Stack) lose(err error) {
	s.lost.Do(func() {
		s.err = fmt.Errorf("netstack: link lost: %w", err)
		close(s.done)
	})
}

// Listen accepts TCP connections to a port of the stack's address; port 0 takes a free one. After
// Close the listener's Accept returns net.ErrClosed.
func (s *Stack) Listen(port uint16) (net.Listener, error) {
	var queue waiter.Queue
	ep, err := s.ip.NewEndpoint(tcp.ProtocolNumber, ipv4.ProtocolNumber, &queue)
	if err != nil {
		return nil, fmt.Errorf("netstack: TCP port %d: %v", port, err)
	}
	err = ep.Bind(tcpip.FullAddress{NIC: nicID, Addr: tcpip.AddrFrom4(s.cfg.Address.Addr().As4()), Port: port})
	if err == nil {
		err = ep.Listen(backlog)
	}
	if err != nil {
		ep.Close()
		return nil, fmt.Errorf("netstack: TCP port %d: %v", port, err)
	}
	if s.cfg.Reset {
		ep = resetting{ep}
	}
	return &listener{TCPListener: gonet.NewTCPListener(s.ip, &queue, ep)}, nil
}

// backlog is how many connections may wait for Accept.
const backlog = 4096

// resetting is a listening endpoint whose connections are reset by Close.
type resetting struct{ tcpip.Endpoint }

// Accept implements tcpip.Endpoint.
func (l resetting) Accept(peer *tcpip.FullAddress) (tcpip.Endpoint, *waiter.Queue, tcpip.Error) {
	ep, queue, err := l.Endpoint.Accept(peer)
	if err != nil {
		return nil, nil, err
	}
	return reset{ep}, queue, nil
}

// reset is a connection that is reset by Close, also if one side has ended it.
type reset struct{ tcpip.Endpoint }

// Close implements tcpip.Endpoint.
func (r reset) Close() {
	r.Abort()
	r.Endpoint.Close()
}

// ListenPacket receives UDP datagrams to a port, those to all stations among them, and can send to
// all stations.
func (s *Stack) ListenPacket(port uint16) (net.PacketConn, error) {
	var queue waiter.Queue
	ep, err := s.ip.NewEndpoint(udp.ProtocolNumber, ipv4.ProtocolNumber, &queue)
	if err != nil {
		return nil, fmt.Errorf("netstack: UDP port %d: %v", port, err)
	}
	ep.SocketOptions().SetBroadcast(true)
	if err := ep.Bind(tcpip.FullAddress{NIC: nicID, Port: port}); err != nil {
		ep.Close()
		return nil, fmt.Errorf("netstack: UDP port %d: %v", port, err)
	}
	return gonet.NewUDPConn(&queue, ep), nil
}

// Send sends an Ethernet frame past the stack.
func (s *Stack) Send(frame []byte) error {
	if len(frame) < ether.HeaderLen || len(frame) > ether.MaxFrame {
		return fmt.Errorf("netstack: send a frame of %d bytes, want %d to %d", len(frame), ether.HeaderLen, ether.MaxFrame)
	}
	// One Write is one piece of the stream, also while the stack writes.
	if !s.link.write(ether.Append(nil, frame)) {
		return s.Err()
	}
	return nil
}

// DialContext opens a TCP connection to an IPv4 address of the subnet. A station that does not
// answer ARP is reported after some seconds, one that does not answer TCP when ctx ends.
func (s *Stack) DialContext(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	if !to.Addr().Is4() {
		return nil, fmt.Errorf("netstack: dial %v: not an IPv4 address", to)
	}
	addr := tcpip.FullAddress{NIC: nicID, Addr: tcpip.AddrFrom4(to.Addr().As4()), Port: to.Port()}
	conn, err := gonet.DialContextTCP(ctx, s.ip, addr, ipv4.ProtocolNumber)
	if err != nil {
		return nil, fmt.Errorf("netstack: dial %v: %w", to, err)
	}
	return conn, nil
}

// Done is closed when the link is lost or by Close.
func (s *Stack) Done() <-chan struct{} { return s.done }

// Err returns why the link was lost, wrapping net.ErrClosed after Close, and nil as long as it is
// up.
func (s *Stack) Err() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}

// Malformed returns the number of frames dropped as malformed Ethernet, IPv4 or TCP.
func (s *Stack) Malformed() uint64 {
	stats := s.ip.Stats()
	return s.runt.Load() +
		stats.IP.MalformedPacketsReceived.Value() +
		stats.ARP.MalformedPacketsReceived.Value() +
		stats.TCP.InvalidSegmentsReceived.Value()
}

// Close resets all connections, closes the listeners and the link, and waits for the stack's
// goroutines. Later calls return the same.
func (s *Stack) Close() error {
	s.closing.Do(func() {
		s.lose(net.ErrClosed)
		// Stop the reader first, so that no frame arrives while the stack shuts down. The writer
		// gets a moment to send the resets; the deadline also unblocks it if the peer does not
		// read.
		s.conn.SetReadDeadline(time.Unix(0, 1))
		s.reader.Wait()
		s.conn.SetWriteDeadline(time.Now().Add(closeGrace))
		s.ip.Destroy()
		s.closeErr = s.conn.Close()
	})
	return s.closeErr
}

// A listener is gVisor's with the error that package net promises after Close.
type listener struct {
	*gonet.TCPListener
	closed atomic.Bool
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	conn, err := l.TCPListener.Accept()
	if err != nil && l.closed.Load() {
		return nil, fmt.Errorf("netstack: accept: %w", net.ErrClosed)
	}
	return conn, err
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.closed.Store(true)
	return l.TCPListener.Close()
}
