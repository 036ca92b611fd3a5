// Package pmi is the process management interface of MPI, version 1, as MPICH speaks it: how the
// ranks of a job find each other. A Job is the part of one node: it answers the lines of the node's
// ranks, and exchanges messages with the Jobs of the job's other nodes.
//
// Each rank sends lines, such as "cmd=put kvsname=job-7 key=P0-card value=...", and gets one line
// in answer to each, but none to abort, and one to the lines of spawn together. What ranks put into
// the key space is seen on their node at once, and on the others after a barrier: the puts are
// folded up a binary tree of the nodes (package tree), and the root sends all of them down. So get
// is answered on the node. Names that ranks publish are kept at the root.
//
// A Job has no clock, lock, goroutine or I/O: lines, messages and the time come in, answers and
// messages go out. Messages may be lost, duplicated and reordered. Each part of a fold or a table
// is sent again until it is acknowledged; a node sends one part at a time to another.
package pmi

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"margay/internal/tree"
	"margay/kernel/abi/id"
)

// Bounds of what the ranks of a job can have kept for them.
const (
	maxTable = 32 << 20  // bytes of all puts
	maxPuts  = 256 << 10 // bytes of the puts of one rank
	maxNames = 1024      // published names
	maxName  = 256       // bytes of a published name
)

// Pauses before a message is sent again.
const (
	firstResend = 200 * time.Millisecond
	lastResend  = 2 * time.Second
)

// Config describes a job to one of its nodes.
type Config struct {
	Job     id.Job
	Size    int       // ranks of the job
	Place   int       // of this node in the tree of the job's nodes
	Places  int       // nodes of the job
	Ranks   []id.Rank // on this node
	Mapping string    // value of PMI_process_mapping; empty: there is none
}

// Reply is a line for a rank, without its end.
type Reply struct {
	Rank id.Rank
	Line string
}

// Message is for the job init on another node of the job, named by its place.
type Message struct {
	To   int
	Data []byte
}

// Actions are what a Job wants done.
type Actions struct {
	Replies  []Reply
	Messages []Message
}

// Outcome says how a rank has used the interface.
type Outcome struct {
	Used      bool // it has sent init
	Finalized bool // it has sent finalize
	Aborted   bool // it has asked that the job end
	Status    int  // with this exit status, from 0 to 255
}

// rank is what a Job knows of a rank of its node.
type rank struct {
	Outcome
	puts    int  // bytes
	waits   bool // in the barrier
	gone    bool // it enters no barrier any more
	ended   bool
	several bool // it sends the lines of spawn
}

// transfer is a fold or a table on its way to another node.
type transfer struct {
	kind   byte
	to     int
	number uint64
	body   []byte
	part   uint32        // that is sent
	due    time.Duration // when it is sent again
	pause  time.Duration
}

func (t *transfer) parts() uint32 { return uint32((len(t.body)-1)/partSize + 1) }

func (t *transfer) message() Message {
	begin := int(t.part) * partSize
	m := message{kind: t.kind, part: t.part, number: t.number, parts: t.parts(), body: t.body[begin:min(len(t.body), begin+partSize)]}
	return Message{t.to, m.encode()}
}

// arrival is a fold or a table that arrives in parts.
type arrival struct {
	parts uint32 // that have arrived
	body  []byte
	done  bool
	fold  fold
}

// Job is a job on one of its nodes. It is not safe for concurrent use.
type Job struct {
	config   Config
	keyspace string
	children []int
	parent   int // -1 for the root
	ranks    map[id.Rank]*rank
	table    map[string]string
	fresh    []pair // what ranks of this node have put since the last barrier

	barrier  uint64           // that ranks enter next, from 1
	folded   bool             // its fold has left this node, or is complete at the root
	arrivals map[int]*arrival // by place: folds of the children and the table of the parent, for this barrier
	sending  map[int]*transfer

	names names
}

// New returns the part of a job on a node.
func New(c Config) *Job {
	j := &Job{
		config: c, keyspace: fmt.Sprintf("job-%d", c.Job), children: tree.Children(c.Place, c.Places), parent: -1,
		ranks: make(map[id.Rank]*rank), table: make(map[string]string), barrier: 1,
		arrivals: make(map[int]*arrival), sending: make(map[int]*transfer), names: newNames(),
	}
	if parent, ok := tree.Parent(c.Place); ok {
		j.parent = parent
	}
	for _, r := range c.Ranks {
		j.ranks[r] = new(rank)
	}
	if c.Mapping != "" {
		j.table["PMI_process_mapping"] = c.Mapping
	}
	return j
}

// Outcome returns how a rank has used the interface so far.
func (j *Job) Outcome(r id.Rank) Outcome {
	if own := j.ranks[r]; own != nil {
		return own.Outcome
	}
	return Outcome{}
}

// Owes reports whether a rank waits for an answer that comes with a later event.
func (j *Job) Owes(number id.Rank) bool {
	r := j.ranks[number]
	return r != nil && (r.waits || j.names.waits(number))
}

// Line handles a line of a rank of this node, without its end. The rank must have got the answer to
// its line before.
func (j *Job) Line(now time.Duration, number id.Rank, line []byte) (a Actions) {
	r := j.ranks[number]
	if r == nil || r.ended {
		return a
	}
	if r.several {
		if strings.TrimSpace(string(line)) != "endcmd" {
			return a
		}
		r.several = false
		a.answer(number, "cmd=spawn_result rc=-1 msg=spawn_is_not_supported")
		return a
	}
	c, err := parse(line)
	switch {
	case err != nil:
		a.answer(number, "cmd=error rc=-1 msg=%s", word(err.Error()))
	case c.multi:
		r.several = true
	case r.Finalized:
		a.answer(number, "cmd=%s_result rc=-1 msg=after_finalize", c.name)
	default:
		j.do(now, number, r, c, &a)
	}
	return a
}

// TooLong answers a line of a rank that was longer than MaxLine.
func (j *Job) TooLong(number id.Rank) (a Actions) {
	if r := j.ranks[number]; r != nil && !r.several && !r.ended {
		a.answer(number, "cmd=error rc=-1 msg=the_line_is_longer_than_%d_bytes", MaxLine)
	}
	return a
}

func (a *Actions) answer(to id.Rank, format string, args ...any) {
	a.Replies = append(a.Replies, Reply{to, fmt.Sprintf(format, args...)})
}

// word makes a text one value of a line.
func word(text string) string {
	out := []byte(text)
	for i, b := range out {
		if b <= ' ' || b > '~' || b == '=' {
			out[i] = '_'
		}
	}
	return string(out)
}

func (j *Job) do(now time.Duration, number id.Rank, r *rank, c command, a *Actions) {
	switch c.name {
	case "init":
		if c.args["pmi_version"] != "1" {
			a.answer(number, "cmd=response_to_init rc=-1 pmi_version=1 pmi_subversion=1 msg=version_1_is_spoken_here")
			return
		}
		r.Used = true
		a.answer(number, "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1")
	case "get_maxes":
		a.answer(number, "cmd=maxes rc=0 kvsname_max=%d keylen_max=%d vallen_max=%d", maxKeyspace, maxKey, maxValue)
	case "get_appnum":
		a.answer(number, "cmd=appnum rc=0 appnum=0")
	case "get_my_kvsname":
		a.answer(number, "cmd=my_kvsname rc=0 kvsname=%s", j.keyspace)
	case "get_universe_size":
		a.answer(number, "cmd=universe_size rc=0 size=%d", j.config.Size)
	case "get":
		j.get(number, c, a)
	case "put":
		if err := j.put(r, c); err != nil {
			a.answer(number, "cmd=put_result rc=-1 msg=%s", word(err.Error()))
			return
		}
		a.answer(number, "cmd=put_result rc=0 msg=success")
	case "barrier_in":
		r.waits = true
		j.advance(now, a)
	case "publish_name":
		j.name(now, number, publish, c, a)
	case "lookup_name":
		j.name(now, number, lookUp, c, a)
	case "unpublish_name":
		j.name(now, number, unpublish, c, a)
	case "abort":
		status, err := strconv.Atoi(c.args["exitcode"])
		if err != nil {
			status = 1
		}
		r.Aborted, r.Status = true, status&255
	case "finalize":
		r.Finalized = true
		a.answer(number, "cmd=finalize_ack rc=0")
		r.gone = true
		j.advance(now, a)
	case "spawn":
		a.answer(number, "cmd=spawn_result rc=-1 msg=spawn_is_not_supported")
	default:
		a.answer(number, "cmd=%s_result rc=-1 msg=unknown_command", c.name)
	}
}

// ours reports whether a command names the job's key space.
func (j *Job) ours(c command) bool { return c.args["kvsname"] == j.keyspace }

func (j *Job) get(number id.Rank, c command, a *Actions) {
	if !j.ours(c) {
		a.answer(number, "cmd=get_result rc=-1 msg=unknown_key_space value=unknown")
		return
	}
	value, ok := j.table[c.args["key"]]
	if !ok {
		a.answer(number, "cmd=get_result rc=-1 msg=unknown_key value=unknown")
		return
	}
	a.answer(number, "cmd=get_result rc=0 msg=success value=%s", value)
}

func (j *Job) put(r *rank, c command) error {
	value, given := c.args["value"]
	p := pair{c.args["key"], value}
	switch {
	case !j.ours(c):
		return fmt.Errorf("unknown key space")
	case p.key == "" || !given:
		return fmt.Errorf("a put needs a key and a value")
	case len(p.key) >= maxKey || len(p.value) >= maxValue:
		return fmt.Errorf("the key is longer than %d bytes or the value than %d", maxKey-1, maxValue-1)
	case r.puts+p.size() > min(maxPuts, maxTable/max(1, j.config.Size)):
		return fmt.Errorf("this rank has put too much")
	}
	if _, taken := j.table[p.key]; taken {
		return fmt.Errorf("duplicate key")
	}
	r.puts += p.size()
	j.table[p.key] = p.value
	j.fresh = append(j.fresh, p)
	return nil
}

// Ended reports that a rank of this node has ended. It gets no answers any more.
func (j *Job) Ended(now time.Duration, number id.Rank) (a Actions) {
	if r := j.ranks[number]; r != nil && !r.ended {
		r.ended, r.gone, r.waits = true, true, false
		j.names.forget(number)
		j.advance(now, &a)
	}
	return a
}

// advance folds the barrier when every rank of this node's part of the tree has entered it, or
// never will.
func (j *Job) advance(now time.Duration, a *Actions) {
	if j.folded {
		return
	}
	whole := fold{gone: noRank, pairs: slices.Clone(j.fresh)}
	for _, number := range j.config.Ranks {
		switch r := j.ranks[number]; {
		case r.gone:
			whole.gone = min(whole.gone, uint32(number))
		case r.waits:
			whole.waits = true
		default:
			return
		}
	}
	size := 0
	for _, child := range j.children {
		part := j.arrivals[child]
		if part == nil || !part.done {
			return
		}
		whole.waits = whole.waits || part.fold.waits
		whole.gone = min(whole.gone, part.fold.gone)
		whole.pairs = append(whole.pairs, part.fold.pairs...)
	}
	for i, p := range whole.pairs {
		if size += p.size(); size > maxTable { // the other nodes did not keep to their bounds
			whole.pairs = whole.pairs[:i]
			break
		}
	}
	if j.parent >= 0 {
		j.folded = true
		j.send(now, kindFold, j.parent, whole.encode(), a)
		return
	}
	if !whole.waits {
		return // the job is over
	}
	j.complete(now, whole, a)
}

// complete ends the barrier on this node and below it.
func (j *Job) complete(now time.Duration, whole fold, a *Actions) {
	seen := make(map[string]bool)
	for _, p := range whole.pairs {
		if !seen[p.key] { // of two nodes that have put the same key, the first counts everywhere
			seen[p.key] = true
			j.table[p.key] = p.value
		}
	}
	if len(j.children) > 0 {
		body := whole.encode()
		for _, child := range j.children {
			j.send(now, kindTable, child, body, a)
		}
	}
	for _, number := range j.config.Ranks {
		r := j.ranks[number]
		if !r.waits {
			continue
		}
		r.waits = false
		if whole.gone != noRank {
			a.answer(number, "cmd=barrier_out rc=-1 msg=rank_%d_has_ended", whole.gone)
		} else {
			a.answer(number, "cmd=barrier_out rc=0 msg=success")
		}
	}
	j.barrier++
	j.folded, j.fresh = false, nil
	clear(j.arrivals)
	j.advance(now, a)
}

// send begins to send a fold or a table. If one before it was not acknowledged, it has arrived
// nevertheless: otherwise this barrier would not have been reached.
func (j *Job) send(now time.Duration, kind byte, to int, body []byte, a *Actions) {
	t := &transfer{kind: kind, to: to, number: j.barrier, body: body, due: now + firstResend, pause: firstResend}
	j.sending[to] = t
	a.Messages = append(a.Messages, t.message())
}

// Receive handles a message from the job init on another node of the job, which may be any bytes.
// An error changes nothing.
func (j *Job) Receive(now time.Duration, from int, data []byte) (a Actions, err error) {
	m, err := decode(data)
	if err != nil {
		return a, err
	}
	child := slices.Contains(j.children, from)
	switch {
	case m.kind == kindFold && child, m.kind == kindTable && from == j.parent:
		err = j.arrived(now, from, m, &a)
	case m.kind == kindFolded && from == j.parent, m.kind == kindTabled && child:
		j.acknowledged(now, from, m, &a)
	case m.kind == kindRequest && j.config.Place == 0 && from > 0 && from < j.config.Places:
		j.names.asked(from, m, &a)
	case m.kind == kindAnswer && from == 0 && j.config.Place != 0:
		j.answered(now, m, &a)
	default:
		err = fmt.Errorf("%w: kind %d from place %d", errMessage, m.kind, from)
	}
	return a, err
}

// arrived handles a part of a fold or a table.
func (j *Job) arrived(now time.Duration, from int, m message, a *Actions) error {
	ack := message{kind: kindFolded, part: m.part, number: m.number}
	if m.kind == kindTable {
		ack.kind = kindTabled
	}
	if m.number > j.barrier || m.number == j.barrier && m.kind == kindTable && !j.folded {
		return fmt.Errorf("%w: barrier %d in barrier %d", errMessage, m.number, j.barrier)
	}
	if m.number == j.barrier {
		part := j.arrivals[from]
		if part == nil {
			part = new(arrival)
			j.arrivals[from] = part
		}
		if m.part > part.parts {
			return fmt.Errorf("%w: part %d after %d parts", errMessage, m.part, part.parts)
		}
		if !part.done && m.part == part.parts {
			if err := part.add(m); err != nil {
				return err
			}
		}
	}
	a.Messages = append(a.Messages, Message{from, ack.encode()})
	if part := j.arrivals[from]; m.number == j.barrier && part.done {
		if m.kind == kindTable {
			j.complete(now, part.fold, a)
		} else {
			j.advance(now, a)
		}
	}
	return nil
}

// add takes the next part.
func (p *arrival) add(m message) (err error) {
	body := append(p.body, m.body...)
	if m.part+1 == m.parts {
		if p.fold, err = decodeFold(body); err != nil {
			return err
		}
		p.done, body = true, nil
	}
	p.parts, p.body = m.part+1, body
	return nil
}

// acknowledged handles the arrival of a part at another node.
func (j *Job) acknowledged(now time.Duration, from int, m message, a *Actions) {
	t := j.sending[from]
	if t == nil || m.number != t.number || m.part != t.part {
		return // it was sent twice
	}
	if t.part+1 == t.parts() {
		delete(j.sending, from)
		return
	}
	t.part++
	t.due, t.pause = now+firstResend, firstResend
	a.Messages = append(a.Messages, t.message())
}

// Next returns when Tick must be called. ok is false if it need not be called before another event.
func (j *Job) Next() (at time.Duration, ok bool) {
	for _, t := range j.sending {
		if !ok || t.due < at {
			at, ok = t.due, true
		}
	}
	if due, asks := j.names.due(); asks && (!ok || due < at) {
		at, ok = due, true
	}
	return at, ok
}

// Tick sends again what was not acknowledged in time.
func (j *Job) Tick(now time.Duration) (a Actions) {
	for _, place := range append(slices.Clone(j.children), j.parent) {
		if t := j.sending[place]; t != nil && now >= t.due {
			t.pause = min(2*t.pause, lastResend)
			t.due = now + t.pause
			a.Messages = append(a.Messages, t.message())
		}
	}
	j.names.tick(now, &a)
	return a
}
