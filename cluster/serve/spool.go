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

// SpoolLimit bounds the output of one detached job, in bytes. What comes later is not kept, and margay logs says so.
const SpoolLimit = 256 << 20

// spool is the output of a detached job: its records in a file, as frames of the control protocol. An Error stands where output was
// left out because there was too much.
type spool struct {
	mu    sync.Mutex
	file  *os.File
	size  int64 // bytes of whole records
	limit int64 // of size
	cut   bool  // output was left out
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
	return &spool{file: f, limit: SpoolLimit}, nil
}

// openSpool opens the spool that an earlier serve wrote, without what it did not finish writing. It hands each record in it to take.
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
		s.cut = s.cut || f.GetError() != nil
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

// write adds a record. On an error nothing of it is left.
func (s *spool) write(r *control.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if end := r.Stream == control.Stream_STREAM_EXIT || r.Stream == control.Stream_STREAM_END; end || s.size <= s.limit {
		return s.add(control.NewFrame(r))
	}
	if s.cut {
		return nil
	}
	s.cut = true
	return s.add(control.NewFrame(control.FromError(errors.New(s.missing()))))
}

// missing says why output is missing; nothing when none is.
func (s *spool) missing() string {
	if !s.cut {
		return ""
	}
	return fmt.Sprintf("output beyond %d MiB was not kept", s.limit>>20)
}

func (s *spool) add(f *control.Frame) error {
	if err := control.WriteFrame(s.file, f); err != nil {
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

// replay sends the records of a detached job to conn, from the first to the last, and waits for more while the job runs. At the end it
// returns an error when output is missing, or its file is not what was written.
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
	last := make(map[uint32]bool) // nodes whose last record is there
	for {
		// Looking first, the last records cannot be missed.
		s.mu.Lock()
		running := s.jobs[job] != nil
		s.mu.Unlock()
		begin := offset
		in := &countingReader{r: bufio.NewReader(io.NewSectionReader(f, begin, 1<<62))}
		var end error
		for {
			frame, err := control.ReadFrame(in)
			if err != nil {
				end = err // while the job runs, a record may just be being written
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

// outputOf returns why some output of a job that has ended is missing, nil when it is complete: then the last record of each node is
// there, unless the job was never started.
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
