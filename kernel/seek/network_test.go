package seek

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"margay/internal/check"
	"margay/kernel/abi/node"
)

// ownCable moves the rest of the test into a network namespace with a network card. Its cable leads
// to another namespace with boot services, which give text. Beside a server of a site, that one
// gives the addresses.
func ownCable(t *testing.T, text string, beside bool) (card string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can make a network")
	}
	runtime.LockOSThread() // and never unlocks: the thread ends in the other namespace
	own := ownNetwork(t)
	ownNetwork(t) // of the services: Linux drops packets from an address of its own
	cable := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "services"}, PeerName: "node", PeerHardwareAddr: mac, PeerNamespace: netlink.NsFd(own.Fd())}
	if err := netlink.LinkAdd(cable); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(cable); err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(cable, &netlink.Addr{IPNet: &net.IPNet{IP: server, Mask: net.CIDRMask(24, 32)}}); err != nil {
		t.Fatal(err)
	}
	services(t, cable.Name, text, beside)
	if err := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	return cable.PeerName
}

// ownNetwork moves this thread into a new network namespace, and returns that.
func ownNetwork(t *testing.T) *os.File {
	t.Helper()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("make a network namespace: %v", err)
	}
	f, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// services plays boot services on a card, and the server of a site beside them. It loses the first
// question, and gives text.
func services(t *testing.T, name, text string, beside bool) {
	t.Helper()
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		failed := raw.Control(func(fd uintptr) {
			if err = unix.BindToDevice(int(fd), name); err == nil {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
			}
		})
		if failed != nil {
			return failed
		}
		return err
	}}
	questions, err := config.ListenPacket(t.Context(), "udp4", ":67")
	if err != nil {
		t.Fatal(err)
	}
	files, err := net.Listen("tcp4", fmt.Sprintf("%v:%d", server, node.BootPort))
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() {
		questions.Close()
		files.Close()
		all.Wait()
	})
	all.Go(func() {
		b := make([]byte, maxDatagram)
		for lost := false; ; lost = true {
			n, _, err := questions.ReadFrom(b)
			if err != nil {
				return
			}
			in, err := dhcpv4.FromBytes(b[:n])
			if err != nil || !lost {
				continue
			}
			kind := dhcpv4.MessageTypeOffer
			if in.MessageType() == dhcpv4.MessageTypeRequest {
				kind = dhcpv4.MessageTypeAck
			}
			from := []func(*dhcpv4.DHCPv4){func(*dhcpv4.DHCPv4) {}}
			switch {
			case beside && kind == dhcpv4.MessageTypeOffer:
				from = []func(*dhcpv4.DHCPv4){ofProxy, ofSite}
			case beside:
				from = []func(*dhcpv4.DHCPv4){ofSite}
			}
			for _, change := range from {
				out := answer(t, kind, func(m *dhcpv4.DHCPv4) {
					m.TransactionID = in.TransactionID
					change(m)
				})
				_, _ = questions.WriteTo(out, &net.UDPAddr{IP: net.IPv4bcast, Port: dhcpv4.ClientPort}) // a lost answer is asked for again
			}
		}
	})
	all.Go(func() {
		_ = http.Serve(files, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // it ends with its listener
			if r.URL.Path != node.FetchPath || r.Header.Get(node.TokenHeader) != token || r.Header.Get(node.PinHeader) != pin {
				http.NotFound(w, r)
				return
			}
			w.Header().Set(node.SignatureHeader, hex.EncodeToString([]byte("signature of "+r.Header.Get(node.NonceHeader))))
			_, _ = io.WriteString(w, text)
		}))
	})
}

// The token that the machine presents, and the machine that it belongs to.
const token, pin = "3-0a", "0a0b"

// A network card without an address gets a lease and the configuration, and has no address
// afterwards.
func TestCards(t *testing.T) {
	for _, beside := range []bool{false, true} {
		t.Run(fmt.Sprintf("beside a site %t", beside), func(t *testing.T) { asksOnCard(t, beside) })
	}
}

func asksOnCard(t *testing.T, beside bool) {
	want := strings.Repeat("text ", 300)
	name := ownCable(t, want, beside)
	looks := 0
	cards, err := Cards{Look: func() { looks++ }}.Cards()
	if err != nil || len(cards) != 1 || cards[0].Name != name || !bytes.Equal(cards[0].MAC, mac) || looks != 1 {
		t.Fatalf("cards %v after %d looks for devices, %v", cards, looks, err)
	}
	check.AwaitFor(t, 2*time.Minute, "configuration", func() bool {
		a, err := Cards{Token: token, Machine: pin}.Ask(t.Context(), cards[0])
		if err != nil {
			t.Log(err) // a busy host may be too slow
		} else if string(a.Text) != want || len(a.Nonce) != node.NonceSize || string(a.Signature) != fmt.Sprintf("signature of %x", a.Nonce) {
			t.Errorf("%.20q, signed %q for %x", a.Text, a.Signature, a.Nonce)
		}
		return err == nil
	})
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	if left, err := netlink.AddrList(link, netlink.FAMILY_V4); err != nil || len(left) != 0 {
		t.Errorf("it has %v, %v", left, err)
	}
}
