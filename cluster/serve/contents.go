package serve

import (
	"sync"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// union collects the contents that nodes lack. It is safe for concurrent use.
type union struct {
	mu     sync.Mutex
	lacked []bool // by index
}

func newUnion(contents int) *union { return &union{lacked: make([]bool, contents)} }

// add merges the answer of a node: a node that has not answered lacks everything. Indexes beyond
// the contents are ignored.
func (u *union) add(answer proto.Message) {
	u.mu.Lock()
	defer u.mu.Unlock()
	m, ok := answer.(*control.Prepared)
	if !ok {
		for i := range u.lacked {
			u.lacked[i] = true
		}
		return
	}
	for _, i := range m.Lacking {
		if int(i) < len(u.lacked) {
			u.lacked[i] = true
		}
	}
}

// list returns the indexes of contents that at least one node lacks.
func (u *union) list() (indexes []uint32) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i, lacked := range u.lacked {
		if lacked {
			indexes = append(indexes, uint32(i))
		}
	}
	return indexes
}
