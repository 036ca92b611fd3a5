package kernel

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/extension"
	"margay/kernel/keep"
	"margay/kernel/task"
)

// keptBooted is the name under which PID 1 records that the node has booted, so that no later node
// kernel boots it again.
const keptBooted = "booted"

// ErrRefused reports that an extension in slot boot keeps the node out of the machine.
var ErrRefused = errors.New("the node stays out of the machine")

// Boot shares the cores, inserts the machine's own extensions from the boot configuration, and asks
// the extensions in slot boot whether the node may join the machine. The caller must call it once,
// after Adopt. When an earlier node kernel has already booted the node, Boot does not wait: the
// cores are shared as soon as possible.
func (n *Node) Boot() error {
	if n.booted {
		go n.share()
		return nil
	}
	n.share()
	for _, x := range n.config.Boot.Extensions {
		r := extension.Request{Name: x.Name, Object: x.Object, Trusted: true}
		for name, value := range x.Constants {
			r.Settings = append(r.Settings, extension.Setting{Name: name, Value: value})
		}
		if _, err := n.extensions.Machine().Insert(r); err != nil {
			return fmt.Errorf("%w: its extension %s: %w", ErrRefused, x.Name, err)
		}
	}
	context := slot.BootContext{Node: uint32(n.config.Boot.Node), Cores: uint32(len(n.info.Cores)), Memory: uint64(n.info.Memory)}
	copy(context.Machine[:], n.config.Boot.Machine)
	d, err := n.extensions.Decide(extension.Machine, slot.Boot, context)
	if err != nil {
		return err
	}
	if d.Verdict == slot.Refuse {
		return fmt.Errorf("%w: %s in slot boot has refused it (what it prints is above)", ErrRefused, d.By.Label())
	}
	n.booted = true
	return keep.Keep(n.config.Link, keep.Item{Name: keptBooted})
}

// ExtensionNotes returns the notes on the node's extensions after number seq.
func (n *Node) ExtensionNotes(seq uint64) []extension.Note { return n.extensions.Notes(seq) }

// faults are the signals that a process causes by its own actions.
var faults = map[unix.Signal]bool{
	unix.SIGSEGV: true, unix.SIGBUS: true, unix.SIGILL: true, unix.SIGFPE: true, unix.SIGTRAP: true, unix.SIGSYS: true, unix.SIGABRT: true,
}

// processEnded asks the extensions how to treat the end of a rank; left is the number of its job's
// ranks that still run here. It is not called for a rank that ended while the node kernel
// restarted.
func (j *job) processEnded(rank id.Rank, s task.Status, left int) {
	node := j.node
	place, _ := j.spec.Layout.Rank(rank)
	context := slot.ExitContext{
		Job: uint32(j.spec.Job), Rank: uint32(rank), Node: uint32(node.config.Boot.Node), Core: uint32(place.Core),
		Code: uint32(s.Code), Signal: uint32(s.Signal), Left: uint32(left), Time: uint64(s.Time),
	}
	for _, name := range []slot.Name{slot.Fault, slot.Exit} {
		if name == slot.Fault && !faults[s.Signal] {
			continue
		}
		d, err := node.extensions.Decide(j.spec.Job, name, context)
		if err != nil {
			node.config.Log("job %d: slot %s: %v", j.spec.Job, name, err)
			continue
		}
		if d.Verdict == slot.End {
			node.config.Sink.Fault(j.spec.Job, fmt.Errorf("%s in slot %s has ended it after the end of rank %d", d.By.Label(), name, rank))
			return
		}
	}
}
