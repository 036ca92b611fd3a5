// Package wasm has the programs of nimble/bench as WebAssembly modules, written
// by hand, and the little assembler that they are written for.
//
// A program is the body of one function, run, with the parameters memory and
// length (i32) and an i64 for a result. Its text is words separated by white
// space: the instructions of WebAssembly in the order in which they are
// executed, each with its operand if it has one. A line that begins with local
// declares variables of a type; block and loop have a label, which br and br_if
// name; call service is a call of the only imported function. The words between
// repeat N and again are repeated N times. The word rounds stands for the
// number of rounds of the program. A load or store has an offset,
// and is taken to be aligned to its size, which is only a hint.
package wasm

import (
	"embed"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

//go:embed programs/*.txt
var files embed.FS

// Where a module has the memory of its program and the program's first map.
const (
	Memory = 1024
	Map    = 8192
)

// Module returns the module of a program, with so many rounds if it has any, and
// with what its memory and its first map hold.
func Module(program string, rounds int32, memory, firstMap []byte) ([]byte, error) {
	text, err := files.ReadFile("programs/" + program + ".txt")
	if err != nil {
		return nil, err
	}
	code, err := assemble(strings.ReplaceAll(string(text), " rounds", fmt.Sprintf(" %d", rounds)))
	if err != nil {
		return nil, fmt.Errorf("program %s: %w", program, err)
	}
	return module(code, memory, firstMap), nil
}

// Types of WebAssembly.
const (
	i32      = 0x7f
	i64      = 0x7e
	function = 0x60
	empty    = 0x40 // of a block
)

// module puts a module around the code of run. The numbers of sections are from
// the WebAssembly specification, section 5.5.
func module(code, memory, firstMap []byte) []byte {
	m := []byte("\x00asm\x01\x00\x00\x00")
	section := func(number byte, entries ...[]byte) {
		m = append(append(m, number), sized(vector(entries...))...)
	}
	section(1, []byte{function, 2, i32, i32, 1, i64}, []byte{function, 1, i64, 1, i64})
	section(2, slices.Concat(name("env"), name("service"), []byte{0, 1}))
	section(3, []byte{0})
	section(5, []byte{0, 1})
	section(7, slices.Concat(name("run"), []byte{0, 1}))
	section(10, sized(code))
	section(11, data(Memory, memory), data(Map, firstMap))
	return m
}

// vector is a count and that many entries.
func vector(entries ...[]byte) []byte {
	return append(unsigned(uint64(len(entries))), slices.Concat(entries...)...)
}

// sized is a length and that many bytes.
func sized(b []byte) []byte { return append(unsigned(uint64(len(b))), b...) }

func name(s string) []byte { return sized([]byte(s)) }

// data is a segment of memory.
func data(at int64, b []byte) []byte {
	return slices.Concat([]byte{0, 0x41}, signed(at), []byte{0x0b}, sized(b))
}

func unsigned(v uint64) []byte { return binary.AppendUvarint(nil, v) }

// signed is LEB128 for signed numbers, which encoding/binary does not have.
func signed(v int64) (b []byte) {
	for v < -64 || v > 63 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v)&0x7f)
}

// operand is what follows the mnemonic of an instruction.
type operand uint8

const (
	none operand = iota
	constant
	variable
	opens  // a label, of a block that begins
	silent // nothing, but a block begins
	closes // nothing, and a block ends
	label
	callee
	offset
)

// instruction is an opcode with its operand. The align hint of loads and stores
// is the binary logarithm of the size.
type instruction struct {
	code    byte
	operand operand
	align   byte
}

var instructions = map[string]instruction{
	"block": {0x02, opens, 0}, "loop": {0x03, opens, 0}, "if": {0x04, silent, 0}, "end": {0x0b, closes, 0},
	"br": {0x0c, label, 0}, "br_if": {0x0d, label, 0}, "return": {0x0f, none, 0}, "call": {0x10, callee, 0},
	"local.get": {0x20, variable, 0}, "local.set": {0x21, variable, 0}, "local.tee": {0x22, variable, 0},
	"i64.load": {0x29, offset, 3}, "i64.load16_u": {0x33, offset, 1}, "i64.load32_u": {0x35, offset, 2}, "i64.store": {0x37, offset, 3},
	"i64.store32": {0x3e, offset, 2},
	"i32.const":   {0x41, constant, 0}, "i64.const": {0x42, constant, 0},
	"i32.eqz": {0x45, none, 0}, "i32.lt_u": {0x49, none, 0}, "i32.add": {0x6a, none, 0},
	"i64.eqz": {0x50, none, 0}, "i64.eq": {0x51, none, 0}, "i64.ne": {0x52, none, 0}, "i64.lt_u": {0x54, none, 0},
	"i64.gt_u": {0x56, none, 0}, "i64.le_u": {0x58, none, 0},
	"i64.add": {0x7c, none, 0}, "i64.sub": {0x7d, none, 0}, "i64.mul": {0x7e, none, 0}, "i64.rem_u": {0x82, none, 0},
	"i64.and": {0x83, none, 0}, "i64.xor": {0x85, none, 0}, "i64.shl": {0x86, none, 0}, "i64.shr_u": {0x88, none, 0},
	"i32.wrap_i64": {0xa7, none, 0}, "i64.extend_i32_u": {0xad, none, 0},
}

// assembler holds one program while it is read.
type assembler struct {
	words     []string
	variables []string
	locals    [][]byte // declarations
	labels    []string // of the blocks that are open
	code      []byte
}

// assemble returns the declarations and instructions of a function.
func assemble(text string) ([]byte, error) {
	a := &assembler{variables: []string{"memory", "length"}}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) > 0 && words[0] == "local" {
			a.declare(words[1:])
			continue
		}
		a.words = append(a.words, words...)
	}
	if err := a.repeat(); err != nil {
		return nil, err
	}
	for len(a.words) > 0 {
		word := a.next()
		i, ok := instructions[word]
		if !ok {
			return nil, fmt.Errorf("there is no instruction %q", word)
		}
		if err := a.instruction(i); err != nil {
			return nil, fmt.Errorf("%s: %w", word, err)
		}
	}
	return slices.Concat(vector(a.locals...), a.code, []byte{0x0b}), nil
}

// declare reads a type and names.
func (a *assembler) declare(words []string) {
	kind := byte(i64)
	if words[0] == "i32" {
		kind = i32
	}
	a.variables = append(a.variables, words[1:]...)
	a.locals = append(a.locals, append(unsigned(uint64(len(words)-1)), kind))
}

// repeat expands repeat and again.
func (a *assembler) repeat() error {
	from, to := slices.Index(a.words, "repeat"), slices.Index(a.words, "again")
	if from < 0 {
		return nil
	}
	if to < from+2 {
		return fmt.Errorf("repeat without again")
	}
	n, err := strconv.Atoi(a.words[from+1])
	if err != nil {
		return err
	}
	a.words = slices.Concat(a.words[:from], slices.Repeat(a.words[from+2:to], n), a.words[to+1:])
	return nil
}

// next takes a word, an empty one at the end.
func (a *assembler) next() (word string) {
	if len(a.words) > 0 {
		word, a.words = a.words[0], a.words[1:]
	}
	return word
}

func (a *assembler) instruction(i instruction) error {
	a.code = append(a.code, i.code)
	switch i.operand {
	case constant:
		v, err := strconv.ParseUint(a.next(), 0, 64)
		a.code = append(a.code, signed(int64(v))...)
		return err
	case variable:
		n := slices.Index(a.variables, a.next())
		if n < 0 {
			return fmt.Errorf("a variable that is not declared")
		}
		a.code = append(a.code, unsigned(uint64(n))...)
	case opens:
		a.labels = append(a.labels, a.next())
		a.code = append(a.code, empty)
	case silent:
		a.labels = append(a.labels, "")
		a.code = append(a.code, empty)
	case closes:
		if len(a.labels) == 0 {
			return fmt.Errorf("nothing to end")
		}
		a.labels = a.labels[:len(a.labels)-1]
	case label:
		word := a.next()
		for depth := range a.labels {
			if a.labels[len(a.labels)-1-depth] == word {
				a.code = append(a.code, unsigned(uint64(depth))...)
				return nil
			}
		}
		return fmt.Errorf("no block %q", word)
	case callee:
		a.next()
		a.code = append(a.code, 0)
	case offset:
		v, err := strconv.ParseUint(a.next(), 0, 32)
		a.code = append(append(a.code, i.align), unsigned(v)...)
		return err
	}
	return nil
}
