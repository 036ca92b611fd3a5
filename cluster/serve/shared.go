package serve

import (
	"net"

	"margay/cluster/control"
	"margay/internal/splice"
)

// filesKey names the stream of the files that a job's client shares with the ranks on a node.
type filesKey struct{ job, node uint32 }

// filesSide is one side of such a stream while the other one is missing.
type filesSide struct {
	conn net.Conn
	end  chan struct{} // closed when the stream is over
}

// The sides.
const (
	sideNode = iota
	sideClient
)

// serveFiles connects a side of a stream of shared files with the other side, which may come later,
// and passes bytes on until one of them ends. It reads from one side only what the other side
// takes. A side that comes again takes the place of the one that waits.
func (s *Server) serveFiles(conn *control.Conn, hello *control.Hello, side int) error {
	key := filesKey{hello.Job, hello.Node}
	s.mu.Lock()
	j := s.jobs[hello.Job]
	known := j != nil && !j.finishing && len(j.spec.Shared) > 0 && j.on(hello.Node)
	s.mu.Unlock()
	if !known {
		err := control.Failf(control.Code_CODE_NOT_FOUND, "job %d shares no files with node%d", hello.Job, hello.Node)
		conn.Refuse(err)
		return nil // it has just ended
	}
	if err := conn.Send(&control.Welcome{Version: control.Version, Machine: s.config.Machine}); err != nil {
		return err
	}
	own := &filesSide{conn: conn.Stream(), end: make(chan struct{})}
	other := s.meetFiles(key, side, own)
	if other == nil {
		select {
		case <-own.end:
		case <-conn.Done(): // serve ends
		}
		return nil
	}
	defer close(other.end)
	splice.Join(own.conn, other.conn)
	return nil
}

// meetFiles returns the other side of a stream if that waits, or else lets this one wait.
func (s *Server) meetFiles(key filesKey, side int, own *filesSide) *filesSide {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.jobs[key.job] == nil { // it has just ended
		close(own.end)
		return nil
	}
	waiting := s.files[key]
	if other := waiting[1-side]; other != nil {
		waiting[1-side] = nil
		s.files[key] = waiting
		return other
	}
	if old := waiting[side]; old != nil {
		close(old.end)
	}
	waiting[side] = own
	s.files[key] = waiting
	return nil
}

// forgetFiles ends the sides of streams that wait when their job has ended. The caller holds
// Server.mu.
func (s *Server) forgetFiles(j *job) {
	for _, m := range j.members {
		key := filesKey{j.number, m.Node}
		for _, side := range s.files[key] {
			if side != nil {
				close(side.end)
			}
		}
		delete(s.files, key)
	}
}
