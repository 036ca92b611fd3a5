package sched

import (
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/extension"
	"margay/nimble"
	"margay/nimble/memory"
)

// Policies makes policies of the extensions in a sched slot, in their order.
func Policies(chain []*extension.Extension) []*Policy {
	policies := make([]*Policy, len(chain))
	for i, x := range chain {
		policies[i] = &Policy{
			Handle: x.Handle(), Name: x.Label(), Spec: x.Spec(), Insert: x.Options(),
			Decide: func(context memory.Region, core id.Core) (slot.Verdict, error) {
				return x.Ask(nimble.Event{Context: context, Core: int(core)})
			},
			Fault:  x.Fault,
			Remove: x.Expel,
			Ran:    x.Ran,
		}
	}
	return policies
}
