package driver

import (
	"fmt"
	"io"

	"margay/nimble/asm"
	"margay/nimble/isa"
	"margay/nimble/object"
)

// List writes a program as text for package asm. Comments name the section, the
// source lines, the maps and the services of an object, and each slot if slots
// is set.
func List(w io.Writer, spec *object.Spec, slots bool) error {
	if spec.Section != "" {
		if _, err := fmt.Fprintf(w, "# %s, section %s\n", OneLine(spec.Name), OneLine(spec.Section)); err != nil {
			return err
		}
	}
	source, last := make(map[int]string), ""
	for _, line := range spec.Lines {
		if text := line.String() + ": " + line.Text; text != last {
			source[line.Slot], last = text, text
		}
	}
	return asm.Print(w, spec.Instructions, asm.Notes{
		Above: func(slot int) string { return OneLine(source[slot]) },
		Beside: func(slot int) string {
			name := OneLine(referent(spec, spec.Instructions[slot]))
			if slots {
				return fmt.Sprintf("%d %s", slot, name)
			}
			return name
		},
	})
}

// referent names the map or service that an instruction refers to by index.
func referent(spec *object.Spec, i isa.Instruction) string {
	index := int(i.Imm)
	switch i.Op() {
	case isa.CallNamed:
		if index >= 0 && index < len(spec.Externs) {
			return spec.Externs[index]
		}
	case isa.LdMap, isa.LdValue, isa.LdMapFD, isa.LdValueFD:
		if index >= 0 && index < len(spec.Maps) {
			return spec.Maps[index].Name
		}
	}
	return ""
}
