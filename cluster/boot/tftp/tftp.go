// Package tftp is the server's side of TFTP (RFC 1350) for firmware that boots from its network
// card: it sends a few files, in mode octet, and receives none.
//
//	client -> read request: name, mode, options   Server -> option acknowledgement, or block 1
//	client -> acknowledgement of block n          Server -> block n+1; after the last one the transfer is over
//
// One block is on its way at a time, as the protocol demands. The options are the block size (RFC
// 2348) and the size of the file (RFC 2349). All transfers use the server's port: the protocol has
// the server choose one, and a single one passes firewalls and needs no more than one connection.
//
// Server is a state machine: datagrams and times in, datagrams out. A client has one transfer at a
// time, and a request for another one ends it, so that clients bound the state.
package tftp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds of a transfer.
const (
	// RetryAfter is the time after which a datagram that was not acknowledged is sent again, and
	// how often Tick should be called while a transfer is going on.
	RetryAfter = time.Second
	// MaxTries is how often a datagram is sent.
	MaxTries = 15
	// MaxTime bounds the time of a transfer.
	MaxTime = 5 * time.Minute
	// DefaultBlock is the block size of a client without that option, in bytes.
	DefaultBlock = 512
	// MaxBlock is the greatest block size, in bytes: a frame of Ethernet has room for it.
	MaxBlock = 1468
	// MaxDatagram is the length of the longest datagram of a client, in bytes (RFC 2347).
	MaxDatagram = 512
)

// maxBlocks is the number of blocks that the protocol can count.
const maxBlocks = 1<<16 - 1

// The operations (RFC 1350, section 5; RFC 2347).
const (
	opRead = 1 + iota
	opWrite
	opData
	opAcknowledge
	opError
	opOptions
)

// The codes of errors (RFC 1350, appendix).
const (
	codeOther     = 0
	codeNotFound  = 1
	codeForbidden = 2
	codeIllegal   = 4
)

// ErrDatagram reports a datagram that no client sends.
var ErrDatagram = errors.New("not a TFTP message of a client")

// File is a file that clients can fetch. It must not change while it is served.
type File struct {
	io.ReaderAt
	Size int64 // in bytes
}

// Answer is what a datagram or the passing of time has caused.
type Answer struct {
	To      netip.AddrPort
	Packet  []byte // nil: nothing is sent
	Name    string // of the file that is fetched; empty if there is none
	Done    int64  // bytes of it that the client has acknowledged
	Refusal string // why the client gets nothing, or no further data
}

// Server sends files. It is not safe for concurrent use.
type Server struct {
	files     map[string]File
	most      int
	transfers map[netip.Addr]*transfer
}

// transfer is a file on its way to a client.
type transfer struct {
	client  netip.AddrPort
	request string // the datagram
	name    string
	file    File
	size    int    // of a block
	block   uint16 // the last one that was sent; 0: the options
	packet  []byte // the datagram with it
	begun   bool   // something was acknowledged
	tries   int
	sent    time.Time
	started time.Time
}

// New returns a server of files by their names, for a number of clients at the same time.
func New(files map[string]File, most int) *Server {
	return &Server{files: files, most: most, transfers: make(map[netip.Addr]*transfer)}
}

// Busy reports whether a transfer is going on. Then Tick must be called.
func (s *Server) Busy() bool { return len(s.transfers) > 0 }

// Handle answers a datagram, which is untrusted. An error is ErrDatagram, and there is no answer.
func (s *Server) Handle(now time.Time, from netip.AddrPort, datagram []byte) (Answer, error) {
	if len(datagram) < 2 || len(datagram) > MaxDatagram {
		return Answer{}, ErrDatagram
	}
	switch binary.BigEndian.Uint16(datagram) {
	case opRead:
		return s.read(now, from, datagram)
	case opWrite:
		return refuse(from, codeForbidden, "nothing can be written here"), nil
	case opAcknowledge:
		if len(datagram) != 4 {
			return Answer{}, ErrDatagram
		}
		return s.acknowledged(now, from, binary.BigEndian.Uint16(datagram[2:])), nil
	case opError: // among other reasons because the client wanted to know only the size
		if t := s.transfers[from.Addr()]; t != nil && t.client == from {
			delete(s.transfers, from.Addr())
		}
		return Answer{}, nil
	}
	return Answer{}, ErrDatagram
}

// read answers a request for a file.
func (s *Server) read(now time.Time, from netip.AddrPort, datagram []byte) (Answer, error) {
	q, err := parse(datagram)
	if err != nil {
		return Answer{}, err
	}
	was := s.transfers[from.Addr()]
	if was != nil && was.client == from && was.request == string(datagram) && was.begun && was.tries == 1 {
		return Answer{}, nil // a copy that was late: a client that begins again has stopped to acknowledge
	}
	file, ok := s.files[strings.TrimPrefix(q.name, "/")]
	switch {
	case q.mode != "octet":
		return refuse(from, codeIllegal, fmt.Sprintf("it asks for the mode %.20q, and there is only octet", q.mode)), nil
	case !ok:
		return refuse(from, codeNotFound, fmt.Sprintf("it asks for %.100q, which does not exist", q.name)), nil
	case was == nil && len(s.transfers) >= s.most:
		return refuse(from, codeOther, fmt.Sprintf("%d clients are served already", s.most)), nil
	}
	t := &transfer{
		client: from, request: string(datagram), name: strings.TrimPrefix(q.name, "/"), file: file, size: DefaultBlock, started: now,
	}
	accepted := t.accept(q.options)
	if file.Size/int64(t.size)+1 > maxBlocks {
		return refuse(from, codeOther, fmt.Sprintf("%s is too long for blocks of %d bytes", t.name, t.size)), nil
	}
	s.transfers[from.Addr()] = t
	if accepted == nil {
		return s.next(now, t), nil
	}
	t.packet = accepted
	return t.send(now), nil
}

// accept takes over a client's options, and returns the datagram that says which; nil for none.
func (t *transfer) accept(options map[string]string) []byte {
	var packet []byte
	add := func(name string, value int64) {
		if packet == nil {
			packet = binary.BigEndian.AppendUint16(nil, opOptions)
		}
		packet = fmt.Appendf(packet, "%s\x00%d\x00", name, value)
	}
	// A block smaller than the default is not needed, and an option that is not accepted has no
	// effect.
	if size, err := strconv.ParseUint(options[optionBlock], 10, 16); err == nil && size >= DefaultBlock {
		t.size = int(min(size, MaxBlock))
		add(optionBlock, int64(t.size))
	}
	if _, ok := options[optionSize]; ok {
		add(optionSize, t.file.Size)
	}
	return packet
}

// acknowledged sends the block after one that has arrived. Only the last one counts: an answer to
// each acknowledgement that is repeated would double every block that follows.
func (s *Server) acknowledged(now time.Time, from netip.AddrPort, block uint16) Answer {
	t := s.transfers[from.Addr()]
	if t == nil || t.client != from || t.block != block {
		return Answer{}
	}
	if block > 0 && len(t.packet) < 4+t.size {
		delete(s.transfers, from.Addr())
		return Answer{To: from, Name: t.name, Done: t.file.Size}
	}
	t.begun = true
	return s.next(now, t)
}

// next sends the next block.
func (s *Server) next(now time.Time, t *transfer) Answer {
	offset := int64(t.block) * int64(t.size)
	t.packet = make([]byte, 4+min(int64(t.size), t.file.Size-offset))
	if n, err := t.file.ReadAt(t.packet[4:], offset); n < len(t.packet)-4 {
		delete(s.transfers, t.client.Addr())
		return refuse(t.client, codeOther, fmt.Sprintf("%s: %v", t.name, err))
	}
	t.block++
	binary.BigEndian.PutUint16(t.packet, opData)
	binary.BigEndian.PutUint16(t.packet[2:], t.block)
	t.tries = 0
	return t.send(now)
}

// send sends the last datagram, for the first time or again.
func (t *transfer) send(now time.Time) Answer {
	t.tries++
	t.sent = now
	return Answer{To: t.client, Packet: t.packet, Name: t.name, Done: max(0, int64(t.block)-1) * int64(t.size)}
}

// Tick sends again what was not acknowledged, and gives up transfers that take too long.
func (s *Server) Tick(now time.Time) []Answer {
	var all []Answer
	for address, t := range s.transfers {
		var refusal string
		switch {
		case now.Sub(t.started) >= MaxTime:
			refusal = fmt.Sprintf("it has not fetched %s within %v", t.name, MaxTime)
		case now.Sub(t.sent) < RetryAfter:
			continue
		case t.tries >= MaxTries:
			refusal = fmt.Sprintf("it does not acknowledge block %d of %s", t.block, t.name)
		default:
			all = append(all, t.send(now))
			continue
		}
		delete(s.transfers, address)
		all = append(all, refuse(t.client, codeOther, refusal))
	}
	return all
}

// request is a client's request for a file.
type request struct {
	name, mode string
	options    map[string]string // by their names in lower case
}

// The names of options.
const (
	optionBlock = "blksize"
	optionSize  = "tsize"
)

// parse reads a request after its operation: texts that end with NUL (RFC 1350, section 5; RFC
// 2347). An option that is given again makes it invalid.
func parse(datagram []byte) (request, error) {
	texts := strings.Split(string(datagram[2:]), "\x00")
	if n := len(texts); n < 3 || n%2 == 0 || texts[n-1] != "" || texts[0] == "" {
		return request{}, ErrDatagram
	}
	q := request{name: texts[0], mode: strings.ToLower(texts[1]), options: make(map[string]string)}
	for option := range slices.Chunk(texts[2:len(texts)-1], 2) {
		name := strings.ToLower(option[0])
		if _, again := q.options[name]; again {
			return request{}, ErrDatagram
		}
		q.options[name] = option[1]
	}
	return q, nil
}

// refuse is the answer of an error.
func refuse(to netip.AddrPort, code uint16, why string) Answer {
	packet := binary.BigEndian.AppendUint16(nil, opError)
	packet = binary.BigEndian.AppendUint16(packet, code)
	return Answer{To: to, Packet: append(append(packet, why...), 0), Refusal: why}
}
