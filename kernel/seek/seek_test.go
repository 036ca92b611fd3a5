package seek

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"sync"
	"testing"

	"margay/kernel/abi/node"
)

// config returns the text of a configuration for a card.
func config(t *testing.T, change func(*node.Config)) []byte {
	t.Helper()
	c := node.Config{
		Machine: "m", Node: 3, Substrate: node.Metal, Profile: node.Isolated, MAC: mac.String(), Address: "10.8.0.5/24", Serve: "10.8.0.1:7117",
		CA: []byte("certificate"), Token: "secret",
	}
	if change != nil {
		change(&c)
	}
	text, err := c.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// machineKey makes the key of a machine, with its certificate.
func machineKey(t *testing.T) (ca []byte, key ed25519.PrivateKey) {
	t.Helper()
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	if ca, err = x509.CreateCertificate(rand.Reader, template, template, public, key); err != nil {
		t.Fatal(err)
	}
	return ca, key
}

// played is a Network whose answers are given in advance.
type played struct {
	mu      sync.Mutex
	answers map[string][]func(context.Context) (Answer, error) // by card; the last one stays
	rounds  int
}

func (p *played) Cards() ([]Card, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rounds++
	if p.rounds == 1 {
		return nil, nil // no driver has found its card yet
	}
	var all []Card
	for name := range p.answers {
		all = append(all, Card{name, mac})
	}
	return all, nil
}

func (p *played) Ask(ctx context.Context, c Card) (Answer, error) {
	p.mu.Lock()
	next := p.answers[c.Name][0]
	if len(p.answers[c.Name]) > 1 {
		p.answers[c.Name] = p.answers[c.Name][1:]
	}
	p.mu.Unlock()
	return next(ctx)
}

// gives is a network with a configuration that no machine has signed.
func gives(text []byte) func(context.Context) (Answer, error) { return answers(Answer{Text: text}) }

func answers(a Answer) func(context.Context) (Answer, error) {
	return func(context.Context) (Answer, error) { return a, nil }
}

func fails(why string) func(context.Context) (Answer, error) {
	return func(context.Context) (Answer, error) { return Answer{}, errors.New(why) }
}

// waits is a network without boot services: it answers when the round is over.
func waits(ctx context.Context) (Answer, error) {
	<-ctx.Done()
	return Answer{}, ctx.Err()
}

// A node asks on all cards until it gets its own configuration, from the machine that it seeks. It
// says each reason once.
func TestFind(t *testing.T) {
	ca, key := machineKey(t)
	_, other := machineKey(t)
	ours := func(c *node.Config) { c.CA = ca }
	want := config(t, ours)
	signed := func(text []byte, nonce string, key ed25519.PrivateKey) func(context.Context) (Answer, error) {
		return answers(Answer{Text: text, Nonce: []byte("now"), Signature: ed25519.Sign(key, node.Statement([]byte(nonce), text))})
	}
	hash := sha256.Sum256(ca)
	p := &played{answers: map[string][]func(context.Context) (Answer, error){
		"eth0": {
			fails("no cable"), fails("not a node yet"), fails("not a node yet"), gives([]byte("{}")),
			gives(config(t, func(c *node.Config) { c.MAC = "52:54:00:00:00:02" })), gives(config(t, func(c *node.Config) { c.Substrate = node.Virtual })),
			gives(config(t, func(c *node.Config) { c.Machine, c.CA = "other", []byte("other") })),
			gives(want), signed(want, "now", other), signed(want, "before", key), signed(want, "now", key),
		},
		"eth1": append(slices.Repeat([]func(context.Context) (Answer, error){fails("no cable")}, 10), waits),
	}}
	var said []string
	s := Seeker{Network: p, Machine: Machine(hex.EncodeToString(hash[:])), Log: func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }}
	text, err := s.Find(t.Context())
	if err != nil || string(text) != string(want) {
		t.Fatalf("%s, %v", text, err)
	}
	all := strings.Join(said, "\n")
	for _, reason := range []string{"there is none", "no cable", "not a node yet", "configuration:", "is of another node", "another key", "has not signed"} {
		if !strings.Contains(all, reason) {
			t.Errorf("%q is not in:\n%s", reason, all)
		}
	}
	if n := p.rounds; n != 12 {
		t.Errorf("it has a configuration after %d rounds:\n%s", n, all)
	}
	if n := strings.Count(all, "not a node yet") + strings.Count(all, "eth1"); n != 2 {
		t.Errorf("reasons are repeated:\n%s", all)
	}
}

// Any machine will do without a hash, and a search ends with its context.
func TestFindEnds(t *testing.T) {
	p := &played{answers: map[string][]func(context.Context) (Answer, error){"eth0": {gives(config(t, nil))}}}
	silent := func(string, ...any) {}
	if _, err := (Seeker{Network: p, Machine: node.AnyMachine, Log: silent}).Find(t.Context()); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if _, err := (Seeker{Network: &played{}, Machine: node.AnyMachine, Log: silent}).Find(ctx); err == nil || !strings.Contains(err.Error(), "enough") {
		t.Errorf("after its end: %v", err)
	}
}

func TestToken(t *testing.T) {
	for cmdline, want := range map[string]string{
		"": "", "quiet\n": "", "margay.token=3-0a\n": "3-0a", "margay.token=1-0a quiet margay.token=2-0b": "2-0b", "nomargay.token=3-0a": "",
	} {
		if token, err := Token(cmdline); token != want || err != nil {
			t.Errorf("%q: %q, %v", cmdline, token, err)
		}
	}
	for _, cmdline := range []string{"margay.token=", "margay.token=a:b", "margay.token=\"3", "margay.token=" + strings.Repeat("0", 129)} {
		if token, err := Token(cmdline); token != "" || err == nil {
			t.Errorf("%q: %q", cmdline, token)
		}
	}
}

func TestSought(t *testing.T) {
	hash := strings.Repeat("0a", sha256.Size)
	for cmdline, want := range map[string]string{
		"quiet margay.machine=any\n":                "any",
		"margay.machine=" + hash:                    hash,
		"margay.machine=" + hash + " x=y":           hash,
		"margay.machine=any margay.machine=" + hash: hash,
	} {
		if m, ok, err := Sought(cmdline); string(m) != want || !ok || err != nil {
			t.Errorf("%q: %q, %v, %v", cmdline, m, ok, err)
		}
	}
	for _, cmdline := range []string{"", "quiet", "nomargay.machine=any", "margay.machines=any"} {
		if m, ok, err := Sought(cmdline); ok || err != nil {
			t.Errorf("%q: %q, %v", cmdline, m, err)
		}
	}
	for _, cmdline := range []string{"margay.machine=", "margay.machine=0a", "margay.machine=" + hash + "0a", "margay.machine=" + strings.Repeat("x", 64)} {
		if _, ok, err := Sought(cmdline); ok || err == nil {
			t.Errorf("%q was accepted", cmdline)
		}
	}
}

func TestReadAnswer(t *testing.T) {
	for in, want := range map[string]string{
		"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\ntext":                  "text",
		"HTTP/1.1 200 OK\r\nA: b\r\ncontent-length: 4\r\n\r\ntext and more": "text",
		"HTTP/1.1 403 Forbidden\r\nContent-Length: 8\r\n\r\nnot yet\n":      "refused: not yet",
		"HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\n\x1b[A":         "refused: ?[A",
		"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\ntext":                  "unexpected EOF",
		"HTTP/1.0 200 OK\r\nContent-Length: 99999999999\r\n\r\ntext":        `an answer of "99999999999" bytes`,
		"HTTP/1.0 200 OK\r\nContent-Length: 20000000\r\n\r\ntext":           `an answer of "20000000" bytes`,
		"HTTP/1.0 200 OK\r\n\r\ntext":                                       `an answer of "" bytes`,
		"SSH-2.0 200\r\nContent-Length: 0\r\n\r\n":                          "not one of HTTP",
		"": "EOF",
	} {
		a, err := readAnswer(strings.NewReader(in))
		text := string(a.Text)
		if got := fmt.Sprint(text, err); err == nil && text != want || err != nil && !strings.Contains(got, want) {
			t.Errorf("%q: %q, %v", in, text, err)
		}
	}
}

func FuzzReadAnswer(f *testing.F) {
	f.Add("HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\ntext")
	f.Add("HTTP/1.1 403 Forbidden\r\nContent-Length: 1\r\n\r\na")
	f.Fuzz(func(t *testing.T, in string) {
		if a, err := readAnswer(strings.NewReader(in)); err == nil && !strings.Contains(in, string(a.Text)) {
			t.Errorf("%q gives %q", in, a.Text)
		}
	})
}
