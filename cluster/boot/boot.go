// Package boot serves nodes that boot without a disk: DHCP gives a node its address and the
// location of what it starts next, TFTP or HTTP gives firmware an iPXE, and HTTP gives iPXE a
// script, the Linux kernel and the node image. A network card whose own program is an iPXE begins
// with the third line.
//
//	firmware -> DHCP  discover, request              Client.Means and Leases decide
//	firmware -> TFTP or HTTP  undionly.kpxe, ipxe.efi
//	iPXE     -> DHCP  discover, request              the same two decide
//	iPXE     -> HTTP  GET /boot.ipxe                 in turns (Turns)
//	iPXE     -> HTTP  GET /config                    of a node: once for each lease (Grants)
//	iPXE     -> HTTP  GET /kernel, /image            the same for all nodes
//	iPXE     -> HTTP  GET /images/NAME/kernel, ...   of nodes that have an image of their own (Config.Own)
//
// A node that has booted from a disk needs only its configuration (kernel/seek):
//
//	PID 1    -> DHCP  discover, request              as iPXE
//	PID 1    -> HTTP  GET /node.json                 of a node: once for each lease; a guest may bring a token
//
// Only clients of known MAC addresses get an answer. A guest, which is a machine that is not a node
// yet, gets an address, an iPXE and a script that asks again.
//
// Every station on the wire can read what the services give. Without Config.Node none of it is
// secret, and a node gets its configuration and its token in another way.
//
// With Config.Proxy, a server of the site gives the addresses, and the services add what a client
// boots from. They learn a client's address from its request to that server, which is broadcast.
//
// Leases, Grants, Turns, Progress and tftp.Server are state machines: packets and times in, answers
// out. Services does their input and output on any net.PacketConn and net.Listener, of a host or of
// a network stack in this process.
//
// Locks: Services.mu guards Leases, Grants, Turns and Progress. It is not held during input or
// output. limitedConn.mu guards in which room a connection counts. No other lock of this package is
// taken while one of them is held.
package boot

import (
	"cmp"
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
	PXEPort  = 4011 // where clients ask a proxy (PXE 2.1, section 2.2.5)
	TFTPPort = 69
)

// The paths of the files.
const (
	ScriptPath = "/boot.ipxe"
	KernelPath = "/kernel"
	ImagePath  = "/image"
	ConfigPath = "/config" // an archive with the configuration; node.FetchPath is the configuration itself
	OwnPath    = "/images" // has KernelPath and ImagePath below the name of each image of some nodes (Own)
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

// Own is what a node boots in the place of Config.Kernel and Config.Image.
type Own struct {
	Name          string // in the addresses of its files
	Cmdline       string // of the kernel
	Kernel, Image string // paths of its files, which must not change
}

func (o Own) path(file string) string { return OwnPath + "/" + o.Name + file }

// Config holds the hosts to serve, and the answers and files for them.
type Config struct {
	Hosts   []Host
	Server  netip.Prefix // address of the services and the subnet of the hosts
	Cmdline string       // of the kernel
	Kernel  File
	Image   File
	// BIOS and UEFI are the iPXE of clients with each firmware. The zero File: they get nothing.
	BIOS, UEFI File
	// Own returns what a node boots, if it has an image of its own. It is called with each of its
	// requests for the script, and for files of such images. Nil: no node has one.
	Own func(id.Node) (own Own, has bool, err error)
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
	// another way to a node. From a disk, the node has booted an image that is not served. Nil: no
	// configuration is served.
	Node func(node id.Node, disk bool) ([]byte, error)
	// Pack returns an archive with a configuration, for a boot program. It is set if Node is.
	Pack func(config []byte) ([]byte, error)
	// Sign signs the statement about a configuration that a node asks for with a nonce
	// (node.Statement), with the key of the machine. Nil: no configuration is signed.
	Sign func(statement []byte) []byte
	// Asks is called with each question before it is answered, and may change the hosts. If it
	// returns a refusal, there is no answer. Nil: all questions are answered.
	Asks func(time.Time, Question) (refusal string)
	// Met is called with a guest that fetches the script, or asks for its configuration. It may be
	// nil.
	Met func(MAC)
	// Pinned is called when a host asks for its configuration, with the machine that its image
	// belongs to, which is empty if it belongs to any. It returns why it gets none, if that is
	// another one. It may be nil.
	Pinned func(h Host, machine string) (refusal string)
	// Token is called with the token that a host brings when it asks for its configuration, and
	// returns an error if that admits nothing. Nil: no host can bring one.
	Token func(Host, string) error
	// Proxy leaves addresses to another server.
	Proxy bool
	// Turns bounds how many nodes fetch the kernel and the image at the same time. 0: defaultTurns.
	Turns int
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
	turns    *Turns
	called   map[MAC]chan struct{} // a node that waits for its turn; closed when it begins
	progress *Progress
}

// defaultTurns are enough to fill an Ethernet of 10 Gbit/s.
const defaultTurns = 64

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
	script, err := c.script(c.Cmdline, KernelPath, ImagePath)
	if err != nil {
		return nil, err
	}
	base := c.base()
	s := &Services{
		config: c, log: gate.NewLog(c.Log, logBurst, logRate),
		progress: NewProgress(), grants: make(Grants), turns: NewTurns(cmp.Or(c.Turns, defaultTurns)), called: make(map[MAC]chan struct{}),
		files: map[string]served{
			ScriptPath: {File: script, stage: Script},
			KernelPath: {File: c.Kernel, stage: Kernel},
			ImagePath:  {File: c.Image, stage: Image},
		},
		locations: map[Means]string{ByScript: base + ScriptPath, ByItself: base + ScriptPath},
		first:     make(map[string]tftp.File),
	}
	if c.BIOS.Size > 0 {
		s.locations[ByBIOS], s.first[biosName] = biosName, tftp.File(c.BIOS)
	}
	if c.UEFI.Size > 0 {
		s.locations[ByUEFI], s.first[uefiName] = uefiName, tftp.File(c.UEFI)
		s.locations[ByHTTP], s.files["/"+uefiName] = base+"/"+uefiName, served{File: c.UEFI, stage: Loader}
	}
	s.leases = NewLeases(c.Proxy)
	for _, h := range c.Hosts {
		if err := s.Add(h); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Add adds a host to the ones that are served.
func (s *Services) Add(h Host) error {
	if err := s.check(h); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leases.Add(h)
}

// Settle adds a node in the place of the guest with its MAC address, if there is one. Under a proxy
// the node goes on with the address and the lease of the guest.
func (s *Services) Settle(h Host) error {
	if err := s.check(h); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release(h.MAC)
	if err := s.leases.Settle(h); err != nil {
		return err
	}
	if h = s.leases.hosts[h.MAC]; s.config.Proxy && h.Address.IsValid() {
		s.grants.Arm(time.Now(), h)
	}
	return nil
}

func (s *Services) check(h Host) error {
	if !s.config.Proxy && (!s.config.Server.Contains(h.Address) || h.Address == s.config.Server.Addr()) {
		return fmt.Errorf("boot: %v: its address %v is not one of a host in %v", h, h.Address, s.config.Server.Masked())
	}
	return nil
}

// Remove stops serving a node.
func (s *Services) Remove(node id.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h, ok := s.leases.Node(node); ok {
		s.forget(h.MAC)
	}
	s.progress.Starting(node)
}

// Forget stops serving the host of a MAC address.
func (s *Services) Forget(mac MAC) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(mac)
}

// forget is Forget for a caller that holds s.mu.
func (s *Services) forget(mac MAC) {
	s.leases.Forget(mac)
	s.release(mac)
}

// release takes the grant and the turn from a host. The caller holds s.mu.
func (s *Services) release(mac MAC) {
	delete(s.grants, mac)
	s.leave(mac)
}

// leave ends the turn of a node, or its wait. The caller holds s.mu.
func (s *Services) leave(mac MAC) { s.call(s.turns.Leave(time.Now(), mac)) }

// host returns the host that has an address.
func (s *Services) host(address netip.Addr) (h Host, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leases.Host(address)
}

// take returns the configuration of a node that may have it now, as it is at a path.
func (s *Services) take(h Host, method, path string) ([]byte, error) {
	if method != http.MethodGet {
		return nil, errors.New("a configuration can only be fetched")
	}
	s.mu.Lock()
	refusal := s.grants.Take(time.Now(), h)
	s.mu.Unlock()
	if refusal != "" {
		s.log.Printf("boot: %v asks for its configuration: %s", h, refusal)
		return nil, errors.New(refusal)
	}
	text, err := s.config.Node(h.Node, path == node.FetchPath)
	if err == nil && path == ConfigPath {
		text, err = s.config.Pack(text)
	}
	if err != nil {
		s.log.Printf("boot: %v asks for its configuration: %v", h, err)
		return nil, errors.New("there is none now")
	}
	return text, nil
}

// Sockets are what services answer on.
type Sockets struct {
	DHCP, TFTP net.PacketConn
	PXE        net.PacketConn // with Config.Proxy: on PXEPort; it may be nil
	HTTP       net.Listener
}

// Serve answers on sockets until ctx ends, and closes them.
func (s *Services) Serve(ctx context.Context, sockets Sockets) error {
	defer s.log.Close()
	server := s.server()
	var once sync.Once
	var why error
	end := func(err error) { // the first one to end ends the others
		once.Do(func() {
			why = err
			sockets.DHCP.Close()
			sockets.TFTP.Close()
			if sockets.PXE != nil {
				sockets.PXE.Close()
			}
			server.Close()
		})
	}
	stop := context.AfterFunc(ctx, func() { end(nil) })
	defer stop()
	var all sync.WaitGroup
	all.Go(func() { end(server.Serve(s.limited(sockets.HTTP))) })
	all.Go(func() { end(s.serveDHCP(sockets.DHCP)) })
	all.Go(func() { end(s.serveTFTP(sockets.TFTP)) })
	if sockets.PXE != nil {
		all.Go(func() { end(s.servePXE(sockets.PXE)) })
	}
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
	if h, ok := s.leases.Node(node); ok {
		s.leave(h.MAC)
	}
}

// Counts returns what was refused so far.
func (s *Services) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leases.Counts()
}

// reached records that a node has reached a stage, and reports it if it is new.
func (s *Services) reached(h Host, status Status) { s.sent(h, status, 0) }

// sent is reached for a node that was sent some bytes of a file.
func (s *Services) sent(h Host, status Status, bytes int) {
	if h.Guest {
		return
	}
	s.mu.Lock()
	news := s.progress.Reached(h.Node, status)
	s.turns.Moved(h.MAC, bytes)
	if !status.Stage.begins() {
		s.leases.Uses(time.Now(), h.MAC)
	}
	if status.over() {
		s.leave(h.MAC)
	}
	s.mu.Unlock()
	if news && s.config.Report != nil {
		s.config.Report(h.Node, status)
	}
}

// turnWait bounds how long a request for the script waits for a turn.
const turnWait = 10 * time.Second

// await waits until it is the turn of a node, for turnWait at most. Otherwise it returns how many
// nodes come before.
func (s *Services) await(ctx context.Context, h Host) (before int, ok bool) {
	s.mu.Lock()
	ok, before = s.ask(h)
	if ok {
		s.mu.Unlock()
		return 0, true
	}
	called := make(chan struct{})
	s.called[h.MAC] = called
	s.mu.Unlock()
	s.reached(h, Status{Stage: Queued, Why: fmt.Sprint(before)})
	timer := time.NewTimer(turnWait)
	defer timer.Stop()
	select {
	case <-called:
	case <-timer.C:
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.called[h.MAC] == called {
		delete(s.called, h.MAC)
	}
	if ctx.Err() != nil { // the client is gone
		s.leave(h.MAC)
		return 0, false
	}
	ok, before = s.ask(h)
	return before, ok
}

// ask is Turns.Ask for a caller that holds s.mu.
func (s *Services) ask(h Host) (ok bool, before int) {
	now := time.Now()
	ok, before, next := s.turns.Ask(now, h.MAC)
	s.call(next)
	s.grants.Extend(now, h)
	return ok, before
}

// call wakes the requests of nodes whose turn begins. The caller holds s.mu.
func (s *Services) call(next []MAC) {
	for _, mac := range next {
		if called, ok := s.called[mac]; ok {
			delete(s.called, mac)
			close(called)
		}
	}
}
