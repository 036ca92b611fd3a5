package subroutine

import (
	"math/bits"

	"margay/nimble/isa"
	"margay/nimble/verify"
)

// logarithm returns n for an access of 1<<n bytes.
func logarithm(i *verify.Instruction) uint8 { return uint8(bits.TrailingZeros(uint(i.Op.Size()))) }

// check emits the check of a load or store that is not proved, at base+off,
// against a window, if it must be checked.
func (t *threader) check(slot int, i *verify.Instruction, base isa.Register, window int32) {
	if t.trusted {
		t.unchecked(slot)
		return
	}
	t.address(scratch, machineRegister[base], int32(i.Off))
	t.misses = append(t.misses, access{int32(t.inside(window, logarithm(i))), int32(slot), t.owed})
}

// inside emits a comparison of DX with a window, and a jump if it is outside.
func (t *threader) inside(window int32, size uint8) (hole int) {
	base, limit := window+offBase, window+offLimit+8*int32(size)
	if limit < 128 { // of loads and stores: both instructions at once
		t.put(0x553b48_00552b48|uint64(base)<<24|uint64(limit)<<56, 8)
		return t.jumpIfAhead(aboveOrEqual)
	}
	t.mem(true, 0x2b, scratch, self, base)
	t.mem(true, 0x3b, scratch, self, limit)
	return t.jumpIfAhead(aboveOrEqual)
}

// missed emits the code for an access outside its window: it searches for another
// window and then makes the access. DX is the distance from the window's base.
func (t *threader) missed(each access) {
	i := t.program.At(int(each.slot))
	window, known := int32(offRead), &t.searches[0][logarithm(i)]
	if i.Op.Form() != isa.FormLoad {
		window, known = offWrite, &t.searches[1][logarithm(i)]
	}
	if *known == 0 {
		*known = t.search(window, logarithm(i))
		t.reserve()
	}
	t.patch(int(each.hole), t.here())
	t.mem(true, 0x03, scratch, self, window+offBase)
	t.put(0xe8, 5)
	t.patch(t.here(), *known)
	t.jumpIf(below, int(each.hole))
	t.exit(leaving(outside, int(each.slot)), each.owed)
}

// search emits the search for the region of the address in DX, which all misses
// of one kind and size call. It copies the window that it finds and sets the
// flags to below. Nothing in it can fault, so its return address on the stack
// does no harm.
func (t *threader) search(window int32, size uint8) (start int) {
	list := int32(offReads)
	if window == offWrite {
		list = offWrites
	}
	start = t.here()
	t.mem(true, 0x89, scratch, self, offAddr)
	t.mem(true, 0x89, ax, self, offSpill)
	t.mem(true, 0x8b, scratch, self, list+offFirst)
	again := t.here()
	t.mem(true, 0x8b, ax, self, offAddr)
	t.mem(true, 0x2b, ax, scratch, offBase)
	t.mem(true, 0x3b, ax, scratch, offLimit+8*int32(size))
	found := t.skipIf(below)
	t.arithmetic(true, 0, scratch, windowSize)
	t.mem(true, 0x3b, scratch, self, list+offEnd)
	t.jumpIf(notEqual, again)
	t.mem(true, 0x8b, ax, self, offSpill)
	t.byte(0xc3)
	t.land(found)
	for word := int32(0); word < windowSize; word += 8 {
		t.mem(true, 0x8b, ax, scratch, word)
		t.mem(true, 0x89, ax, self, window+word)
	}
	t.mem(true, 0x8b, ax, self, offSpill)
	t.byte(0xc3)
	return start
}

// unchecked records the offset at which an unchecked access begins.
func (t *threader) unchecked(slot int) {
	t.strays = append(t.strays, access{int32(t.here()), int32(slot), t.owed})
}

// load emits a load.
func (t *threader) load(slot int, i *verify.Instruction) {
	if !i.Proved {
		t.check(slot, i, i.Src, offRead)
	}
	opcode, wide := 0x8b, false
	switch i.Op {
	case isa.LdXB:
		opcode = 0x0fb6
	case isa.LdXH:
		opcode = 0x0fb7
	case isa.LdXDW:
		wide = true
	case isa.LdXSB:
		opcode, wide = 0x0fbe, true
	case isa.LdXSH:
		opcode, wide = 0x0fbf, true
	case isa.LdXSW:
		opcode, wide = 0x63, true
	}
	t.mem(wide, opcode, machineRegister[i.Dst], machineRegister[i.Src], int32(i.Off))
}

// store emits a store of a register or an immediate.
func (t *threader) store(slot int, i *verify.Instruction) {
	if !i.Proved {
		t.check(slot, i, i.Dst, offWrite)
	}
	size := i.Op.Size()
	opcode, r := 0x89, machineRegister[i.Src]
	if i.Op.Form() == isa.FormStoreImm {
		opcode, r = 0xc7, 0
	}
	switch size {
	case 1:
		opcode--
	case 2:
		t.byte(0x66)
	}
	t.mem(size == 8, opcode, r, machineRegister[i.Dst], int32(i.Off))
	if opcode&0x40 != 0 {
		t.put(uint64(uint32(i.Imm)), min(size, 4))
	}
}

// atomicOpcode returns the opcode of an atomic operation, 0 if the machine has
// none: for a fetching or, and, and xor.
func atomicOpcode(op isa.Op) int {
	switch op {
	case isa.AtomicAdd, isa.AtomicAdd32:
		return 0x01
	case isa.AtomicOr, isa.AtomicOr32:
		return 0x09
	case isa.AtomicAnd, isa.AtomicAnd32:
		return 0x21
	case isa.AtomicXor, isa.AtomicXor32:
		return 0x31
	case isa.AtomicFetchAdd, isa.AtomicFetchAdd32:
		return 0x0fc1
	case isa.AtomicXchg, isa.AtomicXchg32:
		return 0x87
	case isa.AtomicCmpXchg, isa.AtomicCmpXchg32:
		return 0x0fb1
	}
	return 0
}

// atomic emits an atomic operation. If it misses the window, Go looks for another
// one and the instruction starts again.
func (t *threader) atomic(slot int, i *verify.Instruction) {
	t.address(scratch, machineRegister[i.Dst], int32(i.Off))
	t.put(0xc2f6|uint64(i.Op.Size()-1)<<16, 3) // test dl
	t.exitIf(notEqual, leaving(misaligned, slot))
	switch {
	case i.Proved:
	case t.trusted:
		t.unchecked(slot)
	default:
		t.resumes = true
		t.cold = append(t.cold, cold{int32(t.inside(offAtomic, logarithm(i))), leaving(atomics, slot), t.owed})
	}
	wide := i.Op.Size() == 8
	if opcode := atomicOpcode(i.Op); opcode != 0 {
		t.byte(0xf0) // lock
		t.mem(wide, opcode, machineRegister[i.Src], machineRegister[i.Dst], int32(i.Off))
	} else {
		t.fetch(i, wide)
	}
	if i.Op == isa.AtomicCmpXchg32 {
		t.move(false, ax, ax) // cmpxchg does not write EAX if the values were equal
	}
}

// fetch emits a fetching or, and, or xor as a loop with compare-and-exchange. AX
// has the old value and DX the new one.
func (t *threader) fetch(i *verify.Instruction, wide bool) {
	base, src := machineRegister[i.Dst], machineRegister[i.Src]
	t.mem(true, 0x89, ax, self, offSpill)
	borrowed := base == ax
	if borrowed {
		if base = bx; src == bx {
			base = di
		}
		t.mem(true, 0x89, base, self, offSpill+8)
		t.move(true, base, ax)
	}
	t.mem(wide, 0x8b, ax, base, int32(i.Off))
	again := t.here()
	t.move(wide, dx, ax)
	opcode := int(group1[i.Imm>>4&0xf])<<3 | 3
	if src == ax {
		t.mem(wide, opcode, dx, self, offSpill)
	} else {
		t.reg(wide, opcode, dx, src)
	}
	t.byte(0xf0) // lock
	t.mem(wide, 0x0fb1, dx, base, int32(i.Off))
	t.jumpIf(notEqual, again)
	if borrowed {
		t.mem(true, 0x8b, base, self, offSpill+8)
	}
	if src != ax {
		t.move(wide, src, ax)
		t.mem(true, 0x8b, ax, self, offSpill)
	}
}
