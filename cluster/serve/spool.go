package serve

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"margay/cluster/control"
)

// spoolLimit bounds the output of one detached job, in bytes. What comes later is thrown away, and the job is told nothing.
const spoolLimit = 256 << 20

// spool is the output of a detached job: its records in a file, as frames of the control protocol.
type spool struct {
	mu    sync.Mutex
	file  *os.File
	size  int64 // bytes of whole records
	limit int64 // of size
}

func spoolPath(dir string, job uint32) string {
	return filepath.Join(dir, "output", fmt.Sprintf("job-%d", job))
}

func createSpool(dir string, job uint32) (*spool, error) {
	path := spoolPath(dir, job)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("serve: output of job %d: %w", job, err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("serve: output of job %d: %w", job, err)
	}
	return &spool{file: f, limit: spoolLimit}, nil
}

// openSpool opens the spool that an earlier serve wrote, without what it did not finish writing. It also returns the newest
// record of each node in it.
func openSpool(dir string, job uint32) (*spool, map[uint32]uint64, error) {
	s, err := createSpool(dir, job)
	if err != nil {
		return nil, nil, err
	}
	seen := make(map[uint32]uint64)
	in := &countingReader{r: bufio.NewReader(s.file)}
	for {
		f, err := control.ReadFrame(in)
		if err != nil {
			break
		}
		s.size = in.n
		if r := f.GetRecord(); r != nil {
			seen[r.Node] = max(seen[r.Node], r.Seq)
		}
	}
	if err := s.file.Truncate(s.size); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("serve: output of job %d: %w", job, err), s.file.Close())
	}
	return s, seen, nil
}

type countingReader struct {
	r io.Reader
	n int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

func (s *spool) write(r *control.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.size > s.limit && r.Stream != control.Stream_STREAM_EXIT {
		return nil
	}
	if err := control.WriteFrame(s.file, control.NewFrame(r)); err != nil {
		// A part of it would hide what comes after it.
		return errors.Join(err, s.file.Truncate(s.size))
	}
	size, err := s.file.Seek(0, io.SeekCurrent)
	s.size = size
	return err
}

func (s *spool) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.file.Close()
}

// replayPause is how often a replay looks for more output of a job that runs.
const replayPause = 100 * time.Millisecond

// replay sends the records of a detached job to conn, from the first to the last, and waits for more while the job runs.
func (s *Server) replay(job uint32, conn *control.Conn) error {
	f, err := os.Open(spoolPath(s.config.Dir, job))
	if errors.Is(err, fs.ErrNotExist) {
		if _, serr := s.store.jobState(job); serr != nil {
			return serr
		}
		return control.Failf(control.Code_CODE_NOT_FOUND, "job %d was not detached: its output went to its margay run", job)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var offset int64
	for {
		// Looking first, the last records cannot be missed.
		s.mu.Lock()
		running := s.jobs[job] != nil
		s.mu.Unlock()
		begin := offset
		in := &countingReader{r: bufio.NewReader(io.NewSectionReader(f, begin, 1<<62))}
		for {
			frame, err := control.ReadFrame(in)
			if err != nil {
				break
			}
			offset = begin + in.n
			if err := conn.SendBulk(s.context, frame.Message()); err != nil {
				return err
			}
		}
		if !running {
			return nil
		}
		select {
		case <-time.After(replayPause):
		case <-conn.Done():
			return conn.Err()
		case <-s.context.Done():
			return s.context.Err()
		}
	}
}
