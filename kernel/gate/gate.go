// Package gate bounds the cost of connections whose peer has not authenticated yet: their number,
// in all and per address, their time, and the log lines about them.
//
// Locks: Room.mu guards the counts of connections, Log.mu the counts of lines. Neither is held
// while the other one is taken.
package gate

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Config says what a gate bounds.
type Config struct {
	Most     int           // connections that wait to be admitted
	MostEach int           // of these, from one address
	Networks bool          // all addresses of IPv6 with the same first 64 bits are one: a host can have all of them
	Wait     time.Duration // after which a connection that has not been admitted is closed
	Log      *Log          // receives refusals
}

// Room bounds the number of connections, in all and from one address. It is safe for concurrent
// use.
type Room struct {
	most, mostEach int

	mu   sync.Mutex
	all  int
	each map[string]int // by address
}

// NewRoom returns room for so many connections, and for so many of these from one address.
func NewRoom(most, mostEach int) *Room {
	return &Room{most: most, mostEach: mostEach, each: make(map[string]int)}
}

// Enter counts a connection if there is room, and reports that. It also returns the counts before:
// in all, and from this address.
func (r *Room) Enter(source string) (all, each int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all, each = r.all, r.each[source]
	if all >= r.most || each >= r.mostEach {
		return all, each, false
	}
	r.all++
	r.each[source]++
	return all, each, true
}

// Leave ends what a successful Enter began.
func (r *Room) Leave(source string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all--
	if r.each[source]--; r.each[source] == 0 {
		delete(r.each, source)
	}
}

// Gate is where connections wait until they are admitted. It is safe for concurrent use.
type Gate struct {
	config Config
	room   *Room
}

// New makes a gate.
func New(c Config) *Gate { return &Gate{config: c, room: NewRoom(c.Most, c.MostEach)} }

// Listener returns a listener for those connections of l that the gate has room for; it closes the
// others.
func (g *Gate) Listener(l net.Listener) net.Listener { return &listener{l, g} }

type listener struct {
	net.Listener
	gate *Gate
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if waiting := l.gate.enter(c); waiting != nil {
			return waiting, nil
		}
		c.Close()
	}
}

// enter admits a connection to the gate. It returns nil if there is no room.
func (g *Gate) enter(c net.Conn) net.Conn {
	source := Host(c.RemoteAddr())
	if g.config.Networks {
		source = network(source)
	}
	all, each, ok := g.room.Enter(source)
	switch {
	case !ok && each >= g.config.MostEach:
		g.config.Log.Printf("connection from %s: closed, because %d others from there have not authenticated", source, each)
		return nil
	case !ok:
		g.config.Log.Printf("connection from %s: closed, because %d others have not authenticated", source, all)
		return nil
	}
	waiting := &conn{Conn: c, gate: g, source: source}
	waiting.timer = time.AfterFunc(g.config.Wait, func() { c.Close() })
	return waiting
}

// Host returns an address without the port, which a station can change for each connection.
func Host(a net.Addr) string {
	if h, _, err := net.SplitHostPort(a.String()); err == nil {
		return h
	}
	return a.String()
}

// network is the part of an address that a host cannot change for each connection.
func network(host string) string {
	a, err := netip.ParseAddr(host)
	if err != nil || a.Unmap().Is4() {
		return host
	}
	p, err := a.WithZone("").Prefix(64)
	if err != nil {
		return host
	}
	return p.String()
}

// conn is a connection that waits, or has waited.
type conn struct {
	net.Conn
	gate     *Gate
	source   string
	timer    *time.Timer
	admitted atomic.Bool
	left     sync.Once
}

func (c *conn) leave() {
	c.left.Do(func() {
		c.timer.Stop()
		c.gate.room.Leave(c.source)
	})
}

// Close ends the connection, and its wait.
func (c *conn) Close() error {
	c.leave()
	return c.Conn.Close()
}

// find returns the connection of a gate below c, which may be one of TLS; nil when there is none.
func find(c net.Conn) *conn {
	for {
		switch x := c.(type) {
		case *conn:
			return x
		case interface{ NetConn() net.Conn }:
			c = x.NetConn()
		default:
			return nil
		}
	}
}

// Admit releases a connection from the gate after authentication. c may be a TLS connection over
// one of the gate.
func Admit(c net.Conn) {
	if waiting := find(c); waiting != nil {
		waiting.admitted.Store(true)
		waiting.leave()
	}
}

// Admitted reports whether a connection has been admitted, or has passed no gate.
func Admitted(c net.Conn) bool {
	waiting := find(c)
	return waiting == nil || waiting.admitted.Load()
}

// Log is a log with a bounded rate, for entries that strangers cause: it omits and counts excess
// lines. It is safe for concurrent use.
type Log struct {
	printf func(format string, args ...any)
	limit  *rate.Limiter

	mu      sync.Mutex
	omitted int         // lines, since it was last said how many
	timer   *time.Timer // says how many; nil: nothing was left out yet
	closed  bool
}

// omissionPause is how long lines are left out before the log says so.
const omissionPause = 5 * time.Second

// NewLog makes a log that passes so many lines on at once, and so many a second.
func NewLog(printf func(format string, args ...any), burst int, perSecond float64) *Log {
	return &Log{printf: printf, limit: rate.NewLimiter(rate.Limit(perSecond), burst)}
}

// Printf writes a line, unless there are too many.
func (l *Log) Printf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
	case l.limit.Allow():
		l.printf(format, args...)
	default:
		if l.omitted++; l.omitted == 1 {
			l.timer = time.AfterFunc(omissionPause, l.flush)
		}
	}
}

func (l *Log) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sayOmitted()
}

// sayOmitted says how many lines were left out. The caller holds Log.mu.
func (l *Log) sayOmitted() {
	if l.omitted > 0 {
		l.printf("%d more such lines in the last %v were left out", l.omitted, omissionPause)
	}
	l.omitted = 0
}

// Close logs the number of omitted lines and ends the log.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sayOmitted()
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
	}
}
