// Package asm is the text of whole programs: Print writes it and Programs reads
// it back, to the same bytes, maps and names. Source lines have no text.
//
// A line holds labels, an instruction and a comment, all optional:
//
//	# sum of r2 bytes at r1
//	    mov r0, 0
//	next:
//	    jeq r2, 0, done     # a label, or a distance: jeq r2, 0, +5
//	    ldxb r3, [r1]
//	    add r0, r3
//	    add r1, 1
//	    add r2, -1
//	    ja next
//	done:
//	    exit
//
// The grammar, with the terminals of a line separated by white space where they
// would run together:
//
//	text        = line { "\n" line } .
//	line        = { label ":" } [ instruction | declaration ] [ "#" comment ] .
//	instruction = mnemonic [ operand { "," operand } ] | "hex" digit{16} .
//	operand     = register | number | memory | target | name .
//	register    = "r" decimal .                            0 to 15
//	number      = [ "+" | "-" ] ( decimal | "0x" hex ) .
//	memory      = "[" register [ ( "+" | "-" ) number ] "]" .
//	target      = label | number .
//	label       = first { first | "0" ... "9" | "$" } .
//	first       = letter | "_" | "." .
//	name        = label | quoted .
//	quoted      = a string of Go in which no blank, ":", "," or "#" stands for itself .
//	declaration = ".program" name name                     function and section
//	            | ".license" name
//	            | ".map" name ( "array" | "per_core" ) number number [ "readonly" ]
//	            | ".bytes" hex                             contents of the last map, continued
//	            | ".variable" name name number number      its map, offset and size
//	            | ".pointer" name number name number       map and offset of an address, and what it is of
//	            | ".extern" name .
//
// Mnemonics and their operands come from the table of package isa, so 64-bit operations have the
// plain name and 32-bit ones end in 32: add, add32; jeq, jeq32; atomic_add, atomic_add32. Loads are
// ldxb to ldxdw and, sign-extending, ldxsb to ldxsw; stores stb to stdw (immediate) and stxb to
// stxdw. A target is the last operand of jumps, of call_local and of lddw_code; as a number it
// counts slots of 8 bytes, from the one that follows the first slot of the instruction. hex is one
// slot, byte by byte, for instructions without another text.
//
// Declarations are the part of an object besides its instructions. A map has the sizes of an
// element and their number. Maps and externs, which are services, are declared before they are
// named: lddw_map r1, counts; lddw_value r1, .data, 8; call_named notify. A number, counted from 0,
// may replace a name. A text holds several programs if .program, which begins one, occurs again;
// labels and declarations belong to one program.
//
// Reading is not verifying: text can hold any instruction that fits its fields.
// Package verify says whether a program is accepted.
package asm

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"

	"margay/nimble/isa"
	"margay/nimble/object"
)

// Error says where a text is wrong.
type Error struct {
	Line, Column int // counted from 1; columns are bytes
	Reason       string
}

// Error names line and column.
func (e *Error) Error() string { return fmt.Sprintf("%d:%d: %s", e.Line, e.Column, e.Reason) }

// Programs reads a text of one program or more. One that .program does not
// name has no section. Errors are *Error. Time and memory are linear in the
// length of the text.
func Programs(text string) ([]*object.Spec, error) {
	p := newParser()
	var specs []*object.Spec
	for line := range strings.Lines(text) {
		p.line++
		line = strings.TrimRight(line, "\r\n")
		if p.used && isDeclaration(line, ".program") {
			if err := p.finish(); err != nil {
				return nil, err
			}
			specs = append(specs, p.spec)
			next := newParser()
			next.line = p.line
			p = next
		}
		if err := p.read(line); err != nil {
			return nil, err
		}
	}
	if err := p.finish(); err != nil {
		return nil, err
	}
	return append(specs, p.spec), nil
}

// Parse reads the instructions of the only program of a text. Errors are *Error.
func Parse(text string) ([]isa.Instruction, error) {
	specs, err := Programs(text)
	if err != nil {
		return nil, err
	}
	if len(specs) > 1 {
		return nil, &Error{1, 1, fmt.Sprintf("%d programs, not one", len(specs))}
	}
	return specs[0].Instructions, nil
}

// parser reads one program.
type parser struct {
	line   int
	spec   *object.Spec
	used   bool // something has been read
	code   []byte
	places []place        // of each slot
	labels map[string]int // slots
	jumps  []jump

	maps, externs map[string]int // their numbers
}

func newParser() *parser {
	return &parser{
		spec:    &object.Spec{Name: "text"},
		labels:  make(map[string]int),
		maps:    make(map[string]int),
		externs: make(map[string]int),
	}
}

// finish resolves the labels and decodes the instructions.
func (p *parser) finish() (err error) {
	for _, j := range p.jumps {
		if err := p.resolve(j); err != nil {
			return err
		}
	}
	p.spec.Instructions, err = isa.Decode(p.code)
	if wrong, ok := errors.AsType[*isa.DecodeError](err); ok {
		return &Error{p.places[wrong.Slot].line, p.places[wrong.Slot].column, wrong.Reason}
	}
	return err
}

// place is where in the text something is.
type place struct{ line, column int }

// jump is an instruction whose target is a label.
type jump struct {
	instruction isa.Instruction
	slot        int
	label       string
	place       place
}

// fail reports an error at the rest of a line.
func (p *parser) fail(line, left, format string, args ...any) error {
	return &Error{p.line, len(line) - len(left) + 1, fmt.Sprintf(format, args...)}
}

// blank is the white space within a line.
const blank = " \t"

// read reads one line.
func (p *parser) read(line string) error {
	left, _, _ := strings.Cut(line, "#")
	line = left
	for {
		left = strings.TrimLeft(left, blank)
		label, after, ok := strings.Cut(left, ":")
		if !ok {
			break
		}
		label = strings.TrimRight(label, blank)
		if !isLabel(label) {
			return p.fail(line, left, "%q cannot be a label", label)
		}
		if _, twice := p.labels[label]; twice {
			return p.fail(line, left, "label %q exists already", label)
		}
		p.labels[label], p.used = len(p.places), true
		left = after
	}
	if left == "" {
		return nil
	}
	if left[0] == '.' {
		return p.declare(line, left)
	}
	p.used = true
	return p.instruction(line, left)
}

// instruction reads the rest of a line after its labels.
func (p *parser) instruction(line, left string) error {
	at := place{p.line, len(line) - len(left) + 1}
	name, rest := left, ""
	if end := strings.IndexAny(left, blank); end >= 0 {
		name, rest = left[:end], strings.TrimLeft(left[end:], blank)
	}
	if name == "hex" {
		digits := strings.TrimRight(rest, blank)
		slot, err := hex.DecodeString(digits)
		if err != nil || len(slot) != isa.SlotSize {
			return p.fail(line, rest, "%q: want the %d bytes of a slot", digits, isa.SlotSize)
		}
		p.emit(slot, at)
		return nil
	}
	var words []string
	if rest != "" {
		words = strings.Split(rest, ",")
	}
	if n, err := p.number(name, words); err != nil {
		return p.fail(line, operand(left, rest, n), "%v", err)
	}
	label := target(name, words)
	i, err := isa.Assemble(name, words)
	if wrong, ok := errors.AsType[*isa.OperandError](err); ok {
		return p.fail(line, operand(left, rest, wrong.Operand), "%s", wrong.Reason)
	}
	if label != "" {
		last := operand(left, rest, len(words)-1)
		p.jumps = append(p.jumps, jump{i, len(p.places), label, place{p.line, len(line) - len(last) + 1}})
	}
	p.emit(isa.Encode(isa.Append(nil, i)), at)
	return nil
}

// operand returns the rest of a line from operand n on, or from the mnemonic on for -1.
func operand(instruction, operands string, n int) string {
	if n < 0 {
		return instruction
	}
	for range n {
		_, operands, _ = strings.Cut(operands, ",")
	}
	return strings.TrimLeft(operands, blank)
}

// target takes the label out of the last operand, if that is the target of a
// jump and no number.
func target(name string, words []string) string {
	rows := isa.Named(name)
	if len(rows) == 0 || rows[0].Distance() == isa.NoField || len(words) == 0 {
		return ""
	}
	last := &words[len(words)-1]
	label := strings.Trim(*last, blank)
	if !isLabel(label) {
		return ""
	}
	*last = "+0"
	return label
}

// emit appends slots to the program.
func (p *parser) emit(code []byte, at place) {
	p.code = append(p.code, code...)
	for len(p.places) < len(p.code)/isa.SlotSize {
		p.places = append(p.places, at)
	}
}

// resolve writes the distance of a jump to its label.
func (p *parser) resolve(j jump) error {
	to, ok := p.labels[j.label]
	if !ok {
		return &Error{j.place.line, j.place.column, fmt.Sprintf("no label %q", j.label)}
	}
	distance := to - j.slot - 1
	switch j.instruction.Op().Distance() {
	case isa.Off:
		if distance != int(int16(distance)) {
			return &Error{j.place.line, j.place.column, fmt.Sprintf("label %q is %d slots away, more than %d", j.label, distance, math.MaxInt16)}
		}
		j.instruction.Off = int16(distance)
	default:
		j.instruction.Imm = int32(distance)
	}
	copy(p.code[j.slot*isa.SlotSize:], isa.Encode([]isa.Instruction{j.instruction}))
	return nil
}

// isLabel reports whether a word can be a label.
func isLabel(word string) bool {
	for n, c := range word {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' || c == '.'
		if !letter && (n == 0 || !('0' <= c && c <= '9' || c == '$')) {
			return false
		}
	}
	return word != ""
}
