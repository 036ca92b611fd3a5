package metal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"margay/cluster/boot"
)

// Find returns the plan of the boot network behind an interface of this host. Without a range the
// interface must have an address, whose subnet is the range then. Beside the DHCP server of a site,
// both are needed. Find changes nothing.
func Find(name string, addresses netip.Prefix, site bool) (Plan, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return Plan{}, fmt.Errorf("interface %q: %w", name, err)
	}
	if mac := link.Attrs().HardwareAddr; len(mac) != len(boot.MAC{}) {
		return Plan{}, fmt.Errorf("interface %s is not an Ethernet", name)
	}
	if site && !addresses.IsValid() {
		return Plan{}, errors.New("a DHCP server of the site gives addresses beside this one: name a range for the nodes, outside its addresses (--range 10.8.4.0/24)")
	}
	own, err := netlink.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return Plan{}, fmt.Errorf("interface %s: addresses: %w", name, err)
	}
	for _, a := range own {
		bits, _ := a.Mask.Size()
		ip, _ := netip.AddrFromSlice(a.IP.To4())
		server := netip.PrefixFrom(ip, bits)
		if !addresses.IsValid() {
			addresses = server.Masked()
		}
		if p := (Plan{server, addresses}); p.Check() == nil {
			return p, nil
		}
	}
	if !addresses.IsValid() {
		return Plan{}, fmt.Errorf("interface %s has no IPv4 address: name a range of addresses for it and the nodes (--range 10.8.0.0/24)", name)
	}
	if !addresses.Addr().Is4() {
		return Plan{}, Plan{Range: addresses}.Check()
	}
	if site {
		return Plan{}, fmt.Errorf("interface %s has no address in a subnet of the site with the range %v", name, addresses)
	}
	p := Plan{netip.PrefixFrom(addresses.Addr().Next(), addresses.Bits()), addresses}
	return p, p.Check()
}

// Wire is the boot network of this host: an interface, and sockets that belong to it alone. It is
// safe for concurrent use.
//
// Locks: mu guards the link.
type Wire struct {
	name   string
	server netip.Prefix
	gives  bool // Open has given the interface its address
	raw    int  // a socket that sends frames

	mu   sync.Mutex
	link netlink.Link

	boot.Sockets
	Nodes    net.Listener   // for the connections of nodes to serve
	Consoles net.PacketConn // for the consoles of nodes
}

// Open gives the interface its address, if it has not, and opens the sockets, with one for a proxy
// if the site has a DHCP server. Nodes connect to the port. It needs the rights of root over the
// network.
func Open(name string, p Plan, port uint16, site bool) (w *Wire, err error) {
	w = &Wire{name: name, server: p.Server, raw: -1}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("interface %s: %w", name, err), w.Close())
		}
	}()
	if w.gives, err = w.take(!site); err != nil {
		return w, err
	}
	if w.raw, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return w, fmt.Errorf("socket for frames: %w", err)
	}
	own := p.Server.Addr().String()
	if w.DHCP, err = w.packets("", boot.DHCPPort); err != nil {
		return w, fmt.Errorf("DHCP: %w (is another DHCP server running here?)", err)
	}
	if site {
		if w.PXE, err = w.packets(own, boot.PXEPort); err != nil {
			return w, fmt.Errorf("proxy DHCP: %w", err)
		}
	}
	if w.TFTP, err = w.packets(own, boot.TFTPPort); err != nil {
		return w, fmt.Errorf("TFTP: %w", err)
	}
	if w.HTTP, err = w.listen(own, boot.HTTPPort, w.bind, boot.Tune); err != nil {
		return w, fmt.Errorf("HTTP: %w (is a web server running here?)", err)
	}
	if w.Consoles, err = w.packets(own, ConsolePort); err != nil {
		return w, fmt.Errorf("consoles of nodes: %w (is another receiver of netconsole running here?)", err)
	}
	w.Nodes, err = w.listen(own, port, w.bind)
	return w, err
}

// take finds the interface, switches it on and, if give is set, gives it its address. It reports
// whether it has.
func (w *Wire) take(give bool) (given bool, err error) {
	link, err := netlink.LinkByName(w.name)
	if err != nil {
		return false, err
	}
	if len(link.Attrs().HardwareAddr) != len(boot.MAC{}) {
		return false, errors.New("it is not an Ethernet")
	}
	w.mu.Lock()
	w.link = link
	w.mu.Unlock()
	if err := netlink.LinkSetUp(link); err != nil {
		return false, fmt.Errorf("turn it on: %w", err)
	}
	if !give {
		return false, nil
	}
	switch err := netlink.AddrAdd(link, w.address()); {
	case err == nil:
		return true, nil
	case !errors.Is(err, unix.EEXIST):
		return false, fmt.Errorf("give it the address %v: %w", w.server, err)
	}
	return false, nil
}

// address is the address of the services.
func (w *Wire) address() *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{IP: w.server.Addr().AsSlice(), Mask: net.CIDRMask(w.server.Bits(), 32)}}
}

// Line returns the line of the interface, which is well.
func (w *Wire) Line() *Line { return NewLine(w.name, w.server, w.gives, w.index()) }

// Look returns the state of the interface.
func (w *Wire) Look() Sight {
	link, err := netlink.LinkByName(w.name)
	if err != nil {
		return Sight{} // it may be a passing error; the next look corrects it
	}
	s := Sight{Index: link.Attrs().Index, Up: link.Attrs().Flags&net.FlagUp != 0, Carrier: link.Attrs().RawFlags&unix.IFF_LOWER_UP != 0}
	own, _ := netlink.AddrList(link, netlink.FAMILY_V4)
	s.Address = slices.ContainsFunc(own, func(a netlink.Addr) bool { return a.IP.Equal(w.server.Addr().AsSlice()) })
	return s
}

// Bind binds the sockets to the interface that has its name now, and gives it its address if Open
// did. Other processes that have inherited Nodes keep it.
func (w *Wire) Bind() error {
	if _, err := w.take(w.gives); err != nil {
		return err
	}
	for _, socket := range []any{w.DHCP, w.PXE, w.TFTP, w.HTTP, w.Nodes, w.Consoles} {
		if socket == nil {
			continue
		}
		raw, err := socket.(syscall.Conn).SyscallConn()
		if err == nil {
			err = w.bind("", "", raw)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *Wire) index() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.link.Attrs().Index
}

// MAC returns the address of the interface.
func (w *Wire) MAC() boot.MAC {
	w.mu.Lock()
	defer w.mu.Unlock()
	return boot.MAC(w.link.Attrs().HardwareAddr)
}

// Send sends an Ethernet frame.
func (w *Wire) Send(frame []byte) error {
	return unix.Sendto(w.raw, frame, 0, &unix.SockaddrLinklayer{Ifindex: w.index()})
}

// aliveWait bounds how long a station may take to answer. Before it gives up, Linux asks for its
// MAC address three times, a second apart.
const aliveWait = 4 * time.Second

// Alive reports whether a station of an address answers: its Linux accepts a connection or refuses
// it. Firmware that has begun to boot has no address.
func (w *Wire) Alive(address netip.Addr, port uint16) bool {
	d := net.Dialer{Timeout: aliveWait, Control: w.bind}
	conn, err := d.Dial("tcp4", netip.AddrPortFrom(address, port).String())
	if err == nil {
		conn.Close()
	}
	return err == nil || errors.Is(err, unix.ECONNREFUSED)
}

// Close closes the sockets, and takes from the interface the address that Open has given it.
func (w *Wire) Close() error {
	var errs []error
	for _, c := range []io.Closer{w.DHCP, w.PXE, w.TFTP, w.HTTP, w.Nodes, w.Consoles} {
		if c == nil {
			continue
		}
		if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if w.raw >= 0 {
		errs = append(errs, unix.Close(w.raw))
		w.raw = -1
	}
	if link, err := netlink.LinkByName(w.name); err == nil && w.gives && w.Look().Address {
		errs = append(errs, netlink.AddrDel(link, w.address()))
	}
	w.gives = false
	return errors.Join(errs...)
}

// packets opens a socket for datagrams of the interface.
func (w *Wire) packets(address string, port uint16) (net.PacketConn, error) {
	c := net.ListenConfig{Control: each(w.bind, boot.Tune)}
	return c.ListenPacket(context.Background(), "udp4", net.JoinHostPort(address, fmt.Sprint(port)))
}

// listen opens a socket for connections over the interface.
func (w *Wire) listen(address string, port uint16, prepare ...control) (net.Listener, error) {
	c := net.ListenConfig{Control: each(prepare...)}
	return c.Listen(context.Background(), "tcp4", net.JoinHostPort(address, fmt.Sprint(port)))
}

// control prepares a socket before it is bound.
type control = func(network, address string, raw syscall.RawConn) error

// each prepares a socket in several ways.
func each(all ...control) control {
	return func(network, address string, raw syscall.RawConn) error {
		for _, f := range all {
			if err := f(network, address, raw); err != nil {
				return err
			}
		}
		return nil
	}
}

// bind restricts a socket to the interface, and lets it send to all stations there.
func (w *Wire) bind(_, _ string, raw syscall.RawConn) error {
	var err error
	failed := raw.Control(func(fd uintptr) {
		err = errors.Join(
			unix.BindToDevice(int(fd), w.name),
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1),
		)
	})
	return errors.Join(failed, err)
}
