package driver

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"margay/nimble"
	"margay/nimble/engine"
	"margay/nimble/object"
)

// Batch reads a program a line, its memory and its instructions in hexadecimal:
//
//	MEMHEX CODEHEX
//
// with - for no memory, and writes one line for each before it reads the next:
//
//	2a                                                     r0 in hexadecimal
//	reject insn=N: REASON                                  the program is not accepted
//	reject ENGINE: REASON                                  the engine does not take it
//	fault pc=N addr=0xA kind=KIND fuel=LEFT ...            the run was stopped
//	error REASON                                           no such line, or no memory for it
//
// After lines of the last kind it goes on, and returns an error at the end.
func Batch(in io.Reader, out io.Writer, o nimble.Options) error { return batch(in, out, o, MaxText) }

func batch(in io.Reader, out io.Writer, o nimble.Options, longest int) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, longest)
	number, first, bad := 0, 0, 0
	for lines.Scan() {
		number++
		answer, err := runLine(lines.Text(), o)
		if err != nil {
			if bad++; bad == 1 {
				first = number
			}
			answer = "error " + OneLine(err.Error())
		}
		if _, err := fmt.Fprintln(out, answer); err != nil {
			return fmt.Errorf("batch: write: %w", err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("batch: line %d: %w", number+1, err)
	}
	if bad > 0 {
		return fmt.Errorf("batch: %d of %d lines could not be run, line %d is the first", bad, number, first)
	}
	return nil
}

// runLine runs the program of one line and returns the outcome as text.
func runLine(line string, o nimble.Options) (string, error) {
	words := strings.Fields(line)
	if len(words) == 0 {
		return "", errors.New("want MEMHEX CODEHEX, got an empty line")
	}
	var mem []byte
	if words[0] != "-" {
		var err error
		if mem, err = Memory(words[0]); err != nil {
			return "", err
		}
	}
	spec, err := object.Hex(strings.Join(words[1:], ""))
	if err != nil {
		return "reject " + OneLine(err.Error()), nil
	}
	return outcome(Run(spec, mem, o))
}

// outcome puts the result of Run into words.
func outcome(r0 uint64, err error) (string, error) {
	if err == nil {
		return fmt.Sprintf("%x", r0), nil
	}
	if rejection, ok := errors.AsType[*Rejection](err); ok {
		return "reject " + rejection.Error(), nil
	}
	if fault, ok := errors.AsType[*engine.Fault](err); ok {
		return "fault " + OneLine(fault.Error()), nil
	}
	return "", err
}
