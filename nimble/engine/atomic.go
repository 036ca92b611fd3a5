package engine

import "margay/nimble/isa"

// Atomic executes an atomic operation (RFC 9669, section 5.3) for an engine that
// has no code of its own for it. addr is a host address and must be a multiple
// of the operand's size. src is the operand and receives the fetched value; only
// a compare-and-exchange compares r0, and puts the fetched value there. Atomic
// does not check the access.
func Atomic(op isa.Op, addr uint64, r0, src *uint64) {
	if op.Size() == 8 {
		atomic64(op, addr, r0, src)
	} else {
		atomic32(op, addr, r0, src)
	}
}

func atomic64(op isa.Op, addr uint64, r0, src *uint64) {
	switch op {
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
		*r0 = compareAndSwap64(addr, *r0, *src)
	default:
		panic("engine: no atomic operation " + op.String())
	}
}

func atomic32(op isa.Op, addr uint64, r0, src *uint64) {
	v := uint32(*src)
	switch op {
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
		*r0 = uint64(compareAndSwap32(addr, uint32(*r0), v))
	default:
		panic("engine: no atomic operation " + op.String())
	}
}
