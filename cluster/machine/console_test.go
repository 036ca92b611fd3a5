package machine

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

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

// The console of a node is kept from its configuration on, from the address of the node alone, and
// so is the console of the boot before. A panic is reported.
func TestMetalConsole(t *testing.T) {
	p := playMetal(t, nil, metal.Card{Node: 3, MAC: cardOf(1).String()}, metal.Card{Node: 4, MAC: cardOf(2).String()})
	boots := func() {
		t.Helper()
		p.start(3, 1) // asleep, unless it has begun to boot
		p.mu.Lock()
		p.node(3).phase, p.node(3).term = booting, 1
		p.mu.Unlock()
		if _, err := p.hand(3); err != nil {
			t.Fatal(err)
		}
	}
	path, previous := p.dir.ConsoleLog(3), p.dir.PreviousConsole(3)
	p.said("10.8.0.5", "too early\n")
	if got := kept(t, path); got != "none" {
		t.Errorf("before its configuration: %q", got)
	}
	boots()
	for _, address := range []string{"10.8.0.1", "10.8.0.6", "10.8.0.7", "10.8.0.250", "10.9.0.5", "fd00::5"} { // serve's, of nodes that have not booted or do not exist, of a guest, of strangers
		p.said(address, "forged\n")
	}
	p.said("10.8.0.5", "[    0.1] a\x1b[2J\n")
	p.said("10.8.0.5", "[    9.1] Kernel panic - not syncing: no init\n")
	const first = "[    0.1] a?[2J\n[    9.1] Kernel panic - not syncing: no init\n"
	if got := kept(t, path); got != first || kept(t, previous) != "none" {
		t.Errorf("kept: %q", got)
	}
	if !slices.Equal(p.panics, []string{"3 no init"}) {
		t.Errorf("panics: %q", p.panics)
	}
	boots()
	if got := kept(t, path); got != "" || kept(t, previous) != first {
		t.Errorf("after a second boot: %q", got)
	}
	boots() // it has sent nothing
	if got := kept(t, previous); got != first {
		t.Errorf("after a boot that has sent nothing, the previous console is %q", got)
	}
	line := strings.Repeat("x", 999) + "\n"
	for range maxMetalConsole/len(line) + 2 { // some may be too fast
		p.said("10.8.0.5", line)
	}
	if got := kept(t, path); len(got) > maxMetalConsole {
		t.Errorf("the file has %d bytes", len(got))
	}
	boots()
	if got := kept(t, path+console.OldSuffix); got != "none" {
		t.Errorf("%d bytes that were rotated stay", len(got))
	}
	p.said("10.8.0.5", "[    0.1] b\n")
	p.said("10.8.0.5", "[    9.1] Kernel panic - not syncing: again\n")
	if len(p.panics) != 2 {
		t.Errorf("panics: %q", p.panics)
	}
	p.remove(3)
	p.said("10.8.0.5", "late\n")
	if got := kept(t, path); !strings.HasSuffix(got, "again\n") {
		t.Errorf("after it has left: %q", got)
	}
	files, err := os.ReadDir(p.dir.file("log"))
	if err != nil || len(files) != 2 {
		t.Errorf("the files are %v, %v", files, err)
	}
	if len(p.nodes) > 2 {
		t.Errorf("there are nodes %v", p.nodes)
	}
}
