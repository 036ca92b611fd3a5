package seek

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/textproto"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"margay/internal/printable"
	"margay/internal/uuid"
	"margay/kernel/abi/node"
)

// Times of one question. A network card needs some seconds until its cable works.
const (
	firstWait = time.Second // for an answer; each further one is twice as long
	lastWait  = 8 * time.Second
	fetchTime = 20 * time.Second // for the configuration
)

// sends bounds the datagrams of one question, whatever answers come.
const sends = 10

// maxDatagram bounds an answer by DHCP, in bytes.
const maxDatagram = 1500

// Bounds of an answer by HTTP, in bytes. A configuration with extensions is large.
const (
	maxHeader = 8 << 10
	maxAnswer = 16 << 20
	maxReason = 200 // of a refusal
)

// Cards is the Network of the network cards of this machine.
type Cards struct {
	Token   string  // that the machine presents; empty: none
	Machine Machine // that the node may belong to
	Look    func()  // gives devices that have appeared their drivers
}

// Cards implements Network.
func (n Cards) Cards() (all []Card, err error) {
	n.Look()
	links, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		a := l.Attrs()
		if a.EncapType == "ether" && a.Flags&net.FlagLoopback == 0 && len(a.HardwareAddr) == 6 {
			all = append(all, Card{a.Name, a.HardwareAddr})
		}
	}
	return all, nil
}

// Ask implements Network.
func (n Cards) Ask(ctx context.Context, c Card) (a Answer, err error) {
	link, err := netlink.LinkByName(c.Name)
	if err != nil {
		return a, err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return a, fmt.Errorf("turn it on: %w", err)
	}
	lease, err := ask(ctx, c)
	if err != nil {
		return a, err
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: lease.Address.Addr().AsSlice(), Mask: net.CIDRMask(lease.Address.Bits(), 32)}}
	if err := netlink.AddrReplace(link, address); err != nil {
		return a, fmt.Errorf("give it %v: %w", lease.Address, err)
	}
	a, err = n.fetch(ctx, lease.Server)
	return a, errors.Join(err, netlink.AddrDel(link, address))
}

// ask asks for a lease on a card.
func ask(ctx context.Context, c Card) (Lease, error) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		failed := raw.Control(func(fd uintptr) {
			err = errors.Join(unix.BindToDevice(int(fd), c.Name), unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1))
		})
		return errors.Join(failed, err)
	}}
	conn, err := config.ListenPacket(ctx, "udp4", fmt.Sprintf(":%d", dhcpv4.ClientPort))
	if err != nil {
		return Lease{}, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	var id [4]byte
	if _, err := rand.Read(id[:]); err != nil {
		return Lease{}, err
	}
	return exchange(conn, NewQuestion(c.MAC, id, machine()))
}

// machinePath is the file in which Linux has the UUID that firmware has given this machine.
const machinePath = "/sys/class/dmi/id/product_uuid"

// machine returns the UUID of this machine; zero: it has none.
func machine() uuid.ID {
	text, err := os.ReadFile(machinePath)
	if err != nil {
		return uuid.ID{}
	}
	id, err := uuid.Parse(strings.TrimSpace(string(text)))
	if err != nil {
		return uuid.ID{}
	}
	return id
}

// exchange sends the datagrams of a question, also again, until there is a lease.
func exchange(conn net.PacketConn, q *Question) (Lease, error) {
	everyone := &net.UDPAddr{IP: net.IPv4bcast, Port: dhcpv4.ServerPort}
	wait := firstWait
	for range sends {
		datagram, err := q.Next()
		if err != nil {
			return Lease{}, err
		}
		if _, err := conn.WriteTo(datagram, everyone); err != nil {
			return Lease{}, fmt.Errorf("ask for an address: %w", err)
		}
		further, err := receive(conn, q, time.Now().Add(wait))
		if err != nil {
			return Lease{}, err
		}
		if l, ok := q.Lease(); ok {
			return l, nil
		}
		if !further {
			if wait *= 2; wait > lastWait {
				break
			}
		}
	}
	return Lease{}, q.Missing()
}

// receive receives datagrams until the question has got further or the time is over.
func receive(conn net.PacketConn, q *Question, until time.Time) (further bool, err error) {
	if err := conn.SetReadDeadline(until); err != nil {
		return false, err
	}
	b := make([]byte, maxDatagram)
	for {
		n, _, err := conn.ReadFrom(b)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("answer about an address: %w", err)
		case q.Receive(b[:n]):
			return true, nil
		}
	}
}

// fetch fetches the configuration.
func (n Cards) fetch(ctx context.Context, server netip.Addr) (a Answer, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, fetchTime, fmt.Errorf("not done after %v", fetchTime))
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp4", netip.AddrPortFrom(server, node.BootPort).String())
	if err != nil {
		return a, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	nonce := make([]byte, node.NonceSize)
	rand.Read(nonce) // it never fails
	header := fmt.Sprintf("Host: %v\r\n%s: %x\r\n", server, node.NonceHeader, nonce)
	if n.Token != "" {
		header += fmt.Sprintf("%s: %s\r\n", node.TokenHeader, n.Token)
	}
	if n.Machine != node.AnyMachine {
		header += fmt.Sprintf("%s: %s\r\n", node.PinHeader, n.Machine)
	}
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.0\r\n%s\r\n", node.FetchPath, header); err != nil {
		return a, err
	}
	a, err = readAnswer(conn)
	a.Nonce = nonce
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return a, fmt.Errorf("configuration from %v: %w", server, err)
	}
	return a, nil
}

// readAnswer reads the answer to a request by HTTP/1.0, which is untrusted. Without a signature, or
// with a malformed one, the answer has none.
func readAnswer(r io.Reader) (a Answer, err error) {
	in := textproto.NewReader(bufio.NewReader(io.LimitReader(r, maxHeader+maxAnswer)))
	status, err := in.ReadLine()
	if err != nil {
		return a, err
	}
	header, err := in.ReadMIMEHeader()
	if err != nil {
		return a, err
	}
	size, err := strconv.ParseUint(header.Get("Content-Length"), 10, 32)
	if err != nil || size > maxAnswer {
		return a, fmt.Errorf("an answer of %.20q bytes", header.Get("Content-Length"))
	}
	a.Text = make([]byte, size)
	if _, err := io.ReadFull(in.R, a.Text); err != nil {
		return a, err
	}
	version, code, _ := strings.Cut(status, " ")
	switch {
	case !strings.HasPrefix(version, "HTTP/1."):
		return a, errors.New("the answer is not one of HTTP")
	case !strings.HasPrefix(code, "200"):
		return a, fmt.Errorf("refused: %s", printable.Short(strings.TrimSpace(string(a.Text)), maxReason))
	}
	a.Signature, _ = hex.DecodeString(header.Get(node.SignatureHeader)) // one that is malformed is none
	return a, nil
}
