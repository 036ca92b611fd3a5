package serve

import (
	"context"
	"net"
	"time"

	"margay/cluster/control"
	"margay/cluster/permit"
	"margay/internal/splice"
)

// debugTimeout bounds how long a node may take to open its side of a debugger's stream. It is
// shorter than a client waits for Welcome.
const debugTimeout = 8 * time.Second

// debugger is the stream of a client that debugs a rank.
type debugger struct {
	number uint64
	node   uint32
	side   chan net.Conn // gets the node's side
	over   chan struct{} // closed when the stream is over
}

// serveDebugger connects a client with the init of a rank, and passes bytes on until one of them
// ends. The init stops the rank, so only those that may signal it may debug it.
func (s *Server) serveDebugger(conn *control.Conn, hello *control.Hello, caller permit.Caller) error {
	if err := s.check(caller, &control.DebugRank{Job: hello.Job, Rank: hello.Rank}); err != nil {
		conn.Refuse(err)
		return err
	}
	d, err := s.newDebugger(hello.Job, hello.Rank)
	if err != nil {
		conn.Refuse(err)
		return nil // the rank has just ended
	}
	defer s.endDebugger(d)
	side, err := s.reachDebugged(d, hello)
	if err != nil {
		conn.Refuse(err)
		return err
	}
	if err := conn.Send(&control.Welcome{Version: control.Version, Machine: s.config.Machine}); err != nil {
		return err
	}
	splice.Join(conn.Stream(), side)
	return nil
}

// newDebugger notes a stream for a rank that runs.
func (s *Server) newDebugger(job, rank uint32) (*debugger, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.jobs[job]
	switch {
	case j == nil || j.spec.Allocation || j.phase != control.JobPhase_JOB_RUNNING:
		return nil, control.Failf(control.Code_CODE_NOT_FOUND, "job %d is not running (margay ps)", job)
	case uint64(rank) >= uint64(len(j.ranks)):
		return nil, control.Failf(control.Code_CODE_NOT_FOUND, "job %d has no rank %d: its ranks are 0 to %d", job, rank, len(j.ranks)-1)
	case j.ranks[rank].exit != nil:
		return nil, control.Failf(control.Code_CODE_NOT_FOUND, "rank %d of job %d has ended", rank, job)
	}
	s.lastDebugger++
	d := &debugger{number: s.lastDebugger, node: j.ranks[rank].place.Node, side: make(chan net.Conn, 1), over: make(chan struct{})}
	s.debuggers[d.number] = d
	return d, nil
}

// endDebugger forgets a stream, and closes the side of a node that has come too late.
func (s *Server) endDebugger(d *debugger) {
	s.mu.Lock()
	delete(s.debuggers, d.number)
	s.mu.Unlock()
	close(d.over)
}

// reachDebugged has the node open its side of a stream.
func (s *Server) reachDebugged(d *debugger, hello *control.Hello) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(s.context, debugTimeout)
	defer cancel()
	if _, err := s.call(ctx, d.node, &control.DebugRank{Job: hello.Job, Rank: hello.Rank, Stream: d.number}); err != nil {
		return nil, err
	}
	select {
	case side := <-d.side:
		return side, nil
	case <-ctx.Done():
		return nil, control.Failf(control.Code_CODE_TIMEOUT, "it has not opened the stream of a debugger").At(d.node)
	}
}

// serveDebugged hands the side of a node to the client that waits for it.
func (s *Server) serveDebugged(conn *control.Conn, hello *control.Hello) error {
	s.mu.Lock()
	d := s.debuggers[hello.Stream]
	if d != nil && d.node == hello.Node {
		delete(s.debuggers, hello.Stream)
	} else {
		d = nil
	}
	s.mu.Unlock()
	if d == nil {
		conn.Refuse(control.Failf(control.Code_CODE_NOT_FOUND, "no debugger waits for stream %d of node%d", hello.Stream, hello.Node))
		return nil // its client has just ended
	}
	if err := conn.Send(&control.Welcome{Version: control.Version, Machine: s.config.Machine}); err != nil {
		return err
	}
	d.side <- conn.Stream()
	select {
	case <-d.over:
	case <-conn.Done(): // serve ends
	}
	return nil
}
