package isa

import (
	"encoding/binary"
	"fmt"
)

// DecodeError names the slot at which bytes are not a program.
type DecodeError struct {
	Slot   int // index of the instruction
	Reason string
}

// Error names the slot.
func (e *DecodeError) Error() string { return fmt.Sprintf("insn=%d: %s", e.Slot, e.Reason) }

// Decode reads a program from its encoding (RFC 9669, section 3). It keeps
// every field as it is and checks only what an Instruction cannot hold: the
// length, and that the second slot of a wide instruction has nothing but its
// immediate. Errors are *DecodeError.
func Decode(code []byte) ([]Instruction, error) {
	if n := len(code) % SlotSize; n != 0 {
		return nil, &DecodeError{len(code) / SlotSize, fmt.Sprintf("truncated to %d of %d bytes", n, SlotSize)}
	}
	program := make([]Instruction, len(code)/SlotSize)
	for pc := 0; pc < len(program); pc++ {
		i := decodeSlot(code[pc*SlotSize:])
		if i.Wide() {
			if pc+1 == len(program) {
				return nil, &DecodeError{pc, "wide instruction without its second half"}
			}
			second := decodeSlot(code[(pc+1)*SlotSize:])
			i.High, second.Imm = second.Imm, 0
			if second != (Instruction{}) {
				return nil, &DecodeError{pc + 1, "reserved fields in the second half of a wide instruction must be 0"}
			}
		}
		program[pc] = i
		if i.Wide() {
			pc++
		}
	}
	return program, nil
}

// decodeSlot reads the basic encoding of one slot.
func decodeSlot(b []byte) Instruction {
	return Instruction{
		Code: b[0],
		Dst:  Register(b[1] & 0xf),
		Src:  Register(b[1] >> 4),
		Off:  int16(binary.LittleEndian.Uint16(b[2:])),
		Imm:  int32(binary.LittleEndian.Uint32(b[4:])),
	}
}

// Encode writes a program in its encoding, the inverse of Decode. Register
// fields above 15 do not fit and are cut to four bits.
func Encode(program []Instruction) []byte {
	code := make([]byte, 0, len(program)*SlotSize)
	for pc := 0; pc < len(program); pc++ {
		i := program[pc]
		code = encodeSlot(code, i)
		if i.Wide() && pc+1 < len(program) {
			code = encodeSlot(code, Instruction{Imm: i.High})
			pc++
		}
	}
	return code
}

func encodeSlot(b []byte, i Instruction) []byte {
	b = append(b, i.Code, byte(i.Src)<<4|byte(i.Dst)&0xf)
	b = binary.LittleEndian.AppendUint16(b, uint16(i.Off))
	return binary.LittleEndian.AppendUint32(b, uint32(i.Imm))
}
