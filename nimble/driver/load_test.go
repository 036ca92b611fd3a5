package driver

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"os"
	"slices"
	"testing"

	"margay/nimble/asm"
	"margay/nimble/isa"
	"margay/nimble/object"
	"margay/nimble/service"
	"margay/nimble/state"
	"margay/nimble/verify"
)

// badSlot returns the first slot of a program whose encoding RFC 9669 does not
// allow, -1 if there is none. It goes by the text of the RFC, not by the table
// of package isa.
func badSlot(code []byte) int {
	for slot := 0; slot < len(code)/8; slot++ {
		b := code[slot*8:]
		if !allowed(b[0], b[1]&0xf, b[1]>>4, int16(binary.LittleEndian.Uint16(b[2:])), int32(binary.LittleEndian.Uint32(b[4:]))) {
			return slot
		}
		if b[0] != 0x18 {
			continue
		}
		slot++
		if slot == len(code)/8 || !allowedSecond(b[1]>>4, b[8:]) {
			return slot
		}
	}
	return -1
}

// allowed judges one slot.
func allowed(opcode, dst, src uint8, off int16, imm int32) bool {
	if dst > 10 || src > 10 {
		return false
	}
	class, register := opcode&7, opcode&8 != 0
	switch class {
	case 4, 7: // section 4.1 and 4.2
		return allowedALU(opcode>>4, class == 7, register, src, off, imm)
	case 5, 6: // section 4.3
		return allowedJump(opcode>>4, class == 6, register, dst, src, off, imm)
	case 0: // section 5.4
		return opcode == 0x18 && off == 0 && src <= 6
	case 1: // section 5.1 and 5.2
		mode := opcode >> 5
		return imm == 0 && (mode == 3 || mode == 4 && opcode != 0x99)
	case 2:
		return src == 0 && opcode>>5 == 3
	}
	switch opcode { // section 5.3
	case 0xc3, 0xdb:
		return slices.Contains([]int32{0, 1, 0x40, 0x41, 0x50, 0x51, 0xa0, 0xa1, 0xe1, 0xf1}, imm)
	}
	return imm == 0 && opcode>>5 == 3
}

func allowedALU(operation uint8, is64, register bool, src uint8, off int16, imm int32) bool {
	switch operation {
	case 0xd: // byte swap
		return src == 0 && off == 0 && (imm == 16 || imm == 32 || imm == 64) && !(is64 && register)
	case 8: // neg
		return !register && src == 0 && off == 0 && imm == 0
	case 0xe, 0xf:
		return false
	}
	signed := (operation == 3 || operation == 9) && off == 1
	extending := operation == 0xb && register && (off == 8 || off == 16 || off == 32 && is64)
	if off != 0 && !signed && !extending {
		return false
	}
	return register && imm == 0 || !register && src == 0
}

func allowedJump(operation uint8, is32, register bool, dst, src uint8, off int16, imm int32) bool {
	switch operation {
	case 0: // ja, gotol
		return !register && dst == 0 && src == 0 && (is32 && off == 0 || !is32 && imm == 0)
	case 8: // call
		return !is32 && !register && dst == 0 && off == 0 && src <= 2
	case 9: // exit
		return !is32 && !register && dst == 0 && src == 0 && off == 0 && imm == 0
	case 0xe, 0xf:
		return false
	}
	return register && imm == 0 || !register && src == 0
}

// allowedSecond judges the second slot of a wide instruction.
func allowedSecond(src uint8, b []byte) bool {
	hasImmediate := src == 0 || src == 2 || src == 6
	return [4]byte(b) == [4]byte{} && (hasImmediate || [4]byte(b[4:]) == [4]byte{})
}

// loadServices are those that the programs of these tests may call.
var loadServices = func() *service.Table {
	table, err := service.NewTable(append(service.Linux(), service.Service{Name: "named", Func: func(*service.Call) (uint64, error) { return 0, nil }})...)
	if err != nil {
		panic(err)
	}
	return table
}()

// accepts reports whether a program passes the verifier, with a map and
// services enough for most.
func accepts(spec *object.Spec) bool {
	if len(spec.Maps) == 0 {
		spec.Maps = []state.Spec{{Name: "map", ValueSize: 64, Entries: 1}}
	}
	spec.Externs = append(spec.Externs, "named")
	_, err := verify.Verify(spec, verify.Config{Services: loadServices})
	return err == nil
}

// checkAccepted checks the invariants of an accepted program.
func checkAccepted(t *testing.T, spec *object.Spec) {
	t.Helper()
	if !accepts(spec) {
		return
	}
	code := isa.Encode(spec.Instructions)
	if slot := badSlot(code); slot >= 0 {
		t.Errorf("accepted with insn=%d in %x", slot, code)
	}
}

// TestReservedBits flips every bit of every instruction: a program is accepted
// only if the RFC allows it.
func TestReservedBits(t *testing.T) {
	tried, refused := 0, 0
	for op := isa.Invalid + 1; int(op) < isa.Ops; op++ {
		value := func(f isa.Field) int64 { return max(op.Bounds(f).Min, min(op.Bounds(f).Max, 0)) }
		i := isa.Instruction{
			Code: op.Row().Code,
			Dst:  isa.Register(value(isa.Dst)), Src: isa.Register(value(isa.Src)),
			Off: int16(value(isa.Off)), Imm: int32(value(isa.Imm)), High: int32(value(isa.High)),
		}
		switch op {
		case isa.Call:
			i.Imm = 5
		case isa.CallLocal:
			i.Imm = 1
		case isa.LdCode:
			i.Imm = 2
		}
		exit := isa.Instruction{Code: isa.Exit.Row().Code}
		good := isa.Encode(append(isa.Append(nil, i), exit, exit))
		if spec, err := object.Raw(good); err != nil || accepts(spec) != (op.Row().Refused == "" && op != isa.LdVariable) {
			t.Errorf("%s: %v, accepted: %v", i, err, err == nil && accepts(spec))
			continue
		}
		for bit := range (len(good) - 16) * 8 {
			code := bytes.Clone(good)
			code[bit/8] ^= 1 << (bit % 8)
			tried++
			spec, err := object.Raw(code)
			if err != nil {
				refused++
				continue
			}
			if badSlot(code) >= 0 {
				refused++
			}
			checkAccepted(t, spec)
		}
	}
	if tried < 8000 || refused < tried/2 {
		t.Errorf("%d programs, %d of them bad: what is tested here?", tried, refused)
	}
}

// FuzzLoad reads bytes as everything that can be read: bare instructions, in
// hexadecimal, text, an object. Nothing panics, and no program with a reserved
// field that is not zero is accepted.
func FuzzLoad(f *testing.F) {
	for _, text := range []string{
		"b70000000700000095000000000000000", "18110000000000000000000000000000 9500000000000000",
		"mov r0, 1\nx: jeq r0, 1, x\nexit", "lddw_map r1, 0\nexit", "atomic_fetch_add [r10-8], r1\nexit", "hex 3700010001000000\nexit",
		".program f message\n.map a array 8 1\n.bytes 01\n.extern named\nlddw_value r1, a, 4\ncall_named named\nexit",
	} {
		f.Add([]byte(text))
		if program, err := asm.Parse(text); err == nil {
			f.Add(isa.Encode(program))
			f.Add([]byte(hex.EncodeToString(isa.Encode(program))))
		}
	}
	for _, name := range []string{"counter", "faults", "hash"} {
		file, err := os.ReadFile("../object/testdata/" + name + ".o")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(file)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if spec, err := Raw(bytes.NewReader(data)); err == nil {
			checkAccepted(t, spec)
		}
		if spec, err := Hex(bytes.NewReader(data)); err == nil {
			checkAccepted(t, spec)
		}
		for _, read := range []func([]byte) ([]*object.Spec, error){Text, Object} {
			specs, err := read(data)
			if err != nil {
				continue
			}
			for _, spec := range specs {
				checkAccepted(t, spec)
			}
		}
	})
}
