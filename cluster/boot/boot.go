// Package boot serves nodes that boot without a disk: DHCP gives a node its address and the
// location of an iPXE script, and HTTP gives it the script, the Linux kernel and the node image.
//
//	iPXE  -> DHCP  discover, request      Leases decides; answers only clients of known MAC addresses
//	iPXE  -> HTTP  GET /boot.ipxe         the same for all nodes
//	iPXE  -> HTTP  GET /kernel, /image    the same for all nodes
//
// Nothing that the services give is secret: every station can read it. A node gets its
// configuration and its token in another way.
//
// Leases and Progress are state machines: packets and times in, answers out. Services does their
// input and output on any net.PacketConn and net.Listener, of a host or of a network stack in this
// process.
//
// Locks: Services.mu guards Leases and Progress. It is not held during input or output.
package boot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"

	"margay/kernel/abi/id"
	"margay/kernel/gate"
)

// The ports of the services. The second is where firmware expects DHCP (RFC 2131).
const (
	HTTPPort = 80
	DHCPPort = 67
)

// The paths of the files.
const (
	ScriptPath = "/boot.ipxe"
	KernelPath = "/kernel"
	ImagePath  = "/image"
)

// File is a file that nodes fetch. It must not change while it is served.
type File struct {
	io.ReaderAt
	Size int64 // in bytes
}

// Config holds the hosts to serve, and the answers and files for them.
type Config struct {
	Hosts   []Host
	Server  netip.Prefix // address of the services and the subnet of the hosts
	Cmdline string       // of the kernel
	Kernel  File
	Image   File
	// Report receives each new stage of a node. It must not block.
	Report func(id.Node, Status)
	// Send sends an Ethernet frame from the MAC address. Nil: frames cannot be sent, and clients
	// wait for an IPv6 router.
	Send func(frame []byte) error
	MAC  MAC // of the services; for Send
	// Log receives lines about refusals, at a bounded rate.
	Log func(format string, args ...any)
}

// Services are running services. They are safe for concurrent use.
type Services struct {
	config Config
	files  map[string]served
	log    *gate.Log

	mu       sync.Mutex
	leases   *Leases
	progress *Progress
}

// Lines about what strangers send: so many at once, and so many a second.
const (
	logBurst = 20
	logRate  = 0.5
)

// New makes services. Nothing is served before Serve.
func New(c Config) (*Services, error) {
	if !c.Server.IsValid() || !c.Server.Addr().Is4() {
		return nil, fmt.Errorf("boot: %v is not an IPv4 address with its subnet", c.Server)
	}
	base := "http://" + c.Server.Addr().String()
	script, err := script(base, c.Cmdline)
	if err != nil {
		return nil, err
	}
	s := &Services{
		config: c, log: gate.NewLog(c.Log, logBurst, logRate),
		progress: NewProgress(),
		files: map[string]served{
			ScriptPath: {script, Script},
			KernelPath: {c.Kernel, Kernel},
			ImagePath:  {c.Image, Image},
		},
	}
	if s.leases, err = NewLeases(nil); err != nil {
		return nil, err
	}
	for _, h := range c.Hosts {
		if err := s.Add(h); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Add adds a host to the ones that are served.
func (s *Services) Add(h Host) error {
	if !s.config.Server.Contains(h.Address) || h.Address == s.config.Server.Addr() {
		return fmt.Errorf("boot: node%d: its address %v is not one of a host in %v", h.Node, h.Address, s.config.Server.Masked())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leases.Add(h)
}

// Remove stops serving a node.
func (s *Services) Remove(node id.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases.Remove(node)
	s.progress.Starting(node)
}

// node returns the node that has an address.
func (s *Services) node(address netip.Addr) (node id.Node, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leases.Node(address)
}

// Serve answers DHCP on one connection and HTTP on a listener until ctx ends, and closes both.
func (s *Services) Serve(ctx context.Context, dhcp net.PacketConn, l net.Listener) error {
	defer s.log.Close()
	server := s.server()
	stop := context.AfterFunc(ctx, func() {
		dhcp.Close()
		server.Close()
	})
	defer stop()
	var all sync.WaitGroup
	var web, packets error
	all.Go(func() {
		defer dhcp.Close()
		web = server.Serve(limited(l, s.log))
	})
	all.Go(func() {
		defer server.Close()
		packets = s.serveDHCP(dhcp)
	})
	all.Wait()
	if ctx.Err() != nil {
		return nil
	}
	if errors.Is(web, http.ErrServerClosed) {
		web = nil // it was closed because DHCP has ended
	}
	return fmt.Errorf("boot services: %w", errors.Join(packets, web))
}

// Starting forgets how far the boot of a node got, because it starts again.
func (s *Services) Starting(node id.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.progress.Starting(node)
	s.leases.Starting(node)
}

// Counts returns what was refused so far.
func (s *Services) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leases.Counts()
}

// reached records that a node has reached a stage, and reports it if it is new.
func (s *Services) reached(node id.Node, status Status) {
	s.mu.Lock()
	news := s.progress.Reached(node, status)
	s.mu.Unlock()
	if news && s.config.Report != nil {
		s.config.Report(node, status)
	}
}
