package boot

import (
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"margay/kernel/abi/node"
	"margay/kernel/gate"
)

// Bounds of the HTTP service.
const (
	headerWait = 20 * time.Second // for a request to arrive
	idleWait   = 20 * time.Second // for the next one
	// stallWait bounds the time in which a client receives a piece of a file, at most 32 KiB, the
	// size of io.Copy. A slower client loses its connection, and can continue where it was.
	stallWait  = 30 * time.Second
	maxHeader  = 8 << 10
	maxConns   = 1024
	maxPerAddr = 4
)

// served is a file and the stage of a node that fetches it.
type served struct {
	File
	stage Stage
}

func (s *Services) server() *http.Server {
	return &http.Server{
		Handler:           http.HandlerFunc(s.serveFile),
		ReadHeaderTimeout: headerWait, ReadTimeout: headerWait, IdleTimeout: idleWait, MaxHeaderBytes: maxHeader,
		ErrorLog: log.New(io.Discard, "", 0), // any station can cause errors at will
	}
}

// serveFile answers a request. There are some paths and no folder behind them.
func (s *Services) serveFile(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Now().Add(stallWait)) // an error is the connection's, which the answer meets as well
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	host, known := s.host(from.Addr().Unmap())
	if err != nil || !known {
		s.log.Printf("boot: %s asks for %.100q, and is not a node", r.RemoteAddr, r.URL.Path)
		http.Error(w, "not a node of this machine", http.StatusForbidden)
		return
	}
	file, ok := s.files[r.URL.Path]
	config := s.config.Node != nil && (r.URL.Path == ConfigPath || r.URL.Path == node.FetchPath)
	if r.URL.Path == ScriptPath && host.Guest {
		file = served{s.waitingScript(host), Script}
	}
	if !ok && !config {
		s.log.Printf("boot: %v asks for %.100q, which does not exist", host, r.URL.Path)
		http.NotFound(w, r)
		return
	}
	if host.Guest && file.stage != Script && file.stage != Loader {
		if r.URL.Path == node.FetchPath {
			s.met(host)
		}
		http.Error(w, waiting(host), http.StatusForbidden)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
		return
	}
	if r.ContentLength != 0 {
		http.Error(w, "a request has no content", http.StatusBadRequest)
		return
	}
	if config {
		if file.File, err = s.take(host, r.Method, r.URL.Path); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		file.stage = Configuration
	}
	if host.Guest && file.stage == Script {
		s.met(host)
	}
	_ = control.SetReadDeadline(time.Time{})                   // the time for the request is over, and it is here
	w.Header().Set("Content-Type", "application/octet-stream") // else it would be guessed
	content := &counted{SectionReader: io.NewSectionReader(file, 0, file.Size)}
	http.ServeContent(&steady{w, control, func() {
		if file.Size > 0 {
			s.reached(host, Status{Stage: file.stage, Percent: int(content.at.Load() * 100 / file.Size)})
		}
	}}, r, "", time.Time{}, content)
}

// met reports a guest that waits.
func (s *Services) met(h Host) {
	if s.config.Met != nil {
		s.config.Met(h.MAC)
	}
}

// counted is a file that knows how far it was read. For several ranges, http.ServeContent reads it
// beside the answer.
type counted struct {
	*io.SectionReader
	at atomic.Int64
}

func (c *counted) Seek(offset int64, whence int) (at int64, err error) {
	at, err = c.SectionReader.Seek(offset, whence)
	c.at.Store(at)
	return at, err
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.SectionReader.Read(b)
	c.at.Add(int64(n))
	return n, err
}

// steady gives each piece of an answer its own time to be sent.
type steady struct {
	http.ResponseWriter
	control *http.ResponseController
	sent    func()
}

func (w *steady) Write(b []byte) (int, error) {
	if err := w.control.SetWriteDeadline(time.Now().Add(stallWait)); err != nil {
		return 0, err
	}
	n, err := w.ResponseWriter.Write(b)
	if err == nil {
		w.sent()
	}
	return n, err
}

// limit bounds connections: in all, and from one address.
type limit struct {
	net.Listener
	log  *gate.Log
	room *gate.Room

	closed atomic.Bool
}

// limited closes the connections of l that exceed the limits.
func limited(l net.Listener, log *gate.Log) net.Listener {
	return &limit{Listener: l, log: log, room: gate.NewRoom(maxConns, maxPerAddr)}
}

// Accept implements net.Listener.
func (l *limit) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from, _ := netip.ParseAddrPort(c.RemoteAddr().String())
		source := from.Addr().String()
		if _, _, ok := l.room.Enter(source); ok {
			return &limitedConn{Conn: c, limit: l, source: source}, nil
		}
		l.log.Printf("boot: a connection from %v is closed: there are too many", from)
		c.Close()
	}
}

// Close implements net.Listener.
func (l *limit) Close() error {
	l.closed.Store(true)
	return l.Listener.Close()
}

// limitedConn is a connection that counts until nothing of it is left.
type limitedConn struct {
	net.Conn
	limit  *limit
	source string
	over   atomic.Bool // the client has ended it, or takes nothing
	once   sync.Once
}

// Read implements net.Conn.
func (c *limitedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if late := net.Error(nil); err != nil && !(errors.As(err, &late) && late.Timeout()) { // the server interrupts reads by their deadline
		c.over.Store(true)
	}
	return n, err
}

// Write implements net.Conn.
func (c *limitedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil {
		c.over.Store(true)
	}
	return n, err
}

// Close implements net.Conn. A client that has not ended the connection has stallWait to receive
// the end of an answer. Until then the connection counts.
func (c *limitedConn) Close() (err error) {
	c.once.Do(func() {
		half, ok := c.Conn.(interface{ CloseWrite() error })
		if !ok || c.over.Load() || c.limit.closed.Load() || half.CloseWrite() != nil {
			err = c.end()
			return
		}
		go func() {
			defer c.end()
			if c.Conn.SetReadDeadline(time.Now().Add(stallWait)) == nil {
				_, _ = io.Copy(io.Discard, c.Conn)
			}
		}()
	})
	return err
}

func (c *limitedConn) end() error {
	defer c.limit.room.Leave(c.source)
	return c.Conn.Close()
}
