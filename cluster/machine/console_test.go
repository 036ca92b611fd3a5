package machine

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"margay/cluster/metal"
	"margay/qemu/console"
)

// said plays a datagram for the port of consoles.
func (p *playedMetal) said(address, text string) {
	p.received([]byte(text), netip.AddrPortFrom(netip.MustParseAddr(address), 6665))
}

// kept returns the text of a file; "none": there is no file.
func kept(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return "none"
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The console of a node is kept from its configuration on, from the address of the node and Linux's
// port alone, and so is the console of the boot before, all of it. A panic is reported. The console
// of one boot is not taken for the one of another.
func TestMetalConsole(t *testing.T) {
	p := playMetal(t, nil, metal.Card{Node: 3, MAC: cardOf(1).String()}, metal.Card{Node: 4, MAC: cardOf(2).String()})
	path := p.dir.ConsoleLog(3)
	previous := func() string {
		var text string
		for _, part := range p.dir.PreviousConsole(3) {
			if piece := kept(t, part); piece != "none" {
				text += piece
			}
		}
		return text
	}
	boots := func() (ended <-chan exit) {
		t.Helper()
		p.mu.Lock()
		p.node(3).began = time.Now()
		p.mu.Unlock()
		_, ended, err := p.start(3, 1)
		if err != nil {
			t.Fatal(err)
		}
		p.said("10.8.0.5", "too early\n")
		if got := kept(t, path); got != "none" {
			t.Errorf("before its configuration: %q", got)
		}
		return ended
	}
	configured := func() {
		t.Helper()
		if _, err := p.hand(3, false); err != nil {
			t.Fatal(err)
		}
	}
	p.said("10.8.0.5", "before it is started\n")
	boots()
	configured()
	for _, address := range []string{"10.8.0.1", "10.8.0.6", "10.8.0.7", "10.8.0.250", "10.9.0.5", "fd00::5"} { // serve's, of nodes that have not booted or do not exist, of a guest, of strangers
		p.said(address, "forged\n")
	}
	p.received([]byte("from another port\n"), netip.MustParseAddrPort("10.8.0.5:6666"))
	p.said("10.8.0.5", "[    0.1] a\x1b[2J\n")
	p.said("10.8.0.5", "[    9.1] Kernel panic - not syncing: no init\n")
	const first = "[    0.1] a?[2J\n[    9.1] Kernel panic - not syncing: no init\n"
	if got := kept(t, path); got != first || previous() != "" {
		t.Errorf("kept: %q, before %q", got, previous())
	}
	if !slices.Equal(p.panics, []string{"3 no init"}) {
		t.Errorf("panics: %q", p.panics)
	}
	ended := boots()
	p.stop(3)
	if e := <-ended; len(e.Console) > 0 {
		t.Errorf("a boot that ends before its configuration has the console %q", e.Console)
	}
	boots()
	configured()
	if got := kept(t, path); got != "" || previous() != first {
		t.Errorf("after a second boot: %q, before %q", got, previous())
	}
	boots() // it has sent nothing
	configured()
	if previous() != first {
		t.Errorf("after a boot that has sent nothing, the previous console is %q", previous())
	}
	line := strings.Repeat("x", 999) + "\n"
	for range maxMetalConsole/len(line) + 2 { // some may be too fast
		p.said("10.8.0.5", line)
	}
	long := kept(t, path+console.OldSuffix) + kept(t, path)
	if len(long) < maxMetalConsole-len(line) || len(kept(t, path)) > maxMetalConsole {
		t.Errorf("the files have %d bytes", len(long))
	}
	boots()
	configured()
	if got := kept(t, path+console.OldSuffix); got != "none" || previous() != long {
		t.Errorf("%d bytes that were rotated stay, the previous console has %d of %d bytes", len(got), len(previous()), len(long))
	}
	p.said("10.8.0.5", "[    0.1] b\n")
	p.said("10.8.0.5", "[    9.1] Kernel panic - not syncing: again\n")
	if len(p.panics) != 2 {
		t.Errorf("panics: %q", p.panics)
	}
	boots()
	const last = "[    0.1] b\n[    9.1] Kernel panic - not syncing: again\n"
	if previous() != last {
		t.Errorf("the console before, which was short: %.200q", previous())
	}
	configured()
	p.said("10.8.0.5", "now\n")
	p.remove(3)
	p.said("10.8.0.5", "late\n")
	files, err := os.ReadDir(p.dir.file("log"))
	if err != nil || len(files) != 0 {
		t.Errorf("after it has left, there are %v, %v", files, err)
	}
	if len(p.nodes) > 2 {
		t.Errorf("there are nodes %v", p.nodes)
	}
}
