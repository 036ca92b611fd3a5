package serve

import (
	"sync"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// union collects which contents nodes lack. It is safe for concurrent use.
type union struct {
	mu     sync.Mutex
	lacked []bool // by index
}

func newUnion(contents int) *union { return &union{lacked: make([]bool, contents)} }

// add takes the answer of a node: one that has not answered lacks everything. What it names beyond the contents is left out.
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

// list returns the indexes of the contents that some node lacks.
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
