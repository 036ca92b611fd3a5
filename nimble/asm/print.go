package asm

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"strings"

	"margay/nimble/isa"
)

// Notes are what Print writes as comments. Each function gets the slot of an
// instruction and returns nothing for no comment; it may be nil.
type Notes struct {
	Above  func(slot int) string // a line above the instruction
	Beside func(slot int) string // behind the instruction
}

// Print writes a program that isa.Decode has returned, so that Parse returns
// the same. The targets of jumps are labels: L and the slot, or f and the slot
// where a local call or the address of an instruction names it too.
func Print(w io.Writer, program []isa.Instruction, notes Notes) error {
	out := bufio.NewWriter(w)
	labels := targets(program)
	for slot := 0; slot < len(program); slot++ {
		if labels[slot] != 0 {
			fmt.Fprintf(out, "%c%d:\n", labels[slot], slot)
		}
		if text := note(notes.Above, slot); text != "" {
			fmt.Fprintf(out, "    # %s\n", text)
		}
		for _, text := range instruction(program, slot, labels) {
			if beside := note(notes.Beside, slot); beside != "" {
				text = fmt.Sprintf("%-35s # %s", text, beside)
			}
			fmt.Fprintf(out, "    %s\n", text)
		}
		if program[slot].Wide() {
			slot++
		}
	}
	return out.Flush()
}

// note returns a comment, which must not run on into the next line.
func note(notes func(int) string, slot int) string {
	if notes == nil {
		return ""
	}
	return strings.Join(strings.Fields(notes(slot)), " ")
}

// targets returns the letter of the label of each slot, 0 where none is.
func targets(program []isa.Instruction) []byte {
	starts := make([]bool, len(program))
	for slot := 0; slot < len(program); slot++ {
		starts[slot] = true
		if program[slot].Wide() {
			slot++
		}
	}
	labels := make([]byte, len(program))
	for slot, i := range program {
		to, ok := jumpsTo(i, slot)
		if !ok || to < 0 || to >= len(program) || !starts[to] {
			continue
		}
		if op := i.Op(); op == isa.CallLocal || op == isa.LdCode {
			labels[to] = 'f'
		} else if labels[to] == 0 {
			labels[to] = 'L'
		}
	}
	return labels
}

// jumpsTo returns the slot that an instruction names as a distance.
func jumpsTo(i isa.Instruction, slot int) (to int, ok bool) {
	switch i.Op().Distance() {
	case isa.Off:
		return slot + 1 + int(i.Off), true
	case isa.Imm:
		return slot + 1 + int(i.Imm), true
	}
	return 0, false
}

// instruction returns the text of an instruction: one line, or the bytes of its
// slots if its text would not be read as the same.
func instruction(program []isa.Instruction, slot int, labels []byte) []string {
	i := program[slot]
	text := i.String()
	if back, err := isa.Parse(text); err != nil || back != i {
		var slots []string
		for code := isa.Encode(program[slot:min(slot+width(i), len(program))]); len(code) > 0; code = code[isa.SlotSize:] {
			slots = append(slots, "hex "+hex.EncodeToString(code[:isa.SlotSize]))
		}
		return slots
	}
	if to, ok := jumpsTo(i, slot); ok && to >= 0 && to < len(program) && labels[to] != 0 {
		text = fmt.Sprintf("%s %c%d", text[:strings.LastIndexByte(text, ' ')], labels[to], to)
	}
	return []string{text}
}

// width returns how many slots an instruction takes.
func width(i isa.Instruction) int {
	if i.Wide() {
		return 2
	}
	return 1
}
