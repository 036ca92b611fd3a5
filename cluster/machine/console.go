package machine

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"time"

	"margay/cluster/metal"
	"margay/kernel/abi/id"
	"margay/qemu/console"
)

// maxMetalConsole bounds the file with the console of a metal node, in bytes. With the file that it
// has replaced and the one of the boot before, there are three at most.
const maxMetalConsole = 1 << 20

// openConsole begins to keep the console of a boot; the last one becomes the previous one. The
// caller holds m.mu.
func (m *metalNodes) openConsole(number id.Node, n *metalNode) {
	m.closeConsole(number, n)
	path := m.dir.ConsoleLog(number)
	err := keepPrevious(path, m.dir.PreviousConsole(number))
	if err == nil {
		n.log, err = console.New(console.Config{Path: path, MaxBytes: maxMetalConsole, Keep: consoleLines})
	}
	if err != nil {
		m.events.log("the console of node%d is not kept: %v", number, err)
		return
	}
	n.console = metal.NewConsole()
}

// keepPrevious makes the file of a console the previous one, and removes what was rotated. If there
// is nothing in it, the previous one stays.
func keepPrevious(path, previous string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil
	}
	if err == nil {
		err = os.Rename(path, previous)
	}
	return errors.Join(err, removeFiles(path+console.OldSuffix))
}

// closeConsole ends what openConsole has begun. The files stay. The caller holds m.mu, or no other
// goroutine uses m.
func (m *metalNodes) closeConsole(number id.Node, n *metalNode) {
	if n.log == nil {
		return
	}
	if lost, err := n.log.Lost(); lost > 0 {
		m.events.log("the console of node%d: %d bytes are lost: %v", number, lost, err)
	}
	if err := n.log.Close(); err != nil {
		m.events.log("the console of node%d: %v", number, err)
	}
	n.console, n.log = nil, nil
}

// received handles a datagram for the port of consoles. It counts if it comes from the address of a
// node that has got its configuration: then its Linux may run.
func (m *metalNodes) received(datagram []byte, from netip.AddrPort) {
	number, known := m.spec.Metal.Plan.Number(from.Addr())
	if !known {
		return
	}
	m.mu.Lock()
	n := m.nodes[number]
	if n == nil || n.log == nil {
		m.mu.Unlock()
		return
	}
	text, reason := n.console.Take(time.Now(), datagram)
	log := n.log
	m.mu.Unlock()
	// The node may just have begun to boot again: then the log is closed, and the text is late.
	_, _ = log.Write(text)
	if reason != "" {
		m.events.panicked(number, reason)
	}
}
