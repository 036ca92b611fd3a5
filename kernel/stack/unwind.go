package stack

import (
	"encoding/binary"
	"errors"
)

// registers are the registers of a thread, or the known ones of a caller.
type registers struct {
	pc    uint64
	value [maxRegisters]uint64
	known [maxRegisters]bool
}

func (r *registers) get(reg uint64) (value uint64, ok bool) {
	if reg >= maxRegisters || !r.known[reg] {
		return 0, false
	}
	return r.value[reg], true
}

func (r *registers) set(reg, value uint64) {
	if reg < maxRegisters {
		r.value[reg], r.known[reg] = value, true
	}
}

// machine is what unwinding must know of a processor.
type machine struct {
	sp, fp    uint64 // registers with the stack pointer and the frame pointer
	addrBits  uint   // of an address in user space; a return address may have a signature above
	elfNumber uint16 // in ELF files
}

// The machines that Margay's nodes have.
var (
	amd64 = machine{sp: 7, fp: 6, addrBits: 64, elfNumber: 62}
	arm64 = machine{sp: 31, fp: 29, addrBits: 48, elfNumber: 183}
)

func (m *machine) strip(addr uint64) uint64 {
	if m.addrBits == 64 {
		return addr
	}
	return addr & (1<<m.addrBits - 1)
}

// errEnd reports that a frame has no caller.
var errEnd = errors.New("there is no caller")

// unwind returns the frames of a thread, and whether there are more: than MaxFrames, or than there
// was time for.
func (m *machine) unwind(ms *modules, mem reader, regs registers) (stack Stack, cut bool) {
	exact := true // pc is the next instruction, and not the one after a call
	for pc := regs.pc; pc != 0; pc = regs.pc {
		if len(stack) == MaxFrames || ms.late() {
			return stack, true
		}
		if !exact {
			pc--
		}
		mod := ms.of(pc)
		if mod == nil && !exact {
			if _, mapped := find(ms.maps, pc); !mapped {
				break // not an address of code
			}
		}
		stack = append(stack, frameOf(mod, pc))
		sp, _ := regs.get(m.sp)
		interrupted, err := m.step(mod, mem, &regs, pc)
		if err != nil {
			break
		}
		if next, _ := regs.get(m.sp); next <= sp && !interrupted && !(exact && next == sp) {
			break // it goes round
		}
		exact = interrupted
	}
	return stack, false
}

func frameOf(mod *module, pc uint64) Frame {
	if mod == nil {
		return Frame{Module: -1, Addr: pc}
	}
	return Frame{Module: mod.index, Addr: pc - mod.bias}
}

// step goes to the caller. It reports whether that was interrupted by a signal, so that its pc is
// exact.
func (m *machine) step(mod *module, mem reader, regs *registers, pc uint64) (interrupted bool, err error) {
	if mod != nil {
		if f, err := mod.lookUp(mem, pc); err == nil {
			r, err := f.at(pc)
			if err != nil {
				return false, err
			}
			return f.signal, m.follow(f, r, mem, regs)
		}
	}
	return false, m.followPointer(mem, regs)
}

// follow finds the caller's registers by a row.
func (m *machine) follow(f *function, r *row, mem reader, regs *registers) error {
	cfa, err := evaluateCFA(r, mem, regs)
	if err != nil {
		return err
	}
	caller := *regs
	caller.set(m.sp, cfa)
	for reg, rule := range r.rules {
		value, err := rule.apply(mem, regs, cfa, uint64(reg))
		if err != nil {
			caller.known[reg] = false
			continue
		}
		if uint64(reg) != m.sp || rule.kind != ruleSame {
			caller.set(uint64(reg), value)
		}
	}
	pc, ok := caller.get(f.returns)
	if !ok {
		return errEnd
	}
	caller.pc = m.strip(pc)
	*regs = caller
	return nil
}

func evaluateCFA(r *row, mem reader, regs *registers) (uint64, error) {
	if r.cfaExpr != nil {
		return evaluate(mem, regs, r.cfaExpr)
	}
	base, ok := regs.get(r.cfaReg)
	if !ok {
		return 0, errFrame
	}
	return base + uint64(r.cfaOffset), nil
}

// apply returns the value of a register in the caller.
func (r rule) apply(mem reader, regs *registers, cfa, reg uint64) (uint64, error) {
	addr := cfa + uint64(r.offset)
	switch r.kind {
	case ruleUndefined:
		return 0, errEnd
	case ruleValOffset:
		return addr, nil
	case ruleRegister:
		reg = r.reg
		fallthrough
	case ruleSame:
		if value, ok := regs.get(reg); ok {
			return value, nil
		}
		return 0, errEnd
	case ruleValExpr:
		return evaluate(mem, regs, r.expr, cfa)
	case ruleExpr:
		var err error
		if addr, err = evaluate(mem, regs, r.expr, cfa); err != nil {
			return 0, err
		}
	}
	return readWord(mem, addr)
}

// followPointer finds the caller by the frame pointer, which points to the caller's own, followed
// by the return address.
func (m *machine) followPointer(mem reader, regs *registers) error {
	fp, ok := regs.get(m.fp)
	sp, _ := regs.get(m.sp)
	if !ok || fp%8 != 0 || fp < sp {
		return errEnd
	}
	next, err := readWord(mem, fp)
	if err != nil {
		return err
	}
	pc, err := readWord(mem, fp+8)
	if err != nil {
		return err
	}
	var caller registers
	caller.pc = m.strip(pc)
	caller.set(m.fp, next)
	caller.set(m.sp, fp+16)
	*regs = caller
	return nil
}

func readWord(mem reader, addr uint64) (uint64, error) {
	var word [8]byte
	if err := mem.read(addr, word[:]); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(word[:]), nil
}
