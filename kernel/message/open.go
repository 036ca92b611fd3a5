package message

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"margay/kernel/abi/id"
	"margay/kernel/channel"
	"margay/kernel/endpoint"
	"margay/kernel/keep"
	"margay/nimble/memory"
)

// The names under which a job's init keeps the state of the job's messages, except for the
// endpoints of its ranks, its extensions and its regions.
const (
	keptCounters = "ledger"
	keptFault    = "fault" // why the job cannot continue
)

func (j *Job) countersSize() int {
	return countersSize(len(j.config.Members), len(j.config.Nodes), len(j.config.Local))
}

// create makes everything that a new job needs and leaves it with the keeper.
func (j *Job) create() error {
	m, err := memory.Create(keptCounters, j.countersSize())
	if err != nil {
		return err
	}
	j.open(m)
	f, err := keep.File(m)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := j.config.Keeper.Keep(keep.Item{Name: keptCounters, Files: []*os.File{f}}); err != nil {
		return err
	}
	for index, number := range j.config.Local {
		r := j.newRank(index, number)
		if r.endpoint, err = endpoint.Create(r.endpointConfig(), j.config.Keeper); err != nil {
			return err
		}
		j.local[number] = r
	}
	j.channels, err = channel.New(j.channelConfig())
	return err
}

// adopt continues with the state that the previous node kernel left with the keeper.
func (j *Job) adopt(items []*keep.Item) error {
	byName := make(map[string]*keep.Item)
	for _, item := range items {
		byName[item.Name] = item
	}
	m, err := byName[keptCounters].Memory(0, j.countersSize())
	if err != nil {
		return err
	}
	j.open(m)
	for index, number := range j.config.Local {
		r := j.newRank(index, number)
		if r.endpoint, err = endpoint.Adopt(r.endpointConfig(), byName[endpoint.Item(number)]); err != nil {
			return err
		}
		j.local[number] = r
	}
	if j.channels, err = channel.Adopt(j.channelConfig(), byName); err != nil {
		return err
	}
	if err := j.config.Set.Adopt(items); err != nil {
		return err
	}
	if err := j.reportAgain(byName[keptFault]); err != nil {
		return err
	}
	if err := j.adoptWindows(byName); err != nil {
		return err
	}
	j.mend()
	j.adoptFar()
	return nil
}

// foundFault is the reason why a job cannot continue, as the keeper has it for the next node
// kernel.
type foundFault struct {
	Text  string
	Ended *id.EndedError `json:",omitempty"` // the rank that had ended too early; nil: none had
}

func (f *foundFault) Error() string { return f.Text }

func (f *foundFault) Unwrap() error {
	if f.Ended == nil {
		return nil
	}
	return f.Ended
}

// reportAgain reports the fault that the previous node kernel found.
func (j *Job) reportAgain(kept *keep.Item) error {
	if kept == nil {
		return nil
	}
	found := new(foundFault)
	if err := json.Unmarshal(kept.Words, found); err != nil {
		return fmt.Errorf("%s: %w", kept.Name, err)
	}
	j.fault("%w", found)
	return nil
}

// mend completes the steps in which the previous node kernel was killed, and finds losses.
func (j *Job) mend() {
	c := j.counters
	if sent, came := c.flow.Sent[j.self], c.flow.Received[j.self]; sent != came {
		j.lost(j.self, sent, came)
	}
	for _, r := range j.local {
		if n := c.waiting[r.index]; n != 0 {
			j.fault("%d messages for rank %d, which had no room for them, were lost when the node kernel of node%d was started again",
				n, r.number, j.engine.config.Self)
		}
		r.endpoint.Release(j.barrier.Released())
		r.endpoint.RouseAll()
	}
	if n := *c.flow.Forwarding; n != 0 {
		j.fault("messages in forwarding (%d) were lost when the node kernel of node%d was started again", n, j.engine.config.Self)
	}
}

// rejoin announces an adopted job to its other nodes. It waits for the transport.
func (j *Job) rejoin() {
	if slices.Contains(j.counters.joined, 1) {
		j.running.Go(func() { j.join(j.self) })
	}
	for member := range j.config.Members {
		if member != j.self {
			j.running.Go(func() { j.resume(member) })
		}
	}
}
