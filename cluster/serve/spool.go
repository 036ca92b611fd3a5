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

	"golang.org/x/sys/unix"

	"margay/cluster/control"
)

// spool is the output of a detached job: a file with its records, as frames of the control
// protocol. An Error marks output that was discarded because of the limit.
type spool struct {
	mu    sync.Mutex
	file  *os.File
	size  int64  // bytes of whole records
	limit int64  // of size
	cut   string // why output was discarded; empty: none was

	grown  func(bytes int64)
	beyond func() string // why further output of its user is not kept; empty: it is kept
}

func spoolPath(dir string, job uint32) string {
	return filepath.Join(dir, "output", fmt.Sprintf("job-%d", job))
}

func createSpool(dir string, job uint32) (*spool, error) {
	path := spoolPath(dir, job)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("serve: output of job %d: %w", job, err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("serve: output of job %d: %w", job, err)
	}
	return &spool{file: f, limit: control.SpoolLimit, grown: func(int64) {}, beyond: func() string { return "" }}, nil
}

// openSpool opens the spool that an earlier serve wrote, and drops an incomplete record at the end.
// It passes each record to take.
func openSpool(dir string, job uint32, take func(*control.Record)) (*spool, error) {
	s, err := createSpool(dir, job)
	if err != nil {
		return nil, err
	}
	in := &countingReader{r: bufio.NewReader(s.file)}
	for {
		f, err := control.ReadFrame(in)
		if err != nil {
			break
		}
		s.size = in.n
		if e := f.GetError(); e != nil {
			s.cut = e.Text
		}
		if r := f.GetRecord(); r != nil {
			take(r)
		}
	}
	if err := s.file.Truncate(s.size); err != nil {
		return nil, errors.Join(fmt.Errorf("serve: output of job %d: %w", job, err), s.file.Close())
	}
	return s, nil
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

// write appends a record. After an error, no part of it is left.
func (s *spool) write(r *control.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if end := r.Stream == control.Stream_STREAM_EXIT || r.Stream == control.Stream_STREAM_END; end {
		return s.add(control.NewFrame(r))
	}
	if s.cut != "" {
		return nil
	}
	if s.cut = s.full(); s.cut != "" {
		return s.add(control.NewFrame(control.FromError(errors.New(s.cut))))
	}
	return s.add(control.NewFrame(r))
}

// full returns why further output is not kept, empty if it is kept.
func (s *spool) full() string {
	if s.size > s.limit {
		return fmt.Sprintf("output beyond %d MiB was not kept", s.limit>>20)
	}
	return s.beyond()
}

// missing reports why output is missing; empty if none is.
func (s *spool) missing() string { return s.cut }

func (s *spool) add(f *control.Frame) error {
	if err := control.WriteFrame(s.file, f); err != nil {
		// A partial record would hide the records after it.
		return errors.Join(err, s.file.Truncate(s.size))
	}
	size, err := s.file.Seek(0, io.SeekCurrent)
	s.grown(size - s.size)
	s.size = size
	return err
}

func (s *spool) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.file.Close()
}

// removeSpool removes the output of a job, and returns its size in bytes. The room is free then,
// also if the output is being read: otherwise a user who reads it slowly would keep the room.
func removeSpool(dir string, job uint32) (int64, error) {
	path := spoolPath(dir, job)
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		return 0, err
	}
	_ = f.Truncate(0) // on failure, the last reader frees the room
	return info.Size(), nil
}

// replayPause is the interval at which a replay looks for new output of a running job.
const replayPause = 100 * time.Millisecond

// replay sends the records of a detached job to conn, from first to last, and waits for more while
// the job runs. At the end it returns an error if output is missing, or if the file does not
// contain what was written.
func (s *Server) replay(job uint32, conn *control.Conn) error {
	f, err := os.Open(spoolPath(s.config.Dir, job))
	if errors.Is(err, fs.ErrNotExist) {
		return s.noOutput(job)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var offset int64
	last := make(map[uint32]bool) // nodes whose last record has been replayed
	for {
		// Check before reading, so that the last records cannot be missed.
		s.mu.Lock()
		running := s.jobs[job] != nil
		s.mu.Unlock()
		begin := offset
		in := &countingReader{r: bufio.NewReader(io.NewSectionReader(f, begin, 1<<62))}
		var end error
		for {
			frame, err := control.ReadFrame(in)
			if err != nil {
				end = err // while the job runs, a record may be incomplete
				break
			}
			offset = begin + in.n
			if frame.GetRecord() == nil {
				continue
			}
			last[frame.GetRecord().Node] = frame.GetRecord().Last
			if err := conn.SendBulk(s.context, frame.Message()); err != nil {
				return err
			}
		}
		if !running {
			if _, err := os.Lstat(f.Name()); errors.Is(err, fs.ErrNotExist) { // and f is empty
				return s.noOutput(job)
			}
			if err := s.outputOf(job, last); err != nil || end == io.EOF {
				return err
			}
			return control.Failf(control.Code_CODE_FAILED, "the output of job %d is not complete: %s is damaged behind byte %d: %v", job, f.Name(), offset, end)
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

// outputOf returns why some output of an ended job is missing, nil if the output is complete: then
// the last record of each node is present, unless the job was never started.
func (s *Server) outputOf(number uint32, last map[uint32]bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	jobs, err := s.endedJobs(number)
	if err != nil {
		return err
	}
	for _, j := range jobs {
		if j.Missing != "" {
			return control.Failf(control.Code_CODE_FAILED, "the output of job %d is not complete: %s", number, j.Missing)
		}
		for _, r := range j.RankStates {
			if r.Ended && !last[r.Node] {
				return control.Failf(control.Code_CODE_FAILED, "the output of job %d is not complete: %s lacks the last record of node%d",
					number, spoolPath(s.config.Dir, number), r.Node)
			}
		}
	}
	return nil
}
