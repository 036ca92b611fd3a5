package portable

import (
	"margay/nimble/engine"
	"margay/nimble/isa"
)

// atomic executes an atomic operation (RFC 9669, section 5.3) at cell number at.
// The address must be a multiple of the operand's size, also in trusted
// extensions, because not every processor supports unaligned atomic operations.
// A non-empty kind is the fault.
func (i *cell) atomic(m *engine.Machine, r *[16]uint64, at int, trusted bool) (addr uint64, kind engine.Kind) {
	addr = r[i.dst&15] + i.imm
	n := 3
	if i.op >= isa.AtomicAdd32 {
		n = 2
	}
	if addr&(1<<n-1) != 0 {
		return addr, engine.Alignment
	}
	if trusted {
		m.At, m.Addr = at, addr
	} else if !m.FindAtomic(addr, n) {
		return addr, engine.Memory
	}
	engine.Atomic(i.op, addr, &r[0], &r[i.src&15])
	return addr, ""
}
