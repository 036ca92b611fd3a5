package launch

import (
	"context"
	"errors"
	"io"
	"net"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/client"
	"margay/cluster/control"
	"margay/cluster/launch/proxy"
	"margay/internal/printable"
	"margay/kernel/abi/share"
)

// streamPause is the time between two attempts to open a stream to a node.
const streamPause = 100 * time.Millisecond

// closeWait bounds how long requests that are carried out may take at the end.
const closeWait = 5 * time.Second

// mostLosses is how many files that lack data are named.
const mostLosses = 20

// Bounds of the requests that are carried out at once. Each may hold a thread of this process, of
// which Go permits 10,000.
const (
	busyNode = 256
	busyAll  = 4096
)

// sharing is what a session does in the folders that it shares with its ranks.
type sharing struct {
	folders *proxy.Folders
	running sync.WaitGroup
	losses  atomic.Uint64 // open files whose close was the first to report an error
}

// share opens the shared folders. Requests are carried out until ctx ends; then close must be
// called.
func (s *session) share(ctx context.Context) (*sharing, error) {
	sh := new(sharing)
	if len(s.Shared) == 0 {
		return sh, nil
	}
	var nodes []uint32
	for _, p := range s.places {
		nodes = append(nodes, p.Node)
	}
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	var err error
	if sh.folders, err = proxy.Open(s.Shared, len(nodes)); err != nil {
		return nil, err
	}
	signal.Ignore(unix.SIGXFSZ) // a file that must not grow as much is an error of the rank
	for _, node := range nodes {
		p := newPeer(share.Window(len(nodes)), max(1, min(busyNode, busyAll/len(nodes))))
		p.watch.Lost = func(path string, errno unix.Errno) { s.dataLost(sh, node, path, errno) }
		if s.Trace != nil {
			p.watch.Did = func(e proxy.Event) { s.Trace.print(node, e) }
		}
		sh.running.Go(func() { s.shareWith(ctx, sh.folders, node, p) })
	}
	return sh, nil
}

// close closes all files, after the end of the context of share. A request that a file system does
// not carry out, such as one whose server is away, does not hold up the end of margay run.
func (sh *sharing) close() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		sh.running.Wait()
		if sh.folders != nil {
			sh.folders.Close()
		}
	}()
	select {
	case <-closed:
	case <-time.After(closeWait):
	}
}

// dataLost reports that a write has failed after it had returned.
func (s *session) dataLost(sh *sharing, node uint32, path string, errno unix.Errno) {
	switch n := sh.losses.Add(1); {
	case n == mostLosses+1:
		s.Status.Lossf("more files lack data; no further one is named")
		return
	case n > mostLosses:
		return
	}
	s.Status.Lossf("%s lacks data that a rank on node%d has written: %v", printable.Name(path), node, errno)
}

// lost adds data that were lost in shared folders to the result of a job.
func (sh *sharing) lost(code int, err error) (int, error) {
	if n := sh.losses.Load(); n > 0 && code == 0 && err == nil {
		return ExitMargay, errors.New("files in shared folders lack data that ranks have written, as said before")
	}
	return code, err
}

// shareWith serves a node until ctx ends, over as many streams as it takes.
func (s *session) shareWith(ctx context.Context, folders *proxy.Folders, node uint32, p *peer) {
	defer p.close()
	for ctx.Err() == nil {
		dialing, cancel := context.WithTimeout(ctx, reconnectTimeout)
		stream, err := client.DialFiles(dialing, s.Socket, s.job, node)
		cancel()
		switch {
		case err == nil:
			err := p.serve(ctx, stream, folders)
			if err != nil {
				s.Status.Logf("job %d: files of node%d: %v", s.job, node, err)
			}
			if errors.Is(err, share.ErrProtocol) {
				return // it would do so again
			}
		case client.Gone(err), errors.Is(err, &control.Failure{Code: control.Code_CODE_NOT_FOUND}):
			return // the job has ended
		}
		select {
		case <-time.After(streamPause):
		case <-ctx.Done():
		}
	}
}

// peer is a node that uses shared folders.
type peer struct {
	window  int
	busy    chan struct{} // has a value for each request that is carried out
	files   *proxy.Node   // nil before the first stream
	watch   proxy.Watch
	running sync.WaitGroup

	mu      sync.Mutex
	changed sync.Cond // there is more room in answers
	answers *share.Answers
	stream  *peerStream // the current one
}

// peerStream is a stream to a node.
type peerStream struct {
	net.Conn
	sending sync.Mutex
	buffer  []byte // guarded by sending
}

func newPeer(window, busy int) *peer {
	p := &peer{window: window, busy: make(chan struct{}, busy), answers: share.NewAnswers(window)}
	p.changed.L = &p.mu
	return p
}

// close closes the files of the node when all requests have been carried out.
func (p *peer) close() {
	p.running.Wait()
	if p.files != nil {
		p.files.Close()
	}
}

// serve carries out requests of a stream until it or ctx ends.
func (p *peer) serve(ctx context.Context, conn net.Conn, folders *proxy.Folders) error {
	stream := &peerStream{Conn: conn}
	defer stream.Close()
	defer context.AfterFunc(ctx, func() { stream.Close() })()
	f, err := share.ReadFrame(stream)
	if err != nil {
		return ended(err)
	}
	hello, err := share.ReadGreeting(f)
	if err != nil {
		return err
	}
	if p.files == nil {
		p.files = folders.Node(hello.UID, hello.GID, p.watch)
	}
	p.mu.Lock()
	p.stream = stream
	p.mu.Unlock()
	if err := stream.send(share.WelcomeFrame(p.window)); err != nil {
		return ended(err)
	}
	for {
		f, err := share.ReadFrame(stream)
		if err != nil {
			return ended(err)
		}
		p.mu.Lock()
		for !p.answers.Room(f) {
			p.changed.Wait() // sending answers ends, at the latest with the stream
		}
		do, answer, err := p.answers.Request(f)
		p.mu.Unlock()
		switch {
		case err != nil:
			return err
		case do:
			select {
			case p.busy <- struct{}{}:
			case <-ctx.Done():
				return nil
			}
			p.running.Go(func() { p.carryOut(f) })
		case answer != nil:
			if err := stream.send(answerFrame(f, answer)); err != nil {
				return ended(err)
			}
		}
	}
}

// ended returns an error that is worth a line, and none for the mere end of a stream.
func ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// carryOut carries out a request, and sends the answer over the stream that there is then.
func (p *peer) carryOut(f share.Frame) {
	answer := p.files.Do(int(f.Folder), f.Body)
	<-p.busy
	p.mu.Lock()
	p.answers.Executed(f, answer)
	stream := p.stream
	p.mu.Unlock()
	_ = stream.send(answerFrame(f, answer)) // the node asks again when it has another stream
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers.Sent(f)
	p.changed.Broadcast()
}

func answerFrame(f share.Frame, answer []byte) share.Frame {
	return share.Frame{Kind: share.Answer, Folder: f.Folder, Number: f.Number, Body: answer}
}

// send sends a frame, after those that are being sent.
func (s *peerStream) send(f share.Frame) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.buffer = f.Append(s.buffer[:0])
	_, err := s.Write(s.buffer)
	return err
}
