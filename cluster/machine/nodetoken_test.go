package machine

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"margay/cluster/boot"
	"margay/cluster/metal"
	"margay/cluster/roster"
	"margay/internal/check"
	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
)

// madeMetal makes the folder of a metal machine with two nodes.
func madeMetal(t *testing.T) Dir {
	t.Helper()
	base(t)
	d := created(t, "m")
	spec := Spec{Name: "m", Substrate: node.Metal, Nodes: 2, Metal: MetalSpec{
		Plan: metal.Plan{Server: netip.MustParsePrefix("10.8.0.1/28"), Range: netip.MustParsePrefix("10.8.0.0/28")},
	}}
	if err := d.writeSpec(spec); err != nil {
		t.Fatal(err)
	}
	return d
}

// Whatever is made, presented and revoked in whatever order, a token admits once, until it expires,
// unless another one has replaced it, and no other text admits.
func TestNodeTokenModel(t *testing.T) {
	d := madeMetal(t)
	random := rand.New(rand.NewPCG(check.Seed(t), 0))
	now := time.Unix(1e9, 0)
	valid, expires := make(map[id.Node]string), make(map[id.Node]time.Time)
	used := make(map[id.Node]time.Time) // tokens that were not replaced
	past := []string{"", "3", "3-", "2-" + strings.Repeat("00", 32)}
	for step := range 500 {
		number := id.Node(2 + random.IntN(3))
		switch random.IntN(5) {
		case 0:
			until := now.Add(time.Duration(1+random.IntN(10)) * time.Minute)
			token, err := d.MakeNodeToken(uint32(number), now, until)
			if err != nil || token.Node != number {
				t.Fatalf("step %d: %v, %v", step, token, err)
			}
			if old := valid[number]; old != "" {
				past = append(past, old)
			}
			valid[number], expires[number] = token.String(), until
			delete(used, number)
		case 1:
			err := d.RevokeNodeToken(uint32(number))
			if (err == nil) != (valid[number] != "") {
				t.Fatalf("step %d: revoke the token of node%d: %v", step, number, err)
			}
			if old := valid[number]; old != "" {
				past = append(past, old)
			}
			delete(valid, number)
		case 2:
			text := past[random.IntN(len(past))]
			if got, err := d.spendNodeToken(now, text, cardOf(9)); err == nil {
				t.Fatalf("step %d: %q admits as node%d", step, text, got)
			}
		case 3:
			text := valid[number]
			if text == "" {
				continue
			}
			got, err := d.spendNodeToken(now, text, cardOf(9))
			if (err == nil) != now.Before(expires[number]) || err == nil && got != number {
				t.Fatalf("step %d: the token of node%d, until %v, at %v: node%d, %v", step, number, expires[number], now, got, err)
			}
			past = append(past, text)
			delete(valid, number)
			used[number] = now
		case 4:
			now = now.Add(time.Duration(random.IntN(4)) * time.Minute)
		}
		files, err := filepath.Glob(d.file(tokensName, "*"))
		if err != nil || len(files) != len(valid)+len(used) {
			t.Fatalf("step %d: %v, %v, want %v", step, files, err, valid)
		}
		for _, token := range d.NodeTokens() {
			if at := used[token.Node]; !token.Used.Equal(at) || (valid[token.Node] == "") != !at.IsZero() || !at.IsZero() && token.Card != cardOf(9).String() || token.Term != 1 {
				t.Fatalf("step %d: listed is %+v", step, token)
			}
		}
		for _, path := range files {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, token := range valid {
				if _, secret, _ := strings.Cut(token, "-"); strings.Contains(string(text), secret) {
					t.Fatalf("step %d: %s has the secret of a token", step, path)
				}
			}
		}
	}
}

// Of machines that present a token at the same time, one is admitted.
func TestNodeTokenOnce(t *testing.T) {
	d := madeMetal(t)
	token, err := d.MakeNodeToken(3, time.Now(), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	var admitted atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, err := d.spendNodeToken(time.Now(), token.String(), cardOf(9)); err == nil {
				admitted.Add(1)
			}
		})
	}
	all.Wait()
	if admitted.Load() != 1 {
		t.Errorf("%d are admitted", admitted.Load())
	}
}

// Tokens that are made at the same time are all valid.
func TestNodeTokensTogether(t *testing.T) {
	d := madeMetal(t)
	tokens := make([]NodeToken, 6)
	var all sync.WaitGroup
	for i := range tokens {
		all.Go(func() {
			var err error
			if tokens[i], err = d.MakeNodeToken(uint32(2+i), time.Now(), time.Now().Add(time.Hour)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for i, token := range tokens {
		if number, err := d.spendNodeToken(time.Now(), token.String(), cardOf(9)); err != nil || number != id.Node(2+i) {
			t.Errorf("the token of node%d: node%d, %v", 2+i, number, err)
		}
	}
}

// A node that exists, or has no address, gets no token, and other substrates have none.
func TestNodeTokenRefused(t *testing.T) {
	d := madeMetal(t)
	for number, want := range map[uint32]string{1: "is a node of machine m already", 500: "has addresses for"} {
		if _, err := d.MakeNodeToken(number, time.Now(), time.Now()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("node%d: %v", number, err)
		}
	}
	spec, err := d.ReadSpec()
	if err != nil {
		t.Fatal(err)
	}
	spec.Substrate = node.Virtual
	if err := d.writeSpec(spec); err != nil {
		t.Fatal(err)
	}
	if _, err := d.MakeNodeToken(3, time.Now(), time.Now()); err == nil || !strings.Contains(err.Error(), "has no boot network") {
		t.Errorf("virtual nodes: %v", err)
	}
}

// A guest that brings a token becomes its node, whatever numbers are free, and boots at once. A
// machine that is a node uses its token up.
func TestMetalToken(t *testing.T) {
	d := madeMetal(t)
	p := playMetal(t, nil, metal.Card{Node: 0, MAC: cardOf(1).String()})
	p.dir = d
	if err := os.MkdirAll(d.file("log"), 0o700); err != nil {
		t.Fatal(err)
	}
	h := &holder{dir: d, spec: p.spec, roster: roster.New(1), substrate: p.metalNodes, log: t.Logf}
	served, end := context.WithCancel(t.Context())
	t.Cleanup(func() {
		end()
		h.keeping.Wait()
	})
	done := make(chan error, 1)
	p.events.admitted = func(number id.Node, mac boot.MAC) { done <- h.admit(served, number, mac) }
	token := func(number uint32) string {
		t.Helper()
		made, err := d.MakeNodeToken(number, time.Now(), time.Now().Add(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		return made.String()
	}
	h.nodes = make(map[id.Node]*heldNode)
	third := token(3)
	if why := p.ask(2); why != "" {
		t.Fatal(why)
	}
	if err := p.token(boot.Host{Guest: true, MAC: cardOf(2)}, third); err != nil {
		t.Fatal(err)
	}
	if err := within(t, done); err != nil {
		t.Fatal(err)
	}
	check.AwaitFor(t, time.Minute, "answer to node3", func() bool { return p.ask(2) == "" && p.phaseOf(3) == booting })
	if text, err := p.hand(3, false); err != nil || !strings.Contains(string(text), `"address": "10.8.0.5/24"`) {
		t.Errorf("its configuration: %s, %v", text, err)
	}
	if r, err := d.ReadRoster(p.spec); err != nil || r.String() != "node0,3" {
		t.Errorf("roster %v, %v", r, err)
	}
	if err := p.token(boot.Host{Guest: true, MAC: cardOf(4)}, third); err == nil || strings.Contains(err.Error(), strings.TrimPrefix(third, "3-")) {
		t.Errorf("a second machine with the token: %v", err)
	}
	fourth := token(4)
	if err := p.token(boot.Host{Node: 3, MAC: cardOf(2)}, fourth); err != nil {
		t.Error(err)
	}
	if err := p.token(boot.Host{Guest: true, MAC: cardOf(4)}, fourth); err == nil || len(done) > 0 {
		t.Error("the token that a node has brought is not used up")
	}
	if err := h.admit(served, 3, cardOf(4)); err == nil {
		t.Error("a second node3 is admitted")
	}
}

// The number of a token is kept for its machine until the token is used up or has expired. A
// machine whose token admits nothing is approved where all are.
func TestMetalPromised(t *testing.T) {
	d := madeMetal(t)
	p := playMetal(t, nil, metal.Card{Node: 0, MAC: cardOf(1).String()})
	p.dir = d
	if err := os.MkdirAll(d.file("log"), 0o700); err != nil {
		t.Fatal(err)
	}
	served, end := context.WithCancel(t.Context())
	h := &holder{dir: d, spec: p.spec, roster: roster.New(1), substrate: p.metalNodes, log: t.Logf, nodes: make(map[id.Node]*heldNode), served: served}
	t.Cleanup(func() {
		end()
		h.keeping.Wait()
	})
	h.spec.Nodes, h.spec.Metal.ApproveAll = 1, true
	if err := d.writeSpec(h.spec); err != nil {
		t.Fatal(err)
	}
	for number, life := range map[uint32]time.Duration{1: time.Hour, 2: -time.Second} {
		if _, err := d.MakeNodeToken(number, time.Now(), time.Now().Add(life)); err != nil {
			t.Fatal(err)
		}
	}
	events := h.metalEvents()
	events.met(cardOf(2))
	events.met(cardOf(3))
	if h.roster.String() != "node0,2-3" {
		t.Errorf("roster %v: node1 is promised", h.roster)
	}
	events.admitted(3, cardOf(4))
	if h.roster.String() != "node0,2-4" {
		t.Errorf("roster %v after a token of a node that exists", h.roster)
	}
}

// phaseOf returns the phase of a node.
func (p *playedMetal) phaseOf(number id.Node) metalPhase {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.node(number).phase
}

// FuzzParseNodeToken: a text that is a token is the text of that token.
func FuzzParseNodeToken(f *testing.F) {
	f.Add("3-" + strings.Repeat("0a", 32))
	f.Add("03-" + strings.Repeat("0A", 32))
	f.Fuzz(func(t *testing.T, text string) {
		if token, err := ParseNodeToken(text); err == nil && token.String() != text {
			t.Errorf("%q is %v", text, token)
		}
	})
}

// A clock that was set back does not prolong a token: it admits nothing before it was made.
func TestNodeTokenFromTheFuture(t *testing.T) {
	d := madeMetal(t)
	made := time.Unix(1e9, 0)
	token, err := d.MakeNodeToken(3, made, made.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.spendNodeToken(made.Add(-backSlack-1), token.String(), cardOf(1)); err == nil || !strings.Contains(err.Error(), "which is in the future") {
		t.Errorf("before its creation: %v", err)
	}
	if _, err := d.spendNodeToken(made.Add(-backSlack), token.String(), cardOf(1)); err != nil {
		t.Errorf("as the clock was corrected a little: %v", err)
	}
}

// Tokens of the machine that admit nothing are reported for the audit log, once in a while for each
// node; other texts, and tokens of nodes that bring them at each boot, are not.
func TestMetalTokenShown(t *testing.T) {
	d := madeMetal(t)
	p := playMetal(t, nil, metal.Card{Node: 0, MAC: cardOf(1).String()})
	p.dir = d
	token, err := d.MakeNodeToken(3, time.Now(), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.spendNodeToken(time.Now(), token.String(), cardOf(2)); err != nil {
		t.Fatal(err)
	}
	node := boot.Host{Node: 0, MAC: cardOf(1)}
	for _, host := range []boot.Host{node, {Guest: true, MAC: cardOf(4)}, {Guest: true, MAC: cardOf(5)}} {
		if err := p.token(host, token.String()); err == nil || !strings.Contains(err.Error(), "it was used before, at ") {
			t.Errorf("%v: %v", host, err)
		}
	}
	if err := p.token(boot.Host{Guest: true, MAC: cardOf(4)}, "3-"+strings.Repeat("00", 32)); err == nil {
		t.Error("another text admits")
	}
	if got := within(t, p.shown); !strings.HasPrefix(got, "3 "+cardOf(4).String()+" it was used before") {
		t.Errorf("reported is %q", got)
	}
	p.running.Wait()
	if len(p.shown) > 0 {
		t.Errorf("reported as well is %q", <-p.shown)
	}
}
