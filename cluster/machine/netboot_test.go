package machine

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"margay/cluster/boot"
	"margay/internal/check"
	"margay/kernel/abi/id"
	"margay/qemu/netstack"
	"margay/qemu/vswitch"
)

// bootsWithin bounds every wait of playedFirmware.
const bootsWithin = 60 * time.Second

// playedFirmware is node 0 on the machine's switch.
type playedFirmware struct {
	t     *testing.T
	stack *netstack.Stack
}

func (p playedFirmware) listen(port uint16) net.PacketConn {
	p.t.Helper()
	conn, err := p.stack.ListenPacket(port)
	if err != nil {
		p.t.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(bootsWithin))
	return conn
}

// exchange sends a datagram and returns the answer.
func (p playedFirmware) exchange(conn net.PacketConn, to netip.AddrPort, datagram []byte) []byte {
	p.t.Helper()
	if _, err := conn.WriteTo(datagram, net.UDPAddrFromAddrPort(to)); err != nil {
		p.t.Fatal(err)
	}
	answer := make([]byte, 2000)
	n, _, err := conn.ReadFrom(answer)
	if err != nil {
		p.t.Fatal(err)
	}
	return answer[:n]
}

// ask sends a DHCP question until it is answered: the switch drops frames while a station is not
// yet connected.
func (p playedFirmware) ask(conn net.PacketConn, question *dhcpv4.DHCPv4) *dhcpv4.DHCPv4 {
	p.t.Helper()
	buf := make([]byte, 2000)
	for deadline := time.Now().Add(bootsWithin); time.Now().Before(deadline); {
		if _, err := conn.WriteTo(question.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: boot.DHCPPort}); err != nil {
			p.t.Fatal(err)
		}
		conn.SetReadDeadline(time.Now().Add(time.Second))
		for {
			n, _, err := conn.ReadFrom(buf)
			if err != nil {
				break // it is time to send again
			}
			answer, err := dhcpv4.FromBytes(buf[:n])
			if err != nil {
				p.t.Fatal(err)
			}
			if answer.TransactionID == question.TransactionID { // else it answers a repetition
				return answer
			}
		}
	}
	p.t.Fatalf("no answer to %s", question.Summary())
	return nil
}

// lease asks for an address, with some options, and returns the name of the file to boot.
func (p playedFirmware) lease(conn net.PacketConn, options ...dhcpv4.Option) string {
	p.t.Helper()
	var answer *dhcpv4.DHCPv4
	for _, kind := range []dhcpv4.MessageType{dhcpv4.MessageTypeDiscover, dhcpv4.MessageTypeRequest} {
		mac := nodeMAC(0)
		question, err := dhcpv4.NewDiscovery(mac[:], dhcpv4.WithMessageType(kind), dhcpv4.WithBroadcast(true))
		if err != nil {
			p.t.Fatal(err)
		}
		for _, o := range append(options, dhcpv4.OptRequestedIPAddress(nodeAddress(0).Addr().AsSlice())) {
			question.UpdateOption(o)
		}
		answer = p.ask(conn, question)
	}
	if answer.MessageType() != dhcpv4.MessageTypeAck || answer.YourIPAddr.String() != nodeAddress(0).Addr().String() {
		p.t.Fatalf("answer %s", answer.Summary())
	}
	return answer.BootFileName
}

// first fetches a file by TFTP.
func (p playedFirmware) first(name string) (content []byte) {
	p.t.Helper()
	conn := p.listen(2000)
	defer conn.Close()
	server := netip.AddrPortFrom(bootAddress.Addr(), boot.TFTPPort)
	datagram := []byte("\x00\x01" + name + "\x00octet\x00blksize\x001428\x00")
	for block := -1; ; block++ {
		answer := p.exchange(conn, server, datagram)
		if block == -1 {
			if string(answer) != "\x00\x06blksize\x001428\x00" {
				p.t.Fatalf("%s: answer %q", name, answer)
			}
			datagram = []byte{0, 4, 0, 0}
			block++
			answer = p.exchange(conn, server, datagram)
		}
		number := binary.BigEndian.Uint16(answer[2:])
		if answer[1] != 3 || int(number) != block+1 {
			p.t.Fatalf("%s: block %d: answer %.80q", name, block+1, answer)
		}
		content = append(content, answer[4:]...)
		datagram = append([]byte{0, 4}, answer[2:4]...)
		if len(answer) < 4+1428 {
			if _, err := conn.WriteTo(datagram, net.UDPAddrFromAddrPort(server)); err != nil {
				p.t.Fatal(err)
			}
			return content
		}
	}
}

// get fetches a file by HTTP.
func (p playedFirmware) get(url string) []byte {
	p.t.Helper()
	client := http.Client{Timeout: bootsWithin, Transport: &http.Transport{DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return nil, err
		}
		return p.stack.DialContext(ctx, to)
	}}}
	defer client.CloseIdleConnections()
	answer, err := client.Get(url)
	if err != nil {
		p.t.Fatal(err)
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		p.t.Fatalf("%s: %s, %v", url, answer.Status, err)
	}
	return content
}

// A played UEFI firmware and a played iPXE boot over the switch, by the services that virtual nodes
// boot from.
func TestBootOverTheSwitch(t *testing.T) {
	base, err := os.MkdirTemp("", "boot") // a short path, for sockets
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(base)
	d, spec := Dir(base), Spec{Cmdline: "console=ttyS0"}
	file := func(name string) string {
		path := filepath.Join(base, name)
		if err := os.WriteFile(path, []byte(strings.Repeat(name, 3000)), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	spec.Kernel, spec.Image, spec.IPXEBIOS, spec.IPXEUEFI = file("kernel"), file("image"), file("bios"), file("uefi")
	if err := os.Mkdir(d.file("ports"), 0o700); err != nil {
		t.Fatal(err)
	}
	fabric, err := vswitch.New(vswitch.Config{Ports: []vswitch.PortConfig{
		{Name: bootPort, MAC: bootMAC, Socket: d.Port(bootPort)},
		{Name: nodeName(0), MAC: nodeMAC(0), Address: nodeAddress(0).Addr(), Socket: d.Port(nodeName(0))},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer fabric.Close()
	var mu sync.Mutex
	var stages []string
	b, err := startBoot(spec, d, &images{dir: d, spec: spec}, virtualEvents{log: t.Logf, stage: func(node id.Node, s boot.Status) {
		mu.Lock()
		defer mu.Unlock()
		if text := fmt.Sprintf("node%d: %v", node, s); len(stages) == 0 || stages[len(stages)-1] != text {
			stages = append(stages, text)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	if err := b.add(0); err != nil {
		t.Fatal(err)
	}
	link, err := net.Dial("unix", d.Port(nodeName(0)))
	if err != nil {
		t.Fatal(err)
	}
	stack, err := netstack.New(link, netstack.Config{MAC: nodeMAC(0), Address: nodeAddress(0)})
	if err != nil {
		t.Fatal(err)
	}
	defer stack.Close()
	p := playedFirmware{t, stack}
	conn := p.listen(dhcpv4.ClientPort)
	defer conn.Close()
	option := func(code dhcpv4.OptionCode, value string) dhcpv4.Option {
		return dhcpv4.OptGeneric(code, []byte(value))
	}
	for _, c := range []struct{ class, arch, fetches, want string }{
		{"PXEClient:Arch:00000:UNDI:002001", "\x00\x00", "undionly.kpxe", "bios"},
		{"PXEClient:Arch:00007:UNDI:003000", "\x00\x07", "ipxe.efi", "uefi"},
		{"HTTPClient:Arch:00016:UNDI:003000", "\x00\x10", "http://10.66.0.2/ipxe.efi", "uefi"},
	} {
		name := p.lease(conn, option(dhcpv4.OptionClassIdentifier, c.class), option(dhcpv4.OptionClientSystemArchitectureType, c.arch))
		if name != c.fetches {
			t.Fatalf("%s boots %q", c.class, name)
		}
		fetch := p.first
		if strings.HasPrefix(name, "http:") {
			fetch = p.get
		}
		if got := fetch(name); string(got) != strings.Repeat(c.want, 3000) {
			t.Errorf("%s: %d bytes", name, len(got))
		}
	}
	script := p.lease(conn, option(dhcpv4.OptionUserClassInformation, "iPXE"))
	if text := string(p.get(script)); !strings.HasPrefix(text, "#!ipxe\n") || !strings.Contains(text, "console=ttyS0") {
		t.Errorf("script %q", text)
	}
	for _, name := range []string{"kernel", "image"} {
		if got := p.get("http://10.66.0.2/" + name); string(got) != strings.Repeat(name, 3000) {
			t.Errorf("%s: %d bytes", name, len(got))
		}
	}
	want := []string{
		"node0: its firmware has got an address", "node0: it fetches iPXE", "node0: its firmware has got an address", "node0: it fetches iPXE",
		"node0: its firmware has got an address", "node0: it fetches iPXE", "node0: it has got its address", "node0: it fetches the script",
		"node0: it fetches the kernel", "node0: it has fetched everything, and starts Linux",
	}
	got := func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(stages)
	}
	defer func() {
		if t.Failed() {
			t.Logf("stages %q, want %q", got(), want)
		}
	}()
	check.AwaitFor(t, bootsWithin, "end of the boot", func() bool { return slices.Equal(got(), want) })
}
