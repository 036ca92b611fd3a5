package boots

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"margay/cluster/boot"
)

// The kinds of firmware.
const (
	Card = "card" // a network card with an iPXE
	PXE  = "pxe"  // UEFI PXE: it fetches an iPXE by TFTP
	HTTP = "http" // UEFI HTTP boot: it fetches an iPXE by HTTP
)

// Firmwares are the kinds of firmware.
var Firmwares = []string{Card, PXE, HTTP}

// What firmware says of itself, as OVMF and iPXE do: vendor class and architecture.
var words = map[string]struct {
	class string
	arch  byte
}{
	Card: {"PXEClient:Arch:00000:UNDI:002001", 0},
	PXE:  {"PXEClient:Arch:00007:UNDI:003000", 7},
	HTTP: {"HTTPClient:Arch:00016:UNDI:003001", 16},
}

// The waits for an answer to DHCP of a PXE (PXE 2.1, section 2.2.2, without the random part) and of
// an iPXE.
var (
	firmwareTimes = []time.Duration{4 * time.Second, 8 * time.Second, 16 * time.Second, 32 * time.Second}
	ipxeTimes     = []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second}
)

// The waits of a TFTP client, and how often it asks.
const (
	tftpWait  = 4 * time.Second
	tftpTries = 6
)

const (
	kernelPath = boot.KernelPath
	imagePath  = boot.ImagePath
)

// counts are the events of all stations.
type counts struct {
	Bytes                            atomic.Int64 // of files
	DHCP, TFTP, HTTP, Waits, Refused atomic.Int64 // questions that were sent again; requests that had to be; scripts that wait
	Restarts                         atomic.Int64 // of firmware, after its boot had failed
}

// wire is the way to the services.
type wire struct {
	server           netip.Addr
	dhcp, tftp, http uint16
	from             uint16 // the port of DHCP clients
	sums             map[string]uint32
}

// station is a machine that boots. It plays what its firmware and its iPXE do.
type station struct {
	wire
	mac      boot.MAC
	address  netip.Addr
	firmware string
	ipxe     bool // it runs iPXE
	counts   *counts
	client   *http.Client
	tries    int             // of a transfer
	loaded   map[string]bool // paths of files
}

// boot boots until that succeeds, as firmware does that has nothing else to boot.
func (s *station) boot(ctx context.Context) error {
	defer s.client.CloseIdleConnections()
	for {
		err := s.try(ctx)
		switch {
		case errors.Is(err, errBooted):
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("%v: %w", s.mac, errors.Join(context.Cause(ctx), err))
		}
		s.counts.Restarts.Add(1)
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
	}
}

// try boots once. The outcome is errBooted, or why not.
func (s *station) try(ctx context.Context) error {
	s.ipxe, s.loaded = s.firmware == Card, make(map[string]bool)
	if !s.ipxe {
		name, err := s.ask(ctx, firmwareTimes)
		if err != nil {
			return err
		}
		if err := s.fetchFirst(ctx, name); err != nil {
			return err
		}
		s.ipxe = true
	}
	name, err := s.ask(ctx, ipxeTimes)
	if err != nil {
		return err
	}
	text, err := s.get(ctx, name)
	if err != nil {
		return err
	}
	return s.run(ctx, string(text))
}

// lease gets the address again.
func (s *station) lease(ctx context.Context, times []time.Duration) error {
	_, err := s.ask(ctx, times)
	return err
}

// ask gets an address by DHCP, and the name of what to boot.
func (s *station) ask(ctx context.Context, times []time.Duration) (name string, err error) {
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(s.address, s.from)))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	discover, err := dhcpv4.NewDiscovery(s.mac[:], s.introduce)
	if err != nil {
		return "", err
	}
	offer, err := s.exchange(conn, discover, dhcpv4.MessageTypeOffer, times)
	if err != nil {
		return "", err
	}
	request, err := dhcpv4.NewRequestFromOffer(offer, s.introduce)
	if err != nil {
		return "", err
	}
	ack, err := s.exchange(conn, request, dhcpv4.MessageTypeAck, times)
	if err != nil {
		return "", err
	}
	if got, _ := netip.AddrFromSlice(ack.YourIPAddr.To4()); got != s.address {
		return "", fmt.Errorf("it has got the address %v, and its own is %v", got, s.address)
	}
	return ack.BootFileName, nil
}

// introduce says what boots.
func (s *station) introduce(d *dhcpv4.DHCPv4) {
	w := words[s.firmware]
	d.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionClassIdentifier, []byte(w.class)))
	d.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionClientSystemArchitectureType, []byte{0, w.arch}))
	d.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionClientMachineIdentifier, append(make([]byte, 11), s.mac[:]...)))
	if s.ipxe {
		d.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionUserClassInformation, []byte("iPXE")))
	}
}

// errSilence reports a service that does not answer.
var errSilence = errors.New("no answer")

// exchange sends a question until it is answered, with growing waits.
func (s *station) exchange(conn *net.UDPConn, question *dhcpv4.DHCPv4, want dhcpv4.MessageType, times []time.Duration) (*dhcpv4.DHCPv4, error) {
	buf := make([]byte, 1500)
	server := netip.AddrPortFrom(s.server, s.dhcp)
	for i, wait := range times {
		if i > 0 {
			s.counts.DHCP.Add(1)
		}
		if _, err := conn.WriteToUDPAddrPort(question.ToBytes(), server); err != nil {
			return nil, err
		}
		conn.SetReadDeadline(time.Now().Add(wait))
		for {
			n, err := conn.Read(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return nil, err
			}
			m, err := dhcpv4.FromBytes(buf[:n])
			if err == nil && m.TransactionID == question.TransactionID && m.MessageType() == want {
				return m, nil
			}
		}
	}
	return nil, fmt.Errorf("DHCP: %w", errSilence)
}

// fetchFirst fetches an iPXE, as firmware does.
func (s *station) fetchFirst(ctx context.Context, name string) error {
	if strings.HasPrefix(name, "http://") {
		return s.load(ctx, name)
	}
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(s.address, 0)))
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	return s.transfer(conn, name)
}

// tftpBlock is the block size that a client asks for, in bytes.
const tftpBlock = 1468

// transfer fetches a file by TFTP (RFC 1350, RFC 2348).
func (s *station) transfer(conn *net.UDPConn, name string) error {
	server := netip.AddrPortFrom(s.server, s.tftp)
	packet := []byte("\x00\x01" + name + "\x00octet\x00blksize\x00" + fmt.Sprint(tftpBlock) + "\x00tsize\x000\x00")
	sum, buf := crc32.New(table), make([]byte, tftpBlock+4)
	for next := uint16(0); ; {
		n, err := s.next(conn, server, packet, buf)
		if err != nil {
			return err
		}
		op, block := binary.BigEndian.Uint16(buf), binary.BigEndian.Uint16(buf[2:])
		switch {
		case op == 5:
			s.counts.Refused.Add(1)
			return fmt.Errorf("TFTP: %.80q", buf[4:n])
		case op == 6 && next == 0: // the options
			block = 0
		case op == 3 && block == next:
			sum.Write(buf[4:n])
			s.counts.Bytes.Add(int64(n - 4))
		default:
			continue // an old one
		}
		packet = binary.BigEndian.AppendUint16([]byte{0, 4}, block)
		if op == 3 && n < len(buf) {
			_, err := conn.WriteToUDPAddrPort(packet, server)
			return errors.Join(err, s.check("/"+name, sum.Sum32()))
		}
		next = block + 1
	}
}

// next sends a datagram until another one comes.
func (s *station) next(conn *net.UDPConn, server netip.AddrPort, packet, buf []byte) (n int, err error) {
	for try := range tftpTries {
		if try > 0 {
			s.counts.TFTP.Add(1)
		}
		if _, err := conn.WriteToUDPAddrPort(packet, server); err != nil {
			return 0, err
		}
		conn.SetReadDeadline(time.Now().Add(tftpWait))
		n, err = conn.Read(buf)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			if err == nil && n < 4 {
				err = errors.New("TFTP: a datagram that is too short")
			}
			return n, err
		}
	}
	return 0, fmt.Errorf("TFTP: %w", errSilence)
}

// load fetches a file by HTTP and checks it.
func (s *station) load(ctx context.Context, address string) error {
	sum := crc32.New(table)
	if err := s.fetch(ctx, address, sum); err != nil {
		return err
	}
	u, err := url.Parse(address)
	if err == nil {
		err = s.check(u.Path, sum.Sum32())
	}
	if err == nil {
		s.loaded[u.Path] = true
	}
	return err
}

// table makes checksums that the processor computes.
var table = crc32.MakeTable(crc32.Castagnoli)

// check compares a file with what it must be.
func (s *station) check(path string, sum uint32) error {
	if want, ok := s.sums[path]; ok && want != sum {
		return fmt.Errorf("%s differs", path)
	}
	return nil
}

// mostText bounds a script, in bytes.
const mostText = 64 << 10

// get fetches a script by HTTP.
func (s *station) get(ctx context.Context, address string) ([]byte, error) {
	var text bytes.Buffer
	if err := s.fetch(ctx, address, &text); err != nil {
		return nil, err
	}
	if text.Len() > mostText {
		return nil, errors.New("a script that is too long")
	}
	return text.Bytes(), nil
}

// fetchTries is how often a transfer that was broken off is continued.
const fetchTries = 10

// fetch fetches a file by HTTP. A transfer that was broken off continues where it was.
func (s *station) fetch(ctx context.Context, address string, to io.Writer) error {
	var got int64
	for try := 0; ; try++ {
		n, whole, err := s.part(ctx, address, got, to)
		got += n
		if err == nil && got == whole {
			return nil
		}
		if err == nil {
			err = io.ErrUnexpectedEOF
		}
		if ctx.Err() != nil || try+1 == s.tries {
			return err
		}
		s.counts.HTTP.Add(1)
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
	}
}

// part fetches a file from an offset on, and returns how much of it has come, and its size.
func (s *station) part(ctx context.Context, address string, offset int64, to io.Writer) (n, whole int64, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, 0, err
	}
	if offset > 0 {
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	answer, err := s.client.Do(r)
	if err != nil {
		return 0, 0, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK && answer.StatusCode != http.StatusPartialContent || answer.ContentLength < 0 {
		s.counts.Refused.Add(1)
		return 0, 0, fmt.Errorf("%s: %s", address, answer.Status)
	}
	if answer.StatusCode == http.StatusPartialContent {
		whole = offset
	}
	n, err = io.Copy(to, answer.Body)
	s.counts.Bytes.Add(n)
	return n, whole + answer.ContentLength, err
}

// newClient returns an HTTP client with an address, which finds the services on their port.
func (w wire) newClient(from netip.Addr) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableCompression: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return w.connect(ctx, from)
	}}}
}

// connect connects to the HTTP service from an address.
func (w wire) connect(ctx context.Context, from netip.Addr) (net.Conn, error) {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
	return d.DialContext(ctx, "tcp4", netip.AddrPortFrom(w.server, w.http).String())
}
