package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"margay/cluster/control"
	"margay/cluster/permit"
	"margay/cluster/trust"
	"margay/kernel/gate"
)

// Users of other hosts connect by TLS to a port of their own (Config.Remote). The connection begins
// with the number and the secret of a token, in a fixed number of bytes, so that nothing that a
// stranger sends is decoded. From then on the user of the token has the same rights and bounds
// there as over a connection on this host.

// How many connections without a valid token may be open at a time, in all and from one address
// (gate.Config), and for how long. Users that find no room because of others try again.
const (
	knocking     = 64
	knockingEach = 16
	knockTimeout = 5 * time.Second
)

// acceptRemote serves users of other hosts until ctx ends.
func (s *Server) acceptRemote(ctx context.Context) {
	waiting := gate.New(gate.Config{Most: knocking, MostEach: knockingEach, Networks: true, Wait: knockTimeout, Log: s.log})
	port := tls.NewListener(waiting.Listener(probed{s.config.Remote}), s.users)
	s.accept(ctx, port, s.serveRemote, func(c *control.Conn) { dismiss(c, context.Cause(ctx)) })
}

// probed is a listener whose connections end when the other host does not answer any more. The end
// of the stream is the error errCut: one that the other side wants is announced by TLS before.
type probed struct{ net.Listener }

var errCut = errors.New("the connection was cut")

func (p probed) Accept() (net.Conn, error) {
	c, err := p.Listener.Accept()
	if tcp, is := c.(*net.TCPConn); is {
		_ = control.Probe(tcp) // it may have ended already
	}
	if err != nil {
		return nil, err
	}
	return cuttable{c}, nil
}

type cuttable struct{ net.Conn }

func (c cuttable) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == io.EOF {
		err = errCut
	}
	return n, err
}

// serveRemote serves a connection of another host.
func (s *Server) serveRemote(conn *control.Conn) error {
	caller, leave, err := s.enterRemote(conn, time.Now())
	if err != nil {
		if refusal := new(control.Failure); errors.As(err, &refusal) {
			conn.Refuse(refusal)
		}
		return err
	}
	defer leave()
	gate.Admit(conn.NetConn())
	return s.serveAs(conn, caller, launcher{})
}

// errToken is what a caller gets whose token is wrong: also one that guesses.
var errToken = control.Failf(control.Code_CODE_REFUSED, "the token is not valid: it was revoked, or has expired, or its user is not let in any more; ask an administrator for another one (margay machine token create)")

// enterRemote reads the token of a connection, and returns its user. leave must be called when the
// connection has ended. The connection ends when the token expires or is revoked.
func (s *Server) enterRemote(conn *control.Conn, now time.Time) (caller permit.Caller, leave func(), err error) {
	c := conn.NetConn()
	number, secret, err := trust.ReadOpening(c) // the gate bounds the time
	if err != nil {
		return caller, nil, fmt.Errorf("token: %w", err)
	}
	token, caller, err := s.enroll(conn, number, secret, now)
	if bad := new(badToken); errors.As(err, &bad) {
		if bad.caller != permit.Unknown { // a stranger must not fill the audit log
			s.refused(bad.caller, "connect", fmt.Sprintf("%v, from %s", bad, gate.Host(c.RemoteAddr())))
		}
		return caller, nil, fmt.Errorf("%w: %w", bad, errToken)
	}
	if err != nil {
		return caller, nil, err
	}
	expiry := time.AfterFunc(time.Unix(0, token.ExpiresNs).Sub(now), func() {
		conn.Dismiss(control.Failf(control.Code_CODE_REFUSED, "token %d has expired", number))
	})
	return caller, func() {
		expiry.Stop()
		s.expel(conn, caller)
	}, nil
}

// enroll enters the connection of a token in the tables, unless the token is wrong or its user
// has too many connections.
func (s *Server) enroll(conn *control.Conn, number uint32, secret trust.Secret, now time.Time) (*control.Token, permit.Caller, error) {
	stored := s.tokenOf(number)
	caller, err := s.admits(stored, number, secret, now)
	if err == nil {
		err = s.enterRoom(caller)
	}
	if err != nil {
		return nil, caller, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tokens[number] != stored { // it has just been revoked
		s.leaveRoom(caller)
		return nil, caller, &badToken{caller, fmt.Sprintf("revoked token %d", number)}
	}
	s.remotes[conn] = number
	return stored.Token, caller, nil
}

// expel ends what enroll began.
func (s *Server) expel(conn *control.Conn, caller permit.Caller) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.remotes, conn)
	s.leaveRoom(caller)
}

// away keeps a job whose client has lost its connection from another host: the network may have
// broken it, and the client then connects again. The caller holds Server.mu.
func (s *Server) away(j *job) {
	unknown := j.spec.Allocation && !j.confirmed // its client asks for another one, and would wait for its cores
	if j.phase != control.JobPhase_JOB_RUNNING || j.collecting || len(j.spec.Out) > 0 && j.complete() || unknown {
		s.clientGone(j, isGone)
		return
	}
	j.client = nil
	if j.spool != nil {
		return
	}
	s.config.Log("job %d: the connection of its client is lost", j.number)
	s.awaitClient(j, s.config.Timing.Away, "has not come back after its connection was lost")
}

// takeOver ends the connection of a job's client, which has connected again from another host
// before serve has noticed that. The other jobs of the connection have lost it, too. The caller
// holds Server.mu.
func (s *Server) takeOver(j *job, caller permit.Caller) {
	old := j.client
	token, is := s.remotes[old]
	if !is || caller.Token == 0 || token != caller.Token || j.phase == control.JobPhase_JOB_PREPARED {
		return // attach fails one that is being launched: its files may be lost
	}
	j.client = nil
	for _, other := range s.jobs {
		if other.client == old {
			s.away(other) // its client attaches to it next
		}
	}
	go old.Close()
}
