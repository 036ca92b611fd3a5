package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/client"
	"margay/cluster/control"
	"margay/cluster/launch/array"
	"margay/cluster/records"
	"margay/internal/printable"
)

// mostAsked is how many tasks of an array wait in serve's queue, or are being prepared, at a time,
// on a small machine. Each of them looks for room whenever a job ends.
const mostAsked = 8

// taskLines bounds the memory for unfinished lines of one task, in bytes.
const taskLines = 1 << 20

// ArrayOptions are what the user wants of an array. Of Options, it has no use for those that are
// about a terminal, standard input, files to bring back, and the phases of a job. Spec, Exec and
// Files are the same for each task. Each task waits for its cores as Spec.WaitMs says.
type ArrayOptions struct {
	Options
	Set array.Set

	// Ended is called for each task that has ended, one at a time; nil for none. An error ends the
	// array.
	Ended func(TaskEnd) error
}

// TaskEnd is how a task of an array has ended.
type TaskEnd struct {
	Task   uint32 `json:"task"`
	Job    uint32 `json:"job"`
	Nodes  string `json:"nodes"`  // of its ranks: 0-3,10
	Status int    `json:"status"` // exit status, as margay run has it
	Error  string `json:"error"`  // empty: it has succeeded
}

// RunArray runs the tasks of an array, each as a job of its own, over one connection. It returns
// the highest exit status of them, and an error that sums the array up if not all have succeeded.
// If one fails, no further one starts, unless Spec.KeepGoing is set.
func RunArray(ctx context.Context, o ArrayOptions) (int, error) {
	if o.Exec == nil {
		o.Exec = new(control.Exec)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limits := array.Limits{Active: o.Set.Limit, Asked: mostAsked, Tries: launchTries, Pause: launchPause}
	if o.NoRetry {
		limits.Tries = 1
	}
	a := &arraySession{
		ArrayOptions: o, context: ctx, machine: array.New(o.Set.Tasks, limits), events: make(chan func(), 1024), signals: make(chan heeded, 64),
		jobs: make(map[uint32]*task), early: make(map[uint32]*control.JobState), shared: make(map[string]bool), sum: newSummary(),
	}
	a.outlet = newOutlet(func(err error) { a.post(func() { a.giveUp(err) }) })
	a.Status = a.outlet.status(o.Status)
	a.progress = &arrayProgress{status: a.Status}
	a.Stdout, a.Stderr = &besideProgress{a.outlet.writer(o.Stdout), a.progress}, &besideProgress{a.outlet.writer(o.Stderr), a.progress}
	if err := a.begin(cancel); err != nil {
		return ExitStatus(err), err
	}
	a.orders.over(a.conn)
	var code int
	var failure error
	over := make(chan struct{})
	go func() {
		defer close(over)
		a.loop()
		if err := a.outlet.flush(ctx); err != nil && a.failure == nil {
			a.failure = err
		}
		a.progress.clear()
		code, failure = a.result()
		_ = a.outlet.flush(ctx) // what result has reported
	}()
	if sig := a.heed(over); sig != 0 { // loop may be writing to a reader that does not read
		return 128 + int(sig), &Interrupted{Signal: sig}
	}
	return code, failure
}

// arraySession is an array from the client's side. Only the goroutine of loop uses it. Other
// goroutines pass it what they receive as events.
type arraySession struct {
	ArrayOptions
	ahead   []byte
	context context.Context
	machine *array.Machine
	events  chan func() // to be called by loop

	outlet *outlet // Stdout, Stderr and Status write to it

	conn  *control.Conn
	gone  bool                         // conn has ended, and everything that came over it is an event
	calls int                          // whose answers, or their loss, are not events yet
	array uint32                       // the number of the first job; 0: there is none yet
	jobs  map[uint32]*task             // placed, by their jobs
	early map[uint32]*control.JobState // ends that came before the answer that names their job

	shared   map[string]bool // files that the tasks write to together
	progress *arrayProgress
	sum      *summary

	signals chan heeded
	orders  orders
	failure error          // why the array ends early, besides tasks that have failed
	signal  syscall.Signal // that ends the array; 0: none
	left    bool           // the array is given up while tasks may run

	suspending bool // this process stops as soon as no request waits: serve expects it to answer for tasks that are placed
}

// heeded is a signal, with the meaning of an interrupt.
type heeded struct {
	signal syscall.Signal
	means  insistence
}

// task is a task that has cores.
type task struct {
	id      uint32
	job     uint32
	places  []*control.Place
	runs    bool
	printed *records.Reader
	printer *printer
	files   *window

	unwanted bool // it got cores after the array had stopped, and never runs
}

// begin reads the files and connects to serve. A signal that ends programs cancels the array, which
// has no task yet, and loop gets the others that come before.
func (a *arraySession) begin(cancel context.CancelCauseFunc) error {
	begun := make(chan struct{})
	var listening sync.WaitGroup
	listening.Go(func() {
		for {
			select {
			case <-begun:
				return
			case sig := <-a.Signals:
				if endsEarly(sig) {
					cancel(&Interrupted{Signal: sig.(syscall.Signal)})
					return
				}
				select {
				case a.signals <- heeded{signal: sig.(syscall.Signal)}:
				default: // it has more than enough
				}
			}
		}
	})
	defer listening.Wait()
	defer close(begun)
	return within(a.context, func() (err error) {
		if a.Exec.Contents, a.ahead, err = a.Files.Pack(); err != nil {
			return err
		}
		return a.connect()
	})
}

// loop runs the array until no task is left, or it is given up.
func (a *arraySession) loop() {
	var wake <-chan time.Time
	tick := time.NewTicker(progressDelay / 4)
	defer tick.Stop()
	for !a.left {
		if a.machine.Over() {
			return
		}
		if a.gone && a.calls == 0 {
			a.reconnect()
			continue
		}
		if a.suspending && a.calls == 0 {
			a.suspend()
		}
		wake = a.ask()
		select {
		case event := <-a.events:
			event()
		case sig := <-a.signals:
			a.signalled(sig)
		case <-tick.C:
			a.progress.show(a.sum, len(a.Set.Tasks), len(a.jobs))
		case <-wake:
		case <-a.context.Done():
			a.giveUp(context.Cause(a.context))
		}
	}
}

// post has loop call an event.
func (a *arraySession) post(event func()) {
	select {
	case a.events <- event:
	case <-a.context.Done():
	}
}

// ask asks serve for the tasks whose turn has come. It returns when to try again, nil for after the
// next event. Until the first task has a job, there is one only: the others name it.
func (a *arraySession) ask() <-chan time.Time {
	for !a.gone && !a.suspending && (a.array != 0 || a.machine.Active() == 0) {
		id, ok, wake := a.machine.Next(time.Now())
		if !ok && wake.IsZero() {
			return nil
		}
		if !ok {
			return time.After(time.Until(wake))
		}
		spec := proto.CloneOf(a.Spec)
		spec.Task = &control.Task{Array: a.array, Id: id}
		exec := &control.Exec{Argv: a.Exec.Argv, Env: a.variables(id), Contents: a.Exec.Contents, Parts: a.Exec.Parts}
		a.call(&control.RunRequest{Spec: spec, Exec: exec, Files: a.ahead}, func(answer proto.Message, err error) { a.answered(id, answer, err) })
	}
	return nil
}

// variables returns the environment of a task. serve adds the number of the array.
func (a *arraySession) variables(id uint32) [][]byte {
	env := a.Exec.Env[:len(a.Exec.Env):len(a.Exec.Env)]
	for _, v := range []struct {
		name  string
		value uint32
	}{
		{"TASK_ID", id}, {"TASK_COUNT", uint32(len(a.Set.Tasks))}, {"TASK_MIN", a.Set.Tasks[0]}, {"TASK_MAX", a.Set.Tasks[len(a.Set.Tasks)-1]},
		{"TASK_STEP", a.Set.Step},
	} {
		env = append(env, fmt.Appendf(nil, "MARGAY_ARRAY_%s=%d", v.name, v.value))
	}
	return env
}

// call sends a request. Its answer comes as an event, unless the connection ends first.
func (a *arraySession) call(request proto.Message, answered func(proto.Message, error)) {
	conn := a.conn
	question := conn.Ask(request)
	a.calls++
	go func() {
		answer, err := question.Answer(a.context)
		a.post(func() {
			if a.calls--; !lost(conn, err) {
				answered(answer, err)
			}
		})
	}()
}

// answered takes serve's answer to the request for a task.
func (a *arraySession) answered(id uint32, answer proto.Message, err error) {
	reply, ok := answer.(*control.RunReply)
	if err == nil && !ok {
		err = fmt.Errorf("serve answered RunRequest with %T", answer)
	}
	if err != nil {
		a.refused(id, err)
		return
	}
	t := a.placed(id, reply)
	if err := t.printer.files.open(t.job, t.places); err != nil {
		a.fail(err)
	}
	switch state := a.early[t.job]; {
	case state != nil:
		delete(a.early, t.job)
		a.state(state)
	case a.machine.Stopped(): // serve has placed it before it was withdrawn; without its files it does not run
		t.unwanted = true
		_ = a.conn.Send(&control.Kill{Job: t.job, Rank: control.None, Force: true})
	case reply.Loaded:
		_ = a.conn.Send(&control.FileChunk{Job: t.job, Last: true}) // the ranks wait for it
	default:
		go a.sendFiles(a.conn, t, reply.Lacking)
	}
}

// placed enters a task that has got its cores.
func (a *arraySession) placed(id uint32, reply *control.RunReply) *task {
	if a.array == 0 {
		a.array = reply.Job
	}
	a.machine.Placed(id)
	t := &task{
		id: id, job: reply.Job, places: reply.Places, printed: records.NewReader(),
		printer: newPrinter(a.Stdout, a.Stderr, int(a.Spec.Ranks), a.Label), files: newWindow(control.FileWindow),
	}
	p := t.printer
	p.whole, p.limit = true, taskLines
	p.task, p.single = strconv.FormatUint(uint64(id), 10), a.Spec.Ranks == 1
	p.files.out, p.files.err = a.OutputFile, a.ErrorFile
	p.files.task, p.files.single, p.files.shared = &control.Task{Array: a.array, Id: id}, p.single, a.shared
	a.jobs[t.job] = t
	a.Status.Logf("task %d is job %d: %s on %s", id, t.job, printable.Count(len(t.places), "rank"), nodeList(t.places))
	return t
}

// refused takes an error instead of a job.
func (a *arraySession) refused(id uint32, err error) {
	var f *control.Failure
	switch {
	case errors.Is(spoilt(err), errSpoilt) && a.machine.Spoilt(time.Now(), id):
		a.Status.Logf("task %d: %v; asking again", id, err)
		return
	case a.suspending && errors.As(err, &f) && f.Code == control.Code_CODE_KILLED: // withdrawn
		return
	case a.machine.Stopped() && errors.As(err, &f) && f.Code == control.Code_CODE_KILLED:
		a.sum.unstarted = append(a.sum.unstarted, id)
	default: // no other task would fare better
		a.fail(fmt.Errorf("task %d: %w", id, err))
		a.sum.unstarted = append(a.sum.unstarted, id)
	}
	a.machine.Ended(id)
}

// sendFiles sends the files of a task to its nodes. An error also ends the job or the connection.
func (a *arraySession) sendFiles(conn *control.Conn, t *task, lacking []uint32) {
	ctx, cancel := context.WithCancel(a.context)
	defer cancel()
	defer context.AfterFunc(ctx, t.files.close)()
	go func() {
		select {
		case <-conn.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	stream := newFileStream(ctx, conn, t.files, t.job)
	err := a.Files.Archive(stream, lacking, func(int64) {})
	if err == nil {
		err = stream.Close()
	}
	if err != nil && !errors.Is(err, errNoReceiver) && conn.Err() == nil && ctx.Err() == nil { // a file cannot be read
		a.post(func() {
			a.fail(err)
			_ = a.conn.Send(&control.Kill{Job: t.job, Rank: control.None, Force: true})
		})
	}
}

// handle takes what serve sends over a connection. It runs beside loop.
func (a *arraySession) handle(conn *control.Conn, f *control.Frame) {
	switch m := f.Message().(type) {
	case *control.Record:
		a.post(func() { a.record(m) })
		a.outlet.await(conn)
	case *control.FileTaken:
		a.post(func() {
			if t := a.jobs[m.Job]; t != nil {
				t.files.taken(m.Offset)
			}
		})
	case *control.JobState:
		a.post(func() { a.state(m) })
	case *control.LogLine:
		a.post(func() {
			if m.Level == "warn" {
				a.progress.clear()
				a.Status.Lossf("%s", m.Text)
			} else {
				a.Status.Logf("%s", m.Text)
			}
		})
	}
}

// record prints the records of a message of a task, and acknowledges printed ones (session.record).
func (a *arraySession) record(m *control.Record) {
	t := a.jobs[m.Job]
	if t == nil {
		return
	}
	for r := range records.Each(m) {
		if !t.printed.Next(r.Node, r.Seq) {
			continue
		}
		if err := t.printer.print(r); err != nil {
			a.giveUp(fmt.Errorf("write output: %w", err))
			return
		}
		t.printed.Done(r.Node)
	}
	conn, ack := a.conn, &control.Ack{Job: m.Job, Node: m.Node, Seq: t.printed.Seen(m.Node)}
	a.outlet.then(0, func() error {
		_ = conn.Send(ack) // if it has ended, serve sends the record again
		return nil
	})
}

// state takes the state of a task's job.
func (a *arraySession) state(m *control.JobState) {
	t := a.jobs[m.Job]
	switch {
	case m.Phase == control.JobPhase_JOB_RUNNING && t != nil:
		t.runs = true
	case m.Phase != control.JobPhase_JOB_DONE:
	case t == nil && a.machine.Active() > len(a.jobs):
		a.early[m.Job] = m
	case t != nil:
		a.ended(t, m)
	}
}

// ended takes the end of a task.
func (a *arraySession) ended(t *task, m *control.JobState) {
	delete(a.jobs, t.job)
	t.files.close()
	unwritten := t.printer.finish()
	err := m.Error.Err()
	if !t.runs && errors.Is(spoilt(err), errSpoilt) && a.machine.Spoilt(time.Now(), t.id) {
		a.Status.Logf("task %d: %v; asking again", t.id, err)
		return
	}
	a.machine.Ended(t.id)
	if t.unwanted {
		a.sum.unstarted = append(a.sum.unstarted, t.id)
		return
	}
	end := TaskEnd{Task: t.id, Job: t.job, Nodes: nodesOf(t.places), Status: int(m.ExitCode)}
	if failed := failedRank(m, a.Spec.KeepGoing); failed != nil {
		err = failed
	}
	if unwritten != nil && end.Status != ExitMargay {
		end.Status, err = ExitMargay, errors.Join(fmt.Errorf("write output: %w", unwritten), err)
	}
	if end.Status != 0 && err == nil {
		err = fmt.Errorf("status %d", end.Status)
	}
	if err != nil {
		end.Error = err.Error()
	}
	if text := Unkept(m.Unkept); text != "" {
		a.progress.clear()
		a.Status.Warnf("task %d (job %d): %s", t.id, t.job, text)
	}
	a.count(end, m)
	if unwritten != nil {
		a.fail(nil)
	}
}

// count takes the end of a task into the summary.
func (a *arraySession) count(end TaskEnd, m *control.JobState) {
	a.sum.add(end, m)
	if end.Status != 0 {
		if a.sum.failed <= namedFailures && a.signal == 0 {
			a.progress.clear()
			a.Status.Lossf("task %d (job %d): %s", end.Task, end.Job, end.Error)
		}
		if !a.Spec.KeepGoing {
			a.stop()
		}
	}
	if a.Ended != nil {
		a.outlet.then(0, func() error { return a.Ended(end) }) // it may write
	}
}

// namedFailures is how many tasks that fail are named one by one, before the summary.
const namedFailures = 20

// stop starts no further task.
func (a *arraySession) stop() {
	if !a.machine.Stopped() {
		a.machine.Stop()
		_ = a.conn.Send(&control.Withdraw{})
	}
}

// fail starts no further task, and notes why. Tasks that run go on.
func (a *arraySession) fail(err error) {
	if a.failure == nil {
		a.failure = err
	}
	a.stop()
}

// giveUp leaves at once. serve ends all tasks for that reason.
func (a *arraySession) giveUp(err error) {
	a.fail(err)
	a.left = true
	for job := range a.jobs {
		_ = a.conn.Send(surrender(job, err))
	}
	a.conn.Flush(leaveTimeout)
}

// heed passes signals to loop until that is over. It returns one that ends this process at once.
func (a *arraySession) heed(over <-chan struct{}) syscall.Signal {
	var interrupts interrupts
	for {
		select {
		case <-over:
			return 0
		case caught := <-a.Signals:
			sig := heeded{signal: caught.(syscall.Signal)}
			if sig.signal == unix.SIGINT {
				sig.means = interrupts.next(time.Now())
			}
			if sig.means == leave || sig.signal == unix.SIGHUP {
				return sig.signal
			}
			select {
			case a.signals <- sig:
			default: // loop has more than enough
			}
		}
	}
}

// signalled handles a signal. All tasks get it. Those that end programs also end the array: no
// further task starts. A second SIGINT ends the tasks whatever they do.
func (a *arraySession) signalled(sig heeded) {
	switch sig.signal {
	case unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU:
		a.suspending = true
		_ = a.conn.Send(&control.Withdraw{})
		return
	case unix.SIGWINCH, unix.SIGCONT:
		return
	case unix.SIGTERM, unix.SIGQUIT, unix.SIGINT:
		a.signal = sig.signal
		a.stop()
	}
	a.progress.clear()
	switch {
	case sig.means == end:
		a.Status.Warnf("ending %s", tasksOf(len(a.jobs)))
		for job := range a.jobs {
			a.orders.give(endJob(job))
		}
		return
	case sig.signal == unix.SIGINT:
		a.Status.Warnf("SIGINT is sent to %s, and no further one starts; Ctrl-C again within %d s ends them", tasksOf(len(a.jobs)), insistTime/time.Second)
	}
	for job := range a.jobs {
		a.orders.give(signalAll(job, sig.signal))
	}
}

// suspend stops the tasks and this process, until it is continued. Tasks that were withdrawn from
// the queue are then asked for again.
func (a *arraySession) suspend() {
	a.suspending = false
	a.machine.Lost(time.Now())
	for job := range a.jobs {
		a.orders.give(signalAll(job, unix.SIGSTOP))
	}
	a.conn.Flush(stopTimeout)
	if a.Suspend != nil {
		a.Suspend()
	}
	for job := range a.jobs {
		a.orders.give(signalAll(job, unix.SIGCONT))
	}
}

// tasksOf says how many tasks there are.
func tasksOf(n int) string {
	if n == 1 {
		return "1 task"
	}
	return grouped(n) + " tasks"
}

// connect connects to serve.
func (a *arraySession) connect() error {
	ctx, cancel := context.WithTimeout(a.context, reconnectTimeout)
	defer cancel()
	conn, err := client.Dial(ctx, a.Socket)
	if err != nil {
		return err
	}
	a.conn, a.gone = conn, false
	stop := context.AfterFunc(a.context, conn.Close)
	go func() {
		_ = conn.Serve(func(f *control.Frame) { a.handle(conn, f) })
		stop()
		conn.Close()
		a.post(func() { a.gone = true })
	}()
	return nil
}

// reconnect finds the tasks again at the serve that has taken the old one's place. serve has
// forgotten those that were asked for.
func (a *arraySession) reconnect() {
	err := a.conn.Err()
	if !client.Gone(err) {
		a.progress.clear()
		a.Status.Warnf("the connection to serve is lost; looking for it")
		err = a.connect()
	}
	if err != nil {
		a.giveUp(fmt.Errorf("%s lost: %w", tasksOf(len(a.jobs)), err))
		return
	}
	a.machine.Lost(time.Now())
	for job, t := range a.jobs {
		a.call(&control.Attach{Job: job}, func(answer proto.Message, err error) { a.attached(t, answer, err) })
	}
	a.orders.over(a.conn)
}

// attached takes serve's answer for a task that was running when the connection was lost.
func (a *arraySession) attached(t *task, answer proto.Message, err error) {
	state, ok := answer.(*control.JobState)
	if err == nil && !ok {
		err = fmt.Errorf("serve answered Attach with %T", answer)
	}
	if err != nil {
		state = &control.JobState{Job: t.job, Phase: control.JobPhase_JOB_DONE, ExitCode: ExitMargay, FirstFailed: control.None, Error: control.FromError(err)}
	}
	a.state(state)
}

// result returns the exit status and the error of the array.
func (a *arraySession) result() (int, error) {
	s := a.sum
	a.machine.Lost(time.Now()) // of an array that is given up, some may still be asked
	s.unstarted = append(s.unstarted, a.machine.Left()...)
	for _, t := range a.jobs { // given up
		s.lost = append(s.lost, t.id)
		_ = t.printer.finish()
	}
	code, err := s.status, error(nil)
	if a.failure != nil {
		code, err = max(code, ExitStatus(a.failure)), a.failure
	}
	text := s.text()
	switch {
	case a.signal != 0:
		return 128 + int(a.signal), &Interrupted{a.signal, errors.New(text)}
	case err != nil:
		return code, fmt.Errorf("%w; %s", err, text)
	case code != 0 || len(s.unstarted)+len(s.lost) > 0:
		return max(code, 1), errors.New(text)
	}
	a.Status.Warnf("%s", text)
	return 0, nil
}

// besideProgress writes output where a line of progress may stand.
type besideProgress struct {
	to       *outletWriter
	progress *arrayProgress
}

func (b *besideProgress) Write(data []byte) (int, error) {
	b.progress.clear()
	return b.to.Write(data)
}

func (b *besideProgress) take(f *os.File) {
	b.progress.clear()
	b.to.take(f)
}
