package isa

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// String returns the instruction as text: the mnemonic and the operands of its
// form. An instruction without a row is "hex" and its first slot's bytes.
func (i Instruction) String() string {
	op := i.Op()
	if op == Invalid {
		return fmt.Sprintf("hex %x", encodeSlot(nil, i))
	}
	text := table[op].Name
	for n, o := range forms[table[op].Form].operands {
		if n > 0 {
			text += ","
		}
		text += " " + o.print(i)
	}
	return text
}

func (o operand) print(i Instruction) string {
	switch o {
	case dst:
		return i.Dst.String()
	case src:
		return i.Src.String()
	case imm:
		return strconv.Itoa(int(i.Imm))
	case high:
		return strconv.Itoa(int(i.High))
	case wide:
		return fmt.Sprintf("%#x", i.Const())
	case jumpOff:
		return fmt.Sprintf("%+d", i.Off)
	case jumpImm:
		return fmt.Sprintf("%+d", i.Imm)
	case memDst:
		return fmt.Sprintf("[%s%+d]", i.Dst, i.Off)
	default:
		return fmt.Sprintf("[%s%+d]", i.Src, i.Off)
	}
}

// Named returns the rows with a mnemonic, which differ in their operands.
func Named(name string) []Op { return slices.Clone(byName[name]) }

// Parse reads one instruction in the form that String prints. Numbers may be
// decimal or hexadecimal; an immediate may be written signed or unsigned. The
// values of fields are not checked against the row: see Check.
func Parse(text string) (Instruction, error) {
	name, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	var words []string
	if rest = strings.TrimSpace(rest); rest != "" {
		words = strings.Split(rest, ",")
	}
	i, err := Assemble(name, words)
	if err != nil {
		return Instruction{}, fmt.Errorf("%q: %w", text, err)
	}
	return i, nil
}

// OperandError describes an error in the text of an instruction.
type OperandError struct {
	Operand int // counted from 0; -1: the mnemonic, or the number of operands
	Reason  string
}

// Error returns the reason.
func (e *OperandError) Error() string { return e.Reason }

// Assemble makes an instruction of a mnemonic and the texts of its operands, as
// Parse reads them. Errors are *OperandError.
func Assemble(name string, words []string) (Instruction, error) {
	at, wants := -1, []string(nil)
	for _, op := range byName[name] {
		i, bad, want := parseRow(op, words)
		if want == "" {
			return i, nil
		}
		if bad > at {
			at, wants = bad, nil
		}
		if bad == at && !slices.Contains(wants, want) {
			wants = append(wants, want)
		}
	}
	switch want := strings.Join(wants, " or "); {
	case want == "":
		return Instruction{}, &OperandError{at, fmt.Sprintf("no instruction %q", name)}
	case at < 0:
		return Instruction{}, &OperandError{at, fmt.Sprintf("%s has %s, not %d", name, want, len(words))}
	default:
		return Instruction{}, &OperandError{at, fmt.Sprintf("malformed operand %q: want %s", strings.TrimSpace(words[at]), want)}
	}
}

// parseRow reads the operands of one row. If it cannot, want says what the row
// wants instead of the operand number bad, or how many of them if that is -1.
func parseRow(op Op, words []string) (i Instruction, bad int, want string) {
	row := &table[op]
	operands := forms[row.Form].operands
	if len(words) != len(operands) {
		return Instruction{}, -1, [...]string{"no operands", "1 operand", "2 operands", "3 operands"}[len(operands)]
	}
	i = Instruction{Code: row.Code}
	if row.Key.Field != NoField {
		i.setField(row.Key.Field, row.Key.Value)
	}
	for n, o := range operands {
		if !o.parse(&i, strings.TrimSpace(words[n])) {
			return Instruction{}, n, o.want()
		}
	}
	return i, 0, ""
}

// want describes an operand for an error message.
func (o operand) want() string {
	return [...]string{
		dst: "a register", src: "a register", imm: "a 32-bit number", high: "a 32-bit number", wide: "a 64-bit number",
		jumpOff: "a 16-bit distance", jumpImm: "a 32-bit distance", memDst: "[register+offset]", memSrc: "[register+offset]",
	}[o]
}

func (o operand) parse(i *Instruction, word string) (ok bool) {
	switch o {
	case dst:
		i.Dst, ok = parseRegister(word)
	case src:
		i.Src, ok = parseRegister(word)
	case imm, jumpImm:
		i.Imm, ok = parseImm(word)
	case high:
		i.High, ok = parseImm(word)
	case wide:
		ok = parseWide(i, word)
	case jumpOff:
		i.Off, ok = parseOff(word)
	case memDst:
		i.Dst, i.Off, ok = parseMemory(word)
	case memSrc:
		i.Src, i.Off, ok = parseMemory(word)
	}
	return ok
}

func parseRegister(word string) (Register, bool) {
	digits, ok := strings.CutPrefix(word, "r")
	n, err := strconv.ParseUint(digits, 10, 4)
	return Register(n), ok && err == nil
}

func parseImm(word string) (int32, bool) {
	n, err := strconv.ParseInt(word, 0, 64)
	return int32(n), err == nil && n >= math.MinInt32 && n <= math.MaxUint32
}

func parseOff(word string) (int16, bool) {
	n, err := strconv.ParseInt(word, 0, 16)
	return int16(n), err == nil
}

// parseWide reads a 64-bit constant, signed or unsigned.
func parseWide(i *Instruction, word string) bool {
	n, err := strconv.ParseUint(word, 0, 64)
	if err != nil {
		var signed int64
		if signed, err = strconv.ParseInt(word, 0, 64); err != nil {
			return false
		}
		n = uint64(signed)
	}
	i.Imm, i.High = int32(n), int32(n>>32)
	return true
}

// parseMemory reads [r1], [r1+8] or [r1-8].
func parseMemory(word string) (Register, int16, bool) {
	inner, ok := strings.CutPrefix(word, "[")
	inner, closed := strings.CutSuffix(inner, "]")
	if !ok || !closed {
		return 0, 0, false
	}
	offset := "0"
	if at := strings.IndexAny(inner, "+-"); at >= 0 {
		inner, offset = inner[:at], inner[at:]
	}
	r, ok := parseRegister(inner)
	off, fits := parseOff(offset)
	return r, off, ok && fits
}
