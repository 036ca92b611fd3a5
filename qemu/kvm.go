package qemu

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"margay/qemu/console"
)

// ProbeTimeout bounds ProbeKVM. A sound KVM boots a kernel in a second or two.
const ProbeTimeout = 15 * time.Second

// killTimeout bounds the wait for a killed probe, because a process that hangs in the kernel does
// not die.
const killTimeout = 2 * time.Second

// kvmDevice is the device of KVM.
const kvmDevice = "/dev/kvm"

// ProbeKVM tests KVM by booting cfg with it, without network. KVM works if the guest prints a line
// that contains the marker or, if the marker is empty, powers off. Otherwise the error is the
// reason; it wraps an *Exit if the VM ended, and context.DeadlineExceeded after ProbeTimeout. No VM
// is left behind.
func (e *Emulator) ProbeKVM(ctx context.Context, cfg Config, marker string) error {
	return e.probeKVM(ctx, kvmDevice, cfg, marker)
}

func (e *Emulator) probeKVM(ctx context.Context, device string, cfg Config, marker string) error {
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("qemu: KVM is not usable: %w", err)
	}
	f.Close()
	cfg.Accel, cfg.NIC = KVM, NIC{}
	if err := e.probe(ctx, cfg, marker); err != nil {
		return fmt.Errorf("qemu: KVM is not usable: %w", err)
	}
	return nil
}

// probe boots cfg and waits for its sign of life.
func (e *Emulator) probe(ctx context.Context, cfg Config, marker string) error {
	ctx, cancel := context.WithTimeout(ctx, ProbeTimeout)
	defer cancel()
	// The end of the context does not kill the VM, so that a VM that ended earlier differs from one
	// that hangs.
	vm, err := e.start(context.WithoutCancel(ctx), cfg)
	if err != nil {
		return err
	}
	defer vm.end()
	if marker != "" && appears(ctx, vm.Console(), marker) {
		return nil
	}
	select {
	case <-vm.Done():
	case <-ctx.Done():
		return fmt.Errorf("no sign of the guest: %w", context.Cause(ctx))
	}
	if exit := vm.Exit(); marker != "" || !exit.PoweredOff() {
		return exit
	}
	return nil
}

// appears waits for a line with the marker; false means that the console or ctx ended first.
func appears(ctx context.Context, log *console.Log, marker string) bool {
	for from := uint64(0); ; {
		lines, next, err := log.Follow(ctx, from)
		if err != nil {
			return false
		}
		for _, line := range lines {
			if strings.Contains(line, marker) {
				return true
			}
		}
		from = next
	}
}

// end kills the VM and waits briefly for its end.
func (vm *VM) end() {
	if err := vm.Kill(); err != nil {
		return
	}
	select {
	case <-vm.Done():
	case <-time.After(killTimeout):
	}
}
