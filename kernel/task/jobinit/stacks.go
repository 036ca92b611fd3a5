package jobinit

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"margay/internal/throwaway"
	"margay/kernel/link"
	"margay/kernel/stack"
	"margay/kernel/task"
)

// readStacks has the stacks of ranks sent through the pipe that comes with a message. A rank can
// make the reading of its memory take for ever. Then later requests about this job get nothing, and
// the reader of the pipe has a deadline.
func (in *initProcess) readStacks(m *link.Message) error {
	var b task.StacksBody
	if err := m.Decode(&b); err != nil {
		return err
	}
	if len(m.Files) != 1 {
		return fmt.Errorf("job init: %d pipes for the stacks", len(m.Files))
	}
	pipe := m.Files[0]
	m.Files = nil
	throwaway.Go(func() { // it traces the ranks; Linux releases what it still traces at its end
		defer pipe.Close()
		select {
		case in.reading <- struct{}{}:
			report := in.stacks(b)
			<-in.reading
			_ = json.NewEncoder(pipe).Encode(report) // its reader may be gone
		case <-time.After(stacksQueue): // the reader sees the end of the pipe
		}
	})
	return in.tell(task.Stacks, nil)
}

// Bounds of a request for stacks.
const (
	stacksTime  = 10 * time.Second // after which no further rank is read
	stacksQueue = 2 * time.Second  // for the request before
)

var errNoTime = errors.New("there was no time left for it: the node is too busy")

// stacks reads the stacks of the ranks that run and are wanted.
func (in *initProcess) stacks(b task.StacksBody) stack.Report {
	builder := stack.NewBuilder()
	deadline := time.Now().Add(stacksTime)
	for _, r := range in.running() {
		if len(b.Ranks) > 0 && !slices.Contains(b.Ranks, r.Rank.Rank) {
			continue
		}
		if time.Now().After(deadline) {
			builder.Fail(uint32(r.Rank.Rank), errNoTime)
			continue
		}
		p, err := stack.Read(r.pid, in.openModule, b.Layouts...)
		if err != nil {
			builder.Fail(uint32(r.Rank.Rank), err)
			continue
		}
		builder.Add(uint32(r.Rank.Rank), p)
	}
	return builder.Report
}

// running lists the ranks that have not ended, in order.
func (in *initProcess) running() []*rank {
	in.mu.Lock()
	defer in.mu.Unlock()
	ranks := make([]*rank, 0, len(in.pids))
	for _, r := range in.pids {
		ranks = append(ranks, r)
	}
	slices.SortFunc(ranks, func(a, b *rank) int { return cmp.Compare(a.Rank.Rank, b.Rank.Rank) })
	return ranks
}
