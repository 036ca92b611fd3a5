package driver

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"margay/internal/printable"
	"margay/nimble/isa"
	"margay/nimble/object"
	"margay/nimble/verify"
)

// Report is what the verifier has found out about a program.
type Report struct {
	Section      string     `json:"section"` // empty if the program is not from a file
	Function     string     `json:"function"`
	Accepted     bool       `json:"accepted"`
	Refusal      *Refusal   `json:"refusal,omitempty"` // why it is not accepted
	Instructions int        `json:"instructions"`      // a wide one counts once
	Blocks       int        `json:"blocks"`
	Accesses     int        `json:"accesses"` // of memory
	Proved       int        `json:"proved"`   // of them
	Functions    []Function `json:"functions"`
}

// Refusal says why a program was not accepted.
type Refusal struct {
	Slot   int    `json:"insn"`
	Line   string `json:"line,omitempty"` // file:number
	Reason string `json:"reason"`
}

// Function is a function of a program, the slots [Start, End), and the findings about its
// instructions other than arithmetic and jumps.
type Function struct {
	Start    int       `json:"start"`
	End      int       `json:"end"`
	Stack    int       `json:"stack"` // bytes
	Findings []Finding `json:"findings"`
}

// Finding describes an instruction that accesses memory, calls or names a map.
type Finding struct {
	Slot    int      `json:"insn"`
	Text    string   `json:"text"` // of the instruction
	Line    string   `json:"line,omitempty"`
	Access  string   `json:"access,omitempty"`  // proved, checked or unchecked
	Why     string   `json:"why,omitempty"`     // what it accesses, or why that is not known
	Service string   `json:"service,omitempty"` // what it calls
	Args    []string `json:"args,omitempty"`    // checked before each call
	Map     string   `json:"map,omitempty"`     // what it names
}

// How an instruction accesses memory.
const (
	proved    = "proved"
	checked   = "checked"
	unchecked = "unchecked"
)

// NewReport reports on a program and what Verify has returned for it.
func NewReport(spec *object.Spec, p *verify.Program, err error) Report {
	r := Report{Section: spec.Section, Function: spec.Name, Functions: []Function{}}
	if err != nil {
		r.Refusal = &Refusal{Reason: err.Error()}
		if refused, ok := errors.AsType[*verify.Refusal](err); ok {
			r.Refusal = &Refusal{refused.Slot, refused.Line.String(), refused.Reason}
		}
		return r
	}
	r.Accepted = true
	accesses := p.Explain()
	for _, f := range p.Functions() {
		function := Function{Start: f.Start, End: f.End, Findings: []Finding{}}
		if f.Frame {
			function.Stack = verify.FrameSize
		}
		for slot := f.Start; slot < f.End; slot++ {
			r.count(p.At(slot))
			if f, ok := newFinding(p, slot, accesses[slot]); ok {
				function.Findings = append(function.Findings, f)
			}
		}
		r.Functions = append(r.Functions, function)
	}
	return r
}

// count adds an instruction to the sums.
func (r *Report) count(i *verify.Instruction) {
	if i.Op == isa.Invalid {
		return
	}
	r.Instructions++
	if i.Cost > 0 {
		r.Blocks++
	}
	if i.Op.Size() > 0 {
		r.Accesses++
	}
	if i.Proved {
		r.Proved++
	}
}

// newFinding describes an instruction of a kind that is reported. access is the verifier's result
// for an access.
func newFinding(p *verify.Program, slot int, access string) (f Finding, ok bool) {
	i := p.At(slot)
	f = Finding{Slot: slot, Text: i.Encoded().String(), Line: p.Line(slot).String(), Why: access}
	switch {
	case i.Proved:
		f.Access = proved
	case i.Op.Size() > 0 && p.Trusted():
		f.Access = unchecked
	case i.Op.Size() > 0:
		f.Access = checked
	case i.Op == isa.Call || i.Op == isa.CallNamed:
		called := p.Services()[i.Target()]
		f.Service = called.String()
		for _, kind := range called.Args {
			f.Args = append(f.Args, kind.String())
		}
	case i.Op == isa.LdMapFD || i.Op == isa.LdMap || i.Op == isa.LdValueFD || i.Op == isa.LdValue:
		f.Map = p.Maps()[i.Imm].Name
	default:
		return Finding{}, false
	}
	return f, true
}

// Summary says in one line that a program was accepted, and what it is.
func (r *Report) Summary() string {
	return fmt.Sprintf("%s: accepted: %s in %s and %s, %d of %s proved", OneLine(strings.TrimPrefix(r.Section+" "+r.Function, " ")),
		printable.Count(r.Instructions, "instruction"), printable.Count(r.Blocks, "basic block"), printable.Count(len(r.Functions), "function"), r.Proved, printable.Count(r.Accesses, "memory access"))
}

// Explain writes what the verifier has found out about each function.
func (r *Report) Explain(w io.Writer) error {
	for _, f := range r.Functions {
		stack := "no stack frame"
		if f.Stack > 0 {
			stack = fmt.Sprintf("a stack frame of %d bytes", f.Stack)
		}
		if _, err := fmt.Fprintf(w, "function %d to %d: %s\n", f.Start, f.End-1, stack); err != nil {
			return err
		}
		for _, finding := range f.Findings {
			if _, err := fmt.Fprintf(w, "  insn=%-6d %-32s %s\n", finding.Slot, finding.Text, OneLine(finding.String())); err != nil {
				return err
			}
		}
	}
	return nil
}

// String returns the finding, without the instruction.
func (f Finding) String() (text string) {
	switch {
	case f.Access == proved:
		text = "proved: " + f.Why
	case f.Access == unchecked:
		text = "not proved, unchecked since the program is trusted: " + f.Why
	case f.Access == checked:
		text = "checked at run time: " + f.Why
	case f.Service != "":
		text = fmt.Sprintf("service %s(%s)", f.Service, strings.Join(f.Args, ", "))
	default:
		text = fmt.Sprintf("map %q", f.Map)
	}
	if f.Line != "" {
		text += " (" + f.Line + ")"
	}
	return text
}
