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
	"unicode"

	"margay/nimble"
	"margay/nimble/memory"
	"margay/nimble/object"
	"margay/nimble/verify"
)

// MaxText is the longest program or line that is read, in bytes. The largest
// program that can be accepted, in hexadecimal, is a quarter of it.
const MaxText = 64 << 20

// Rejection is the error for a program that was not accepted. Its text begins
// with insn=N where the fault is that of an instruction.
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
		if refusal, ok := errors.AsType[*verify.Refusal](err); ok {
			err = refusal
		}
		return 0, &Rejection{err}
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
	return x.Run(event)
}

// Hex reads a program in hexadecimal; white space is ignored. An error is a
// *Rejection if it is not that of the reader.
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

// Raw reads a program in its encoding. Its errors are those of Hex.
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

// Objects reads the programs of an ELF object: those of a section, or all of
// them if the section is empty. There is at least one. An error that is a
// *Rejection means the object, any other the choice.
func Objects(file []byte, section string) ([]*object.Spec, error) {
	specs, err := object.ELF(file)
	if err != nil {
		return nil, &Rejection{err}
	}
	var chosen []*object.Spec
	var sections []string
	for _, spec := range specs {
		sections = append(sections, spec.Section)
		if section == "" || spec.Section == section {
			chosen = append(chosen, spec)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no program in section %q; there are %s", section, strings.Join(sections, ", "))
	}
	return chosen, nil
}

// Object is Objects where one program is wanted.
func Object(file []byte, section string) (*object.Spec, error) {
	specs, err := Objects(file, section)
	if err != nil {
		return nil, err
	}
	if len(specs) > 1 {
		var names []string
		for _, spec := range specs {
			names = append(names, spec.Section+" "+spec.Name)
		}
		return nil, fmt.Errorf("%d programs, choose the section of one: %s", len(specs), strings.Join(names, ", "))
	}
	return specs[0], nil
}

// OneLine replaces what would not stay in a line of a terminal: text that comes
// from a file may contain anything.
func OneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}
