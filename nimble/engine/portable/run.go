package portable

import (
	"math/bits"

	"margay/nimble/engine"
	"margay/nimble/isa"
)

// run executes a program from its first cell to the exit of its first function.
//
// The outer loop enters a basic block and pays for it; every jump, local call
// and exit returns to it. The inner loop executes cells that need no function
// call. The loop around it executes the others: a call in the inner loop would
// make the compiler spill its variables in every cell. left is the fuel that the
// slice still has; the rest is in m.Fuel.
func (c *code) run(m *engine.Machine) (r0 uint64, err error) {
	var (
		r     [16]uint64 // r0 to r10; sixteen so that a masked index needs no check
		pc    int        // the next cell
		depth int        // callers of the running function
		kind  engine.Kind
	)
	cells := c.cells
	left := m.Start()
	r[isa.FramePointer] = m.SP
	if c.frame {
		m.PushFrame()
	}
	copy(r[1:6], m.Args[:])
enter:
	for {
		cost := int64(cells[pc].cost)
		if left -= cost; left < 0 {
			if left, kind = m.Refill(left+cost, cost); kind != "" {
				return 0, c.stop(m, kind, pc, 0, left, nil)
			}
		}
		m.SliceLeft = left
		for {
		execute:
			for {
				i := &cells[pc]
				pc++
				switch i.op {
				// Arithmetic, 64 bits.
				case isa.AddK:
					r[i.dst&15] += i.imm
				case isa.AddX:
					r[i.dst&15] += r[i.src&15]
				case isa.SubK:
					r[i.dst&15] -= i.imm
				case isa.SubX:
					r[i.dst&15] -= r[i.src&15]
				case isa.MulK:
					r[i.dst&15] *= i.imm
				case isa.MulX:
					r[i.dst&15] *= r[i.src&15]
				case isa.OrK:
					r[i.dst&15] |= i.imm
				case isa.OrX:
					r[i.dst&15] |= r[i.src&15]
				case isa.AndK:
					r[i.dst&15] &= i.imm
				case isa.AndX:
					r[i.dst&15] &= r[i.src&15]
				case isa.XorK:
					r[i.dst&15] ^= i.imm
				case isa.XorX:
					r[i.dst&15] ^= r[i.src&15]
				case isa.DivK:
					if v := i.imm; v != 0 {
						r[i.dst&15] = r[i.dst&15] / v
					} else {
						r[i.dst&15] = 0
					}
				case isa.DivX:
					if v := r[i.src&15]; v != 0 {
						r[i.dst&15] = r[i.dst&15] / v
					} else {
						r[i.dst&15] = 0
					}
				case isa.SDivK:
					if v := int64(i.imm); v != 0 {
						r[i.dst&15] = uint64(int64(r[i.dst&15]) / v)
					} else {
						r[i.dst&15] = 0
					}
				case isa.SDivX:
					if v := int64(r[i.src&15]); v != 0 {
						r[i.dst&15] = uint64(int64(r[i.dst&15]) / v)
					} else {
						r[i.dst&15] = 0
					}
				case isa.ModK:
					if v := i.imm; v != 0 {
						r[i.dst&15] = r[i.dst&15] % v
					}
				case isa.ModX:
					if v := r[i.src&15]; v != 0 {
						r[i.dst&15] = r[i.dst&15] % v
					}
				case isa.SModK:
					if v := int64(i.imm); v != 0 {
						r[i.dst&15] = uint64(int64(r[i.dst&15]) % v)
					}
				case isa.SModX:
					if v := int64(r[i.src&15]); v != 0 {
						r[i.dst&15] = uint64(int64(r[i.dst&15]) % v)
					}
				case isa.LshK:
					r[i.dst&15] <<= i.imm & 63
				case isa.LshX:
					r[i.dst&15] <<= r[i.src&15] & 63
				case isa.RshK:
					r[i.dst&15] >>= i.imm & 63
				case isa.RshX:
					r[i.dst&15] >>= r[i.src&15] & 63
				case isa.ArshK:
					r[i.dst&15] = uint64(int64(r[i.dst&15]) >> (i.imm & 63))
				case isa.ArshX:
					r[i.dst&15] = uint64(int64(r[i.dst&15]) >> (r[i.src&15] & 63))
				case isa.Neg:
					r[i.dst&15] = -r[i.dst&15]
				case isa.MovK:
					r[i.dst&15] = i.imm
				case isa.MovX:
					r[i.dst&15] = r[i.src&15]
				case isa.MovSX8:
					r[i.dst&15] = uint64(int64(int8(r[i.src&15])))
				case isa.MovSX16:
					r[i.dst&15] = uint64(int64(int16(r[i.src&15])))
				case isa.MovSX32:
					r[i.dst&15] = uint64(int64(int32(r[i.src&15])))

				// Arithmetic, 32 bits: the upper half becomes zero.
				case isa.Add32K:
					r[i.dst&15] = uint64(uint32(r[i.dst&15]) + uint32(i.imm))
				case isa.Add32X:
					r[i.dst&15] = uint64(uint32(r[i.dst&15]) + uint32(r[i.src&15]))
				case isa.Sub32K:
					r[i.dst&15] = uint64(uint32(r[i.dst&15]) - uint32(i.imm))
				case isa.Sub32X:
					r[i.dst&15] = uint64(uint32(r[i.dst&15]) - uint32(r[i.src&15]))
				case isa.Mul32K:
					r[i.dst&15] = uint64(uint32(r[i.dst&15]) * uint32(i.imm))
				case isa.Mul32X:
					r[i.dst&15] = uint64(uint32(r[i.dst&15]) * uint32(r[i.src&15]))
				case isa.Or32K:
					r[i.dst&15] = uint64(uint32(r[i.dst&15]) | uint32(i.imm))
				case isa.Or32X:
					r[i.dst&15] = uint64(uint32(r[i.dst&15]) | uint32(r[i.src&15]))
				case isa.And32K:
					r[i.dst&15] = uint64(uint32(r[i.dst&15]) & uint32(i.imm))
				case isa.And32X:
					r[i.dst&15] = uint64(uint32(r[i.dst&15]) & uint32(r[i.src&15]))
				case isa.Xor32K:
					r[i.dst&15] = uint64(uint32(r[i.dst&15]) ^ uint32(i.imm))
				case isa.Xor32X:
					r[i.dst&15] = uint64(uint32(r[i.dst&15]) ^ uint32(r[i.src&15]))
				case isa.Div32K:
					if v := uint32(i.imm); v != 0 {
						r[i.dst&15] = uint64(uint32(r[i.dst&15]) / v)
					} else {
						r[i.dst&15] = 0
					}
				case isa.Div32X:
					if v := uint32(r[i.src&15]); v != 0 {
						r[i.dst&15] = uint64(uint32(r[i.dst&15]) / v)
					} else {
						r[i.dst&15] = 0
					}
				case isa.SDiv32K:
					if v := int32(i.imm); v != 0 {
						r[i.dst&15] = uint64(uint32(int32(r[i.dst&15]) / v))
					} else {
						r[i.dst&15] = 0
					}
				case isa.SDiv32X:
					if v := int32(r[i.src&15]); v != 0 {
						r[i.dst&15] = uint64(uint32(int32(r[i.dst&15]) / v))
					} else {
						r[i.dst&15] = 0
					}
				case isa.Mod32K:
					if v := uint32(i.imm); v != 0 {
						r[i.dst&15] = uint64(uint32(r[i.dst&15]) % v)
					} else {
						r[i.dst&15] = uint64(uint32(r[i.dst&15]))
					}
				case isa.Mod32X:
					if v := uint32(r[i.src&15]); v != 0 {
						r[i.dst&15] = uint64(uint32(r[i.dst&15]) % v)
					} else {
						r[i.dst&15] = uint64(uint32(r[i.dst&15]))
					}
				case isa.SMod32K:
					if v := int32(i.imm); v != 0 {
						r[i.dst&15] = uint64(uint32(int32(r[i.dst&15]) % v))
					} else {
						r[i.dst&15] = uint64(uint32(r[i.dst&15]))
					}
				case isa.SMod32X:
					if v := int32(r[i.src&15]); v != 0 {
						r[i.dst&15] = uint64(uint32(int32(r[i.dst&15]) % v))
					} else {
						r[i.dst&15] = uint64(uint32(r[i.dst&15]))
					}
				case isa.Lsh32K:
					r[i.dst&15] = uint64(uint32(r[i.dst&15]) << (i.imm & 31))
				case isa.Lsh32X:
					r[i.dst&15] = uint64(uint32(r[i.dst&15]) << (r[i.src&15] & 31))
				case isa.Rsh32K:
					r[i.dst&15] = uint64(uint32(r[i.dst&15]) >> (i.imm & 31))
				case isa.Rsh32X:
					r[i.dst&15] = uint64(uint32(r[i.dst&15]) >> (r[i.src&15] & 31))
				case isa.Arsh32K:
					r[i.dst&15] = uint64(uint32(int32(r[i.dst&15]) >> (i.imm & 31)))
				case isa.Arsh32X:
					r[i.dst&15] = uint64(uint32(int32(r[i.dst&15]) >> (r[i.src&15] & 31)))
				case isa.Neg32:
					r[i.dst&15] = uint64(-uint32(r[i.dst&15]))
				case isa.Mov32K:
					r[i.dst&15] = uint64(uint32(i.imm))
				case isa.Mov32X:
					r[i.dst&15] = uint64(uint32(r[i.src&15]))
				case isa.Mov32SX8:
					r[i.dst&15] = uint64(uint32(int32(int8(r[i.src&15]))))
				case isa.Mov32SX16:
					r[i.dst&15] = uint64(uint32(int32(int16(r[i.src&15]))))

				// Byte swaps, on a little-endian host.
				case isa.LE16:
					r[i.dst&15] = uint64(uint16(r[i.dst&15]))
				case isa.LE32:
					r[i.dst&15] = uint64(uint32(r[i.dst&15]))
				case isa.LE64:
					// nothing to do
				case isa.BE16, isa.BSwap16:
					r[i.dst&15] = uint64(bits.ReverseBytes16(uint16(r[i.dst&15])))
				case isa.BE32, isa.BSwap32:
					r[i.dst&15] = uint64(bits.ReverseBytes32(uint32(r[i.dst&15])))
				case isa.BE64, isa.BSwap64:
					r[i.dst&15] = bits.ReverseBytes64(r[i.dst&15])

				// Jumps: the target is above the immediate.
				case isa.JA, isa.GotoL:
					pc = int(i.imm >> 32)
					continue enter
				case isa.JEqK:
					if r[i.dst&15] == uint64(int64(int32(i.imm))) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JEqX:
					if r[i.dst&15] == r[i.src&15] {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JNEK:
					if r[i.dst&15] != uint64(int64(int32(i.imm))) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JNEX:
					if r[i.dst&15] != r[i.src&15] {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JGTK:
					if r[i.dst&15] > uint64(int64(int32(i.imm))) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JGTX:
					if r[i.dst&15] > r[i.src&15] {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JGEK:
					if r[i.dst&15] >= uint64(int64(int32(i.imm))) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JGEX:
					if r[i.dst&15] >= r[i.src&15] {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JLTK:
					if r[i.dst&15] < uint64(int64(int32(i.imm))) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JLTX:
					if r[i.dst&15] < r[i.src&15] {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JLEK:
					if r[i.dst&15] <= uint64(int64(int32(i.imm))) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JLEX:
					if r[i.dst&15] <= r[i.src&15] {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JSGTK:
					if int64(r[i.dst&15]) > int64(int32(i.imm)) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JSGTX:
					if int64(r[i.dst&15]) > int64(r[i.src&15]) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JSGEK:
					if int64(r[i.dst&15]) >= int64(int32(i.imm)) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JSGEX:
					if int64(r[i.dst&15]) >= int64(r[i.src&15]) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JSLTK:
					if int64(r[i.dst&15]) < int64(int32(i.imm)) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JSLTX:
					if int64(r[i.dst&15]) < int64(r[i.src&15]) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JSLEK:
					if int64(r[i.dst&15]) <= int64(int32(i.imm)) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JSLEX:
					if int64(r[i.dst&15]) <= int64(r[i.src&15]) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JSetK:
					if r[i.dst&15]&uint64(int64(int32(i.imm))) != 0 {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JSetX:
					if r[i.dst&15]&r[i.src&15] != 0 {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JEq32K:
					if uint32(r[i.dst&15]) == uint32(i.imm) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JEq32X:
					if uint32(r[i.dst&15]) == uint32(r[i.src&15]) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JNE32K:
					if uint32(r[i.dst&15]) != uint32(i.imm) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JNE32X:
					if uint32(r[i.dst&15]) != uint32(r[i.src&15]) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JGT32K:
					if uint32(r[i.dst&15]) > uint32(i.imm) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JGT32X:
					if uint32(r[i.dst&15]) > uint32(r[i.src&15]) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JGE32K:
					if uint32(r[i.dst&15]) >= uint32(i.imm) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JGE32X:
					if uint32(r[i.dst&15]) >= uint32(r[i.src&15]) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JLT32K:
					if uint32(r[i.dst&15]) < uint32(i.imm) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JLT32X:
					if uint32(r[i.dst&15]) < uint32(r[i.src&15]) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JLE32K:
					if uint32(r[i.dst&15]) <= uint32(i.imm) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JLE32X:
					if uint32(r[i.dst&15]) <= uint32(r[i.src&15]) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JSGT32K:
					if int32(r[i.dst&15]) > int32(i.imm) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JSGT32X:
					if int32(r[i.dst&15]) > int32(r[i.src&15]) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JSGE32K:
					if int32(r[i.dst&15]) >= int32(i.imm) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JSGE32X:
					if int32(r[i.dst&15]) >= int32(r[i.src&15]) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JSLT32K:
					if int32(r[i.dst&15]) < int32(i.imm) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JSLT32X:
					if int32(r[i.dst&15]) < int32(r[i.src&15]) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JSLE32K:
					if int32(r[i.dst&15]) <= int32(i.imm) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JSLE32X:
					if int32(r[i.dst&15]) <= int32(r[i.src&15]) {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JSet32K:
					if uint32(r[i.dst&15])&uint32(i.imm) != 0 {
						pc = int(i.imm >> 32)
					}
					continue enter
				case isa.JSet32X:
					if uint32(r[i.dst&15])&uint32(r[i.src&15]) != 0 {
						pc = int(i.imm >> 32)
					}
					continue enter

				// Wide instructions, resolved.
				case isa.LdDW, isa.LdMapFD, isa.LdValueFD, isa.LdCode, isa.LdMap, isa.LdValue:
					r[i.dst&15] = i.imm

				// Loads.
				case isa.LdXB:
					addr := r[i.src&15] + i.imm
					if addr-m.Read.Base >= m.Read.Limit[0] {
						break execute
					}
					r[i.dst&15] = load8(addr)
				case isa.LdXB + unchecked:
					m.At, m.Addr = pc-1, r[i.src&15]+i.imm
					r[i.dst&15] = load8(m.Addr)
				case isa.LdXB + proved:
					r[i.dst&15] = load8(r[i.src&15] + i.imm)
				case isa.LdXH:
					addr := r[i.src&15] + i.imm
					if addr-m.Read.Base >= m.Read.Limit[1] {
						break execute
					}
					r[i.dst&15] = load16(addr)
				case isa.LdXH + unchecked:
					m.At, m.Addr = pc-1, r[i.src&15]+i.imm
					r[i.dst&15] = load16(m.Addr)
				case isa.LdXH + proved:
					r[i.dst&15] = load16(r[i.src&15] + i.imm)
				case isa.LdXW:
					addr := r[i.src&15] + i.imm
					if addr-m.Read.Base >= m.Read.Limit[2] {
						break execute
					}
					r[i.dst&15] = load32(addr)
				case isa.LdXW + unchecked:
					m.At, m.Addr = pc-1, r[i.src&15]+i.imm
					r[i.dst&15] = load32(m.Addr)
				case isa.LdXW + proved:
					r[i.dst&15] = load32(r[i.src&15] + i.imm)
				case isa.LdXDW:
					addr := r[i.src&15] + i.imm
					if addr-m.Read.Base >= m.Read.Limit[3] {
						break execute
					}
					r[i.dst&15] = load64(addr)
				case isa.LdXDW + unchecked:
					m.At, m.Addr = pc-1, r[i.src&15]+i.imm
					r[i.dst&15] = load64(m.Addr)
				case isa.LdXDW + proved:
					r[i.dst&15] = load64(r[i.src&15] + i.imm)
				case isa.LdXSB:
					addr := r[i.src&15] + i.imm
					if addr-m.Read.Base >= m.Read.Limit[0] {
						break execute
					}
					r[i.dst&15] = uint64(int64(int8(load8(addr))))
				case isa.LdXSB + unchecked:
					m.At, m.Addr = pc-1, r[i.src&15]+i.imm
					r[i.dst&15] = uint64(int64(int8(load8(m.Addr))))
				case isa.LdXSB + proved:
					r[i.dst&15] = uint64(int64(int8(load8(r[i.src&15] + i.imm))))
				case isa.LdXSH:
					addr := r[i.src&15] + i.imm
					if addr-m.Read.Base >= m.Read.Limit[1] {
						break execute
					}
					r[i.dst&15] = uint64(int64(int16(load16(addr))))
				case isa.LdXSH + unchecked:
					m.At, m.Addr = pc-1, r[i.src&15]+i.imm
					r[i.dst&15] = uint64(int64(int16(load16(m.Addr))))
				case isa.LdXSH + proved:
					r[i.dst&15] = uint64(int64(int16(load16(r[i.src&15] + i.imm))))
				case isa.LdXSW:
					addr := r[i.src&15] + i.imm
					if addr-m.Read.Base >= m.Read.Limit[2] {
						break execute
					}
					r[i.dst&15] = uint64(int64(int32(load32(addr))))
				case isa.LdXSW + unchecked:
					m.At, m.Addr = pc-1, r[i.src&15]+i.imm
					r[i.dst&15] = uint64(int64(int32(load32(m.Addr))))
				case isa.LdXSW + proved:
					r[i.dst&15] = uint64(int64(int32(load32(r[i.src&15] + i.imm))))

				// Stores: an immediate one has its offset above the value.
				case isa.StB:
					addr := r[i.dst&15] + uint64(int64(i.imm)>>32)
					if addr-m.Write.Base >= m.Write.Limit[0] {
						break execute
					}
					store8(addr, i.imm)
				case isa.StB + unchecked:
					m.At, m.Addr = pc-1, r[i.dst&15]+uint64(int64(i.imm)>>32)
					store8(m.Addr, i.imm)
				case isa.StB + proved:
					store8(r[i.dst&15]+uint64(int64(i.imm)>>32), i.imm)
				case isa.StH:
					addr := r[i.dst&15] + uint64(int64(i.imm)>>32)
					if addr-m.Write.Base >= m.Write.Limit[1] {
						break execute
					}
					store16(addr, i.imm)
				case isa.StH + unchecked:
					m.At, m.Addr = pc-1, r[i.dst&15]+uint64(int64(i.imm)>>32)
					store16(m.Addr, i.imm)
				case isa.StH + proved:
					store16(r[i.dst&15]+uint64(int64(i.imm)>>32), i.imm)
				case isa.StW:
					addr := r[i.dst&15] + uint64(int64(i.imm)>>32)
					if addr-m.Write.Base >= m.Write.Limit[2] {
						break execute
					}
					store32(addr, i.imm)
				case isa.StW + unchecked:
					m.At, m.Addr = pc-1, r[i.dst&15]+uint64(int64(i.imm)>>32)
					store32(m.Addr, i.imm)
				case isa.StW + proved:
					store32(r[i.dst&15]+uint64(int64(i.imm)>>32), i.imm)
				case isa.StDW:
					addr := r[i.dst&15] + uint64(int64(i.imm)>>32)
					if addr-m.Write.Base >= m.Write.Limit[3] {
						break execute
					}
					store64(addr, uint64(int64(int32(i.imm))))
				case isa.StDW + unchecked:
					m.At, m.Addr = pc-1, r[i.dst&15]+uint64(int64(i.imm)>>32)
					store64(m.Addr, uint64(int64(int32(i.imm))))
				case isa.StDW + proved:
					store64(r[i.dst&15]+uint64(int64(i.imm)>>32), uint64(int64(int32(i.imm))))
				case isa.StXB:
					addr := r[i.dst&15] + i.imm
					if addr-m.Write.Base >= m.Write.Limit[0] {
						break execute
					}
					store8(addr, r[i.src&15])
				case isa.StXB + unchecked:
					m.At, m.Addr = pc-1, r[i.dst&15]+i.imm
					store8(m.Addr, r[i.src&15])
				case isa.StXB + proved:
					store8(r[i.dst&15]+i.imm, r[i.src&15])
				case isa.StXH:
					addr := r[i.dst&15] + i.imm
					if addr-m.Write.Base >= m.Write.Limit[1] {
						break execute
					}
					store16(addr, r[i.src&15])
				case isa.StXH + unchecked:
					m.At, m.Addr = pc-1, r[i.dst&15]+i.imm
					store16(m.Addr, r[i.src&15])
				case isa.StXH + proved:
					store16(r[i.dst&15]+i.imm, r[i.src&15])
				case isa.StXW:
					addr := r[i.dst&15] + i.imm
					if addr-m.Write.Base >= m.Write.Limit[2] {
						break execute
					}
					store32(addr, r[i.src&15])
				case isa.StXW + unchecked:
					m.At, m.Addr = pc-1, r[i.dst&15]+i.imm
					store32(m.Addr, r[i.src&15])
				case isa.StXW + proved:
					store32(r[i.dst&15]+i.imm, r[i.src&15])
				case isa.StXDW:
					addr := r[i.dst&15] + i.imm
					if addr-m.Write.Base >= m.Write.Limit[3] {
						break execute
					}
					store64(addr, r[i.src&15])
				case isa.StXDW + unchecked:
					m.At, m.Addr = pc-1, r[i.dst&15]+i.imm
					store64(m.Addr, r[i.src&15])
				case isa.StXDW + proved:
					store64(r[i.dst&15]+i.imm, r[i.src&15])

				// Falls through into the block that begins with the next cell.
				case enterBlock:
					continue enter

				default:
					break execute
				}
			}
			at := pc - 1
			switch i := &cells[at]; i.op {
			case isa.Call, isa.CallNamed:
				m.At = -1
				copy(m.Call.Args[:], r[1:6])
				r[0], err = c.services[i.imm].Call(&m.Call)
				left = m.SliceLeft
				if err != nil {
					return 0, c.stop(m, engine.Service, at, 0, left, err)
				}
			case isa.CallLocal:
				if depth == len(m.Frames) {
					return 0, c.stop(m, engine.Depth, at, 0, left, nil)
				}
				frame := &m.Frames[depth]
				depth++
				frame.Return, frame.FP = pc, r[isa.FramePointer]
				copy(frame.Saved[:], r[6:10])
				r[isa.FramePointer] = m.SP
				if i.src != 0 {
					m.PushFrame()
				}
				pc = int(i.imm)
				continue enter
			case isa.Exit:
				if depth == 0 {
					m.Fuel += uint64(left)
					return r[0], nil
				}
				depth--
				frame := &m.Frames[depth]
				if r[isa.FramePointer] != m.SP {
					m.Enter(r[isa.FramePointer])
				}
				pc, r[isa.FramePointer] = frame.Return, frame.FP
				copy(r[6:10], frame.Saved[:])
				continue enter
			default:
				var addr uint64
				if i.op > isa.StXDW {
					addr, kind = i.atomic(m, &r, at, c.trusted)
				} else {
					addr, kind = i.find(m, &r)
					pc = at
				}
				if kind != "" {
					return 0, c.stop(m, kind, at, addr, left, nil)
				}
			}
		}
	}
}

// find looks for the region of a load or store that missed the region used last;
// the caller then repeats the access. A non-empty kind is the fault.
func (i *cell) find(m *engine.Machine, r *[16]uint64) (addr uint64, kind engine.Kind) {
	n, ok := bits.TrailingZeros(uint(i.op.Size())), false
	switch i.op.Form() {
	case isa.FormLoad:
		addr = r[i.src&15] + i.imm
		ok = m.FindRead(addr, n)
	case isa.FormStore:
		addr = r[i.dst&15] + i.imm
		ok = m.FindWrite(addr, n)
	case isa.FormStoreImm:
		addr = r[i.dst&15] + uint64(int64(i.imm)>>32)
		ok = m.FindWrite(addr, n)
	}
	if !ok {
		return addr, engine.Memory
	}
	return addr, ""
}
