// Package boot serves nodes that boot without a disk: DHCP gives a node its address and the
// location of what it starts next, TFTP or HTTP gives firmware an iPXE, and HTTP gives iPXE a
// script, the Linux kernel and the node image. A network card whose own program is an iPXE begins
// with the third line.
//
//	firmware -> DHCP  discover, request              Client.Means and Leases decide
//	firmware -> TFTP or HTTP  undionly.kpxe, ipxe.efi
//	iPXE     -> DHCP  discover, request              the same two decide
//	iPXE     -> HTTP  GET /boot.ipxe                 the same for all nodes
//	iPXE     -> HTTP  GET /config                    of a node: once for each lease (Grants)
//	iPXE     -> HTTP  GET /kernel, /image            the same for all nodes
//
// A node that has booted from a disk needs only its configuration (kernel/seek):
//
//	PID 1    -> DHCP  discover, request              as iPXE
//	PID 1    -> HTTP  GET /node.json                 of a node: once for each lease
//
// Only clients of known MAC addresses get an answer. A guest, which is a machine that is not a node
// yet, gets an address, an iPXE and a script that asks again.
//
// Every station on the wire can read what the services give. Without Config.Node none of it is
// secret, and a node gets its configuration and its token in another way.
//
// Leases, Grants, Progress and tftp.Server are state machines: packets and times in, answers out.
// Services does their input and output on any net.PacketConn and net.Listener, of a host or of a
// network stack in this process.
//
// Locks: Services.mu guards Leases, Grants and Progress. It is not held during input or output.
package boot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"margay/cluster/boot/tftp"
	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
	"margay/kernel/gate"
)

// The ports of the services. The second is where firmware expects DHCP (RFC 2131).
const (
	HTTPPort = node.BootPort
	DHCPPort = 67
	TFTPPort = 69
)

// The paths of the files.
const (
	ScriptPath = "/boot.ipxe"
	KernelPath = "/kernel"
	ImagePath  = "/image"
	ConfigPath = "/config" // an archive with the configuration; node.FetchPath is the configuration itself
)

// The names of the iPXE for each firmware. UEFI HTTP boot wants the ending.
const (
	biosName = "undionly.kpxe"
	uefiName = "ipxe.efi"
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
	// BIOS and UEFI are the iPXE of clients with each firmware. The zero File: they get nothing.
	BIOS, UEFI File
	// Report receives each new stage of a node. It must not block.
	Report func(id.Node, Status)
	// Send sends an Ethernet frame from the MAC address. Nil: frames cannot be sent, and clients
	// wait for an IPv6 router.
	Send func(frame []byte) error
	MAC  MAC // of the services; for Send
	// Broadcast sends all answers of DHCP to all stations: an ordinary socket cannot send to an
	// address that its client does not have yet.
	Broadcast bool
	// Node returns the configuration of a node, which has secrets. It is for a network without
	// another way to a node. Nil: no configuration is served.
	Node func(id.Node) ([]byte, error)
	// Pack returns an archive with a configuration, for a boot program. It is set if Node is.
	Pack func(config []byte) ([]byte, error)
	// Asks is called with each question before it is answered, and may change the hosts. If it
	// returns a refusal, there is no answer. Nil: all questions are answered.
	Asks func(time.Time, Question) (refusal string)
	// Met is called with a guest that fetches the script, or asks for its configuration. It may be
	// nil.
	Met func(MAC)
	// Log receives lines about refusals, at a bounded rate.
	Log func(format string, args ...any)
}

// Services are running services. They are safe for concurrent use.
type Services struct {
	config Config
	log    *gate.Log

	locations map[Means]string     // of what a client boots from; as DHCP names it
	first     map[string]tftp.File // by TFTP
	files     map[string]served    // by HTTP

	mu       sync.Mutex
	leases   *Leases
	grants   Grants
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
	script, err := script(base, c.Cmdline, c.Node != nil)
	if err != nil {
		return nil, err
	}
	s := &Services{
		config: c, log: gate.NewLog(c.Log, logBurst, logRate),
		progress: NewProgress(), grants: make(Grants),
		files: map[string]served{
			ScriptPath: {script, Script},
			KernelPath: {c.Kernel, Kernel},
			ImagePath:  {c.Image, Image},
		},
		locations: map[Means]string{ByScript: base + ScriptPath, ByItself: base + ScriptPath},
		first:     make(map[string]tftp.File),
	}
	if c.BIOS.Size > 0 {
		s.locations[ByBIOS], s.first[biosName] = biosName, tftp.File(c.BIOS)
	}
	if c.UEFI.Size > 0 {
		s.locations[ByUEFI], s.first[uefiName] = uefiName, tftp.File(c.UEFI)
		s.locations[ByHTTP], s.files["/"+uefiName] = base+"/"+uefiName, served{c.UEFI, Loader}
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
		return fmt.Errorf("boot: %v: its address %v is not one of a host in %v", h, h.Address, s.config.Server.Masked())
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

// Forget stops serving the host of a MAC address.
func (s *Services) Forget(mac MAC) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases.Forget(mac)
}

// host returns the host that has an address.
func (s *Services) host(address netip.Addr) (h Host, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leases.Host(address)
}

// take returns the configuration of a node that may have it now, as it is at a path.
func (s *Services) take(h Host, method, path string) (File, error) {
	if method != http.MethodGet {
		return File{}, errors.New("a configuration can only be fetched")
	}
	s.mu.Lock()
	refusal := s.grants.Take(time.Now(), h)
	s.mu.Unlock()
	if refusal != "" {
		s.log.Printf("boot: %v asks for its configuration: %s", h, refusal)
		return File{}, errors.New(refusal)
	}
	text, err := s.config.Node(h.Node)
	if err == nil && path == ConfigPath {
		text, err = s.config.Pack(text)
	}
	if err != nil {
		s.log.Printf("boot: %v asks for its configuration: %v", h, err)
		return File{}, errors.New("there is none now")
	}
	return File{bytes.NewReader(text), int64(len(text))}, nil
}

// Serve answers DHCP and TFTP on a connection each and HTTP on a listener until ctx ends, and
// closes them.
func (s *Services) Serve(ctx context.Context, questions, files net.PacketConn, l net.Listener) error {
	defer s.log.Close()
	server := s.server()
	var once sync.Once
	var why error
	end := func(err error) { // the first one to end ends the others
		once.Do(func() {
			why = err
			questions.Close()
			files.Close()
			server.Close()
		})
	}
	stop := context.AfterFunc(ctx, func() { end(nil) })
	defer stop()
	var all sync.WaitGroup
	all.Go(func() { end(server.Serve(limited(l, s.log))) })
	all.Go(func() { end(s.serveDHCP(questions)) })
	all.Go(func() { end(s.serveTFTP(files)) })
	all.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("boot services: %w", why)
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
func (s *Services) reached(h Host, status Status) {
	if h.Guest {
		return
	}
	s.mu.Lock()
	news := s.progress.Reached(h.Node, status)
	s.mu.Unlock()
	if news && s.config.Report != nil {
		s.config.Report(h.Node, status)
	}
}
