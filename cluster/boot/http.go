package boot

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
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
	maxPerAddr = 4 // connections of a host; the hosts bound their number
	// Other stations have places of their own, for so long.
	maxStrangers = 64
	strangerWait = 5 * time.Second
	// learnWait is how long a request waits until the address that it comes from is learnt: a
	// client may be faster than its last question for an address.
	learnWait = 2 * time.Second
)

// served is a file and the stage of a node that fetches it.
type served struct {
	File
	stage Stage
	close func() error // nil: it stays open
}

func (s *Services) server() *http.Server {
	return &http.Server{
		Handler:           http.HandlerFunc(s.serveFile),
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ReadHeaderTimeout: headerWait, ReadTimeout: headerWait, IdleTimeout: idleWait, MaxHeaderBytes: maxHeader,
		ErrorLog: log.New(io.Discard, "", 0), // any station can cause errors at will
	}
}

// serveFile answers a request. There are some paths and no folder behind them.
func (s *Services) serveFile(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Now().Add(stallWait)) // an error is the connection's, which the answer meets as well
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	host, known := s.recognize(r.Context(), from.Addr().Unmap())
	if err != nil || !known {
		s.log.Printf("boot: %s asks for %.100q, and is not a node", r.RemoteAddr, r.URL.Path)
		http.Error(w, "not a node of this machine", http.StatusForbidden)
		return
	}
	file, ok, err := s.find(host, r.URL.Path)
	if err != nil {
		s.log.Printf("boot: %v asks for %.100q: %v", host, r.URL.Path, err)
		http.Error(w, "what this node boots cannot be read", http.StatusInternalServerError)
		return
	}
	if file.close != nil {
		defer file.close()
	}
	config := s.config.Node != nil && (r.URL.Path == ConfigPath || r.URL.Path == node.FetchPath)
	if r.URL.Path == ScriptPath && host.Guest {
		file = served{File: s.waitingScript(host), stage: Script}
	}
	if !ok && !config {
		s.log.Printf("boot: %v asks for %.100q, which does not exist", host, r.URL.Path)
		http.NotFound(w, r)
		return
	}
	says := waiting(host)
	if r.URL.Path == node.FetchPath && s.config.Pinned != nil {
		if refusal := s.config.Pinned(host, r.Header.Get(node.PinHeader)); refusal != "" {
			s.log.Printf("boot: %v asks for its configuration: %s", host, refusal)
			if host.Guest {
				s.met(host)
			}
			http.Error(w, refusal, http.StatusForbidden)
			return
		}
	}
	var admitted bool
	if token := r.Header.Get(node.TokenHeader); token != "" && r.URL.Path == node.FetchPath {
		says, admitted = s.present(host, token)
	}
	if host.Guest && file.stage != Script && file.stage != Loader {
		if r.URL.Path == node.FetchPath && !admitted {
			s.met(host)
		}
		http.Error(w, says, http.StatusForbidden)
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
		text, err := s.take(host, r.Method, r.URL.Path)
		if err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		file = served{File: File{bytes.NewReader(text), int64(len(text))}, stage: Configuration}
		s.sign(w.Header(), r.Header.Get(node.NonceHeader), text)
	}
	if host.Guest && file.stage == Script {
		s.met(host)
	}
	_ = control.SetReadDeadline(time.Time{}) // the time for the request is over, and it is here
	if file.stage == Script && !host.Guest && r.Method == http.MethodGet {
		if before, ok := s.await(r.Context(), host); !ok {
			file = served{File: s.laterScript(before), stage: Queued}
		}
	}
	w.Header().Set("Content-Type", "application/octet-stream") // else it would be guessed
	content := &counted{SectionReader: io.NewSectionReader(file, 0, file.Size)}
	http.ServeContent(&steady{w, control, func(n int) {
		if file.Size > 0 && file.stage != Queued {
			s.sent(host, Status{Stage: file.stage, Percent: int(content.at.Load() * 100 / file.Size)}, n)
		}
	}}, r, "", time.Time{}, content)
}

// find returns the file that a host gets at a path. It is open until it is closed.
func (s *Services) find(h Host, path string) (file served, ok bool, err error) {
	file, ok = s.files[path]
	if h.Guest || s.config.Own == nil || path != ScriptPath && !strings.HasPrefix(path, OwnPath+"/") {
		return file, ok, nil
	}
	own, has, err := s.config.Own(h.Node)
	if err != nil || !has {
		return file, ok, err
	}
	switch path {
	case ScriptPath:
		file.File, err = s.config.script(own.Cmdline, own.path(KernelPath), own.path(ImagePath))
		return file, true, err
	case own.path(KernelPath):
		file, err = open(own.Kernel, Kernel)
		return file, true, err
	case own.path(ImagePath):
		file, err = open(own.Image, Image)
		return file, true, err
	}
	return served{}, false, nil
}

// open opens a file of an image that some nodes boot.
func open(path string, stage Stage) (served, error) {
	f, err := os.Open(path)
	if err != nil {
		return served{}, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return served{}, err
	}
	return served{File{f, info.Size()}, stage, f.Close}, nil
}

// sign adds the signature of a configuration to an answer, if the request has a nonce for it.
func (s *Services) sign(header http.Header, nonce string, text []byte) {
	n, err := hex.DecodeString(nonce)
	if err == nil && len(n) == node.NonceSize && s.config.Sign != nil {
		header.Set(node.SignatureHeader, hex.EncodeToString(s.config.Sign(node.Statement(n, text))))
	}
}

// present passes on the token that a host brings, and returns what a guest that brings it is shown.
func (s *Services) present(h Host, token string) (says string, admitted bool) {
	err := errors.New("this machine takes none")
	if s.config.Token != nil {
		err = s.config.Token(h, token)
	}
	if err != nil {
		if h.Guest { // a node brings its token at each boot
			s.log.Printf("boot: %v has brought a token: %v", h, err)
		}
		return fmt.Sprintf("%s. Its token is refused: %v", waiting(h), err), false
	}
	return "This machine becomes a node", true
}

// met reports a guest that waits.
func (s *Services) met(h Host) {
	if s.config.Met != nil {
		s.config.Met(h.MAC)
	}
}

// connKey is the key of the connection in the context of a request.
type connKey struct{}

// recognize returns the host that has the address of a request, and counts the connection as one of
// a host.
func (s *Services) recognize(ctx context.Context, address netip.Addr) (h Host, known bool) {
	for end := time.Now().Add(learnWait); ; {
		if h, known = s.host(address); known {
			c, ok := ctx.Value(connKey{}).(*limitedConn)
			return h, !ok || c.admit()
		}
		if !s.config.Proxy || ctx.Err() != nil || time.Now().After(end) {
			return h, false
		}
		time.Sleep(learnWait / 20)
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
	sent    func(bytes int)
}

func (w *steady) Write(b []byte) (int, error) {
	if err := w.control.SetWriteDeadline(time.Now().Add(stallWait)); err != nil {
		return 0, err
	}
	n, err := w.ResponseWriter.Write(b)
	if err == nil {
		w.sent(n)
	}
	return n, err
}

// limit bounds connections: of hosts, from each address, and of strangers in all, so that neither a
// host nor strangers can keep a host from its boot.
type limit struct {
	net.Listener
	services *Services
	hosts    *gate.Room
	others   *gate.Room

	closed atomic.Bool
}

// limited closes the connections of l that exceed the limits.
func (s *Services) limited(l net.Listener) net.Listener {
	return &limit{Listener: l, services: s, hosts: gate.NewRoom(math.MaxInt, maxPerAddr), others: gate.NewRoom(maxStrangers, 1)}
}

// Accept implements net.Listener.
func (l *limit) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from, _ := netip.ParseAddrPort(c.RemoteAddr().String())
		limited := &limitedConn{Conn: c, limit: l, room: l.hosts, source: from.Addr().String()}
		_, known := l.services.host(from.Addr().Unmap())
		if !known {
			limited.room = l.others
		}
		if _, _, ok := limited.room.Enter(limited.source); !ok {
			l.services.log.Printf("boot: a connection from %v is closed: there are too many", from)
			c.Close()
			continue
		}
		if !known {
			limited.timer = time.AfterFunc(strangerWait, func() { limited.Conn.Close() })
		}
		return limited, nil
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

	mu    sync.Mutex
	room  *gate.Room  // in which it counts
	timer *time.Timer // ends it; nil: it is a host's
}

// admit counts the connection of a stranger as one of a host, if the host has room for it.
func (c *limitedConn) admit() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer == nil {
		return true
	}
	if !c.timer.Stop() { // it is being ended
		return false
	}
	if _, _, ok := c.limit.hosts.Enter(c.source); !ok {
		c.timer.Reset(0)
		return false
	}
	c.room.Leave(c.source)
	c.room, c.timer = c.limit.hosts, nil
	return true
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
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.room.Leave(c.source)
	if c.timer != nil {
		c.timer.Stop()
	}
	return c.Conn.Close()
}
