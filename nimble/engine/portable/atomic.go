package portable

import (
	"margay/nimble/engine"
	"margay/nimble/isa"
)

// atomic executes an atomic operation (RFC 9669, section 5.3) at cell number
// at. The address must be a multiple of the operand's size, for trusted
// extensions too, since not every processor can do it otherwise. A kind that is
// not empty is the fault.
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
	if n == 3 {
		i.atomic64(r, addr)
	} else {
		i.atomic32(r, addr)
	}
	return addr, ""
}

func (i *cell) atomic64(r *[16]uint64, addr uint64) {
	src := &r[i.src&15]
	switch i.op {
	case isa.AtomicAdd:
		add64(addr, *src)
	case isa.AtomicOr:
		or64(addr, *src)
	case isa.AtomicAnd:
		and64(addr, *src)
	case isa.AtomicXor:
		xor64(addr, *src)
	case isa.AtomicFetchAdd:
		*src = add64(addr, *src)
	case isa.AtomicFetchOr:
		*src = or64(addr, *src)
	case isa.AtomicFetchAnd:
		*src = and64(addr, *src)
	case isa.AtomicFetchXor:
		*src = xor64(addr, *src)
	case isa.AtomicXchg:
		*src = swap64(addr, *src)
	case isa.AtomicCmpXchg:
		r[0] = compareAndSwap64(addr, r[0], *src)
	default:
		panic("portable: no handler for " + i.op.String())
	}
}

func (i *cell) atomic32(r *[16]uint64, addr uint64) {
	src := &r[i.src&15]
	v := uint32(*src)
	switch i.op {
	case isa.AtomicAdd32:
		add32(addr, v)
	case isa.AtomicOr32:
		or32(addr, v)
	case isa.AtomicAnd32:
		and32(addr, v)
	case isa.AtomicXor32:
		xor32(addr, v)
	case isa.AtomicFetchAdd32:
		*src = uint64(add32(addr, v))
	case isa.AtomicFetchOr32:
		*src = uint64(or32(addr, v))
	case isa.AtomicFetchAnd32:
		*src = uint64(and32(addr, v))
	case isa.AtomicFetchXor32:
		*src = uint64(xor32(addr, v))
	case isa.AtomicXchg32:
		*src = uint64(swap32(addr, v))
	case isa.AtomicCmpXchg32:
		r[0] = uint64(compareAndSwap32(addr, uint32(r[0]), v))
	default:
		panic("portable: no handler for " + i.op.String())
	}
}
