package extension

import (
	"encoding/binary"
	"errors"
	"fmt"

	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/nimble"
	"margay/nimble/memory"
)

// Decision is the answer of the extensions in a slot.
type Decision struct {
	Verdict slot.Verdict
	By      *Extension // the extension that answered; nil: the verdict is the slot's default
}

// Decide runs the extensions in a slot for an event of a job. It maps memory for each event, so it
// is for rare events, such as the end of a process. context is a structure of package slot, or a
// pointer to one.
func (m *Manager) Decide(job id.Job, name slot.Name, context any) (Decision, error) {
	row, err := slot.Find(name)
	if err != nil {
		return Decision{}, err
	}
	decision := Decision{Verdict: row.Default}
	chain := m.Chain(job, name)
	if len(chain) == 0 {
		return decision, nil
	}
	event, err := memory.Map(string(name), row.Context)
	if err != nil {
		return decision, err
	}
	defer event.Close()
	for _, x := range chain {
		if n, err := binary.Encode(event.Bytes(), binary.LittleEndian, context); err != nil || n != row.Context {
			return decision, errors.Join(err, fmt.Errorf("the context of slot %s takes %d bytes, not %d", name, row.Context, n))
		}
		if v, err := x.Ask(nimble.Event{Context: event.Region(true)}); err == nil && v != row.Default {
			return Decision{v, x}, nil
		}
	}
	return decision, nil
}
