package share

import (
	"fmt"
	"maps"

	"margay/kernel/abi/fuse"
)

// Answers are what margay run has done for a node. It is a state machine without input and output,
// and not safe for concurrent use.
type Answers struct {
	window  int
	used    int // by requests that are carried out
	floor   uint64
	entries map[uint64]*entry // from floor on
}

// entry is a request that is carried out, or whose answer the node may ask for once more.
type entry struct {
	cost   int    // 0: the answer was sent
	answer []byte // nil: it is being carried out
}

// NewAnswers returns an empty table for a node with a window.
func NewAnswers(window int) *Answers {
	return &Answers{window: window, entries: make(map[uint64]*entry)}
}

// Room reports whether a request may be noted now. If not, the next Sent makes room: this side
// counts an answer a little longer than the node.
func (a *Answers) Room(f Frame) bool {
	return a.used == 0 || a.used+fuse.Cost(f.Body) <= a.window || a.entries[f.Number] != nil
}

// Request notes a request. There must be room for it. If do is set it must be carried out, and then
// Executed. If not, the answer must be sent, unless it is nil: the request is still carried out. An
// error means that the stream must end.
func (a *Answers) Request(f Frame) (do bool, answer []byte, err error) {
	if f.Kind != Request || f.Floor < a.floor || f.Number < f.Floor || f.Number-f.Floor >= MaxAhead {
		return false, nil, fmt.Errorf("%w: request %d with floor %d after %d", ErrProtocol, f.Number, f.Floor, a.floor)
	}
	if a.floor < f.Floor {
		a.floor = f.Floor
		maps.DeleteFunc(a.entries, func(n uint64, e *entry) bool { return n < a.floor && e.cost == 0 })
	}
	if e := a.entries[f.Number]; e != nil {
		return false, e.answer, nil
	}
	cost := fuse.Cost(f.Body)
	a.used += cost
	a.entries[f.Number] = &entry{cost: cost}
	return true, nil, nil
}

// Executed notes the answer of a request that was carried out. The answer must be sent over the
// stream that there is now, and then Sent. Until then it counts as under way, so a node that does
// not read has few requests carried out.
func (a *Answers) Executed(f Frame, answer []byte) { a.entries[f.Number].answer = answer }

// Sent notes that an answer was sent, or was lost with its stream.
func (a *Answers) Sent(f Frame) {
	e := a.entries[f.Number]
	a.used -= e.cost
	e.cost = 0
	h, err := fuse.ReadHeader(f.Body)
	if f.Number < a.floor || err == nil && h.Opcode.Repeatable() {
		delete(a.entries, f.Number)
	}
}
