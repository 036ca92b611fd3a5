package launch

import (
	"bytes"
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// addLibraries adds the dynamic loader of a program and the libraries that the loader says it needs.
func (f *Files) addLibraries(path string, program *elf.File) error {
	loader, err := loaderOf(program)
	if err != nil {
		return fmt.Errorf("%s: %w: %w", path, ErrNotExecutable, err)
	}
	if loader == "" {
		return nil // static
	}
	if _, err := os.Stat(loader); err != nil {
		// It is for another kind of machine; the machine that gets it says so.
		return nil
	}
	if err := f.add(loader); err != nil {
		return err
	}
	f.loader = loader
	list := exec.Command(loader, "--list", path)
	var words bytes.Buffer
	list.Stderr = &words
	out, err := list.Output()
	if err != nil {
		return fmt.Errorf("%s: its dynamic loader %s cannot list its libraries: %w: %s", path, loader, err, bytes.TrimSpace(words.Bytes()))
	}
	libraries, err := parseList(string(out))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return f.addFound(libraries, true)
}

// loaderOf returns the dynamic loader that a program names; empty: none.
func loaderOf(program *elf.File) (string, error) {
	for _, p := range program.Progs {
		if p.Type == elf.PT_INTERP {
			text, err := io.ReadAll(io.LimitReader(p.Open(), 4096))
			return string(bytes.TrimRight(text, "\x00")), err
		}
	}
	return "", nil
}

// addFound adds libraries that a loader has found, those of the program itself or those of a file that goes along.
func (f *Files) addFound(libraries []string, own bool) error {
	for _, library := range libraries {
		f.resolved[filepath.Base(library)] = true
		if own && f.Parallel == "" && parallelLibrary(library) {
			f.Parallel = filepath.Base(library)
		}
		if err := f.add(library); err != nil {
			return err
		}
	}
	return nil
}

// addNeeded adds the libraries of a file that goes along with the program, when it is a program or a library itself. Those that
// are not here are passed over: not all that is in a folder is used.
func (f *Files) addNeeded(file File) error {
	if !file.Mode.IsRegular() || file.Size < int64(len(elf.ELFMAG)) {
		return nil
	}
	object, err := elf.Open(file.Path)
	if err != nil {
		return nil // it is something else
	}
	defer object.Close()
	loader, err := loaderOf(object)
	if err != nil || arches[object.Machine] != f.Arch || object.Type != elf.ET_DYN && object.Type != elf.ET_EXEC {
		return nil
	}
	if _, err := os.Stat(loader); loader != "" && err == nil {
		if err := f.add(loader); err != nil {
			return err
		}
	}
	loader = cmp.Or(loader, f.loader)
	if loader == "" || !f.lacksLibraries(object) {
		return nil
	}
	libraries, err := parseList(trace(loader, file.Path))
	if err != nil {
		return nil // as of one that is not here
	}
	return f.addFound(libraries, false)
}

// lacksLibraries reports whether the loader must be asked what a file needs: it needs a library that is not there yet, or says
// itself where its libraries are.
func (f *Files) lacksLibraries(object *elf.File) bool {
	for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
		if paths, _ := object.DynString(tag); len(paths) > 0 {
			return true
		}
	}
	names, _ := object.ImportedLibraries()
	return slices.ContainsFunc(names, func(name string) bool { return !f.resolved[name] })
}

// trace lists the libraries of a file that are here. With --list a loader gives up at the first that is not; that of glibc goes on
// when it is told by the environment.
func trace(loader, path string) string {
	list := exec.Command(loader, "--list", path)
	out, err := list.Output()
	if err != nil && strings.HasPrefix(filepath.Base(loader), "ld-linux") {
		list = exec.Command(loader, path)
		list.Env = append(os.Environ(), "LD_TRACE_LOADED_OBJECTS=1")
		out, _ = list.Output()
	}
	var found strings.Builder
	for line := range strings.Lines(string(out)) {
		if !strings.Contains(line, "=> not found") {
			found.WriteString(line)
		}
	}
	return found.String()
}

// parseList reads what a dynamic loader prints for --list: lines like "libc.so.6 => /lib/libc.so.6 (0x7f...)", or, for the
// loader itself and for libraries that a program names by their path, "/lib/ld.so (0x7f...)".
func parseList(text string) ([]string, error) {
	var libraries []string
	for line := range strings.Lines(text) {
		name, target, found := strings.Cut(strings.TrimSpace(line), " => ")
		if !found {
			target = name
		}
		target, _, _ = strings.Cut(target, " (")
		switch {
		case filepath.IsAbs(target):
			libraries = append(libraries, target)
		case found:
			return nil, fmt.Errorf("library %s: %s", name, target)
		} // else the kernel provides it
	}
	return libraries, nil
}

// parallelPrefixes begin the names of the libraries by which processes of MPI and PMI find each other.
var parallelPrefixes = []string{"libmpi", "libpmi"}

// parallelLibrary reports whether a library is one of MPI, PMI or PMIx. libmpir is not: it computes with large integers.
func parallelLibrary(path string) bool {
	name := filepath.Base(path)
	return !strings.HasPrefix(name, "libmpir.") && slices.ContainsFunc(parallelPrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// parallelFunctions are how processes begin to use MPI, PMI or PMIx.
var parallelFunctions = []string{"MPI_Init", "MPI_Init_thread", "PMI_Init", "PMI2_Init", "PMIx_Init"}

// parallel returns what makes a program one of MPI or PMI: a library that it names, or a function that is linked into it.
func parallel(program *elf.File) string {
	names, _ := program.ImportedLibraries()
	if at := slices.IndexFunc(names, parallelLibrary); at >= 0 {
		return names[at]
	}
	symbols, err := program.Symbols()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		return ""
	}
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && slices.Contains(parallelFunctions, s.Name) {
			return s.Name
		}
	}
	return ""
}
