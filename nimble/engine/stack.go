package engine

import (
	"sync"

	"margay/nimble/memory"
	"margay/nimble/verify"
)

// stacks caches zeroed stacks of closed machines, because mapping and unmapping
// one takes longer than threading a small program.
var stacks struct {
	sync.Mutex
	kept map[int][]*memory.Memory // by call depth
	n    int
}

// keptStacks bounds the number of cached stacks.
const keptStacks = 16

// takeStack returns zeroed memory for callDepth frames.
func takeStack(callDepth int) (*memory.Memory, error) {
	stacks.Lock()
	defer stacks.Unlock()
	if list := stacks.kept[callDepth]; len(list) > 0 {
		last := len(list) - 1
		stack := list[last]
		stacks.kept[callDepth] = list[:last]
		stacks.n--
		return stack, nil
	}
	return memory.Map("stack", callDepth*verify.FrameSize)
}

// leaveStack takes back a stack that is no longer in use.
func leaveStack(callDepth int, stack *memory.Memory) error {
	stacks.Lock()
	defer stacks.Unlock()
	if stacks.n == keptStacks {
		return stack.Close()
	}
	clear(stack.Bytes())
	if stacks.kept == nil {
		stacks.kept = make(map[int][]*memory.Memory)
	}
	stacks.kept[callDepth] = append(stacks.kept[callDepth], stack)
	stacks.n++
	return nil
}
