package serve

import (
	"net"

	"margay/cluster/control"
	"margay/internal/splice"
)

// filesKey names the stream of the files that a job's client shares with the ranks on a node.
type filesKey struct{ job, node uint32 }

// filesStream are the sides of such a stream that wait for the other one, and those that are
// joined.
type filesStream struct{ waiting, joined [2]*filesSide }

// filesSide is one side of a stream.
type filesSide struct {
	conn net.Conn
	end  chan struct{} // of one that has waited: closed when the stream is over
}

// The sides.
const (
	sideNode = iota
	sideClient
)

// serveFiles connects a side of a stream of shared files with the other side, which may come later,
// and passes bytes on until one of them ends. It reads from one side only what the other side
// takes. A side that comes again takes the place of the one before, and ends the stream that this
// has: its connection is lost, which serve may not see for minutes.
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
	s.mu.Lock()
	defer s.mu.Unlock()
	if stream := s.files[key]; stream != nil && stream.joined[side] == own {
		stream.joined = [2]*filesSide{}
	}
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
	stream := s.files[key]
	if stream == nil {
		stream = new(filesStream)
		s.files[key] = stream
	}
	stream.part()
	if other := stream.waiting[1-side]; other != nil {
		stream.waiting[1-side] = nil
		stream.joined[side], stream.joined[1-side] = own, other
		return other
	}
	if old := stream.waiting[side]; old != nil {
		close(old.end)
	}
	stream.waiting[side] = own
	return nil
}

// part ends the stream of the joined sides. The caller holds Server.mu.
func (f *filesStream) part() {
	for _, side := range f.joined {
		if side != nil {
			go side.conn.Close() // it waits for its writer
		}
	}
	f.joined = [2]*filesSide{}
}

// forgetFiles ends the streams of a job that has ended. The caller holds Server.mu.
func (s *Server) forgetFiles(j *job) {
	for key, stream := range s.files {
		if key.job != j.number {
			continue
		}
		stream.part()
		for _, side := range stream.waiting {
			if side != nil {
				close(side.end)
			}
		}
		delete(s.files, key)
	}
}
