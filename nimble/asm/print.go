package asm

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"

	"margay/nimble/isa"
	"margay/nimble/object"
	"margay/nimble/state"
)

// Notes are what Print writes as comments. Each function gets the slot of an
// instruction and returns nothing for no comment; it may be nil.
type Notes struct {
	Above  func(slot int) string // a line above the instruction
	Beside func(slot int) string // behind the instruction
}

// Print writes a program so that Programs returns the same, but for its source
// lines. Its instructions are what isa.Decode has returned, and its maps, like
// its externs, have different names. It has a .program if it has a section. The
// targets of jumps are labels: L and the slot, or f and the slot where a local
// call or the address of an instruction names it too.
func Print(w io.Writer, spec *object.Spec, notes Notes) error {
	out := bufio.NewWriter(w)
	declare(out, spec)
	program := spec.Instructions
	labels := targets(program)
	for slot := 0; slot < len(program); slot++ {
		if labels[slot] != 0 {
			fmt.Fprintf(out, "%c%d:\n", labels[slot], slot)
		}
		if text := note(notes.Above, slot); text != "" {
			fmt.Fprintf(out, "    # %s\n", text)
		}
		for _, text := range instruction(spec, slot, labels) {
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

// declare writes what a program has beside its instructions.
func declare(out *bufio.Writer, spec *object.Spec) {
	if spec.Section != "" {
		fmt.Fprintf(out, ".program %s %s\n", quote(spec.Name), quote(spec.Section))
	}
	if spec.License != "" {
		fmt.Fprintf(out, ".license %s\n", quote(spec.License))
	}
	for _, m := range spec.Maps {
		kind, access := "array", ""
		if m.Kind == state.PerCore {
			kind = "per_core"
		}
		if m.ReadOnly {
			access = " readonly"
		}
		fmt.Fprintf(out, ".map %s %s %d %d%s\n", quote(m.Name), kind, m.ValueSize, m.Entries, access)
		for line := range slices.Chunk(m.Contents, 32) {
			fmt.Fprintf(out, ".bytes %x\n", line)
		}
	}
	for _, v := range spec.Variables {
		fmt.Fprintf(out, ".variable %s %s %d %d\n", quote(v.Name), quote(v.Map), v.Offset, v.Size)
	}
	for _, p := range spec.Pointers {
		fmt.Fprintf(out, ".pointer %s %d %s %d\n", quote(p.Map), p.Offset, quote(p.To), p.Distance)
	}
	for _, name := range spec.Externs {
		fmt.Fprintf(out, ".extern %s\n", quote(name))
	}
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
func instruction(spec *object.Spec, slot int, labels []byte) []string {
	program := spec.Instructions
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
	return []string{named(text, i, spec)}
}

// named puts the name of a map or an extern in the place of its number.
func named(text string, i isa.Instruction, spec *object.Spec) string {
	var name string
	switch n := int(i.Imm); {
	case reference(i.Op()) < 0 || n < 0:
		return text
	case i.Op() == isa.CallNamed && n < len(spec.Externs):
		name = spec.Externs[n]
	case i.Op() != isa.CallNamed && n < len(spec.Maps):
		name = spec.Maps[n].Name
	default:
		return text
	}
	mnemonic, operands, _ := strings.Cut(text, " ")
	words := strings.Split(operands, ", ")
	words[reference(i.Op())] = quote(name)
	return mnemonic + " " + strings.Join(words, ", ")
}

// width returns how many slots an instruction takes.
func width(i isa.Instruction) int {
	if i.Wide() {
		return 2
	}
	return 1
}
