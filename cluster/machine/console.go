package machine

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"time"

	"margay/cluster/metal"
	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
	"margay/qemu/console"
)

// maxMetalConsole bounds the file with the console of a metal node, in bytes. With the file that it
// has replaced, and both of the boot before, there are four at most.
const maxMetalConsole = 1 << 20

// openConsole begins to keep the console of a boot. The caller holds m.mu.
func (m *metalNodes) openConsole(number id.Node, n *metalNode) {
	var err error
	if n.log, err = console.New(console.Config{Path: m.dir.ConsoleLog(number), MaxBytes: maxMetalConsole, Keep: consoleLines}); err != nil {
		m.events.log("the console of node%d is not kept: %v", number, err)
		return
	}
	n.console = metal.NewConsole()
}

// endConsole makes the console of the last boot the previous one, so that it is not taken for the
// one of the boot that begins. The caller holds m.mu.
func (m *metalNodes) endConsole(number id.Node, n *metalNode) {
	m.closeConsole(number, n)
	if err := keepPrevious(m.dir.ConsoleLog(number), m.dir.PreviousConsole(number)); err != nil {
		m.events.log("the console of the last boot of node%d is not kept: %v", number, err)
	}
}

// keepPrevious makes the files of a console the parts of the previous one. If there is nothing in
// it, the previous one stays.
func keepPrevious(path string, previous [2]string) error {
	rotated := path + console.OldSuffix
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return removeFiles(path, rotated)
	}
	if err == nil {
		err = os.Rename(path, previous[1])
	}
	first := os.Rename(rotated, previous[0])
	if errors.Is(first, fs.ErrNotExist) {
		first = removeFiles(previous[0])
	}
	return errors.Join(err, first)
}

// removeConsole removes the files of the consoles of a node. The caller holds m.mu.
func (m *metalNodes) removeConsole(number id.Node, n *metalNode) {
	m.closeConsole(number, n)
	path, previous := m.dir.ConsoleLog(number), m.dir.PreviousConsole(number)
	if err := removeFiles(path, path+console.OldSuffix, previous[0], previous[1]); err != nil {
		m.events.log("the console of node%d: %v", number, err)
	}
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
// node that has got its configuration, and from Linux's port: then its Linux may run, and send it.
func (m *metalNodes) received(datagram []byte, from netip.AddrPort) {
	number, known := m.spec.Metal.Plan.Number(from.Addr())
	if !known || from.Port() != node.ConsoleSender {
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
