package driver

import (
	"fmt"
	"io"
	"strings"

	"margay/nimble/isa"
	"margay/nimble/service"
	"margay/nimble/verify"
)

// Summary says in one line what the verifier found out about a program.
func Summary(p *verify.Program) string {
	var instructions, blocks, accesses, proved int
	for slot := range p.Len() {
		i := p.At(slot)
		if i.Op == isa.Invalid {
			continue
		}
		instructions++
		if i.Cost > 0 {
			blocks++
		}
		if i.Op.Size() > 0 {
			accesses++
		}
		if i.Proved {
			proved++
		}
	}
	return fmt.Sprintf("%s in %s and %s, %d of %s proved",
		count(instructions, "instruction"), count(blocks, "basic block"), count(len(p.Functions()), "function"), proved, count(accesses, "memory access"))
}

// count writes a number of things.
func count(n int, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case strings.HasSuffix(noun, "s"):
		return fmt.Sprintf("%d %ses", n, noun)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Explain writes what the verifier found out about each function, and about
// each instruction that is more than arithmetic and jumps.
func Explain(w io.Writer, p *verify.Program) error {
	accesses := p.Explain()
	for _, f := range p.Functions() {
		if _, err := fmt.Fprintf(w, "function %d to %d: %s\n", f.Start, f.End-1, frame(f)); err != nil {
			return err
		}
		for slot := f.Start; slot < f.End; slot++ {
			finding := finding(p, slot, accesses[slot])
			if finding == "" {
				continue
			}
			if line := p.Line(slot).String(); line != "" {
				finding += " (" + OneLine(line) + ")"
			}
			if _, err := fmt.Fprintf(w, "  insn=%-6d %-32s %s\n", slot, p.At(slot), finding); err != nil {
				return err
			}
		}
	}
	return nil
}

func frame(f verify.Function) string {
	if f.Frame {
		return fmt.Sprintf("a stack frame of %d bytes", verify.FrameSize)
	}
	return "no stack frame"
}

// finding says what is known of an instruction that touches memory, calls or
// names a map; it is empty for any other. access is what the verifier says of
// an access.
func finding(p *verify.Program, slot int, access string) string {
	i := p.At(slot)
	switch {
	case i.Proved:
		return "proved: " + OneLine(access)
	case i.Op.Size() > 0 && p.Trusted():
		return "not proved, unchecked since the program is trusted: " + OneLine(access)
	case i.Op.Size() > 0:
		return "checked at run time: " + OneLine(access)
	case i.Op == isa.Call || i.Op == isa.CallNamed:
		called := p.Services()[i.Target]
		return "service " + called.String() + typed(called)
	case i.Op == isa.LdMapFD || i.Op == isa.LdMap || i.Op == isa.LdValueFD || i.Op == isa.LdValue:
		return fmt.Sprintf("map %q", p.Maps()[i.Imm].Name)
	}
	return ""
}

// typed says which arguments of a service are checked before each call.
func typed(called *service.Service) string {
	var words []string
	for _, kind := range called.Args {
		words = append(words, kind.String())
	}
	return "(" + strings.Join(words, ", ") + ")"
}
