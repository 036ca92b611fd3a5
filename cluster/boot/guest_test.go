package boot

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"margay/internal/uuid"
	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
	"margay/kernel/seek"
)

// A guest gets iPXE and a script that waits, and nothing that nodes boot. When it has become a node
// with the same address it gets all.
func TestGuest(t *testing.T) {
	var met atomic.Int64
	guest := Host{Guest: true, MAC: host(9).MAC, Address: netip.MustParseAddr("127.0.0.1")}
	s, r := services(t, func(c *Config) {
		local(c)
		c.Hosts = []Host{guest}
		c.Node = func(id.Node, bool) ([]byte, error) { return []byte("secret"), nil }
		c.Pack = pack
		c.Met = func(m MAC) {
			if m == guest.MAC {
				met.Add(1)
			}
		}
	})
	_, _, url := serve(t, s)
	status, body := fetch(t, "GET", url+ScriptPath, "")
	if want := "margay node approve " + guest.MAC.String(); status != 200 || !strings.Contains(body, want) || strings.Contains(body, KernelPath) {
		t.Errorf("status %d, script %q", status, body)
	}
	if met.Load() != 1 {
		t.Errorf("%d calls about the guest", met.Load())
	}
	if status, _ := fetch(t, "GET", url+"/ipxe.efi", ""); status != 200 {
		t.Errorf("iPXE: status %d", status)
	}
	for _, path := range []string{KernelPath, ImagePath, ConfigPath, node.FetchPath} {
		if status, body := fetch(t, "GET", url+path, ""); status != 403 || !strings.Contains(body, "margay node approve") {
			t.Errorf("%s: status %d, %q", path, status, body)
		}
	}
	if met.Load() != 2 { // it has asked for its configuration as well
		t.Errorf("%d calls about the guest", met.Load())
	}
	if text := r.all(); text != "" {
		t.Errorf("reports %q", text)
	}
	s.Forget(guest.MAC)
	if status, _ := fetch(t, "GET", url+ScriptPath, ""); status != 403 {
		t.Errorf("after it is forgotten: status %d", status)
	}
	if err := s.Add(Host{Node: 3, MAC: guest.MAC, Address: guest.Address}); err != nil {
		t.Fatal(err)
	}
	status, body = fetch(t, "GET", url+ScriptPath, "")
	if status != 200 || !strings.Contains(body, "initrd --name config http://127.0.0.2/config || goto failed\nkernel --name linux.efi http://127.0.0.2/kernel initrd=config initrd=image ") {
		t.Errorf("status %d, script %q", status, body)
	}
}

// A guest that brings a token that admits it is not reported as one that waits. Otherwise it is,
// and is shown why. A node gets its configuration with a token as without.
func TestToken(t *testing.T) {
	var met, brought atomic.Int64
	guest := Host{Guest: true, MAC: host(9).MAC, Address: netip.MustParseAddr("127.0.0.1")}
	s, r := services(t, func(c *Config) {
		local(c)
		c.Hosts = []Host{guest}
		c.Node = func(id.Node, bool) ([]byte, error) { return []byte("secret"), nil }
		c.Pack = pack
		c.Met = func(MAC) { met.Add(1) }
		c.Token = func(h Host, token string) error {
			brought.Add(1)
			if h.MAC != guest.MAC || token != "3-0a" {
				return errors.New("it has expired")
			}
			return nil
		}
	})
	_, _, url := serve(t, s)
	bring := func(path, token string) (status int, body string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set(node.TokenHeader, token)
		return answered(t, request)
	}
	if status, body := bring(node.FetchPath, "3-0a"); status != 403 || !strings.Contains(body, "becomes a node") || met.Load() != 0 {
		t.Errorf("status %d, %q, %d calls about the guest", status, body, met.Load())
	}
	if status, body := bring(node.FetchPath, "3-0b"); status != 403 || !strings.Contains(body, "node approve") || !strings.Contains(body, "it has expired") || met.Load() != 1 {
		t.Errorf("status %d, %q, %d calls about the guest", status, body, met.Load())
	}
	if text := r.all(); !strings.Contains(text, "has brought a token: it has expired") || strings.Contains(text, "3-0b") {
		t.Errorf("reports %q", text)
	}
	if bring(ScriptPath, "3-0a"); brought.Load() != 2 {
		t.Errorf("%d tokens, and one of them with a script", brought.Load())
	}
	s.Forget(guest.MAC)
	if bring(node.FetchPath, "3-0a"); brought.Load() != 2 {
		t.Error("a stranger has brought a token")
	}
	if err := s.Add(Host{Node: 3, MAC: guest.MAC, Address: guest.Address}); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.grants.Arm(time.Now(), Host{Node: 3, MAC: guest.MAC})
	s.mu.Unlock()
	if status, body := bring(node.FetchPath, "3-0a"); status != 200 || body != "secret" || brought.Load() != 3 {
		t.Errorf("a node: status %d, %q, %d tokens", status, body, brought.Load())
	}
}

// A node gets its configuration once after each lease of its iPXE.
func TestConfiguration(t *testing.T) {
	missing := atomic.Bool{}
	s, _ := services(t, func(c *Config) {
		local(c)
		c.Node = func(n id.Node, disk bool) ([]byte, error) {
			if missing.Load() {
				return nil, errors.New("none")
			}
			return []byte("secret of " + host(int(n)).String()), nil
		}
		c.Pack = pack
		c.Sign = func(statement []byte) []byte { return []byte("signed: " + string(statement)) }
	})
	_, _, url := serve(t, s)
	refused := func(when string) {
		t.Helper()
		for _, path := range []string{ConfigPath, node.FetchPath} {
			if status, body := fetch(t, "GET", url+path, ""); status != 403 || strings.Contains(body, "secret") {
				t.Errorf("%s, %s: status %d, %q", when, path, status, body)
			}
		}
	}
	leased := func(at time.Time) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.grants.Arm(at, Host{Node: 0, MAC: host(0).MAC})
	}
	lease := func() { leased(time.Now()) }
	refused("before a lease")
	lease()
	if status, _ := fetch(t, "HEAD", url+ConfigPath, ""); status != 403 {
		t.Errorf("HEAD: status %d", status)
	}
	if status, body := fetch(t, "GET", url+ConfigPath, ""); status != 200 || body != "archive of secret of node0" {
		t.Errorf("status %d, %q", status, body)
	}
	refused("a second time")
	lease()
	if status, body := fetch(t, "GET", url+node.FetchPath, ""); status != 200 || body != "secret of node0" {
		t.Errorf("status %d, %q", status, body)
	}
	refused("a second time, by itself")
	for _, nonce := range []string{"", "00", strings.Repeat("x", 32), strings.Repeat("ab", node.NonceSize)} {
		lease()
		r, err := http.NewRequest("GET", url+node.FetchPath, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(node.NonceHeader, nonce)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		want := ""
		if strings.HasPrefix(nonce, "ab") {
			want = fmt.Sprintf("%x", "signed: "+string(node.Statement(bytes.Repeat([]byte{0xab}, node.NonceSize), []byte("secret of node0"))))
		}
		if got := answer.Header.Get(node.SignatureHeader); answer.StatusCode != 200 || got != want {
			t.Errorf("with the nonce %q: status %d, signature %q", nonce, answer.StatusCode, got)
		}
	}
	lease()
	missing.Store(true)
	refused("without one")
	missing.Store(false)
	refused("after that")
	leased(time.Now().Add(-2 * grantTime))
	refused("long after a lease")
	leased(time.Now().Add(-grantTime / 2)) // and it has waited for its turn since
	fetch(t, "GET", url+ScriptPath, "")
	s.mu.Lock()
	if at := s.grants[host(0).MAC]; time.Since(at) > grantTime/4 {
		t.Errorf("it can be fetched until %v", at.Add(grantTime))
	}
	s.mu.Unlock()
	if status, body := fetch(t, "GET", url+ConfigPath, ""); status != 200 || body != "archive of secret of node0" {
		t.Errorf("when its turn begins: status %d, %q", status, body)
	}
}

// pack plays Config.Pack.
func pack(config []byte) ([]byte, error) { return append([]byte("archive of "), config...), nil }

// A node that has booted from a disk gets a lease, and may fetch its configuration then.
func TestSeeker(t *testing.T) {
	s, r := services(t, func(c *Config) {
		c.Broadcast = true
		c.Node = func(id.Node, bool) ([]byte, error) { return []byte("secret"), nil }
		c.Pack = pack
	})
	mac := host(1).MAC
	q := seek.NewQuestion(mac[:], [4]byte{1, 2, 3, 4}, uuid.ID{})
	for range 2 {
		datagram, err := q.Next()
		if err != nil {
			t.Fatal(err)
		}
		answer, _ := s.answer(start, datagram, false)
		if !q.Receive(answer) {
			t.Fatalf("the answer %x was not taken", answer)
		}
	}
	want := seek.Lease{Address: netip.PrefixFrom(host(1).Address, s.config.Server.Bits()), Server: s.config.Server.Addr()}
	if l, ok := q.Lease(); !ok || l != want {
		t.Errorf("lease %v, %v; want %v", l, ok, want)
	}
	if why := s.grants.Take(start, host(1)); why != "" {
		t.Errorf("no configuration: %s", why)
	}
	if text := r.all(); !strings.Contains(text, "it has got its address") {
		t.Errorf("reports %q", text)
	}
}

func TestGrants(t *testing.T) {
	g := make(Grants)
	g.Arm(start, host(1))
	g.Arm(start, Host{Guest: true, MAC: host(2).MAC})
	for _, c := range []struct {
		name   string
		after  time.Duration
		h      Host
		wanted bool
	}{
		{"another node", 0, host(0), false},
		{"a guest", 0, Host{Guest: true, MAC: host(2).MAC}, false},
		{"the node", grantTime, host(1), true},
		{"the node again", grantTime, host(1), false},
	} {
		if why := g.Take(start.Add(c.after), c.h); (why == "") != c.wanted {
			t.Errorf("%s: %q", c.name, why)
		}
	}
	g.Arm(start, host(1))
	g.Extend(start.Add(grantTime), host(1))
	if why := g.Take(start.Add(2*grantTime), host(1)); why != "" {
		t.Errorf("a node that waits for its turn: %q", why)
	}
	g.Arm(start, host(1))
	g.Extend(start.Add(grantTime+1), host(1))
	if why := g.Take(start.Add(grantTime+1), host(1)); why == "" || len(g) != 0 {
		t.Errorf("too late: %q, %v", why, g)
	}
}

// Config.Asks can refuse a question, and make a stranger a host before it is answered. On ordinary
// sockets all answers are for everyone.
func TestAsks(t *testing.T) {
	var s *Services
	stranger := host(9)
	s, r := services(t, func(c *Config) {
		c.Broadcast = true
		c.Asks = func(_ time.Time, q Question) string {
			if q.MAC != stranger.MAC {
				return "not now"
			}
			if err := s.Add(Host{Guest: true, MAC: q.MAC, Address: netip.MustParseAddr("10.66.9.9")}); err != nil {
				return err.Error()
			}
			return ""
		}
	})
	ask := func(n int) []byte {
		datagram, to := s.answer(start, question(t, n), false)
		if datagram != nil && to.String() != "255.255.255.255:68" {
			t.Errorf("an answer to %v", to)
		}
		return datagram
	}
	if ask(0) != nil || !strings.Contains(r.all(), "not now") {
		t.Errorf("a refused one gets an answer; reports %q", r.all())
	}
	for range 2 {
		m, err := dhcpv4.FromBytes(ask(9))
		if err != nil || m.MessageType() != dhcpv4.MessageTypeOffer || m.YourIPAddr.String() != "10.66.9.9" {
			t.Errorf("%v, %v", m, err)
		}
	}
}

// A host whose image is for another machine is refused its configuration, and shows no token. As a
// guest it is reported nevertheless.
func TestPinned(t *testing.T) {
	var met, brought, given atomic.Int64
	guest := Host{Guest: true, MAC: host(9).MAC, Address: netip.MustParseAddr("127.0.0.1")}
	s, _ := services(t, func(c *Config) {
		local(c)
		c.Hosts = []Host{guest}
		c.Node = func(id.Node, bool) ([]byte, error) { given.Add(1); return []byte("secret"), nil }
		c.Pack = pack
		c.Met = func(MAC) { met.Add(1) }
		c.Pinned = func(_ Host, machine string) string {
			return map[string]string{"0b": "its image is for another machine"}[machine]
		}
		c.Token = func(Host, string) error { brought.Add(1); return nil }
	})
	_, _, url := serve(t, s)
	ask := func(pin string) (status int, body string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+node.FetchPath, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set(node.TokenHeader, "3-0a")
		request.Header.Set(node.PinHeader, pin)
		return answered(t, request)
	}
	if status, body := ask("0b"); status != 403 || !strings.Contains(body, "for another machine") || met.Load() != 1 || brought.Load() != 0 {
		t.Errorf("status %d, %q, %d calls about the guest, %d tokens", status, body, met.Load(), brought.Load())
	}
	if ask("0a"); brought.Load() != 1 {
		t.Error("one whose image is for this machine shows no token")
	}
	s.Forget(guest.MAC)
	if err := s.Add(Host{Node: 3, MAC: guest.MAC, Address: guest.Address}); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.grants.Arm(time.Now(), Host{Node: 3, MAC: guest.MAC})
	s.mu.Unlock()
	if status, body := ask("0b"); status != 403 || !strings.Contains(body, "for another machine") || given.Load() != 0 {
		t.Errorf("a node: status %d, %q", status, body)
	}
	if status, body := ask("0a"); status != 200 || body != "secret" {
		t.Errorf("the node, with its image: status %d, %q", status, body)
	}
}
