package guestkernel

import (
	"debug/elf"
	"fmt"
	"slices"
	"strings"
)

// Arch is a processor architecture that nodes may have, and its names.
type Arch struct {
	Name    string      // Go's name
	Debian  string      // the name in packages of Debian and Ubuntu
	Machine elf.Machine // the number in ELF files
	Console string      // the first serial port of the virtual machine
}

var arches = []Arch{
	{Name: "amd64", Debian: "amd64", Machine: elf.EM_X86_64, Console: "ttyS0"},
	{Name: "arm64", Debian: "arm64", Machine: elf.EM_AARCH64, Console: "ttyAMA0"},
}

// ArchNamed returns the architecture with Go's name for it.
func ArchNamed(name string) (Arch, error) {
	i := slices.IndexFunc(arches, func(a Arch) bool { return a.Name == name })
	if i < 0 {
		var known []string
		for _, a := range arches {
			known = append(known, a.Name)
		}
		return Arch{}, fmt.Errorf("architecture %q: nodes may be of %s", name, strings.Join(known, ", "))
	}
	return arches[i], nil
}
