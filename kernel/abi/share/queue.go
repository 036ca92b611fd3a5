package share

import (
	"slices"
	"syscall"
	"time"

	"margay/kernel/abi/fuse"
)

// Queue decides when a request of Linux goes to margay run, and when Linux gets its answer. Most
// writes are answered at once and carried out behind the rank: what follows on a write that is not
// sent yet joins it, so many small writes become a large one. It is a state machine without input
// and output, and not safe for concurrent use.
//
// A write behind is sent when it is full, or when none of the same open file is under way, or when
// a request waits for it. A request waits for the earlier writes that it could show (fuse.Reach).
// So a rank reads its own writes, and has the answer to a Flush or FSync when all of them were
// carried out. A write waits for the earlier writes that it overlaps, because margay run may carry
// out requests in any order.
//
// margay run keeps the error of a write behind for the open file, and returns it to the next
// request that can report it: Flush, FSync, or a Write. So the writes of an open file are not
// answered ahead any more when one of them has failed.
//
// At most half of the window is answered and not written. A write beyond that is answered when
// there is room.
type Queue struct {
	*Requests
	unwritten int                   // bytes that ranks take for written
	writes    []*Pending            // writes behind, by number
	waiting   []*Pending            // requests that wait for writes, by number
	late      []late                // writes behind that are not answered, in order of arrival
	failed    map[openFile]struct{} // a write behind has failed
}

type openFile struct {
	folder uint8
	handle uint64
}

// late is a write that is part of a write behind, and is answered when there is room.
type late struct {
	write  *Pending
	header fuse.Header
	size   int
}

func (l late) reply() Reply { return Reply{l.write.Folder, fuse.Written(l.header)} }

// Reply is an answer for Linux.
type Reply struct {
	Folder uint8
	Body   []byte
}

// Todo is what a Queue wants done.
type Todo struct {
	Replies []Reply
	Send    []*Pending // to margay run, if there is a stream
	Lost    bool       // data are lost that ranks take for written
}

// NewQueue returns an empty queue, as NewRequests does.
func NewQueue(patience time.Duration, now time.Time) *Queue {
	return &Queue{Requests: NewRequests(patience, now), failed: make(map[openFile]struct{})}
}

// Take takes a request, and keeps its body. There must be Room for it.
func (q *Queue) Take(folder uint8, body []byte) (todo Todo) {
	h, err := fuse.ReadHeader(body)
	if err != nil {
		return Todo{}
	}
	if q.Lost() {
		todo.fail(folder, h)
		return todo
	}
	extent, deferrable := fuse.Deferrable(h, body)
	if deferrable && q.mayDefer(folder, h.Node, extent) {
		q.deferWrite(&todo, folder, h, extent, body)
		return todo
	}
	p := q.Add(folder, body)
	p.header = h
	for _, w := range q.writes {
		if w.held && q.before(w, p) {
			q.push(&todo, w)
		}
	}
	if p.held = q.blocked(p); p.held {
		q.waiting = append(q.waiting, p)
	} else {
		todo.Send = append(todo.Send, p)
	}
	return todo
}

// mayDefer reports whether a write may be answered before it is carried out.
func (q *Queue) mayDefer(folder uint8, node uint64, e fuse.Extent) bool {
	if _, failed := q.failed[openFile{folder, e.Handle}]; failed {
		return false
	}
	return !slices.ContainsFunc(q.writes, func(w *Pending) bool {
		return w.Folder == folder && w.header.Node == node && w.extent.Overlaps(e)
	})
}

// deferWrite makes a write one behind the rank.
func (q *Queue) deferWrite(todo *Todo, folder uint8, h fuse.Header, e fuse.Extent, body []byte) {
	size := int(e.End - e.Offset)
	w := q.growing(folder, e.Handle)
	switch {
	case w != nil && w.header.Node == h.Node && w.extent.End == e.Offset && fuse.Joins(w.Body, body):
		w.Body = fuse.Join(w.Body, body)
		w.extent.End = e.End
		w.cost += size
		q.used += size
	default:
		if w != nil {
			q.push(todo, w)
		}
		w = q.Add(folder, body)
		w.header, w.extent, w.behind, w.held = h, e, true, true
		fuse.Defer(w.Body)
		q.writes = append(q.writes, w)
	}
	if fuse.Full(w.Body) || !q.underWay(w) {
		q.push(todo, w)
	}
	q.late = append(q.late, late{w, h, size})
	q.answerLate(todo)
}

// growing returns the write of an open file that others may join.
func (q *Queue) growing(folder uint8, handle uint64) *Pending {
	for _, w := range q.writes {
		if w.held && w.Folder == folder && w.extent.Handle == handle {
			return w
		}
	}
	return nil
}

// underWay reports whether a write of the same open file has been sent.
func (q *Queue) underWay(w *Pending) bool {
	return slices.ContainsFunc(q.writes, func(other *Pending) bool {
		return !other.held && other.Folder == w.Folder && other.extent.Handle == w.extent.Handle
	})
}

// push sends a write behind or a request that has waited.
func (q *Queue) push(todo *Todo, p *Pending) {
	p.held = false
	todo.Send = append(todo.Send, p)
}

// answerLate answers writes while there is room.
func (q *Queue) answerLate(todo *Todo) {
	for len(q.late) > 0 && q.unwritten+q.late[0].size <= q.window/2 {
		l := q.late[0]
		q.late = q.late[1:]
		q.unwritten += l.size
		l.write.answered += l.size
		todo.Replies = append(todo.Replies, l.reply())
	}
}

// before reports whether a request must not be carried out before a write behind.
func (q *Queue) before(w, p *Pending) bool {
	if w.Folder != p.Folder || w.Number > p.Number {
		return false
	}
	switch p.header.Opcode.Reach() {
	case fuse.ReachFile:
		return w.header.Node == p.header.Node
	case fuse.ReachFolder:
		return true
	}
	return false
}

func (q *Queue) blocked(p *Pending) bool {
	return slices.ContainsFunc(q.writes, func(w *Pending) bool { return q.before(w, p) })
}

// Answered takes an answer of margay run. It returns the request if that is one whose answer Linux
// waits for.
func (q *Queue) Answered(number uint64, answer []byte) (p *Pending, todo Todo) {
	p = q.Requests.Answered(number)
	if p == nil {
		return nil, Todo{}
	}
	if !p.behind {
		if handle, ok := fuse.Released(p.Body); ok {
			delete(q.failed, openFile{p.Folder, handle})
		}
		return p, Todo{}
	}
	q.writes = slices.DeleteFunc(q.writes, func(w *Pending) bool { return w == p })
	if !fuse.AllWritten(p.Body, answer) {
		q.failed[openFile{p.Folder, p.extent.Handle}] = struct{}{}
	}
	q.unwritten -= p.answered
	q.late = slices.DeleteFunc(q.late, func(l late) bool {
		if l.write == p {
			todo.Replies = append(todo.Replies, l.reply())
		}
		return l.write == p
	})
	q.answerLate(&todo)
	if w := q.growing(p.Folder, p.extent.Handle); w != nil && !q.underWay(w) {
		q.push(&todo, w)
	}
	q.waiting = slices.DeleteFunc(q.waiting, func(r *Pending) bool {
		if q.blocked(r) {
			return false
		}
		q.push(&todo, r)
		return true
	})
	return nil, todo
}

// Expire fails all requests if there was no stream for too long, and all later ones.
func (q *Queue) Expire(now time.Time) (todo Todo) {
	for _, p := range q.Requests.Expire(now) {
		if !p.behind {
			todo.fail(p.Folder, p.header)
		}
	}
	if !q.Lost() {
		return todo
	}
	for _, l := range q.late {
		todo.fail(l.write.Folder, l.header)
	}
	todo.Lost = q.unwritten > 0
	q.writes, q.waiting, q.late, q.unwritten = nil, nil, nil, 0
	return todo
}

// fail answers a request with EIO.
func (t *Todo) fail(folder uint8, h fuse.Header) {
	if h.Opcode.Answered() {
		t.Replies = append(t.Replies, Reply{folder, fuse.Failed(h.Unique, syscall.EIO)})
	}
}
