package border

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"margay/kernel/abi/slot"
	"margay/kernel/keep"
)

// parts returns what of a chain goes into the program. The caller holds the lock.
func (b *Border) parts(chain []*member) (parts []part, err error) {
	if err := b.makeMaps(); err != nil {
		return nil, err
	}
	for _, m := range chain {
		code, starts, err := m.part.Functions(m.maps, 0)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part{code: code, starts: starts, tally: m.tally.FD(), job: m.Job(), handles: m.Slot() == slot.Message})
	}
	return parts, nil
}

// install puts a program with a chain on the interface, in the place of the one there, if there is
// one. The caller holds the lock.
func (b *Border) install(chain []*member, program *ebpf.Program) error {
	for _, m := range chain {
		if m.covers {
			continue
		}
		if err := b.share(m); err != nil {
			return err
		}
	}
	if b.link != nil {
		if err := b.link.Update(program); err != nil {
			return fmt.Errorf("replace the program on %s: %w", b.name, err)
		}
		return nil
	}
	name, index, err := b.config.Interface()
	if err != nil {
		return err
	}
	// RATIONALE.md, "Why does Linux call the program on the interface, and not its driver?"
	l, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: index, Flags: link.XDPGenericMode})
	if err != nil {
		return fmt.Errorf("attach to %s: %w", name, err)
	}
	b.link, b.name = l, name
	return nil
}

// keep leaves the link and the skeleton's maps with PID 1. The caller holds the lock.
func (b *Border) keep() {
	if err := b.keepLink(); err != nil {
		b.config.Log("extensions on the interface: %v", err)
	}
}

func (b *Border) keepLink() (err error) {
	item := keep.Item{Name: keptBorder}
	defer item.CloseFiles()
	if item.Words, err = json.Marshal(keptWords{Interface: b.name, Loaded: b.loaded}); err != nil {
		return err
	}
	raw, ok := b.link.(interface{ FD() int })
	if !ok {
		return errors.New("the link has no descriptor")
	}
	fds := []int{raw.FD()}
	for _, name := range keptMaps {
		fds = append(fds, b.maps[name].FD())
	}
	if item.Files, err = files(fds); err != nil {
		return err
	}
	return b.config.Keeper.Keep(item)
}

// files duplicates descriptors.
func files(fds []int) (all []*os.File, err error) {
	for _, fd := range fds {
		f, err := keep.Duplicate(uintptr(fd), "border")
		if err != nil {
			for _, f := range all {
				f.Close()
			}
			return nil, err
		}
		all = append(all, f)
	}
	return all, nil
}

// detach takes the program from the interface. The caller holds the lock.
func (b *Border) detach() {
	if b.link == nil {
		return
	}
	b.drop(keptBorder)
	if err := b.link.Close(); err != nil {
		b.config.Log("extensions on the interface: detach: %v", err)
	}
	b.link, b.loaded = nil, nil
}
