package serve

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/records"
	"margay/kernel/abi/id"
	"margay/kernel/task"
	"margay/kernel/task/journal"
)

// actor is a node in a history: the ranks of the job on it, job init with its real journal, and the
// node kernel.
type actor struct {
	story  *story
	number uint32
	job    uint32
	hosts  bool // the node has the job

	present bool // it already has the files of the job

	input   map[uint32]*input // of its ranks
	running []uint32          // ranks that have not ended
	open    []uint32          // ranks that have ended, and whose children still write
	lines   int

	journal *journal.Journal
	told    []task.Record  // sent by job init, not yet taken by the node kernel
	ends    records.Gather // of the node kernel
	link    *link          // to serve; nil while there is none
	acked   uint64         // records that serve has acknowledged
}

// input is the standard input that a rank has read.
type input struct {
	text string
	end  bool
}

// take reads a chunk, unless it repeats an earlier one, or one before it was lost.
func (i *input) take(m *control.Stdin) {
	if have := uint64(len(i.text)); m.Offset <= have && m.Offset+uint64(len(m.Data)) >= have {
		i.text += string(m.Data[have-m.Offset:])
		i.end = i.end || m.Eof
	}
}

// write makes a rank, or a child that a rank has left behind, write a line if the journal has room.
func (a *actor) write(rank uint32, kind task.Stream) {
	a.lines++
	line := fmt.Sprintf("%d.%d\n", a.number, a.lines)
	if a.journal.TryAppend(task.Record{Rank: id.Rank(rank), Stream: kind, Data: []byte(line)}) {
		a.story.wrote(rank, control.Stream(kind), line)
	}
}

// end ends a rank. Children that still write keep its streams open.
func (a *actor) end(rank uint32, status task.Status, children bool) {
	a.running = slices.DeleteFunc(a.running, func(r uint32) bool { return r == rank })
	if children {
		a.open = append(a.open, rank)
	}
	a.story.exits[rank] = &control.ExitStatus{Code: int32(status.Code), Signal: int32(status.Signal)}
	a.journal.Append(task.Record{Rank: id.Rank(rank), Stream: task.Exit, Status: status, Open: children, Last: a.complete()})
}

// childrenEnd ends the children that a rank has left behind.
func (a *actor) childrenEnd(rank uint32) {
	a.open = slices.DeleteFunc(a.open, func(r uint32) bool { return r == rank })
	if a.complete() {
		a.journal.Append(task.Record{Rank: id.Rank(rank), Stream: task.End, Last: true})
	}
}

func (a *actor) complete() bool { return len(a.running)+len(a.open) == 0 }

// Sends the next record of job init to the node kernel. It reports whether there was one.
func (a *actor) tell() bool {
	if !a.hosts {
		return false
	}
	r, ok := a.journal.TryRead()
	if ok {
		a.told = append(a.told, r)
	}
	return ok
}

// forward has the node kernel take its next record, and send serve what need not wait for others.
// Without a connection, that is lost.
func (a *actor) forward() {
	r := a.told[0]
	a.told = a.told[1:]
	m := &control.Record{
		Job: a.job, Node: a.number, Seq: r.Seq, Rank: uint32(r.Rank), Stream: control.Stream(r.Stream), Data: r.Data, Open: r.Open, Last: r.Last,
		Acked: r.Acked,
	}
	if r.Last {
		m.Unkept = new(control.Unkept)
	}
	if r.Stream == task.Exit {
		m.Exit = &control.ExitStatus{Code: int32(r.Status.Code), Signal: int32(r.Status.Signal)}
	}
	a.send(a.ends.Add(m))
}

func (a *actor) send(list []*control.Record) {
	for _, m := range list {
		if a.link != nil && a.link.open() {
			a.link.send(m)
		}
	}
}

// forge makes the node report that a running rank has ended, with the number of a record that
// cannot follow.
func (a *actor) forge(rank uint32, seq uint64) {
	a.link.send(&control.Record{
		Job: a.job, Node: a.number, Seq: seq, Rank: rank, Stream: control.Stream_STREAM_EXIT, Exit: &control.ExitStatus{Code: 77},
	})
}

// take processes a message from serve.
func (a *actor) take(f *control.Frame) {
	var answer proto.Message = &control.Done{}
	switch m := f.Message().(type) {
	case *control.Prepare:
		a.hosts, a.job, a.journal, a.input = true, m.Job, journal.New(), make(map[uint32]*input)
		for _, p := range placesOf(m.Layout) {
			if p.Node == a.number {
				a.running = append(a.running, p.Rank)
				a.input[p.Rank] = new(input)
			}
		}
		if a.present && len(m.Files) > 0 {
			answer = &control.Prepared{Loaded: true}
		} else {
			answer = new(control.Prepared)
			a.link.send(&control.Loaded{Job: m.Job})
		}
	case *control.Stdin:
		if a.hosts {
			a.input[m.Rank].take(m)
		}
	case *control.Ack:
		a.journal.Ack(m.Seq)
		a.acked = max(a.acked, m.Seq)
	case *control.Rewind:
		a.journal.Rewind()
	case *control.Signal:
		for _, rank := range slices.Clone(a.running) {
			if a.hosts && (m.Rank == control.None || uint32(m.Rank) == rank) {
				a.end(rank, task.Status{Signal: unix.Signal(m.Signal)}, false)
			}
		}
	case *control.Finish:
		for len(a.running) == 0 && len(a.open) > 0 {
			a.childrenEnd(a.open[0])
		}
	case *control.Forget:
		a.hosts, a.told, a.ends, answer = false, nil, records.Gather{}, &control.Forgotten{}
	}
	if f.Call != 0 && a.link.open() {
		reply := control.NewFrame(answer)
		reply.Answer = f.Call
		a.link.sent = append(a.link.sent, reply)
	}
}

// registration is the node's message when it connects.
func (a *actor) registration() *control.Register {
	m := &control.Register{
		Node: a.number, Boot: fmt.Sprint("boot ", a.number),
		Info: &control.NodeInfo{Address: fmt.Sprintf("10.0.0.%d:1", a.number), Arch: spec(1).Arch, Cores: []uint32{1, 2}, Memory: 64 << 20},
	}
	if a.hosts {
		phase := control.JobPhase_JOB_RUNNING
		if len(a.running) == 0 {
			phase = control.JobPhase_JOB_DONE
		}
		m.Jobs = []*control.HostedJob{{Job: a.job, Phase: phase}}
	}
	return m
}

// follower is margay run in a history. It has a connection to serve, and may still receive messages
// from earlier connections.
type follower struct {
	story  *story
	job    uint32
	reader *records.Reader

	stdin    control.StdinMode
	detached bool
	typed    string  // its standard input so far
	typedAll bool    // nothing follows typed
	links    []*link // the last one is the current one
	process  *processes
	state    *control.JobState
	stalled  bool // its output is not taken
	stopped  bool // its process is
	dead     bool
}

func (c *follower) link() *link { return c.links[len(c.links)-1] }

// sends forwards the standard input from a position on, to the ranks on the given nodes, or to all
// ranks if none are given.
func (c *follower) sends(from int, only ...uint32) {
	if c.link().open() {
		c.link().send(&control.Stdin{Job: c.job, Offset: uint64(from), Data: []byte(c.typed[from:]), Eof: c.typedAll, Only: only})
	}
}

// returned ends margay run with the last state of its job. A failure that a full disk prevented
// from being recorded can be followed by another one.
func (c *follower) returned(state *control.JobState) {
	c.state = state
	c.process.set(ProcessEnded)
	if !c.detached && state.ExitCode != 0 {
		c.story.may(clientGone)
	}
	c.link().cut()
}

// take processes a message like package launch.
func (c *follower) take(f *control.Frame) error {
	if c.state != nil {
		return nil
	}
	switch m := f.Message().(type) {
	case *control.RunReply:
		if c.job = m.Job; c.link().open() {
			c.link().send(&control.FileChunk{Job: m.Job, Last: true})
		}
	case *control.Record:
		for r := range records.Each(m) {
			if !c.reader.Next(r.Node, r.Seq) {
				continue
			}
			if err := c.story.saw(r); err != nil {
				return err
			}
			c.reader.Done(r.Node)
		}
		if c.link().open() {
			c.link().send(&control.Ack{Job: m.Job, Node: m.Node, Seq: c.reader.Seen(m.Node)})
		}
	case *control.Rewind:
		c.sends(0, m.Node)
	case *control.JobState:
		switch {
		case m.Phase == control.JobPhase_JOB_DONE:
			c.returned(m)
		case f.Answer != 0: // to Attach
			c.sends(0)
		}
	case *control.Error:
		return fmt.Errorf("margay run is refused: %w", m.Err())
	}
	return nil
}
