package launch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/client"
	"margay/cluster/control"
)

// ErrClosed reports a Link that was closed.
var ErrClosed = errors.New("the connection was closed")

// Link is a connection to serve that any number of jobs share (Options.Link). When serve is
// restarted, the jobs share a new connection. Of requests for jobs only a limited number is with
// serve at a time, so that its queue stays short and jobs of others have their turn; the others
// wait here, in order. A job whose launch is spoilt, or that lost its request with a connection,
// waits again behind them.
//
// A Link is safe for concurrent use.
type Link struct {
	socket string

	mu      sync.Mutex
	trunk   *trunk   // the newest connection; nil: there was none
	dialing *dialing // a connection that is being made; nil: there is none
	closed  bool
}

// dialing is a connection that is being made, for all that wait for it.
type dialing struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when the others are valid
	trunk  *trunk
	err    error
}

// NewLink returns a link to the serve that listens on a socket. It connects when that is needed.
func NewLink(socket string) *Link { return &Link{socket: socket} }

// Call makes a request. If there is no connection, it connects within the time of ctx. The error is
// ErrLost if the connection ends before the answer: the request may have been carried out.
func (l *Link) Call(ctx context.Context, request proto.Message) (proto.Message, error) {
	s, err := l.open(ctx)
	if err != nil {
		return nil, err
	}
	answer, err := s.trunk.conn.Call(ctx, request)
	if lost(s, err) {
		return nil, fmt.Errorf("%w: %w", ErrLost, err)
	}
	return answer, err
}

// Close ends the connection. serve ends all jobs that share it, but for detached ones that run.
func (l *Link) Close() {
	l.mu.Lock()
	l.closed = true
	t, d := l.trunk, l.dialing
	l.mu.Unlock()
	if d != nil {
		d.cancel()
		<-d.done
		t = d.trunk
	}
	if t != nil {
		t.conn.Close()
	}
}

// open returns a strand of the newest connection. If that has ended, it waits for another one.
func (l *Link) open(ctx context.Context) (*strand, error) {
	t, d, err := l.current()
	if err != nil {
		return nil, err
	}
	if t == nil {
		select {
		case <-d.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if t = d.trunk; d.err != nil {
			return nil, d.err
		}
	}
	return &strand{trunk: t, wake: make(chan struct{}, 1), closed: make(chan struct{}), done: make(chan struct{})}, nil
}

// current returns the newest connection or, if that has ended, the one that is being made. No
// caller's context ends the making: others wait for it.
func (l *Link) current() (*trunk, *dialing, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return nil, nil, ErrClosed
	case l.dialing == nil && l.trunk != nil && l.trunk.conn.Err() == nil:
		return l.trunk, nil, nil
	case l.dialing == nil:
		ctx, cancel := context.WithTimeout(context.Background(), reconnectTimeout)
		l.dialing = &dialing{cancel: cancel, done: make(chan struct{})}
		go l.dial(ctx, l.dialing)
	}
	return nil, l.dialing, nil
}

// dial makes a connection.
func (l *Link) dial(ctx context.Context, d *dialing) {
	defer d.cancel()
	conn, err := client.Dial(ctx, l.socket)
	if d.err = err; err == nil {
		d.trunk = &trunk{conn: conn, over: make(chan struct{}), strands: make(map[uint32]*strand)}
		go d.trunk.serve()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dialing = nil
	if d.trunk != nil {
		l.trunk = d.trunk
	}
	if l.closed {
		d.err = ErrClosed
	}
	close(d.done)
}

// trunk is one connection of a Link.
type trunk struct {
	conn *control.Conn
	over chan struct{} // closed when the connection has ended and no frame is taken any more

	mu      sync.Mutex
	strands map[uint32]*strand // by job
	asking  int                // requests for jobs that serve has not answered
	waiting []chan struct{}    // requests that wait for their turn, the oldest first; each is closed when its turn comes
}

// serve passes frames to the jobs until the connection ends.
func (t *trunk) serve() {
	_ = t.conn.Serve(t.handle)
	t.conn.Close()
	close(t.over)
}

// handle passes a frame to its job.
func (t *trunk) handle(f *control.Frame) {
	m, ok := f.Message().(interface{ GetJob() uint32 })
	if !ok {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.strands[m.GetJob()]
	if s == nil {
		return // its client has left
	}
	if state, ok := m.(*control.JobState); ok && state.Phase == control.JobPhase_JOB_DONE {
		s.ended = true
	}
	s.queue = append(s.queue, f)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// turn waits until a job may be asked for.
func (t *trunk) turn(ctx context.Context) error {
	t.mu.Lock()
	turn := make(chan struct{})
	t.waiting = append(t.waiting, turn)
	t.grant()
	t.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-t.over:
		return t.conn.Err()
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.waiting, turn); i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
	} else { // its turn has come at the same time
		t.asking--
		t.grant()
	}
	return context.Cause(ctx)
}

// grant lets requests go whose turn has come. The caller holds trunk.mu.
func (t *trunk) grant() {
	for len(t.waiting) > 0 && t.asking < mostAsked+len(t.strands)/4 {
		t.asking++
		close(t.waiting[0])
		t.waiting = t.waiting[1:]
	}
}

// strand is the part of a connection that belongs to the client of one job.
type strand struct {
	trunk  *trunk
	wake   chan struct{} // has a value when there is something in queue
	closed chan struct{}
	done   chan struct{} // closed when Serve returns

	// Guarded by trunk.mu.
	job   uint32           // 0: not known yet
	ended bool             // serve has sent the last state of the job
	queue []*control.Frame // bounded by what serve and nodes send ahead of acknowledgements
}

// Serve passes frames of the job to handle, one at a time, in order, until the connection ends or
// the strand is closed. It must be called, once.
func (s *strand) Serve(handle func(*control.Frame)) error {
	defer close(s.done)
	for {
		select {
		case <-s.wake:
			s.pass(handle)
		case <-s.closed:
			return control.ErrClosed
		case <-s.trunk.over:
			s.pass(handle)
			return s.trunk.conn.Err()
		}
	}
}

// pass passes the frames that are in the queue.
func (s *strand) pass(handle func(*control.Frame)) {
	s.trunk.mu.Lock()
	frames := s.queue
	s.queue = nil
	s.trunk.mu.Unlock()
	for _, f := range frames {
		select {
		case <-s.closed:
			return
		default:
			handle(f)
		}
	}
}

// Call makes a request. One for a job first waits for its turn, and the strand belongs to that job
// then.
func (s *strand) Call(ctx context.Context, request proto.Message) (proto.Message, error) {
	switch m := request.(type) {
	case *control.RunRequest:
		return s.run(ctx, m)
	case *control.Attach:
		s.trunk.mu.Lock()
		s.enter(m.Job)
		s.trunk.mu.Unlock()
	}
	return s.trunk.conn.Call(ctx, request)
}

// run asks for a job.
func (s *strand) run(ctx context.Context, request *control.RunRequest) (proto.Message, error) {
	t := s.trunk
	if err := t.turn(ctx); err != nil {
		return nil, err
	}
	type result struct {
		answer proto.Message
		err    error
	}
	answered := make(chan result, 1)
	call, err := t.conn.AskThen(request, func(m proto.Message, err error) {
		s.answered(m)
		answered <- result{m, err}
	})
	if err != nil {
		s.answered(nil)
		return nil, err
	}
	select {
	case r := <-answered:
		return r.answer, r.err
	case <-t.over:
		select {
		case r := <-answered: // just before the end
			return r.answer, r.err
		default:
			return nil, t.conn.Err()
		}
	case <-ctx.Done():
		_ = t.conn.Send(&control.Withdraw{Call: call})
		return nil, context.Cause(ctx)
	}
}

// answered takes the answer to the request for a job, before the frames of the job; nil for a
// request that could not be sent.
func (s *strand) answered(m proto.Message) {
	t := s.trunk
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asking--
	if reply, ok := m.(*control.RunReply); ok {
		s.enter(reply.Job)
	}
	t.grant()
}

// enter gives the strand its job. If the strand is closed already, the job has no client. The
// caller holds trunk.mu.
func (s *strand) enter(job uint32) {
	if s.isClosed() {
		_ = s.trunk.conn.Send(&control.Leave{Job: job})
		return
	}
	s.job = job
	s.trunk.strands[job] = s
}

func (s *strand) isClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

func (s *strand) Send(m proto.Message) error { return s.trunk.conn.Send(m) }

// AskThen makes a request that is not for a job and attaches to none.
func (s *strand) AskThen(request proto.Message, then func(proto.Message, error)) (call uint64, err error) {
	return s.trunk.conn.AskThen(request, then)
}

// Done is closed when no frame is handled any more.
func (s *strand) Done() <-chan struct{} { return s.done }

// Err returns why the connection has ended, nil while it has not.
func (s *strand) Err() error { return s.trunk.conn.Err() }

func (s *strand) HungUp() bool { return s.isClosed() || s.trunk.conn.HungUp() }

// Flush has nothing to wait for: the trunk stays when a strand is closed.
func (s *strand) Flush(time.Duration) {}

// Close leaves the job, as the end of a connection of its own would.
func (s *strand) Close() {
	t := s.trunk
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.isClosed() {
		return
	}
	close(s.closed)
	if s.job == 0 {
		return
	}
	delete(t.strands, s.job)
	if !s.ended {
		_ = t.conn.Send(&control.Leave{Job: s.job})
	}
}
