package serve

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"margay/cluster/control"
	"margay/cluster/ledger"
	"margay/internal/nodeset"
	"margay/internal/printable"
)

// History keeps the records of ended jobs beyond the life of the machine.
type History interface {
	// Append returns once the records are written, in this order. After an error, some of them may
	// be. Writing a record twice does no harm.
	Append(records ...*ledger.Record) error

	// Lose counts records that cannot be written. It needs less space than Append.
	Lose(records uint64) error
}

// Limits on the time and memory that the history may cost serve.
const (
	historyWait   = 2 * time.Second // how long the end of a job waits until its record is written
	historyPause  = 5 * time.Second // between two attempts to write pending records
	mostUnwritten = keepEnded       // how many records wait for a history that fails; further ones are lost
)

// errSlow is why records wait for a history that does not answer.
var errSlow = fmt.Errorf("it has taken no record for %v", historyWait)

// inTime waits for done, but no longer than historyWait, and reports whether done was closed.
func inTime(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-time.After(historyWait):
		return false
	}
}

// chronicle writes records of ended jobs to the history, several at once if jobs end quickly. The
// end of a job waits for its record, but not for a history that fails or hangs: then serve's store
// keeps the record until it is written, also across restarts of serve. A nil chronicle keeps no
// history.
type chronicle struct {
	history History
	store   *store
	log     func(format string, args ...any)
	wake    chan struct{} // holds a token when there may be something to write
	closing chan struct{}
	done    chan struct{}

	mu      sync.Mutex
	waiting []*entry // oldest first
	lost    uint64   // records lost for lack of room since the last one that was written
	kept    uint64   // the value of lost in the store
	trouble error    // why the history takes no records; nil if it does
}

// entry is a record on its way to the history. chronicle.mu guards it.
type entry struct {
	record  *ledger.Record
	tried   chan struct{} // closed when the history has taken the record, or has failed
	written bool
	kept    bool // the store has it
}

// newChronicle makes a chronicle that continues with the records that an earlier serve could not
// write. It writes between begin and close.
func newChronicle(c Config, st *store) (*chronicle, error) {
	if c.History == nil {
		return nil, nil
	}
	left, err := st.unwritten()
	if err != nil {
		return nil, err
	}
	lost, err := st.lost()
	if err != nil {
		return nil, err
	}
	ch := &chronicle{
		history: c.History, store: st, log: c.Log, wake: make(chan struct{}, 1), closing: make(chan struct{}), done: make(chan struct{}),
		lost: lost, kept: lost,
	}
	for _, r := range left {
		ch.waiting = append(ch.waiting, &entry{record: r, tried: make(chan struct{}), kept: true})
	}
	return ch, nil
}

// begin starts writing.
func (c *chronicle) begin() {
	if c != nil {
		go c.run()
	}
}

// close writes the remaining records, for a limited time.
func (c *chronicle) close() {
	if c == nil {
		return
	}
	close(c.closing)
	inTime(c.done)
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.lacks(); n > 0 {
		c.trouble = cmp.Or(c.trouble, errSlow)
		c.log("the history lacks %s: %v", printable.Count(n, "job"), c.trouble)
		if err := c.keep(); err != nil {
			c.log("nor are all of them kept for later: %v", err)
		}
	}
}

// lacks returns how many jobs the history lacks. The caller holds chronicle.mu.
func (c *chronicle) lacks() int { return len(c.waiting) + int(c.lost) }

// unwritten returns how many jobs the history lacks because writing has failed.
func (c *chronicle) unwritten() uint32 {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.trouble == nil {
		return 0
	}
	return uint32(c.lacks())
}

// enter queues a record for writing. It returns nil if the history fails and too many records wait
// already.
func (c *chronicle) enter(r *ledger.Record) *entry {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.trouble != nil && len(c.waiting) >= mostUnwritten {
		c.lost++
		return nil
	}
	e := &entry{record: r, tried: make(chan struct{})}
	c.waiting = append(c.waiting, e)
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return e
}

// write queues a record and waits until it is written, unless the history is failing. An error
// reports why the record is not written yet; the store has the record then, if there is room.
func (c *chronicle) write(r *ledger.Record) error {
	e := c.enter(r)
	if e != nil && !c.inTrouble() {
		inTime(e.tried)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e != nil && e.written {
		return nil
	}
	if c.trouble == nil {
		c.trouble = errSlow
	}
	if err := c.keep(); err != nil {
		c.log("job %d may be missing in the history: %v", r.Job, err)
	}
	if e == nil {
		return fmt.Errorf("job %d will be missing in the history, which lacks %s: %w", r.Job, printable.Count(c.lacks(), "job"), c.trouble)
	}
	return fmt.Errorf("job %d is not yet in the history, which lacks %s; it is tried again: %w", r.Job, printable.Count(c.lacks(), "job"), c.trouble)
}

// keep saves to the store the records that the history does not take. The caller holds
// chronicle.mu.
func (c *chronicle) keep() error {
	if c.trouble == nil {
		return nil
	}
	for _, e := range c.waiting {
		if !e.kept {
			if err := c.store.keepUnwritten(e.record); err != nil {
				return err
			}
			e.kept = true
		}
	}
	return c.keepLost()
}

// keepLost saves to the store how many records are lost. The caller holds chronicle.mu.
func (c *chronicle) keepLost() error {
	if c.lost == c.kept {
		return nil
	}
	if err := c.store.saveLost(c.lost); err != nil {
		return err
	}
	c.kept = c.lost
	return nil
}

// keepAgain is keep for records that the store had no room for before.
func (c *chronicle) keepAgain() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.keep()
}

func (c *chronicle) inTrouble() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trouble != nil
}

// run writes until close, and then the remaining records as long as no write fails.
func (c *chronicle) run() {
	defer close(c.done)
	for {
		ends := false
		select {
		case <-c.closing:
			ends = true
		default:
		}
		pause := time.Duration(0)
		switch all, err := c.try(); {
		case ends && (all || err != nil):
			return
		case err != nil:
			pause = historyPause
		case !all:
			continue
		}
		c.rest(pause)
	}
}

// rest waits for something to write or, if pause is not 0, for the pause. It returns at close.
func (c *chronicle) rest(pause time.Duration) {
	if pause == 0 {
		select {
		case <-c.wake:
		case <-c.closing:
		}
		return
	}
	select {
	case <-time.After(pause):
	case <-c.closing:
	}
}

// try writes the pending records once. It reports whether none is left.
func (c *chronicle) try() (all bool, err error) {
	c.mu.Lock()
	batch, lost := slices.Clone(c.waiting), c.lost
	c.mu.Unlock()
	if len(batch) == 0 {
		return true, nil
	}
	var records []*ledger.Record
	for _, e := range batch {
		records = append(records, e.record)
	}
	first := *records[0] // the store may be saving the other one at this time
	first.Lost = lost
	records[0] = &first
	err = c.history.Append(records...)

	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range batch {
		e.written = err == nil
	}
	for _, e := range c.waiting {
		if e.written || err != nil { // after an error there is nothing to wait for
			e.end()
		}
	}
	if err != nil {
		if c.trouble == nil || errors.Is(c.trouble, errSlow) {
			c.log("the history lacks %s: %v", printable.Count(c.lacks(), "job"), err)
		}
		c.trouble = err
		_ = c.keep() // if there is no room, the next attempt follows with the history's
		return false, err
	}
	c.waiting, c.lost = slices.Clone(c.waiting[len(batch):]), c.lost-lost
	c.settle(batch, lost)
	return len(c.waiting) == 0, nil
}

// end ends the wait for the record. The caller holds chronicle.mu.
func (e *entry) end() {
	select {
	case <-e.tried:
	default:
		close(e.tried)
	}
}

// settle marks records as written, and removes them from the store. The caller holds chronicle.mu.
func (c *chronicle) settle(batch []*entry, lost uint64) {
	var kept []uint32
	for _, e := range batch {
		if e.kept {
			kept = append(kept, e.record.Job)
		}
	}
	if c.trouble != nil {
		c.log("the history has %s that it lacked; %d are lost", printable.Count(len(batch), "job"), lost)
		c.trouble = nil
	}
	if err := c.keepLost(); err != nil {
		c.log("%v", err)
	}
	if len(kept) > 0 {
		if err := c.store.forgetUnwritten(kept); err != nil { // a later serve writes them again
			c.log("%v", err)
		}
	}
}

// life identifies the life of a machine in histories: no two machines have the same certificate.
func life(certificate []byte) string {
	sum := sha256.Sum256(certificate)
	return hex.EncodeToString(sum[:8])
}

// historyOf is the history record of a job that ends now. The caller holds Server.mu.
func (s *Server) historyOf(j *job) *ledger.Record {
	summary, now := j.summary(), time.Now()
	r := &ledger.Record{
		Machine: s.config.Machine, Run: s.life, Job: j.number, User: printable.Short(j.spec.User, mostUser), UID: j.spec.Uid, Command: j.spec.Command, Detached: j.spec.Detach,
		Submitted: j.phases.submitted(j.created).UTC(), Started: j.created.UTC(), Ended: now.UTC(),
		Ranks: uint32(len(j.ranks)), Cores: max(1, j.spec.CoresEach), Nodes: nodeset.Ranges(summary.Nodes),
		State: j.outcome(), Status: j.exitCode(), Reason: printable.Short(summary.Error, mostReason), Phases: j.phases.kept(),
	}
	var nodes []uint32
	for _, rank := range j.ranks {
		nodes = append(nodes, rank.place.Node)
		if u := rank.exit.GetUsage(); u != nil {
			r.Usage.Ranks++
			r.Usage.UserNs += u.UserNs
			r.Usage.SystemNs += u.SystemNs
			r.Usage.MajorFaults += u.MajorFaults
			r.Usage.MinorFaults += u.MinorFaults
			r.Usage.Yields += u.Yields
			r.Usage.Preemptions += u.Preemptions
		}
	}
	if t := j.spec.Task; t != nil {
		r.Array, r.Task = t.Array, &t.Id
	}
	r.Places = ledger.Places(nodes)
	r.Ends, r.Failed = j.badEnds()
	return r
}

// keep writes the end of a job to the history. It returns why the record is not there yet.
func (s *Server) keep(j *job) error {
	if s.history == nil {
		return nil
	}
	s.mu.Lock()
	r := s.historyOf(j)
	s.mu.Unlock()
	return s.history.write(r)
}

// How many bytes of a reason and of a user's name the history keeps. A record that is too long for
// a line would keep all others out of the history.
const (
	mostReason = 500
	mostUser   = 256
)

// outcome returns how the job ends, in one word.
func (j *job) outcome() ledger.State {
	if j.failure != nil {
		switch j.failure.Code {
		case control.Code_CODE_KILLED:
			return ledger.Killed
		case control.Code_CODE_DOWN:
			return ledger.Down
		case control.Code_CODE_NODE_LOST, control.Code_CODE_LAUNCH_LOST:
			return ledger.NodeLost
		}
	} else if j.limit.over {
		return ledger.TimedOut
	}
	if j.exitCode() != 0 {
		return ledger.Failure
	}
	return ledger.Completed
}

// badEnds groups the ranks that did not end with status 0 by how they ended. It returns a limited
// number of groups, the group of the rank that failed first at the front, and the total number of
// these ranks.
func (j *job) badEnds() (ends []ledger.End, failed uint32) {
	ranks := make(map[ledger.End][]uint32)
	var order []ledger.End
	if first := int(j.first); first >= 0 && first < len(j.ranks) {
		order = append(order, j.ranks[first].end())
	}
	ends = []ledger.End{} // JSON has null for nil
	for i, rank := range j.ranks {
		end := rank.end()
		if end.Ended && end.Status == 0 && end.Signal == 0 {
			continue
		}
		failed++
		if !slices.Contains(order, end) && len(order) < ledger.MaxEnds {
			order = append(order, end)
		}
		if slices.Contains(order, end) {
			ranks[end] = append(ranks[end], uint32(i))
		}
	}
	for _, end := range order {
		group := end
		group.Ranks = nodeset.Ranges(ranks[end])
		ends = append(ends, group)
	}
	return ends, failed
}

// end is the history's record of how the rank ended, without the rank's number.
func (r *rank) end() ledger.End {
	return ledger.End{
		Status: r.exit.GetCode(), Signal: r.exit.GetSignal(), Ended: r.exit != nil, Reason: printable.Short(r.exit.GetReason(), mostReason),
	}
}

// historyOfDown is historyOf for a job that goes down with its machine. The caller holds Server.mu.
func (s *Server) historyOfDown(j *job, down *control.Failure) *ledger.Record {
	r := s.historyOf(j)
	if j.failure == nil && j.phase != control.JobPhase_JOB_ENDING {
		r.State, r.Status, r.Reason = ledger.Down, exitDown, printable.Short(down.Error(), mostReason)
	}
	return r
}

// exitDown is the status of a job that goes down with its machine.
const exitDown = 125

// tellLacking notifies the client of a job that the history lacks the job. The caller holds
// Server.mu.
func (j *job) tellLacking(err error) {
	if err != nil && j.client != nil {
		_ = j.client.Send(&control.LogLine{Job: j.number, Level: "warn", Text: err.Error(), TimeNs: time.Now().UnixNano()})
	}
}
