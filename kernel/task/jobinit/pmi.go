package jobinit

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/id"
	"margay/kernel/link"
	"margay/kernel/pmi"
	"margay/kernel/task"
)

// abortWait is the time that a rank which has asked for the end of the job has to end itself.
const abortWait = 3 * time.Second

// failureWait is the time after which barriers fail because a rank has failed. Until then the job
// ends with the status of that rank, unless the others are to go on without it.
const failureWait = 2 * time.Second

// pmiQueue is how many messages for other nodes wait for the node kernel. Further ones are lost,
// and sent again later.
const pmiQueue = 64

// pmiServer serves the process management interface to the ranks of this node. Each rank has a
// goroutine that reads a line, waits for its answer, and writes that, so a rank that floods its
// connection or does not read from it delays no other.
type pmiServer struct {
	in    *initProcess
	began time.Time
	out   chan link.Message // for the node kernel

	mu      sync.Mutex
	job     *pmi.Job
	answers map[id.Rank]chan string // by rank: the answer to its line
	timer   *time.Timer
}

func newPMIServer(in *initProcess, c pmi.Config) *pmiServer {
	s := &pmiServer{
		in: in, began: time.Now(), out: make(chan link.Message, pmiQueue), job: pmi.New(c), answers: make(map[id.Rank]chan string),
	}
	for _, r := range c.Ranks {
		s.answers[r] = make(chan string, 1)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(time.Hour, s.tick)
	go s.send()
	return s
}

// pmiPair makes the connection of a rank to its server.
func pmiPair() (near, far *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to the process management interface: %w", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, nil, errors.Join(err, unix.Close(fds[0]), unix.Close(fds[1]))
	}
	return os.NewFile(uintptr(fds[0]), "pmi"), os.NewFile(uintptr(fds[1]), "pmi"), nil
}

// serve serves a rank until its connection is closed.
func (s *pmiServer) serve(r *rank) {
	s.mu.Lock()
	answers := s.answers[r.Rank.Rank]
	s.mu.Unlock()
	lines := bufio.NewReaderSize(r.pmi, pmi.MaxLine)
	for {
		line, err := lines.ReadSlice('\n')
		long := false
		for errors.Is(err, bufio.ErrBufferFull) {
			long = true
			line, err = lines.ReadSlice('\n')
		}
		if err != nil {
			return // half a line is none
		}
		if !s.handle(r, line[:len(line)-1], long) {
			continue
		}
		answer, ok := <-answers
		if !ok {
			return
		}
		if _, err := r.pmi.WriteString(answer + "\n"); err != nil {
			return
		}
	}
}

// handle handles a line of a rank, and reports whether there will be an answer.
func (s *pmiServer) handle(r *rank, line []byte, long bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.job.Outcome(r.Rank.Rank)
	if long {
		return s.do(s.job.TooLong(r.Rank.Rank), r.Rank.Rank)
	}
	answered := s.do(s.job.Line(s.now(), r.Rank.Rank, line), r.Rank.Rank)
	if now := s.job.Outcome(r.Rank.Rank); now.Aborted && !before.Aborted {
		time.AfterFunc(abortWait, func() { s.in.kill(r) })
	}
	return answered || s.job.Owes(r.Rank.Rank)
}

// receive handles a message from another node. One that is wrong is dropped: its sender may have
// sent any bytes, and nothing waits for an answer.
func (s *pmiServer) receive(m link.Message) error {
	var b task.ExchangeBody
	if err := m.Decode(&b); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if a, err := s.job.Receive(s.now(), b.Place, m.Payload); err == nil {
		s.do(a, 0)
	}
	return nil
}

// ended reports the end of a rank. One that has not finalized and ends as if all were well leaves
// others waiting, so it has failed.
func (s *pmiServer) ended(r *rank, status *task.Status) {
	r.pmi.Close()
	s.in.mu.Lock()
	stuck := r.stuck
	s.in.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch o := s.job.Outcome(r.Rank.Rank); {
	case o.Aborted && (status.OK() || stuck):
		status.Code, status.Signal, status.Reason = max(1, o.Status), 0, "it has aborted the job (MPI_Abort)"
	case !status.OK():
	case o.Used && !o.Finalized:
		status.Code, status.Reason = 1, "it has ended without MPI_Finalize"
	}
	close(s.answers[r.Rank.Rank])
	delete(s.answers, r.Rank.Rank)
	if status.OK() {
		s.do(s.job.Ended(s.now(), r.Rank.Rank), 0)
		return
	}
	time.AfterFunc(failureWait, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.do(s.job.Ended(s.now(), r.Rank.Rank), 0)
	})
}

// do carries out actions, and reports whether a rank is answered. The caller holds mu. A rank that
// is not answered yet has an empty channel.
func (s *pmiServer) do(a pmi.Actions, rank id.Rank) (answered bool) {
	for _, reply := range a.Replies {
		if c := s.answers[reply.Rank]; c != nil {
			c <- reply.Line
			answered = answered || reply.Rank == rank
		}
	}
	for _, message := range a.Messages {
		m := link.New(task.Exchange, task.ExchangeBody{Place: message.To})
		m.Payload = message.Data
		select {
		case s.out <- m:
		default:
		}
	}
	if at, ok := s.job.Next(); ok {
		s.timer.Reset(max(0, at-s.now()))
	}
	return answered
}

func (s *pmiServer) now() time.Duration { return time.Since(s.began) }

func (s *pmiServer) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.do(s.job.Tick(s.now()), 0)
}

// send passes messages for other nodes to the node kernel, which may not read for a while.
func (s *pmiServer) send() {
	for m := range s.out {
		if err := s.in.conn.Send(m); err != nil {
			return // the link is gone, and obey sees it too
		}
	}
}

// kill ends a rank that has aborted and still runs.
func (in *initProcess) kill(r *rank) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.pids[r.pid] == r {
		r.stuck = true
		_ = unix.Kill(-r.pid, unix.SIGKILL)
	}
}
