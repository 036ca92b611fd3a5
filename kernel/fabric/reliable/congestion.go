package reliable

// congestion bounds the bytes in flight (RFC 9002, 7: NewReno). There is no pacing: the window
// keeps the clock of acknowledgements, and Go's timers are coarser than the gap between two
// datagrams of a fast network.
type congestion struct {
	datagram  int // largest datagram, bytes
	window    int
	threshold int    // of slow start
	recovery  uint64 // datagrams up to this number were sent before the window was reduced
	inFlight  int    // bytes of units that are neither acknowledged nor lost
}

// The initial and the smallest window, in datagrams (RFC 9002, 7.2), and the largest.
const (
	firstWindow = 10
	leastWindow = 2
	mostWindow  = 1 << 10
)

func newCongestion(datagram int) congestion {
	return congestion{datagram: datagram, window: firstWindow * datagram, threshold: mostWindow * datagram}
}

// open reports whether a further datagram may be sent.
func (g *congestion) open() bool { return g.inFlight < g.window }

// acknowledged counts bytes that have arrived (RFC 9002, 7.3.1 and 7.3.3). The window does not grow
// while it is not used (7.8).
func (g *congestion) acknowledged(bytes int) {
	used := g.inFlight
	g.inFlight -= bytes
	switch {
	case 2*used < g.window:
	case g.window < g.threshold:
		g.window += bytes
	default:
		g.window += max(1, g.datagram*bytes/g.window)
	}
	g.window = min(g.window, mostWindow*g.datagram)
}

// lost counts bytes of a datagram that is lost, and halves the window once for each round trip (RFC
// 9002, 7.3.2). latest is the number of the datagram sent last.
func (g *congestion) lost(bytes int, number, latest uint64) {
	g.inFlight -= bytes
	if number <= g.recovery {
		return
	}
	g.recovery = latest
	g.window = max(g.window/2, leastWindow*g.datagram)
	g.threshold = g.window
}

// collapse begins again after persistent congestion (RFC 9002, 7.6.2).
func (g *congestion) collapse(latest uint64) {
	g.recovery = latest
	g.threshold = max(g.window/2, leastWindow*g.datagram)
	g.window = leastWindow * g.datagram
}
