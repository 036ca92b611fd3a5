// Package call answers the requests that a rank sends to its node kernel (package wire).
//
// Each request is a row of a table: its name, the files that come with it, a check of its
// arguments, its handler, and which refusals the machine's operator gets to see. A request is
// answered before the next one is read. The rank may send anything.
//
// While a request is being answered, its number is in memory that outlives the node kernel
// (Config.Asking): the next node kernel answers it with StatusAgain.
package call

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"margay/internal/rights"
	"margay/kernel/abi/id"
	"margay/kernel/abi/wire"
	"margay/kernel/extension"
	"margay/kernel/untrusted"
)

// Config is what a Server needs. All fields are required.
type Config struct {
	Rank   id.Rank
	Socket *net.UnixConn // this end of the rank's socket
	Set    *extension.Set
	Asking *uint64 // persistent: 1 + the number of the request that is being answered; 0: none is
	// Join makes the rank take part in the messages of its job, and returns the files that it gets.
	// They are the caller's.
	Join func() ([]*os.File, error)
	// Channel returns one of the rank's channels by its index, the rank at its other end and that
	// rank's doorbell. The files are the caller's.
	Channel func(index uint64) (Channel, error)
	// Doorbell returns the doorbell of a rank of the node, by its local number. The file is the
	// caller's.
	Doorbell func(local uint64) (*os.File, error)
}

// Channel is a channel between two ranks, as one of them sees it, or a pair of mirrored channels.
type Channel struct {
	Peer     id.Rank      // the rank at the other end
	Local    int          // its local number
	Sends    bool         // the rank that asks sends through it
	Mirror   *wire.Mirror // instead of these, if it is mirrored
	File     *os.File
	Doorbell *os.File // of the peer; the rank's socket if it is mirrored
}

// Server answers the requests of one rank.
type Server struct{ config Config }

// New returns a server. Only Serve uses the socket then.
func New(c Config) *Server { return &Server{c} }

// Serve answers requests until the socket is closed.
func (s *Server) Serve() {
	buf := make([]byte, wire.MaxRequest+1)
	control := make([]byte, untrusted.ControlSpace())
	if asking := s.config.Asking; *asking != 0 {
		_ = s.reply(wire.Reply{Call: uint32(*asking - 1), Status: wire.StatusAgain, Text: "the node kernel was started again before it answered"}, nil)
		*asking = 0
	}
	for s.serveOne(buf, control) == nil {
	}
}

// serveOne answers one request.
func (s *Server) serveOne(buf, control []byte) error {
	number, err := s.next()
	if err != nil {
		return err
	}
	*s.config.Asking = 1 + uint64(number) // before the request is taken
	n, oobn, _, _, err := s.config.Socket.ReadMsgUnix(buf, control)
	if err != nil || n == 0 {
		return errors.Join(err, os.ErrClosed)
	}
	files := untrusted.Files(control[:oobn])
	q, err := wire.DecodeRequest(buf[:n])
	reply := wire.Reply{Status: wire.StatusInvalid}
	var give []*os.File
	if err == nil {
		reply, give, err = s.do(q, files)
		reply.Call = q.Call
	}
	if err != nil {
		reply.Text = err.Error()
		s.note(q, reply.Status, err)
	}
	untrusted.Close(files)
	err = s.reply(reply, give)
	rights.Close(give)
	if err == nil {
		*s.config.Asking = 0
	}
	return err
}

// next waits for the next request and returns its number, without taking it.
func (s *Server) next() (number uint32, err error) {
	raw, err := s.config.Socket.SyscallConn()
	if err != nil {
		return 0, err
	}
	var head [8]byte
	var n int
	rerr := raw.Read(func(fd uintptr) bool {
		n, _, err = unix.Recvfrom(int(fd), head[:], unix.MSG_PEEK)
		return err != unix.EAGAIN
	})
	switch {
	case rerr != nil:
		return 0, rerr
	case err != nil:
		return 0, err
	case n == 0:
		return 0, os.ErrClosed
	}
	return wire.CallOf(head[:]), nil
}

func (s *Server) reply(reply wire.Reply, give []*os.File) error {
	_, _, err := s.config.Socket.WriteMsgUnix(reply.Encode(), rights.Encode(give...), nil)
	return err
}

// do carries out a request. The files that it returns are sent to the rank and then closed.
func (s *Server) do(q wire.Request, files []*os.File) (reply wire.Reply, give []*os.File, err error) {
	row := rowOf(q.Op)
	if row == nil {
		return wire.Reply{Status: wire.StatusInvalid}, nil, fmt.Errorf("request %d is unknown", q.Op)
	}
	if row.files > 0 && len(files) != row.files {
		return wire.Reply{Status: wire.StatusInvalid}, nil, fmt.Errorf("%s: %d files came with the request, %d expected", row.name, len(files), row.files)
	}
	if row.check != nil {
		if reply, err := row.check(q); err != nil {
			return reply, nil, err
		}
	}
	reply, give, err = row.do(s, q, files)
	if err != nil && reply.Status == wire.StatusOK {
		reply.Status = statusOf(err)
	}
	return reply, give, err
}

// statusOf returns the status that reports an error.
func statusOf(err error) wire.Status {
	switch {
	case err == nil:
		return wire.StatusOK
	case errors.Is(err, extension.ErrNotFound):
		return wire.StatusNotFound
	case errors.Is(err, extension.ErrRefused):
		return wire.StatusRefused
	case errors.Is(err, extension.ErrNoRoom):
		return wire.StatusNoRoom
	}
	return wire.StatusFailed
}

// note logs a request that the rank must not make, or that makes no sense, if its row says so.
func (s *Server) note(q wire.Request, status wire.Status, err error) {
	rule := always
	if row := rowOf(q.Op); row != nil {
		rule = row.notes
	}
	switch {
	case rule == malformed && status != wire.StatusInvalid:
		return
	case rule == present && status == wire.StatusNotFound:
		return
	case rule == foreign && status == wire.StatusNotFound:
		if err = s.config.Set.Stray(id.Handle(q.Handle)); err == nil {
			return
		}
	}
	s.config.Set.Refuse(s.config.Rank, err)
}
