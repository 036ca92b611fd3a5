package launch

import (
	"bytes"
	"cmp"
	"debug/elf"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"margay/cluster/launch/ldso"
)

// addLibraries adds the dynamic loader of a program and the libraries that it would load. A program
// whose loader is not here is for another kind of machine; the machine that gets it says so.
func (f *Files) addLibraries(path string) error {
	needs, err := f.search.Needs(path, "")
	if err != nil {
		return fmt.Errorf("%s: %w: %w", path, ErrNotExecutable, err)
	}
	if len(needs.Missing) > 0 {
		return fmt.Errorf("%s: %w", path, needs.Missing[0])
	}
	f.loader = cmp.Or(needs.Loader, f.loader)
	if at := slices.IndexFunc(needs.Libraries, parallelLibrary); at >= 0 && f.Parallel == "" {
		f.Parallel = filepath.Base(needs.Libraries[at])
	}
	if slices.ContainsFunc(needs.Libraries, otherInterface) {
		f.PMI1 = false
	} else if slices.ContainsFunc(needs.Libraries, mpichLibrary) {
		f.PMI1 = true
	}
	return f.addNeeds(needs)
}

// addNeeded adds the libraries of a file that goes along with the program, when it is a program or
// a library itself. Those that are not here are passed over: not all that is in a folder is used.
func (f *Files) addNeeded(file File) error {
	if !file.Mode.IsRegular() || file.Size < int64(len(elf.ELFMAG)) {
		return nil
	}
	needs, err := f.search.Needs(file.Path, f.loader)
	if err != nil || arches[needs.Machine] != f.Arch {
		return nil // it is something else
	}
	return f.addNeeds(needs)
}

// addNeeds adds a loader and the libraries that it loads, with the index without which it would not
// find them.
func (f *Files) addNeeds(needs ldso.Needs) error {
	for _, path := range append([]string{needs.Loader, needs.Index}, needs.Libraries...) {
		if path == "" {
			continue
		}
		if err := f.add(path); err != nil {
			return err
		}
	}
	return nil
}

// parallelPrefixes begin the names of the libraries by which processes of MPI and PMI find each
// other.
var parallelPrefixes = []string{"libmpi", "libpmi"}

// parallelLibrary reports whether a library is one of MPI, PMI or PMIx. libmpir is not: it computes
// with large integers.
func parallelLibrary(path string) bool {
	name := filepath.Base(path)
	return !strings.HasPrefix(name, "libmpir.") && slices.ContainsFunc(parallelPrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// mpichPrefixes begin the names of MPICH's libraries, and of those that share its binary interface
// (https://www.mpich.org/abi).
var mpichPrefixes = []string{"libmpich", "libmpi.so.12"}

// otherPrefixes begin the names of the libraries of other interfaces than PMI 1: of Open MPI, PMIx
// and Slurm.
var otherPrefixes = []string{"libopen-pal", "libopen-rte", "libpmi"}

// mpichLibrary reports whether a library is MPICH.
func mpichLibrary(path string) bool { return begins(path, mpichPrefixes) }

// otherInterface reports whether a library is one of another interface than PMI 1.
func otherInterface(path string) bool { return begins(path, otherPrefixes) }

func begins(path string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(filepath.Base(path), prefix) })
}

// parallelFunctions are how processes begin to use MPI, PMI or PMIx.
var parallelFunctions = []string{"MPI_Init", "MPI_Init_thread", "PMI_Init", "PMI2_Init", "PMIx_Init"}

// parallel returns what makes a program one of MPI or PMI: a library that it names, or a function
// that is linked into it. pmi1 reports whether it contains PMI 1 and no other interface.
func parallel(program *elf.File) (what string, pmi1 bool) {
	names, _ := program.ImportedLibraries()
	if at := slices.IndexFunc(names, parallelLibrary); at >= 0 {
		return names[at], false // addLibraries looks at all libraries
	}
	if !mayHave(program, parallelFunctions) {
		return "", false
	}
	symbols, err := program.Symbols()
	if err != nil {
		return "", false
	}
	other := false
	for _, s := range symbols {
		if s.Section == elf.SHN_UNDEF {
			continue
		}
		if slices.Contains(parallelFunctions, s.Name) {
			what = cmp.Or(what, s.Name)
		}
		pmi1 = pmi1 || s.Name == "PMI_Init"
		other = other || s.Name == "PMI2_Init" || s.Name == "PMIx_Init" || s.Name == "opal_init"
	}
	return what, pmi1 && !other
}

// mayHave reports whether a program may have a symbol with one of the names: they are in the table
// of names, which is read faster than the symbols.
func mayHave(program *elf.File, names []string) bool {
	at := slices.IndexFunc(program.Sections, func(s *elf.Section) bool { return s.Type == elf.SHT_SYMTAB })
	if at < 0 || int(program.Sections[at].Link) >= len(program.Sections) {
		return false
	}
	table, err := program.Sections[program.Sections[at].Link].Data()
	return err == nil && slices.ContainsFunc(names, func(name string) bool {
		return bytes.Contains(table, append([]byte(name), 0)) // it may be the end of a longer name
	})
}
