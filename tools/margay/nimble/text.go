package nimble

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"margay/nimble/asm"
	"margay/nimble/driver"
	"margay/nimble/isa"
	"margay/nimble/object"
	"margay/tools/margay/command"
)

func (a commands) nimbleAsmCommand() *cobra.Command {
	var raw bool
	var choice driver.Choice
	c := &cobra.Command{
		Use:   "asm",
		Short: "Translate a program from text, on standard input, into hexadecimal",
		Long: `Translate a program from text, on standard input, into hexadecimal: one slot of 8 bytes a line.

A line of text holds a label, an instruction and a comment. Each may be missing:

  next: ldxb r3, [r1]        # a label ends in a colon
        add r0, r3           # add32 is the 32-bit operation
        jne r0, 0x2a, next   # or a distance in slots, -3
        call 5
        exit

margay nimble dis prints the same. Programs are not verified. Maps, services called by name and other declarations of an
object (.map, .extern) have no hexadecimal form; run such a text with
margay nimble run --asm FILE.`,
		Example: `  echo 'mov r0, 42; exit' | tr ';' '\n' | margay nimble asm | margay nimble run
  margay nimble asm --raw < sum.s > sum.bin`,
		Args: command.NoArguments,
		RunE: func(*cobra.Command, []string) error {
			text, err := driver.ReadAll(a.Stdin)
			if err != nil {
				return err
			}
			specs, err := asm.Programs(string(text))
			if err != nil {
				return err
			}
			spec, err := choice.One(specs)
			if err != nil {
				return err
			}
			return a.printCode(isa.Encode(spec.Instructions), raw)
		},
	}
	addChoice(c, &choice, "of several programs: ")
	c.Flags().BoolVar(&raw, "raw", false, "write bytes, not hexadecimal")
	return c
}

// printCode writes instructions in their encoding.
func (a commands) printCode(code []byte, raw bool) error {
	if raw {
		_, err := a.Stdout.Write(code)
		return err
	}
	var text []byte
	for slot := 0; slot < len(code); slot += isa.SlotSize {
		text = fmt.Appendf(text, "%x\n", code[slot:slot+isa.SlotSize])
	}
	_, err := a.Stdout.Write(text)
	return err
}

func (a commands) nimbleDisCommand() *cobra.Command {
	var p programFlags
	var raw, slots bool
	c := &cobra.Command{
		Use:   "dis",
		Short: "Print a program as text that margay nimble asm reads",
		Long: `Print a program as text that margay nimble asm reads. It is read from standard input as hexadecimal, white space
ignored, or as bytes (--raw), or from an object (--elf); every program of it is printed unless --section or --function
selects one. Maps, global data and the names of services are printed as declarations, and source lines as comments.`,
		Example: `  echo b7000000 2a000000 95000000 00000000 | margay nimble dis
  margay nimble dis --slots --elf accumulate.o --section message`,
		Args: noFile,
		RunE: func(*cobra.Command, []string) error {
			specs, err := a.disassembled(&p, raw)
			if err != nil {
				return status(err)
			}
			for _, spec := range specs {
				if err := driver.List(a.Stdout, spec, slots); err != nil {
					return err
				}
			}
			return nil
		},
	}
	p.addSource(c)
	c.Flags().BoolVar(&raw, "raw", false, "standard input is bytes, not hexadecimal")
	c.Flags().BoolVarP(&slots, "slots", "s", false, "show the slot of each instruction: N in insn=N and pc=N")
	return c
}

// disassembled reads the programs to be printed.
func (a commands) disassembled(p *programFlags, raw bool) ([]*object.Spec, error) {
	if !raw {
		return p.all(a)
	}
	if p.file() || p.choice != (driver.Choice{}) {
		return nil, errors.New("--raw: standard input is read, not --elf or --asm")
	}
	spec, err := driver.Raw(a.Stdin)
	return []*object.Spec{spec}, err
}
