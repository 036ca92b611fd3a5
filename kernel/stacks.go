package kernel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"margay/kernel/abi/id"
	"margay/kernel/stack"
	"margay/kernel/task"
)

// Bounds of a report about stacks. An init that takes longer, or sends more, is reading from a rank
// that means harm.
const (
	stacksWait  = 15 * time.Second
	stacksBytes = 16 << 20
)

// ReadStacks finds out where ranks of a job are on this node. The ranks go on as they were: each of
// their threads is stopped for a moment.
func (n *Node) ReadStacks(ctx context.Context, number id.Job, wanted task.StacksBody) (*stack.Report, error) {
	j, err := n.get(number)
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	err = j.container.Stacks(ctx, wanted, w)
	w.Close()
	if err == nil {
		err = r.SetReadDeadline(time.Now().Add(stacksWait))
	}
	report := new(stack.Report)
	if err == nil {
		err = json.NewDecoder(io.LimitReader(r, stacksBytes)).Decode(report)
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("another request is reading them")
	}
	if err != nil {
		return nil, fmt.Errorf("read stacks of job %d: %w", number, err)
	}
	return report, nil
}
