package pid1

import (
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
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

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
// the command line lets programs write to the log as often as they want (printk.devkmsg=on), and
// consoles show errors. Then lines go to the console alone.
func openKernelLog() *os.File {
	mode, err := os.ReadFile("/proc/sys/kernel/printk_devkmsg")
	if err != nil || strings.TrimSpace(string(mode)) != "on" {
		return nil
	}
	levels, err := os.ReadFile("/proc/sys/kernel/printk")
	if err != nil || !showsErrors(string(levels)) {
		return nil
	}
	f, err := os.OpenFile(kernelLog, os.O_WRONLY, 0)
	if err != nil {
		return nil // the console shows the lines
	}
	return f
}

// showsErrors reports whether consoles show records of logLevel, from the levels of Linux's log
// (kernel/printk in Documentation/admin-guide/sysctl of Linux): they show records whose level is
// lower than the first number.
func showsErrors(levels string) bool {
	var console int
	n, err := fmt.Sscan(levels, &console)
	return n == 1 && err == nil && console > 3
}

// output is where the lines of PID 1 and the node kernel go: into the log of the node's own Linux
// if they belong there (Node.Log), else to the console. They go to the log through one pipe, in the
// order in which they were written, so a slow console does not hold up PID 1 before the pipe is
// full.
type output struct {
	node Node

	mu   sync.Mutex
	pipe *os.File // the end for writing; nil: lines go to the console so far

	entering sync.Mutex // held from a read of the pipe until its lines are in the log
}

// logf writes a line of PID 1.
func (o *output) logf(format string, args ...any) {
	pipe := o.open()
	if pipe == nil {
		logf(format, args...)
		return
	}
	_, _ = fmt.Fprintf(pipe, "margay: "+format+"\n", args...) // PID 1 itself reads it
}

// kernels returns the descriptor to which node kernels write.
func (o *output) kernels() uintptr {
	if pipe := o.open(); pipe != nil {
		return pipe.Fd()
	}
	return uintptr(unix.Stderr)
}

// open returns the pipe to the log. It is nil while lines go to the console, because there is no
// log or no pipe.
func (o *output) open() *os.File {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.pipe != nil {
		return o.pipe
	}
	log := o.node.Log()
	if log == nil {
		return nil
	}
	if err := o.start(log); err != nil {
		logf("pipe to Linux's log: %v", err)
		log.Close()
	}
	return o.pipe
}

// start makes the pipe to a log. The caller holds o.mu.
func (o *output) start(log io.Writer) error {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	// A program that runs as another user cannot open the pipe by way of /proc.
	err := errors.Join(unix.SetNonblock(ends[0], true), unix.Fchmod(ends[0], 0))
	from := os.NewFile(uintptr(ends[0]), "lines")
	raw, err1 := from.SyscallConn()
	if err := errors.Join(err, err1); err != nil {
		return errors.Join(err, from.Close(), unix.Close(ends[1]))
	}
	o.pipe = os.NewFile(uintptr(ends[1]), "lines")
	go o.copy(raw, newRecords(log))
	return nil
}

// copy enters lines into the log. The pipe has no end, because PID 1 has an end for writing.
func (o *output) copy(from syscall.RawConn, to *records) {
	text := make([]byte, 4096)
	for ended := false; !ended; {
		err := from.Read(func(fd uintptr) bool {
			o.entering.Lock()
			defer o.entering.Unlock()
			n, err := unix.Read(int(fd), text)
			if errors.Is(err, unix.EAGAIN) {
				return false
			}
			ended = n <= 0
			to.take(time.Now(), text[:max(n, 0)])
			return true
		})
		if err != nil {
			return
		}
	}
}

// drain waits until all lines are in the log, and on the consoles.
func (o *output) drain() {
	o.mu.Lock()
	pipe := o.pipe
	o.mu.Unlock()
	if pipe != nil {
		drain(int(pipe.Fd()), &o.entering)
	}
}

// Drain waits until Linux's consoles should have shown what a process has written to a descriptor.
// It waits at most drainWait and consoleWait if the descriptor is a pipe to PID 1, and not at all
// if it is none.
func Drain(fd int) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO {
		drain(fd, new(sync.Mutex))
	}
}

// Bounds on the wait for the last lines: until PID 1 has read them, and then until the threads of
// Linux that write to consoles have done so, which it does not report.
const (
	drainWait   = time.Second
	consoleWait = 200 * time.Millisecond
)

// drain is Drain for a pipe whose reader holds a lock until lines are in the log.
func drain(fd int, entering *sync.Mutex) {
	for deadline := time.Now().Add(drainWait); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if !entering.TryLock() {
			continue // a console may be slow
		}
		n, err := unix.IoctlGetInt(fd, unix.TIOCINQ) // FIONREAD
		entering.Unlock()
		if err != nil || n == 0 {
			break
		}
	}
	time.Sleep(consoleWait)
}

// Bounds on what PID 1 and node kernels enter into Linux's log, in bytes: so much at once, and so
// much a second. A node kernel that ends over and over would drive out what Linux itself has
// logged.
const (
	recordBurst = 64 << 10
	recordRate  = 4 << 10
)

// records makes records of Linux's log of a stream of lines. It is a state machine but for the
// writes to the log, and not safe for concurrent use.
type records struct {
	log     io.Writer
	credit  *rate.Limiter // of bytes
	missing int           // bytes since the last record
	line    []byte        // the rest of a line that has not ended
	later   bool          // the beginning of that line is a record
}

func newRecords(log io.Writer) *records {
	return &records{log: log, credit: rate.NewLimiter(recordRate, recordBurst)}
}

// take enters the lines that end in a piece of the stream, and of longer ones than maxLogLine all
// that makes whole records.
func (r *records) take(now time.Time, text []byte) {
	r.line = append(r.line, text...)
	for {
		end := bytes.IndexByte(r.line, '\n')
		switch {
		case end >= 0 && end <= maxLogLine:
			r.enter(now, r.line[:end])
			r.line, r.later = slices.Delete(r.line, 0, end+1), false
		case len(r.line) > maxLogLine:
			r.enter(now, r.line[:maxLogLine])
			r.line, r.later = slices.Delete(r.line, 0, maxLogLine), true
		default:
			return
		}
	}
}

// enter enters a line, or a piece of one. It is lost if Linux does not take it: then there is no
// place to report that.
func (r *records) enter(now time.Time, piece []byte) {
	if len(piece) == 0 {
		return
	}
	if !r.credit.AllowN(now, len(piece)) {
		r.missing += len(piece)
		return
	}
	if r.missing > 0 {
		_, _ = fmt.Fprintf(r.log, "%smargay: missing: %d bytes of lines, which came too fast", logLevel, r.missing)
		r.missing = 0
	}
	mark := logLevel
	if r.later {
		mark += "... " // a record that begins within a line must not look like a line
	}
	_, _ = r.log.Write(append([]byte(mark), piece...))
}

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
	return fmt.Sprintf("netconsole=%d@%v/%s,%d@%v/%s", node.ConsoleSender, c.Prefix().Addr(), nic, to.Port(), to.Addr(), c.Console.MAC), nil
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
