package boot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"margay/internal/check"
	"margay/internal/uuid"
	"margay/kernel/abi/id"
)

// patience bounds every wait of a test for something that must happen.
const patience = 60 * time.Second

// record is what services have reported.
type record struct {
	mu  sync.Mutex
	got []string
}

func (r *record) add(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, text)
}

func (r *record) all() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.got, "\n")
}

func services(t testing.TB, change func(*Config)) (*Services, *record) {
	t.Helper()
	r := new(record)
	file := func(letter string, size int) File {
		return File{strings.NewReader(strings.Repeat(letter, size)), int64(size)}
	}
	c := Config{
		Hosts: []Host{host(0), host(1)}, Server: netip.PrefixFrom(server, 16), Cmdline: "console=ttyS0",
		Kernel: file("k", 100<<10), Image: file("i", 300<<10), BIOS: file("b", 3000), UEFI: file("u", 5000),
		Report: func(node id.Node, s Status) { r.add(fmt.Sprintf("node%d: %v %d", node, s, s.Percent)) },
		Log:    func(format string, args ...any) { r.add(fmt.Sprintf(format, args...)) },
	}
	if change != nil {
		change(&c)
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s, r
}

// firmware makes a question one of firmware, of a vendor class, for an architecture.
func firmware(class string, arch byte) dhcpv4.Modifier {
	return func(d *dhcpv4.DHCPv4) {
		delete(d.Options, dhcpv4.OptionUserClassInformation.Code())
		d.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionClassIdentifier, []byte(class)))
		d.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionClientSystemArchitectureType, []byte{0, arch}))
	}
}

// question is what the iPXE of a node sends.
func question(t testing.TB, n int, modifiers ...dhcpv4.Modifier) []byte {
	t.Helper()
	mac := host(n).MAC
	all := append([]dhcpv4.Modifier{
		dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionUserClassInformation, []byte("iPXE"))),
		dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionClientMachineIdentifier, make([]byte, maxMachine))),
	}, modifiers...)
	d, err := dhcpv4.NewDiscovery(mac[:], all...)
	if err != nil {
		t.Fatal(err)
	}
	d.SetUnicast()
	for _, m := range all {
		m(d)
	}
	return d.ToBytes()
}

func request(t testing.TB, n int, modifiers ...dhcpv4.Modifier) []byte {
	return question(t, n, append([]dhcpv4.Modifier{
		dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(host(n).Address.AsSlice())),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(server.AsSlice())),
	}, modifiers...)...)
}

// Firmware and the iPXE that it starts are one machine, also if they send its UUID in different
// byte orders.
func TestMachineIdentifier(t *testing.T) {
	machine := uuid.ID{0x4c, 0x4c, 0x45, 0x44, 15: 1}
	identified := func(option []byte) dhcpv4.Modifier {
		return dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionClientMachineIdentifier, option))
	}
	other := machine
	other[15]++
	var asked []uuid.ID
	s, r := services(t, func(c *Config) {
		c.Asks = func(_ time.Time, q Question) string {
			asked = append(asked, q.UUID)
			return ""
		}
	})
	for _, c := range []struct {
		name   string
		option []byte
		answer bool
	}{
		{"firmware", machine.Option(), true},
		{"a boot program with the other byte order", append([]byte{0}, machine[:]...), true},
		{"another machine", other.Option(), false},
	} {
		if answer, _ := s.answer(start, question(t, 1, identified(c.option)), false); (answer != nil) != c.answer {
			t.Errorf("%s: answer %x; %s", c.name, answer, r.all())
		}
	}
	if len(asked) != 3 || asked[0] != machine || asked[1].Key() != machine.Key() || asked[2] != other {
		t.Errorf("asked as %v", asked)
	}
}

func TestAnswers(t *testing.T) {
	cases := []struct {
		name     string
		datagram []byte
		kind     dhcpv4.MessageType // none: no answer
		to       string
		reports  string
	}{
		{"discover", question(t, 1), dhcpv4.MessageTypeOffer, "10.66.1.1:68", ""},
		{"discover, answer to all", question(t, 1, dhcpv4.WithBroadcast(true)), dhcpv4.MessageTypeOffer, "255.255.255.255:68", ""},
		{"request", request(t, 1), dhcpv4.MessageTypeAck, "10.66.1.1:68", "node1: it has got its address 0"},
		{"renewal", question(t, 1, dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), dhcpv4.WithClientIP(host(1).Address.AsSlice())),
			dhcpv4.MessageTypeAck, "10.66.1.1:68", "node1: it has got its address 0"},
		{"another's address", request(t, 1, dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(host(0).Address.AsSlice()))),
			dhcpv4.MessageTypeNak, "255.255.255.255:68", "it has asked for the address 10.66.1.0, and its own is 10.66.1.1"},
		{"second server", request(t, 1, dhcpv4.WithOption(dhcpv4.OptServerIdentifier(second.AsSlice()))), 0, "",
			"node1: its DHCP request was refused: it has chosen another DHCP server, 10.66.0.9"},
		{"unknown", question(t, 9), 0, "", "no node has the MAC address 52:54:00:66:00:09"},
		{"another system", question(t, 1, firmware("dhcpcd", 0)), 0, "", "node1: its DHCP request was refused: it does not boot over the network"},
		{"relayed", question(t, 1, dhcpv4.WithGatewayIP(second.AsSlice())), 0, "", "is ignored"},
		{"an answer", func() []byte { d := question(t, 1); d[0] = 2; return d }(), 0, "", "is ignored"},
		{"long hardware address", func() []byte { d := question(t, 1); d[2] = 16; return d }(), 0, "", "is ignored"},
		{"cut off", question(t, 1)[:200], 0, "", "is ignored"},
		{"nothing", nil, 0, "", "is ignored"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			frames := 0
			s, r := services(t, func(c *Config) {
				c.Send = func(frame []byte) error {
					frames++
					return nil
				}
			})
			datagram, to := s.answer(start, c.datagram, false)
			if frames != min(1, int(c.kind)) {
				t.Errorf("%d router advertisements", frames)
			}
			if !strings.Contains(r.all(), c.reports) {
				t.Errorf("reports %q, want %q", r.all(), c.reports)
			}
			if c.kind == dhcpv4.MessageTypeNone {
				if datagram != nil {
					t.Errorf("answer %x to %v", datagram, to)
				}
				return
			}
			d, err := dhcpv4.FromBytes(datagram)
			if err != nil || d.MessageType() != c.kind || to.String() != c.to {
				t.Fatalf("answer %v to %v, %v", d, to, err)
			}
			if c.kind == dhcpv4.MessageTypeNak {
				return
			}
			if d.YourIPAddr.String() != "10.66.1.1" || d.BootFileName != "http://10.66.0.2/boot.ipxe" || d.SubnetMask().String() != "ffff0000" ||
				d.ServerIdentifier().String() != "10.66.0.2" || string(d.Options.Get(dhcpv4.GenericOptionCode(optionIPXE))) != "\xb0\x01\x01" {
				t.Errorf("answer %s", d.Summary())
			}
		})
	}
}

// Firmware gets an answer that it accepts to boot from. Only iPXE gets an IPv6 router.
func TestFirmware(t *testing.T) {
	for _, c := range []struct {
		class         string
		arch          byte
		file          string
		back, options string
		machine       int
	}{
		{"PXEClient:Arch:00000:UNDI:002001", 0, "undionly.kpxe", "PXEClient", "\x06\x01\x08\xff", maxMachine},
		{"PXEClient:Arch:00007:UNDI:003000", 7, "ipxe.efi", "PXEClient", "\x06\x01\x08\xff", maxMachine},
		{"HTTPClient:Arch:00016:UNDI:003000", 16, "http://10.66.0.2/ipxe.efi", "HTTPClient", "", 0},
	} {
		s, r := services(t, func(c *Config) {
			c.Send = func(frame []byte) error {
				t.Errorf("frame %x", frame)
				return nil
			}
		})
		for _, datagram := range [][]byte{question(t, 1, firmware(c.class, c.arch)), request(t, 1, firmware(c.class, c.arch))} {
			out, _ := s.answer(start, datagram, false)
			d, err := dhcpv4.FromBytes(out)
			if err != nil {
				t.Fatalf("%s: %v", c.class, err)
			}
			if d.BootFileName != c.file || d.ServerIPAddr.String() != "10.66.0.2" || d.YourIPAddr.String() != "10.66.1.1" || d.ClassIdentifier() != c.back ||
				string(d.Options.Get(dhcpv4.OptionVendorSpecificInformation)) != c.options ||
				len(d.Options.Get(dhcpv4.OptionClientMachineIdentifier)) != c.machine || d.Options.Has(dhcpv4.GenericOptionCode(optionIPXE)) {
				t.Errorf("%s gets %s", c.class, d.Summary())
			}
		}
		if r.all() != "node1: its firmware has got an address 0" {
			t.Errorf("%s: reports %q", c.class, r.all())
		}
	}
	s, r := services(t, func(c *Config) { c.BIOS, c.UEFI = File{}, File{} })
	for _, m := range []dhcpv4.Modifier{firmware("PXEClient", 0), firmware("PXEClient", 7), firmware("HTTPClient", 16)} {
		if out, _ := s.answer(start, question(t, 1, m), false); out != nil || !strings.Contains(r.all(), "this machine has no iPXE for its firmware") {
			t.Errorf("without iPXE: %x, reports %q", out, r.all())
		}
	}
}

// played is a connection whose datagrams a test sends and receives.
type played struct {
	net.PacketConn
	in, out chan []byte
	failing chan error
	closed  chan struct{}
	once    sync.Once
}

func play() *played {
	return &played{in: make(chan []byte), out: make(chan []byte, 100), failing: make(chan error), closed: make(chan struct{})}
}

func (p *played) ReadFrom(b []byte) (int, net.Addr, error) {
	select {
	case d := <-p.in:
		return copy(b, d), nil, nil
	case err := <-p.failing:
		return 0, nil, err
	case <-p.closed:
		return 0, nil, net.ErrClosed
	}
}

func (p *played) WriteTo(b []byte, to net.Addr) (int, error) {
	p.out <- b
	return len(b), nil
}

func (p *played) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// SetReadDeadline implements net.PacketConn.
func (p *played) SetReadDeadline(time.Time) error { return nil }

// serve runs services on a played connection and on ports of this host until the test ends.
func serve(t *testing.T, s *Services) (p *played, files net.Addr, url string) {
	t.Helper()
	p = play()
	sockets := serveOn(t, s, Sockets{DHCP: p})
	return p, sockets.TFTP.LocalAddr(), "http://" + sockets.HTTP.Addr().String()
}

// serveOn runs services until the test ends, on ports of this host unless sockets are given.
func serveOn(t *testing.T, s *Services, sockets Sockets) Sockets {
	t.Helper()
	var err error
	if sockets.DHCP == nil {
		sockets.DHCP = play()
	}
	if sockets.TFTP, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	if sockets.HTTP, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, sockets) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Error("the services do not end")
		}
	})
	return sockets
}

// After garbage, an error and a flood of strangers, a node is answered.
func TestServeDHCP(t *testing.T) {
	s, r := services(t, nil)
	p, _, _ := serve(t, s)
	p.in <- []byte("garbage")
	p.failing <- errors.New("a passing error")
	for range 1000 {
		p.in <- question(t, 9)
	}
	p.in <- question(t, 0)
	d, err := dhcpv4.FromBytes(<-p.out)
	if err != nil || d.MessageType() != dhcpv4.MessageTypeOffer {
		t.Fatalf("answer %v, %v", d, err)
	}
	if c := s.Counts(); c.Unknown != 1000 || c.Malformed != 1 {
		t.Errorf("counts %+v", c)
	}
	if lines := strings.Count(r.all(), "\n") + 1; lines > 3*logBurst {
		t.Errorf("strangers cause %d lines", lines)
	}
}

// When one service fails, all end with the reason.
func TestServeFails(t *testing.T) {
	for i := range 3 {
		s, _ := services(t, nil)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		questions, first := play(), play()
		ended := make(chan error, 1)
		go func() { ended <- s.Serve(context.Background(), Sockets{DHCP: questions, TFTP: first, HTTP: l}) }()
		[]io.Closer{l, questions, first}[i].Close()
		var failed error
		check.AwaitFor(t, patience, "the end", func() bool {
			select {
			case failed = <-ended:
				return true
			default:
				return false
			}
		})
		if !errors.Is(failed, net.ErrClosed) {
			t.Errorf("service %d: error %v", i, failed)
		}
	}
}

func TestBadConfig(t *testing.T) {
	for name, spoil := range map[string]func(*Config){
		"hosts":            func(c *Config) { c.Hosts[1] = c.Hosts[0] },
		"no server":        func(c *Config) { c.Server = netip.Prefix{} },
		"IPv6":             func(c *Config) { c.Server = netip.MustParsePrefix("fd00::1/64") },
		"outside":          func(c *Config) { c.Server = netip.MustParsePrefix("10.67.0.2/16") },
		"server as a host": func(c *Config) { c.Server = netip.PrefixFrom(host(1).Address, 16) },
		"variable":         func(c *Config) { c.Cmdline = "a=${net0/mac}" },
		"two commands":     func(c *Config) { c.Cmdline = "a || shell" },
		"two lines":        func(c *Config) { c.Cmdline = "a\nshell" },
	} {
		c := Config{Hosts: []Host{host(0), host(1)}, Server: netip.PrefixFrom(server, 16)}
		spoil(&c)
		if _, err := New(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// FuzzAnswer: whatever arrives, only the client of a known MAC address gets an answer, with its own
// address in it, and a client can read the answer.
func FuzzAnswer(f *testing.F) {
	f.Add(question(f, 1))
	f.Add(request(f, 0))
	f.Add(question(f, 9))
	f.Add(request(f, 1, dhcpv4.WithOption(dhcpv4.OptServerIdentifier(second.AsSlice()))))
	f.Add(question(f, 1, dhcpv4.WithBroadcast(true)))
	f.Add(question(f, 0, firmware("PXEClient:Arch:00007:UNDI:003000", 7)))
	f.Add(question(f, 1, firmware("HTTPClient", 16)))
	f.Fuzz(func(t *testing.T, datagram []byte) {
		s, _ := services(t, nil)
		out, to := s.answer(start, datagram, false)
		if out == nil {
			return
		}
		d, err := dhcpv4.FromBytes(out)
		if err != nil {
			t.Fatal(err)
		}
		for n := range 2 {
			if mac := host(n).MAC; string(d.ClientHWAddr) == string(mac[:]) {
				own := net.IP(host(n).Address.AsSlice())
				if d.MessageType() != dhcpv4.MessageTypeNak && !d.YourIPAddr.Equal(own) {
					t.Errorf("node %d gets %v", n, d.YourIPAddr)
				}
				if ip := to.(*net.UDPAddr).IP; !ip.Equal(own) && !ip.Equal(net.IPv4bcast) {
					t.Errorf("the answer for node %d goes to %v", n, ip)
				}
				return
			}
		}
		t.Errorf("%v gets an answer", d.ClientHWAddr)
	})
}
