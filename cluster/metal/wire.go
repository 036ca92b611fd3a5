package metal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"margay/cluster/boot"
)

// Find returns the plan of the boot network behind an interface of this host. Without a range the
// interface must have an address, whose subnet is the range then. It changes nothing.
func Find(name string, addresses netip.Prefix) (Plan, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return Plan{}, fmt.Errorf("interface %q: %w", name, err)
	}
	if mac := link.Attrs().HardwareAddr; len(mac) != len(boot.MAC{}) {
		return Plan{}, fmt.Errorf("interface %s is not an Ethernet", name)
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
	p := Plan{netip.PrefixFrom(addresses.Addr().Next(), addresses.Bits()), addresses}
	return p, p.Check()
}

// Wire is the boot network of this host: an interface, and sockets that belong to it alone. It is
// safe for concurrent use.
type Wire struct {
	name string
	link netlink.Link
	own  *netlink.Addr // given to the interface by Open; nil: it had one
	raw  int           // a socket that sends frames

	Questions, First net.PacketConn // for DHCP and TFTP
	Files, Nodes     net.Listener   // for HTTP and the connections of nodes to serve
}

// Open gives the interface its address, if it has not, and opens the sockets. Nodes connect to the
// port. It needs the rights of root over the network.
func Open(name string, p Plan, port uint16) (w *Wire, err error) {
	w = &Wire{name: name, raw: -1}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("interface %s: %w", name, err), w.Close())
		}
	}()
	if w.link, err = netlink.LinkByName(name); err != nil {
		return w, err
	}
	if err := netlink.LinkSetUp(w.link); err != nil {
		return w, fmt.Errorf("turn it on: %w", err)
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: p.Server.Addr().AsSlice(), Mask: net.CIDRMask(p.Server.Bits(), 32)}}
	switch err := netlink.AddrAdd(w.link, address); {
	case err == nil:
		w.own = address
	case !errors.Is(err, unix.EEXIST):
		return w, fmt.Errorf("give it the address %v: %w", p.Server, err)
	}
	if w.raw, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return w, fmt.Errorf("socket for frames: %w", err)
	}
	own := p.Server.Addr().String()
	if w.Questions, err = w.packets("", boot.DHCPPort); err != nil {
		return w, fmt.Errorf("DHCP: %w (is another DHCP server running here?)", err)
	}
	if w.First, err = w.packets(own, boot.TFTPPort); err != nil {
		return w, fmt.Errorf("TFTP: %w", err)
	}
	if w.Files, err = w.listen(own, boot.HTTPPort); err != nil {
		return w, fmt.Errorf("HTTP: %w (is a web server running here?)", err)
	}
	w.Nodes, err = w.listen(own, port)
	return w, err
}

// MAC returns the address of the interface.
func (w *Wire) MAC() boot.MAC { return boot.MAC(w.link.Attrs().HardwareAddr) }

// Send sends an Ethernet frame.
func (w *Wire) Send(frame []byte) error {
	return unix.Sendto(w.raw, frame, 0, &unix.SockaddrLinklayer{Ifindex: w.link.Attrs().Index})
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
	for _, c := range []interface{ Close() error }{w.Questions, w.First, w.Files, w.Nodes} {
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
	if w.own != nil {
		errs = append(errs, netlink.AddrDel(w.link, w.own))
		w.own = nil
	}
	return errors.Join(errs...)
}

// packets opens a socket for datagrams of the interface.
func (w *Wire) packets(address string, port uint16) (net.PacketConn, error) {
	c := net.ListenConfig{Control: w.bind}
	return c.ListenPacket(context.Background(), "udp4", net.JoinHostPort(address, fmt.Sprint(port)))
}

// listen opens a socket for connections over the interface.
func (w *Wire) listen(address string, port uint16) (net.Listener, error) {
	c := net.ListenConfig{Control: w.bind}
	return c.Listen(context.Background(), "tcp4", net.JoinHostPort(address, fmt.Sprint(port)))
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
