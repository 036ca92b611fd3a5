package pid1

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"margay/kernel/abi/node"
)

// kernelLog is where Linux takes lines for its log, which it prints on all consoles. A console that
// goes over the network shows nothing else.
const kernelLog = "/dev/kmsg"

// logLevel is before the lines of PID 1 and the node kernel in Linux's log: "error", the least
// urgent level that the consoles of a node show (initramfs.Cmdline).
const logLevel = "<3>"

// maxLogLine is where lines are cut for Linux's log, in bytes. It takes no longer ones than 1,024
// (PRINTKRB_RECORD_MAX).
const maxLogLine = 960

// openKernelLog opens Linux's log for the lines of PID 1 and the node kernel. It returns nil unless
// the command line lets programs write to the log as often as they want (printk.devkmsg=on). Then
// lines go to the console alone.
func openKernelLog() *os.File {
	mode, err := os.ReadFile("/proc/sys/kernel/printk_devkmsg")
	if err != nil || strings.TrimSpace(string(mode)) != "on" {
		return nil
	}
	f, err := os.OpenFile(kernelLog, os.O_WRONLY, 0)
	if err != nil {
		return nil // the console shows the lines
	}
	return f
}

// output is where the lines of PID 1 and the node kernel go: into the log of the node's own Linux
// if they belong there (Node.Log), else to the console.
type output struct {
	node    Node
	kernels int // the descriptor to which node kernels write

	mu  sync.Mutex
	log *os.File // nil: lines go to the console so far
}

func newOutput(node Node) *output { return &output{node: node, kernels: unix.Stderr} }

// logf writes a line of PID 1.
func (o *output) logf(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.open() {
		logf(format, args...)
		return
	}
	for line := range strings.Lines(fmt.Sprintf("margay: "+format, args...)) {
		enter(o.log, []byte(line))
	}
}

// open opens the log, unless it is open, and reports whether lines go there. The caller holds o.mu.
func (o *output) open() bool {
	if o.log == nil {
		o.log = o.node.Log()
	}
	return o.log != nil
}

// pipe has the lines of node kernels go to the log if there is one.
func (o *output) pipe() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.open() {
		return nil
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("pipe for the lines of the node kernel: %w", err)
	}
	o.kernels = ends[1]
	go copyLines(o.log, os.NewFile(uintptr(ends[0]), "lines of the node kernel"))
	return nil
}

// copyLines enters lines into Linux's log until their end.
func copyLines(log io.Writer, from io.Reader) {
	lines := bufio.NewReaderSize(from, maxLogLine)
	for {
		line, err := lines.ReadSlice('\n')
		enter(log, line)
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

// enter enters a line into Linux's log, in pieces if it is too long. A piece is lost if Linux does
// not take it: then there is no place to report that.
func enter(log io.Writer, line []byte) {
	line = bytes.TrimRight(line, "\n")
	for piece := range slices.Chunk(line, maxLogLine) {
		_, _ = log.Write(append([]byte(logLevel), piece...))
	}
}

// sender is the UDP port from which Linux sends its console.
const sender = 6665

// sendConsole loads the module that sends Linux's console to the receiver of a configuration,
// beginning with all that is in the log. The interface is configured.
func sendConsole(c node.Config, nic string) error {
	if c.Console == (node.Console{}) {
		return nil
	}
	path, err := listed(node.LoadOrder, node.ConsoleModule)
	if err != nil {
		return fmt.Errorf("console over the network: %w", err)
	}
	if path == "" {
		return errors.New("console over the network: the node image has no module " + node.ConsoleModule)
	}
	words, err := consoleWords(c, nic)
	if err != nil {
		return err
	}
	awaitCarrier(nic)
	if err := insertModule(path, words); err != nil {
		return fmt.Errorf("console over the network: module %s %s: %w", node.ConsoleModule, words, err)
	}
	return nil
}

// consoleWords returns the parameter of netconsole.
func consoleWords(c node.Config, nic string) (string, error) {
	to, err := netip.ParseAddrPort(c.Console.Address)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("netconsole=%d@%v/%s,%d@%v/%s", sender, c.Prefix().Addr(), nic, to.Port(), to.Addr(), c.Console.MAC), nil
}

// carrierWait bounds how long a card may take to agree with the switch on a speed. Without a
// carrier, lines are lost.
const carrierWait = 5 * time.Second

// awaitCarrier waits until an interface has a carrier, or carrierWait is over.
func awaitCarrier(nic string) {
	for deadline := time.Now().Add(carrierWait); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if link, err := netlink.LinkByName(nic); err == nil && link.Attrs().RawFlags&unix.IFF_LOWER_UP != 0 {
			return
		}
	}
}

// listed returns the path of a module in a load order; empty: it is not there.
func listed(list, module string) (string, error) {
	text, err := os.ReadFile(list)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	for path := range strings.Lines(string(text)) {
		if path = strings.TrimSpace(path); node.ModuleName(path) == module {
			return path, nil
		}
	}
	return "", nil
}
