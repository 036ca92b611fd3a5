package metal

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"margay/internal/printable"
	"margay/kernel/klog"
)

// ConsolePort is the UDP port for the consoles of nodes. It is the one that netconsole has for a
// receiver (Documentation/networking/netconsole.rst in Linux).
const ConsolePort = 6666

// MaxConsole bounds a datagram of netconsole, in bytes: Linux cuts text at 1,000 bytes
// (MAX_PRINT_CHUNK).
const MaxConsole = 1500

// Bounds on the text of a console: so much is kept at once, in bytes, which is more than the log of
// a boot, and so much a second. A serial port is slower.
const (
	consoleBurst = 1 << 20
	consoleRate  = 64 << 10
)

// maxReason bounds the reason of a panic, in bytes.
const maxReason = 200

// Bounds on the reports of panics: so many at once, and then one in so much time. A panic that any
// station can send, or that Linux survives, must not silence a real one.
const (
	reasonBurst = 4
	reasonPause = time.Minute
)

// Console chooses the text to keep of the console that the Linux of one node sends, in one boot.
// The datagrams of netconsole have the text of the console in pieces, and nothing else: every
// station that uses the address of the node can send them, and some may be lost. It is a state
// machine without input and output, and not safe for concurrent use.
type Console struct {
	credit  *rate.Limiter // of bytes
	lost    int           // bytes since the last ones that were kept
	inLine  bool          // the last ones that were kept have not ended their line
	within  bool          // the last datagram has not ended its line
	reports *rate.Limiter // of panics
	reason  string        // of the panic that was reported last; empty: none
}

// NewConsole returns the console of a boot that begins.
func NewConsole() *Console {
	return &Console{credit: rate.NewLimiter(consoleRate, consoleBurst), reports: rate.NewLimiter(rate.Every(reasonPause), reasonBurst)}
}

// Take takes a datagram and returns the text to keep, which is not printable yet. If it says that
// Linux has panicked, and for another reason than the one returned last, Take returns the reason,
// which is printable.
func (c *Console) Take(now time.Time, datagram []byte) (text []byte, reason string) {
	if len(datagram) == 0 {
		return nil, ""
	}
	reason = c.report(now, datagram)
	c.within = datagram[len(datagram)-1] != '\n'
	if !c.credit.AllowN(now, len(datagram)) {
		c.lost += len(datagram)
		return nil, reason
	}
	if c.lost > 0 {
		if c.inLine {
			text = append(text, '\n')
		}
		text = fmt.Appendf(text, "-- missing: %d bytes of the console, which came too fast --\n", c.lost)
		c.lost = 0
	}
	c.inLine = c.within
	return append(text, datagram...), reason
}

// report returns the reason of the panic in a datagram; empty: there is none, or it was reported,
// or others were just before. The datagram may begin within a line, where a program of a user may
// have written text that looks like a line of Linux.
func (c *Console) report(now time.Time, datagram []byte) string {
	text := string(datagram)
	if c.within {
		_, text, _ = strings.Cut(text, "\n")
	}
	reason := printable.Short(klog.Panic(text), maxReason)
	if reason == "" || reason == c.reason || !c.reports.AllowN(now, 1) {
		return ""
	}
	c.reason = reason
	return reason
}
