package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"margay/cluster/control"
	"margay/cluster/launch/bring"
)

// Bounds of the reading of files from a node.
const (
	pieceTimeout = 40 * time.Second       // for one request
	piecePause   = 100 * time.Millisecond // before it is repeated
	pieceLooks   = 300                    // repetitions without a byte, after which a node is given up
)

// homecoming is the way back of the files that the ranks have written.
type homecoming struct {
	bringer *bring.Bringer // nil: none are wanted
	begin   chan struct{}  // closed when serve says that they can be read
	begun   sync.Once
	done    chan struct{} // closed when err is valid
	err     error
}

func newHomecoming(o Options) *homecoming {
	h := &homecoming{begin: make(chan struct{}), done: make(chan struct{})}
	if len(o.Out) > 0 {
		h.bringer = &bring.Bringer{Targets: o.Out, Overwrite: o.Overwrite}
	}
	return h
}

// collect begins to bring the files back, when serve says for the first time that they can be read.
// A later serve says so again, and gets the end that its predecessor may have missed.
func (s *session) collect() {
	h := s.homecoming
	h.begun.Do(func() { close(h.begin) })
	select {
	case <-h.done:
		s.send(&control.FilesRead{Job: s.job})
	default:
	}
}

// bringBack brings the files back, one node after the other, and says so to serve. It returns when
// it is done, or when ctx ends.
func (s *session) bringBack(ctx context.Context, places []*control.Place) {
	h := s.homecoming
	select {
	case <-h.begin:
	case <-ctx.Done():
		close(h.done)
		return
	}
	h.err = s.bringAll(ctx, places)
	close(h.done) // first: from now on collect repeats a message that is lost
	s.send(&control.FilesRead{Job: s.job})
}

// bringAll brings the files of all nodes back.
func (s *session) bringAll(ctx context.Context, places []*control.Place) error {
	h := s.homecoming
	progress := s.Status.Progress("bringing files back", 0)
	defer progress.Done()
	h.bringer.Progress = progress.Set
	var nodes []uint32
	for _, p := range places {
		nodes = append(nodes, p.Node)
	}
	slices.Sort(nodes)
	var failed []error
	for _, node := range slices.Compact(nodes) {
		r := &filesReader{session: s, context: ctx, node: node}
		err := h.bringer.Node(s.job, node, r)
		if r.err != nil {
			err = r.err // its consequence says less
		}
		if err == nil {
			continue
		}
		failed = append(failed, fmt.Errorf("not all files of node%d were brought back: %w", node, err))
		if r.err == nil && !errors.Is(err, bring.ErrDamaged) || ctx.Err() != nil {
			break // nothing can be written here
		}
	}
	return errors.Join(failed...)
}

// errOver reports that nothing more of a job can be read.
var errOver = errors.New("the job has ended")

// broughtBack adds the fate of the files to the result of a job, which has ended or is given up.
// stop ends the bringing.
func (s *session) broughtBack(stop context.CancelCauseFunc, code int, err error) (int, error) {
	h := s.homecoming
	if h.bringer == nil {
		return code, err
	}
	stop(errOver) // nothing is left to stop if FilesRead has ended the job
	<-h.done
	select {
	case <-h.begin:
	default:
		if code == 0 {
			return ExitMargay, errors.New("no files were brought back: the job ended without a chance to")
		}
		return code, err
	}
	b := h.bringer
	if b.Collided.Count > 0 {
		s.Status.Warnf("names of files were taken: %v", &b.Collided)
	}
	if b.Left.Count > 0 {
		s.Status.Lossf("not brought back: %v", &b.Left)
	}
	problem := h.err
	if b.Failed.Count > 0 {
		problem = errors.Join(problem, fmt.Errorf("files were not brought back: %v", &b.Failed))
	}
	if missing := b.Missing(); problem == nil && len(missing) > 0 {
		text := "no rank has written anything at " + strings.Join(missing, ", ") + ", which --out names"
		if code == 0 {
			problem = errors.New(text)
		} else {
			s.Status.Warnf("%s", text)
		}
	}
	if problem == nil {
		return code, err
	}
	if code == 0 {
		code = ExitMargay
	}
	if err != nil { // which is printed after it
		s.Status.Lossf("%v", problem)
		return code, err
	}
	return code, problem
}

// filesReader reads the archive of a node's files, piece by piece, over as many connections as it
// takes.
type filesReader struct {
	session *session
	context context.Context
	node    uint32
	offset  uint64 // of the next piece
	piece   []byte // the rest of the last one
	last    bool
	err     error // why the archive has ended early
}

func (r *filesReader) Read(p []byte) (int, error) {
	for len(r.piece) == 0 {
		switch {
		case r.err != nil:
			return 0, r.err
		case r.last:
			return 0, io.EOF
		}
		r.err = r.fetch()
	}
	n := copy(p, r.piece)
	r.piece = r.piece[n:]
	return n, nil
}

// fetch asks for the next piece, again while that may help.
func (r *filesReader) fetch() error {
	for look := 0; ; look++ {
		m, err := r.ask()
		switch {
		case err == nil && (len(m.Data) > 0 || m.Last):
			r.piece, r.last = m.Data, m.Last
			r.offset += uint64(len(m.Data))
			return nil
		case r.context.Err() != nil:
			return context.Cause(r.context)
		case err != nil && !again(err):
			return err
		case look == pieceLooks:
			return cmp.Or(err, errNothing)
		}
		select {
		case <-time.After(piecePause):
		case <-r.context.Done():
		}
	}
}

// errNothing reports a node that answers without data.
var errNothing = errors.New("the node sends no data")

// ErrLost reports a connection to serve that has ended. Another one is looked for elsewhere.
var ErrLost = errors.New("the connection to serve is lost")

// again reports whether an error may be gone a moment later.
func again(err error) bool {
	return errors.Is(err, ErrLost) || slices.ContainsFunc([]control.Code{control.Code_CODE_NODE_LOST, control.Code_CODE_TIMEOUT, control.Code_CODE_RESTARTED},
		func(code control.Code) bool { return errors.Is(err, &control.Failure{Code: code}) })
}

// ask asks for the next piece once.
func (r *filesReader) ask() (*control.FilesPiece, error) {
	ctx, cancel := context.WithTimeout(r.context, pieceTimeout)
	defer cancel()
	conn := r.session.current()
	answer, err := conn.Call(ctx, &control.ReadFiles{Job: r.session.job, Node: r.node, Offset: r.offset})
	if lost(conn, err) {
		return nil, ErrLost
	}
	if err != nil {
		return nil, err
	}
	m, ok := answer.(*control.FilesPiece)
	if !ok {
		return nil, fmt.Errorf("serve answered ReadFiles with %T", answer)
	}
	return m, nil
}
