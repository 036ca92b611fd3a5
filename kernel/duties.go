package kernel

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"margay/kernel/abi/id"
	"margay/kernel/hardware"
	"margay/kernel/keep"
)

// Duties say what the cores of a node do. By default core 0 serves the node and the others compute
// for applications.
type Duties struct {
	All     bool // core 0 computes for applications as well; it is interrupted as before
	Message bool // the last core handles messages and does nothing else
}

// keptDuties is the name under which PID 1 keeps them for the next node kernel.
const keptDuties = "duties"

// cores returns the cores of a node that compute for applications, and the core that handles
// messages, or nil.
func (d Duties) cores(all []hardware.Core) (compute []hardware.Core, message *hardware.Core, err error) {
	compute = all[1:]
	if d.All {
		compute = all
	}
	if d.Message {
		last := len(compute) - 1
		if last < 1 {
			return nil, nil, fmt.Errorf("a core for messages: %w: it has only one application core; --all on gives applications core 0 as well",
				ErrLacks)
		}
		message, compute = &compute[last], compute[:last]
	}
	return compute, message, nil
}

// SetDuties applies change to the duties of the node's cores. It refuses to take a core from a job.
// The new duties outlive this node kernel.
func (n *Node) SetDuties(change func(*Duties)) error {
	n.changingDuties.Lock()
	defer n.changingDuties.Unlock()
	d := n.duties
	change(&d)
	if err := n.assign(d); err != nil {
		return err
	}
	words, err := json.Marshal(d)
	if err != nil {
		return err
	}
	return keep.Keep(n.config.Link, keep.Item{Name: keptDuties, Words: words})
}

// adoptDuties restores the duties that the cores had under the previous node kernel.
func (n *Node) adoptDuties(item *keep.Item) error {
	n.changingDuties.Lock()
	defer n.changingDuties.Unlock()
	var d Duties
	if err := json.Unmarshal(item.Words, &d); err != nil {
		return fmt.Errorf("%s: %w", item.Name, err)
	}
	return n.assign(d)
}

// assign gives the cores their duties. The caller holds changingDuties.
func (n *Node) assign(d Duties) error {
	compute, message, err := d.cores(n.cores)
	if err != nil {
		return err
	}
	before, err := n.setCores(compute, message)
	if err != nil {
		return err
	}
	if message == nil {
		n.messages.Rest()
	} else if err := n.messages.Spin(message.CPU); err != nil {
		_, undone := n.setCores(before.Cores, before.MessageCore)
		return errors.Join(err, undone)
	}
	n.duties = d
	return nil
}

// setCores assigns cores to applications, unless a job has a core that is not among them. It
// returns the previous assignment.
func (n *Node) setCores(compute []hardware.Core, message *hardware.Core) (before Info, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for number, j := range n.jobs {
		for core := range n.coresOf(j.spec) {
			if !has(compute, core) {
				return n.info, fmt.Errorf("core %d: %w: job %d has it", core, ErrBusy, number)
			}
		}
	}
	before = n.info
	n.info.Cores, n.info.MessageCore = compute, message
	n.info.AllCores = has(compute, 0)
	return before, nil
}

// has reports whether a core of that number is among cores.
func has(cores []hardware.Core, number id.Core) bool {
	return slices.ContainsFunc(cores, func(c hardware.Core) bool { return c.ID == number })
}
