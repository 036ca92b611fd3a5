package sim

import (
	"time"

	"margay/cluster/control"
	"margay/internal/tree"
)

// Load is the way of a job's files to its nodes, which have none of them: in pieces, from margay
// run over serve to the first node, and from there down a tree of the nodes. A node sends a piece
// to one child after the other, and then unpacks it.
type Load struct {
	Nodes  int
	Bytes  int
	Fanout tree.Fanout // of the tree, which is binary in a job
}

// pieceBytes is the size of a piece, as margay run makes them.
const pieceBytes = 256 << 10

// window is how many pieces margay run may be ahead of the first node.
const window = control.FileWindow / pieceBytes

func (l Load) pieces() int { return (l.Bytes + pieceBytes - 1) / pieceBytes }

// pieceTimes are what a piece costs.
type pieceTimes struct {
	feed          time.Duration // margay run and serve, between two pieces
	taken         time.Duration // from the time that the first node has taken a piece to the arrival of a further one
	receive, send time.Duration // a node, for itself and for each child
	unpack        time.Duration
	wire, latency time.Duration // the sender's link, and the rest of the way
}

func (s Setting) pieceTimes() pieceTimes {
	each := s.Work.Piece + s.Work.Pass.of(pieceBytes)
	t := pieceTimes{
		feed: 2 * each, receive: each, send: each, unpack: s.Work.Unpack.of(pieceBytes), wire: s.Network.PerByte.of(pieceBytes),
		latency: s.Network.Latency, taken: 4*s.Network.Latency + 4*s.Work.Message,
	}
	t.feed = max(t.feed, t.wire)
	return t
}

// reported is when serve knows that all nodes have the files: each node reports it.
func (s Setting) reported(l Load, first, last time.Duration) time.Duration {
	return s.Network.Latency + max(last+s.Work.Message, first+time.Duration(l.Nodes)*s.Work.Message)
}

// Time returns how long all nodes take to have the files, from the first piece on, if each node has
// processors of its own. The times of a node follow from the times of its parent, so there are no
// events: a million nodes take a second.
func (l Load) Time(s Setting) time.Duration {
	w := walk{Load: l, pieceTimes: s.pieceTimes()}
	w.node(0, nil, 0)
	return s.reported(l, w.first, w.last)
}

// walk goes through the tree of a Load, to each node before its children.
type walk struct {
	Load
	pieceTimes
	rows        [][][]time.Duration // by level and child: the arrivals of its pieces, used again for each parent
	first, last time.Duration       // when the first and the last node have all files
}

// node computes the times of a node from the arrivals of its pieces; the first node makes them.
func (w *walk) node(place int, arrivals []time.Duration, level int) {
	begin, end := w.Fanout.Children(place, w.Nodes)
	out := w.row(level, end-begin)
	var done, link, fed time.Duration
	var dones []time.Duration // of the first node
	for i := range w.pieces() {
		if place == 0 {
			fed += w.feed
			if i >= window {
				fed = max(fed, dones[i-window]+w.taken-w.latency)
			}
			done = max(done, fed+w.latency)
		} else {
			done = max(done, arrivals[i])
		}
		done += w.receive
		for child := range out {
			done += w.send
			link = max(link, done) + w.wire
			out[child][i] = link + w.latency
		}
		done += w.unpack
		if place == 0 {
			dones = append(dones, done)
		}
	}
	if w.first == 0 || done < w.first {
		w.first = done
	}
	w.last = max(w.last, done)
	for i := range out {
		w.node(begin+i, out[i], level+1)
	}
}

// row returns room for the arrivals at the children of a node.
func (w *walk) row(level, children int) [][]time.Duration {
	if level == len(w.rows) {
		w.rows = append(w.rows, nil)
	}
	for len(w.rows[level]) < children {
		w.rows[level] = append(w.rows[level], make([]time.Duration, w.pieces()))
	}
	return w.rows[level][:children]
}

// Simulate returns the same as Time, also where nodes share the processors of one host.
func (l Load) Simulate(s Setting) time.Duration {
	f := &flow{Load: l, pieceTimes: s.pieceTimes(), Engine: NewEngine(0), nodes: make([]flowing, l.Nodes)}
	if s.Processors > 0 {
		f.host = &host{processors: int64(s.Processors), others: int64(s.Others)}
	}
	f.feedNext(0)
	for {
		e, ok := f.Next()
		if !ok {
			return s.reported(l, f.first, f.last)
		}
		f.handle(e)
	}
}

// Kinds of events of a flow.
const (
	pieceArrives = iota // at a node
	pieceDone           // a node is done with one
	workDone            // on one host: the next work is done, unless Value is an old version
)

// flow is a Load whose events are simulated.
type flow struct {
	Load
	pieceTimes
	*Engine
	nodes       []flowing
	host        *host         // its processors are shared by all; nil: each node has its own
	fed         int           // pieces that have left for the first node
	fedAt       time.Duration // when the last of them did
	first, last time.Duration // when the first and the last node have all files
}

// flowing is a node of a flow.
type flowing struct {
	waiting, done int32
	busy          bool
	link          time.Duration // when its link is free
}

// feedNext sends pieces to the first node, as far as the window allows.
func (f *flow) feedNext(earliest time.Duration) {
	for f.fed < f.pieces() && f.fed < int(f.nodes[0].done)+window {
		f.fedAt = max(f.fedAt+f.feed, earliest)
		f.fed++
		f.At(f.fedAt+f.latency, Event{Kind: pieceArrives})
	}
}

// handle makes an event happen.
func (f *flow) handle(e Event) {
	switch e.Kind {
	case workDone:
		if e.Value != f.host.version {
			return
		}
		for {
			done, ok := f.host.done(f.Now())
			if !ok {
				break
			}
			f.pass(done.Node, f.Now(), 0)
			f.handle(done)
		}
		f.schedule()
		return
	case pieceArrives:
		f.nodes[e.Node].waiting++
	case pieceDone:
		f.pieceDone(e.Node)
	}
	if n := &f.nodes[e.Node]; n.waiting > 0 && !n.busy {
		f.process(e.Node)
	}
}

// schedule schedules the end of the next work on the host.
func (f *flow) schedule() {
	if at, version, ok := f.host.next(); ok {
		f.At(at, Event{Kind: workDone, Value: version})
	}
}

// process does a node's work for its next piece. On one host, where other work comes between, the
// children get the piece when all of it is done.
func (f *flow) process(place int32) {
	n := &f.nodes[place]
	n.waiting--
	n.busy = true
	begin, end := f.Fanout.Children(int(place), f.Nodes)
	work := f.receive + time.Duration(end-begin)*f.send + f.unpack
	if f.host != nil {
		f.host.add(f.Now(), work, Event{Kind: pieceDone, Node: place})
		f.schedule()
		return
	}
	f.pass(place, f.Now()+f.receive, f.send)
	f.At(f.Now()+work, Event{Kind: pieceDone, Node: place})
}

// pass sends a piece to the children of a place, one after the other.
func (f *flow) pass(place int32, at, each time.Duration) {
	n := &f.nodes[place]
	for child, end := f.Fanout.Children(int(place), f.Nodes); child < end; child++ {
		at += each
		n.link = max(n.link, at) + f.wire
		f.At(n.link+f.latency, Event{Kind: pieceArrives, Node: int32(child)})
	}
}

// pieceDone ends a node's work for a piece.
func (f *flow) pieceDone(place int32) {
	n := &f.nodes[place]
	n.busy = false
	if n.done++; int(n.done) == f.pieces() {
		if f.first == 0 {
			f.first = f.Now()
		}
		f.last = f.Now()
	}
	if place == 0 {
		f.feedNext(f.Now() + f.taken - f.latency)
	}
}
