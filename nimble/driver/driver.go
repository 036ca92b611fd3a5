// Package driver runs single programs without a node: for people at a command
// line and for the test drivers of other projects.
//
// Run inserts a program, runs it once with some bytes as its memory and removes
// it. Batch does that for a program a line. At entry r1 is the address of the
// memory and r2 its length, both 0 if there is none; r10 is the end of a stack
// of 512 bytes.
package driver

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"margay/internal/printable"
	"margay/nimble"
	"margay/nimble/asm"
	"margay/nimble/memory"
	"margay/nimble/object"
	"margay/nimble/verify"
)

// MaxText is the longest program or line that is read, in bytes. The largest
// program that can be accepted, in hexadecimal, is a quarter of it.
const MaxText = 64 << 20

// Rejection is the error for a program that was not accepted. Its text begins with the section and
// function, if any, then insn=N if an instruction is at fault.
type Rejection struct{ Err error }

// Error says why, in one line.
func (r *Rejection) Error() string { return OneLine(r.Err.Error()) }

// Unwrap returns what refused the program: a *verify.Refusal, an
// *isa.DecodeError, an *object.Error or what the engine said.
func (r *Rejection) Unwrap() error { return r.Err }

// Run runs a program once, with a copy of mem as its writable memory, and
// returns its r0. An error is a *Rejection or an *engine.Fault, or says that
// this process lacks memory.
func Run(spec *object.Spec, mem []byte, o nimble.Options) (r0 uint64, err error) {
	o.Context = verify.Context{Size: uint64(len(mem)), Readable: len(mem) > 0, Writable: len(mem) > 0}
	x, err := nimble.Insert(spec, o)
	if err != nil {
		return 0, reject(spec, errors.Unwrap(err)) // it has named the program, but not the section
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	var event nimble.Event
	if len(mem) > 0 {
		context, err := memory.Map("context", len(mem))
		if err != nil {
			return 0, err
		}
		defer context.Close()
		copy(context.Bytes(), mem)
		event.Context = context.Region(true)
	}
	return x.Run(&event)
}

// Verify is the first half of Run: it returns what was proved of a program whose
// context is what o promises, without an engine. An error is a *Rejection.
func Verify(spec *object.Spec, o nimble.Options) (*verify.Program, error) {
	p, err := verify.Verify(spec, verify.Config{Services: o.Services, Trusted: o.Trusted, Context: o.Context})
	if err != nil {
		return nil, reject(spec, err)
	}
	return p, nil
}

// reject says which program was not accepted.
func reject(spec *object.Spec, err error) error {
	if spec.Section != "" {
		err = fmt.Errorf("%s: %w", qualified(spec), err)
	}
	return &Rejection{err}
}

// Hex reads a program in hexadecimal; white space is ignored. An error is a *Rejection unless it
// comes from the reader.
func Hex(in io.Reader) (*object.Spec, error) {
	text, err := ReadAll(in)
	if err != nil {
		return nil, err
	}
	spec, err := object.Hex(string(text))
	if err != nil {
		return nil, &Rejection{err}
	}
	return spec, nil
}

// Raw reads a program in its encoding. It returns the same errors as Hex.
func Raw(in io.Reader) (*object.Spec, error) {
	code, err := ReadAll(in)
	if err != nil {
		return nil, err
	}
	spec, err := object.Raw(code)
	if err != nil {
		return nil, &Rejection{err}
	}
	return spec, nil
}

// ReadAll reads at most MaxText bytes. More are an error.
func ReadAll(in io.Reader) ([]byte, error) { return readAll(in, MaxText) }

func readAll(in io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(in, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read input: %w", err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("read input: more than %d bytes", limit)
	}
	return data, nil
}

// Memory reads the initial contents of a program's memory in hexadecimal; white
// space is ignored.
func Memory(text string) ([]byte, error) {
	mem, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil {
		return nil, fmt.Errorf("memory: %w", err)
	}
	return mem, nil
}

// Object reads the programs of an ELF object, at least one. Errors are
// *Rejection.
func Object(file []byte) ([]*object.Spec, error) { return accepted(object.ELF(file)) }

// Text reads the programs of a text of package asm, at least one. Errors are
// *Rejection.
func Text(text []byte) ([]*object.Spec, error) { return accepted(asm.Programs(string(text))) }

func accepted(specs []*object.Spec, err error) ([]*object.Spec, error) {
	if err != nil {
		return nil, &Rejection{err}
	}
	return specs, nil
}

// Choice selects programs of a file by section and function; an empty field selects all.
type Choice struct{ Section, Function string }

// String returns the choice as flags.
func (c Choice) String() string {
	var flags []string
	if c.Section != "" {
		flags = append(flags, "--section "+c.Section)
	}
	if c.Function != "" {
		flags = append(flags, "--function "+c.Function)
	}
	return strings.Join(flags, " ")
}

// All returns the selected programs. If there are none, the error lists the programs of the file.
func (c Choice) All(specs []*object.Spec) ([]*object.Spec, error) {
	var chosen []*object.Spec
	for _, spec := range specs {
		if (c.Section == "" || spec.Section == c.Section) && (c.Function == "" || spec.Name == c.Function) {
			chosen = append(chosen, spec)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no program with %v; there are %s", c, programs(specs))
	}
	return chosen, nil
}

// One is All where one program is wanted.
func (c Choice) One(specs []*object.Spec) (*object.Spec, error) {
	chosen, err := c.All(specs)
	if err != nil {
		return nil, err
	}
	if len(chosen) > 1 {
		return nil, fmt.Errorf("%d programs, choose one by --section or --function: %s", len(chosen), programs(chosen))
	}
	return chosen[0], nil
}

// programs lists sections and functions.
func programs(specs []*object.Spec) string {
	var names []string
	for _, spec := range specs {
		names = append(names, qualified(spec))
	}
	return strings.Join(names, ", ")
}

// qualified names a program: its section, if it has one, and function.
func qualified(spec *object.Spec) string {
	return strings.TrimPrefix(spec.Section+" "+spec.Name, " ")
}

// OneLine returns text as one printable line: text that comes from a
// file may contain anything.
func OneLine(text string) string { return printable.Line(strings.ReplaceAll(text, "\n", " ")) }
