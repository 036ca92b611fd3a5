// Package launch is the client's side of a job: what margay run does.
//
// It requests the job from serve, sends the job's files, prints the ranks' output, forwards
// standard input and signals, and returns the job's exit status. If serve is restarted, it
// reconnects and continues: every record is numbered, so none is printed twice, and acknowledged
// only when printed, so none is lost. Output is written beside all of this: a reader that does not
// read holds up the ranks, but not the search for a new serve.
//
// Locks, outermost first: session.printing (held while a record is printed), stdin.reading (held
// while a file is read, and set back), stdin.mu (held while a piece is sent), session.mu. Of shared
// folders, peer.mu guards the requests of a node, and peerStream.sending is held while a frame is
// written; neither is taken under another lock. window.mu, Status.mu, Timing.mu, Trace.mu and
// placeTexts.mu are held for no other, but outlet.mu, which is taken last. orders.mu is held while
// an order is sent, and no other is taken then. Of a Link, Link.mu guards which connection is the
// newest, and trunk.mu the jobs of one; neither is held for another.
package launch

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/client"
	"margay/cluster/control"
	"margay/cluster/launch/bring"
	"margay/cluster/launch/proxy"
	"margay/cluster/records"
	"margay/internal/printable"
	"margay/kernel/abi/archive"
)

// ExitMargay is the exit status when it is Margay that failed, not the program.
const ExitMargay = 125

// reconnectTimeout bounds how long a client waits for serve to come back.
const reconnectTimeout = 20 * time.Second

// Options are what the user wants.
type Options struct {
	Socket string // of serve
	Link   *Link  // to serve, which other jobs share; nil: the job has a connection of its own
	Spec   *control.JobSpec
	Exec   *control.Exec
	Files  *Files
	Label  Label

	// Collapse prints equal lines of ranks once, with the ranks. Label is not used then.
	Collapse bool

	NoRetry bool // when a node is lost during the launch, the job fails

	// Patterns of the names of files that take the output instead of Stdout and Stderr: %j is the
	// job, %r the rank, %n the node.
	OutputFile, ErrorFile string

	Out       []bring.Target // files to bring back when the ranks have ended; Spec.Out has the paths
	Overwrite bool           // it may replace files

	Shared []proxy.Folder // folders that the ranks see; Spec.Shared has their names there
	Trace  *Trace         // gets a line for each request for a file in them; nil: none

	// RankOutput returns the writer of a rank's output, as it comes, instead of Stdout and Stderr;
	// nil: these do, with the lines of several ranks whole.
	RankOutput func(rank uint32, stream control.Stream) io.Writer

	Stdin          io.Reader // nil for none
	Lines          bool      // Stdin is a terminal that gives lines: the next one is read when the ranks have read the last
	Stdout, Stderr io.Writer
	Signals        <-chan os.Signal // to pass on
	Begins         func()           // called before the first output of the ranks is printed; nil for none
	Suspend        func()           // stops this process until it is continued; nil: a stop of the job does not stop it
	Status         *Status
	Terminal       Terminal                                                        // of rank 0 as well: keys go there unchanged; nil: it has pipes
	Timing         *Timing                                                         // nil: nothing is measured
	Held           func(ctx context.Context, job uint32) (release bool, err error) // called while the ranks are held (Spec.Hold), which go on if it releases them; an error ends the job; ctx ends when they go on otherwise
	Started        func(job uint32) error                                          // called when the ranks run; an error ends margay run, but no detached job; nil for none
	Ended          func(*control.JobState)                                         // called with the last state of the job, unless it is launched again; nil for none
}

// connection is how the client of a job reaches serve: by a connection of its own, or by its part
// of a Link.
type connection interface {
	Serve(handle func(*control.Frame)) error
	Send(proto.Message) error
	Call(context.Context, proto.Message) (proto.Message, error)
	AskThen(proto.Message, func(proto.Message, error)) (uint64, error)
	Done() <-chan struct{}
	Err() error
	HungUp() bool
	Flush(time.Duration)
	Close()
}

// dial connects to serve.
func (o *Options) dial(ctx context.Context) (connection, error) {
	if o.Link != nil {
		return o.Link.open(ctx)
	}
	conn, err := client.Dial(ctx, o.Socket)
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// session is one job from the client's side.
type session struct {
	Options
	outlet  *outlet // Stdout, Stderr and Status write to it
	printer *printer
	printed *records.Reader
	stdin   *stdin
	files   *window
	begins  sync.Once
	job     uint32
	loaded  bool                   // every node has all files
	lacking []uint32               // indexes of the contents that some node lacks
	running chan struct{}          // closed when the ranks run
	held    context.Context        // of Held
	goOn    context.CancelFunc     // ends held: all ranks were continued
	ended   chan *control.JobState // gets the job's last state
	failed  chan error             // gets why output cannot be written
	gaveUp  error                  // why this side ends the job; nil: it does not

	homecoming *homecoming
	places     []*control.Place

	interrupts interrupts
	keys       chan os.Signal // what was asked for at the terminal by an escape
	orders     orders
	insisted   atomic.Bool   // the user has had the job ended
	passed     atomic.Uint64 // signals passed on: bit N for signal N

	printing sync.Mutex // held while a record is passed to outlet: a lost connection may still have some for us

	mu   sync.Mutex
	conn connection
}

// launchTries is how often a job is asked for whose launch is spoilt. Between two tries is a pause,
// which grows. One that was spoilt after launchWell, for example in the queue, is the first again,
// unless a node was lost: a machine that loses one node after the other must not keep it for ever.
const (
	launchTries = 5
	launchPause = 100 * time.Millisecond
	launchWell  = 5 * time.Second
)

// Run runs a job and returns its exit status. The error describes any failure, including a rank's.
func Run(ctx context.Context, o Options) (int, error) {
	if o.Exec == nil {
		o.Exec = new(control.Exec)
	}
	pack := sync.OnceValues(func() (ahead []byte, err error) {
		o.Exec.Contents, ahead, err = o.Files.Pack()
		return ahead, err
	})
	go pack() // while serve is connected to
	if o.Spec.Spares > 0 {
		o.Spec.Launch = rand.Text()
	}
	for try := 1; ; try++ {
		begin := time.Now()
		code, err := run(ctx, o, pack)
		if !errors.Is(err, errSpoilt) || o.NoRetry && errors.Is(err, errLaunchLost) {
			return code, err
		}
		if time.Since(begin) >= launchWell && !errors.Is(err, errLaunchLost) {
			try = 1
		}
		if try == launchTries {
			return code, fmt.Errorf("%w; given up after %d tries", err, try)
		}
		if errors.Is(err, errLaunchLost) && o.Spec.Spares > 0 {
			o.Spec.Spares-- // one takes the place of the node
		}
		again := "starting it again"
		if o.Spec.WaitMs != 0 {
			again = "asking again; a job that was waiting for cores has lost its place"
		}
		o.Status.Warnf("%v; %s", err, again)
		select {
		case <-time.After(launchPause << try):
		case <-ctx.Done(): // as the next try says
		}
	}
}

// errSpoilt reports that serve was started again, or that a node was lost or has connected to serve
// again, while the job was being launched. None of its ranks has run.
var errSpoilt = errors.New("the launch was spoilt")

// errLaunchLost is what serve says when a node was lost. Another try uses other nodes.
var errLaunchLost = &control.Failure{Code: control.Code_CODE_LAUNCH_LOST}

// spoilt makes err one of errSpoilt when it is what serve says of such a launch.
func spoilt(err error) error {
	if errors.Is(err, &control.Failure{Code: control.Code_CODE_RESTARTED}) || errors.Is(err, errLaunchLost) {
		return fmt.Errorf("%w: %w", errSpoilt, err)
	}
	return err
}

// run is one try. What pack returns goes along with the request for the job (Files.Ahead).
func run(ctx context.Context, o Options, pack func() ([]byte, error)) (int, error) {
	failed := make(chan error, 1)
	out := newOutlet(func(err error) { abandon(failed, err) })
	o.Stdout, o.Stderr, o.Status = out.writer(o.Stdout), out.writer(o.Stderr), out.status(o.Status)
	defer func() { _ = out.flush(ctx) }() // ctx as it is then: ended
	s := &session{
		Options: o, outlet: out, printer: newPrinter(o.Stdout, o.Stderr, int(o.Spec.Ranks), o.Label), printed: records.NewReader(),
		files: newWindow(control.FileWindow), homecoming: newHomecoming(o), running: make(chan struct{}),
		ended: make(chan *control.JobState, 1), failed: failed, keys: make(chan os.Signal, 1),
	}
	if o.Collapse {
		s.printer.whole, s.printer.collapse = true, newCollapser(int(o.Spec.Ranks))
	}
	if o.RankOutput != nil {
		s.printer.own = func(of source) io.Writer { return out.writer(o.RankOutput(of.rank, of.stream)) }
	}
	s.printer.files.out, s.printer.files.err = o.OutputFile, o.ErrorFile
	readers := 0 // ranks
	switch o.Spec.Stdin {
	case control.StdinMode_STDIN_FIRST:
		readers = 1
	case control.StdinMode_STDIN_ALL:
		readers = int(o.Spec.Ranks)
	}
	if o.Terminal != nil {
		defer o.Terminal.Restore()
		s.Options.Stdin = &escapeReader{from: o.Stdin, asked: s.keys}
	}
	s.stdin = newStdin(s.Options.Stdin, readers, s.send)
	s.stdin.byLines = o.Lines
	defer s.stdin.giveBack()
	var listening sync.WaitGroup // for signals; ends before another session may start
	defer listening.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.held, s.goOn = context.WithCancel(ctx)
	defer s.goOn()
	early := make(chan []os.Signal, 1)
	listening.Go(func() { early <- s.early(ctx, cancel) })
	if err := s.begin(ctx, pack); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return ExitStatus(err), err
	}
	defer s.leave()
	if o.Collapse {
		listening.Go(func() { s.collapse(ctx) })
	}
	listening.Go(func() {
		if err := s.forward(ctx, <-early); err != nil {
			cancel(err)
		}
	})
	sharing, stopSharing := context.WithCancel(ctx)
	shared, err := s.share(sharing)
	if err != nil {
		stopSharing()
		return s.giveUp(err)
	}
	defer shared.close()
	defer stopSharing()
	if s.loaded {
		s.send(&control.FileChunk{Job: s.job, Last: true}) // the ranks wait for it
	} else {
		go s.sendFiles(ctx)
	}
	bringing, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if len(o.Out) > 0 {
		go s.bringBack(bringing, s.places)
	}
	code, err := s.wait(ctx)
	code, err = shared.lost(code, err)
	code, err = s.broughtBack(stop, code, err)
	s.printing.Lock()
	defer s.printing.Unlock()
	unwritten := s.printer.finish()
	if unwritten != nil {
		unwritten = fmt.Errorf("write output: %w", unwritten)
	}
	written := s.outlet.flush(ctx)
	if errors.Is(written, errUnread) { // given up
		if written = nil; code == 0 && err == nil {
			err = context.Cause(ctx)
			code = ExitStatus(err)
		}
	}
	if unwritten = errors.Join(unwritten, written); unwritten != nil && code != ExitMargay {
		return ExitMargay, errors.Join(unwritten, err)
	}
	if unread := s.stdin.unread(); unread != nil && code == 0 {
		return ExitMargay, unread
	}
	return code, s.interrupted(code, err)
}

// within calls do, which may read files for long, and waits for it. At the end of ctx it returns,
// while do goes on, and what that returns must not be used.
func within(ctx context.Context, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// begin asks for the job.
func (s *session) begin(ctx context.Context, pack func() ([]byte, error)) error {
	s.Timing.enter(phaseConnect)
	dialing, cancel := context.WithTimeout(ctx, reconnectTimeout)
	defer cancel()
	conn, err := s.dial(dialing)
	if err != nil {
		return err
	}
	s.conn = conn
	s.orders.over(conn)
	go conn.Serve(s.handle)
	s.Timing.enter(phaseCollect)
	var ahead []byte
	err = within(ctx, func() (err error) {
		ahead, err = pack()
		return err
	})
	if err != nil {
		conn.Close()
		return err
	}
	s.Timing.enter(phaseMessages)
	answer, err := conn.Call(ctx, &control.RunRequest{Spec: s.Spec, Exec: s.Exec, Files: ahead})
	reply, ok := answer.(*control.RunReply)
	switch {
	case lost(conn, err):
		err = s.whyLost(err)
	case err == nil && !ok:
		err = fmt.Errorf("serve answered RunRequest with %T", answer)
	}
	if err != nil {
		conn.Close()
		return spoilt(err)
	}
	s.job, s.places, s.loaded, s.lacking = reply.Job, reply.Places, reply.Loaded, reply.Lacking
	s.printing.Lock()
	err = s.printer.files.open(reply.Job, reply.Places)
	s.printing.Unlock()
	if err != nil {
		s.gaveUp = err
		s.leave() // serve ends the job
		return err
	}
	s.Status.Logf("job %d: %s on %s", reply.Job, printable.Count(len(reply.Places), "rank"), nodeList(reply.Places))
	if all := len(s.Exec.GetContents()); all > 0 {
		s.Status.Logf("job %d: its nodes have %d of %d files of at least %d KiB already", reply.Job, all-len(reply.Lacking), all, archive.MinSize>>10)
	}
	if reply.Loaded {
		s.Status.Logf("job %d: its nodes have loaded all files", reply.Job)
	}
	return nil
}

// lost reports whether a request has failed because its connection ended, and not by its answer.
func lost(conn connection, err error) bool {
	var answer *control.Failure
	return err != nil && conn.Err() != nil && !errors.As(err, &answer)
}

// whyLost returns the reason why the connection that requested the job has ended. serve sends it
// before it ends for good.
func (s *session) whyLost(err error) error {
	select {
	case state := <-s.ended:
		return cmp.Or(state.Error.Err(), err)
	default:
		return fmt.Errorf("%w: %w", errSpoilt, err)
	}
}

// sendFiles sends the job's files. An error here also ends the job or the connection, so it is not
// reported.
func (s *session) sendFiles(ctx context.Context) {
	conn := s.current()
	go func() {
		select {
		case <-conn.Done():
			s.files.close()
		case <-ctx.Done():
		}
	}()
	progress := s.Status.Progress("copying files", s.Files.Size())
	defer progress.Done()
	stream := newFileStream(ctx, conn, s.files, s.job)
	err := s.Files.Archive(stream, s.lacking, progress.Set)
	if err == nil {
		err = stream.Close()
	}
	if err != nil && !errors.Is(err, errNoReceiver) && conn.Err() == nil && ctx.Err() == nil {
		s.abandon(err) // a file cannot be read
	}
}

// holding is what Options.Held returns.
type holding struct {
	release bool
	err     error
}

// wait goes on until the job has ended, over as many connections as it takes.
func (s *session) wait(ctx context.Context) (int, error) {
	running := s.running
	var held chan holding // gets what Held returns; nil: no ranks are held
	for {
		select {
		case <-running:
			running = nil
			if err := s.begun(); err != nil {
				return s.giveUp(err)
			}
			if s.Spec.Detach {
				return 0, nil
			}
			if err := s.takeTerminal(); err != nil {
				return s.giveUp(err)
			}
			if s.Held != nil {
				held = make(chan holding, 1)
				go func() { held <- s.hold() }()
			} else if s.Stdin != nil {
				go s.stdin.run(ctx, s.job)
			}
		case h := <-held:
			if h.err != nil {
				return s.giveUp(h.err)
			}
			if h.release {
				s.orders.give(signalAll(s.job, unix.SIGCONT))
			}
			if s.Stdin != nil {
				go s.stdin.run(ctx, s.job)
			}
		case state := <-s.ended:
			return s.end(state, running == nil)
		case err := <-s.failed:
			return s.giveUp(err)
		case <-s.current().Done():
			select {
			case state := <-s.ended:
				return s.end(state, running == nil) // it came just before the connection ended
			case <-running: // and so did this, which is looked at first
				continue
			default:
			}
			state, err := s.reconnect(ctx)
			if cause := context.Cause(ctx); err != nil && cause != nil {
				return ExitStatus(cause), cause // a signal counts, not what it has interrupted
			}
			if err != nil {
				return ExitMargay, err
			}
			if state.Phase == control.JobPhase_JOB_DONE {
				return s.end(state, running == nil)
			}
		case <-ctx.Done():
			err := context.Cause(ctx)
			return ExitStatus(err), err
		}
	}
}

// hold calls Held. What that returns does not matter when the ranks go on already, or the job ends.
func (s *session) hold() holding {
	release, err := s.Held(s.held, s.job)
	if s.held.Err() != nil {
		return holding{}
	}
	return holding{release, err}
}

// begun reports that the job runs.
func (s *session) begun() error {
	if s.Started == nil {
		return nil
	}
	return s.Started(s.job)
}

// end turns the last state of the job into what Run returns. The end of a short job can arrive
// before its beginning: a detached job that has run is left alone nevertheless.
func (s *session) end(state *control.JobState, begun bool) (int, error) {
	ran := state.Error == nil
	select {
	case <-s.running:
		ran = true
	default:
	}
	if ran && !begun {
		if err := s.begun(); err != nil {
			return ExitMargay, err
		}
	}
	if ran && s.Spec.Detach {
		return 0, nil
	}
	return s.result(state)
}

// reconnect finds the job again at the serve that has taken the old one's place, unless serve has
// said that there will be none.
func (s *session) reconnect(ctx context.Context) (*control.JobState, error) {
	if err := s.current().Err(); client.Gone(err) {
		return nil, err
	}
	s.Status.Warnf("the connection to serve is lost; looking for it")
	dialing, cancel := context.WithTimeout(ctx, reconnectTimeout)
	defer cancel()
	for {
		conn, err := s.dial(dialing)
		if err != nil {
			return nil, fmt.Errorf("job %d is lost: %w", s.job, err)
		}
		s.mu.Lock()
		s.conn = conn
		s.mu.Unlock()
		go conn.Serve(s.handle)
		answer, err := conn.Call(dialing, &control.Attach{Job: s.job})
		if lost(conn, err) {
			continue // this serve has gone as well
		}
		if err != nil {
			return nil, err
		}
		state, ok := answer.(*control.JobState)
		if !ok {
			return nil, fmt.Errorf("serve answered Attach with %T", answer)
		}
		s.Status.Warnf("job %d goes on", s.job)
		s.orders.over(conn)
		s.stdin.rewind()
		s.resize()
		s.state(state)
		return state, nil
	}
}

// result turns the job's last state into the exit status of margay run and its message.
func (s *session) result(state *control.JobState) (int, error) {
	if s.Ended != nil && !errors.Is(spoilt(state.Error.Err()), errSpoilt) {
		s.Ended(state)
	}
	if text := Unkept(state.Unkept); text != "" {
		s.Status.Warnf("%s", text)
	}
	if err := failedRank(state, s.Spec.KeepGoing); err != nil {
		return int(state.ExitCode), err
	}
	err := state.Error.Err()
	if s.insisted.Load() && errors.Is(err, &control.Failure{Code: control.Code_CODE_KILLED}) {
		key := "Ctrl-C"
		if s.Terminal != nil { // that goes to the rank
			key = string([]byte{escape, escapeEnd})
		}
		err := &Interrupted{unix.SIGINT, fmt.Errorf("job %d was ended by %s", s.job, key)}
		return ExitStatus(err), err
	}
	return int(state.ExitCode), spoilt(err)
}

// failedRank says how the rank ended that decides the status of a job; nil if none has failed.
func failedRank(state *control.JobState, keepGoing bool) error {
	first := int(state.FirstFailed)
	if first < 0 || first >= len(state.Ranks) {
		return nil
	}
	r := state.Ranks[first]
	err := fmt.Errorf("rank %d on node%d %s", r.Rank, r.Node, Describe(r.Exit))
	if other := alike(state.Ranks, r); other != nil {
		err = fmt.Errorf("%w; rank %d on node%d %s", err, other.Rank, other.Node, Describe(other.Exit))
	}
	if n := countFailed(state.Ranks); keepGoing && n > 1 {
		err = fmt.Errorf("%w; %d of %d ranks failed", err, n, len(state.Ranks))
	}
	switch cause := state.Error.Err(); {
	case state.ExitCode != ExitMargay || cause == nil:
	case errors.Is(cause, &control.Failure{Code: control.Code_CODE_NO_ROOM}):
		err = fmt.Errorf("%w; %w", err, cause)
	default:
		err = fmt.Errorf("%w; output may be missing: %w", err, cause)
	}
	return err
}

// countFailed returns how many ranks have not ended well.
func countFailed(ranks []*control.RankState) (n int) {
	for _, r := range ranks {
		if r.Exit.GetCode() != 0 || r.Exit.GetSignal() != 0 {
			n++
		}
	}
	return n
}

// handle takes what serve sends about the job.
func (s *session) handle(f *control.Frame) {
	switch m := f.Message().(type) {
	case *control.Record:
		s.record(m)
	case *control.FileTaken:
		s.files.taken(m.Offset)
	case *control.StdinTaken:
		s.stdin.progress(m.Rank, m.Offset)
	case *control.Rewind:
		s.stdin.rewind(m.Node)
		s.resize()
	case *control.JobState:
		s.state(m)
	case *control.LogLine:
		if m.Level == "warn" {
			s.Status.Lossf("%s", m.Text)
		} else {
			s.Status.Warnf("%s", m.Text)
		}
	}
}

func (s *session) state(m *control.JobState) {
	s.Timing.measured(m.Job, m.Times)
	if m.Halt == int32(unix.SIGCONT) {
		s.goOn()
	}
	switch m.Phase {
	case control.JobPhase_JOB_RUNNING:
		s.runs()
		if m.Collect {
			s.collect()
		}
	case control.JobPhase_JOB_DONE:
		select {
		case s.ended <- m:
		default:
		}
	}
}

// runs notes that the ranks run.
func (s *session) runs() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.running:
	default:
		close(s.running)
	}
}

// record prints the records of a message that are next of their node, and acknowledges printed
// records. A record that has been printed is a duplicate; one that is not the next follows one that
// was lost with a connection, and both will be sent again.
func (s *session) record(m *control.Record) {
	defer s.outlet.await(s.current())
	s.printing.Lock()
	defer s.printing.Unlock()
	for r := range records.Each(m) {
		if !s.printed.Next(r.Node, r.Seq) {
			continue
		}
		if err := s.print(r); err != nil {
			s.abandon(fmt.Errorf("write output: %w", err))
			return
		}
		s.printed.Done(r.Node)
	}
	ack := &control.Ack{Job: m.Job, Node: m.Node, Seq: s.printed.Seen(m.Node)}
	s.outlet.then(0, func() error {
		s.send(ack)
		return nil
	})
}

// print prints a record. The caller holds printing.
func (s *session) print(m *control.Record) error {
	if s.Begins != nil && len(m.Data) > 0 {
		s.begins.Do(s.Begins)
	}
	if err := s.printer.print(m); err != nil {
		return err
	}
	if m.Stream == control.Stream_STREAM_EXIT {
		s.stdin.ended(m.Rank)
		if s.Status.Verbose { // the place of a fault takes a while to name
			s.Status.Logf("rank %d on node%d %s: %s", m.Rank, m.Node, Describe(m.Exit), usage(m.Exit.GetUsage()))
		}
	}
	return nil
}

// collapse prints the lines that have waited long enough for others that are equal, until ctx ends.
func (s *session) collapse(ctx context.Context) {
	tick := time.NewTicker(collapseTime / 4)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			s.printing.Lock()
			err := s.printer.tick(now)
			s.printing.Unlock()
			if err != nil {
				s.abandon(fmt.Errorf("write output: %w", err))
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// giveUp returns the result of a job that an error of this side ends.
func (s *session) giveUp(err error) (int, error) {
	s.gaveUp = err
	return ExitMargay, err
}

// leaveTimeout bounds how long a job that is given up waits for serve to take the reason.
const leaveTimeout = time.Second

// leave closes the connection, so that serve ends a job that still runs. If an error of this side
// is the reason, it sends that first. All that is queued goes first, too: TLS does not announce the
// end while a message is being written.
func (s *session) leave() {
	if s.gaveUp != nil {
		s.send(surrender(s.job, s.gaveUp))
	}
	s.current().Flush(leaveTimeout)
	s.current().Close()
}

// surrender is the message that gives a job up for a reason.
func surrender(job uint32, why error) *control.Leave {
	return &control.Leave{Job: job, Why: strings.ToValidUTF8(why.Error(), "?")}
}

// abandon gives the job up. serve ends it when the connection is gone.
func (s *session) abandon(err error) { abandon(s.failed, err) }

func abandon(failed chan<- error, err error) {
	select {
	case failed <- err:
	default:
	}
}

func (s *session) current() connection {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn
}

// send sends over the current connection. If the message is lost with it, another one follows over
// the next: an acknowledgement of the records that serve sends again, standard input, the size of
// the terminal. Requests that nothing repeats are orders.
func (s *session) send(m proto.Message) { _ = s.current().Send(m) }

// ExitStatus is the exit status of margay run for an error that is not one of a rank.
func ExitStatus(err error) int {
	var interrupted *Interrupted
	switch {
	case errors.As(err, &interrupted):
		return 128 + int(interrupted.Signal)
	case errors.Is(err, ErrNotFound), errors.Is(err, &control.Failure{Code: control.Code_CODE_NOT_FOUND}):
		return 127
	case errors.Is(err, ErrNotExecutable), errors.Is(err, ErrTooLong), errors.Is(err, &control.Failure{Code: control.Code_CODE_NOT_EXECUTABLE}):
		return 126
	}
	return ExitMargay
}
