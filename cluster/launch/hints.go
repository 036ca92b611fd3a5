package launch

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// libraryPlaces are the places of interpreters' files other than shared libraries, relative to the
// parent of their bin folder. An asterisk stands for anything, and NAME for the name of the
// interpreter's file.
var libraryPlaces = map[string][]string{
	"python": {"lib/NAME"},
	"perl":   {"lib/*/perl-base", "share/perl/5.*"},
	"ruby":   {"lib/ruby"},
	"gdb":    {"share/gdb", "lib/python3.*"},
}

// shells run other programs by their names.
var shells = []string{"sh", "bash", "dash", "zsh", "ksh", "busybox"}

const (
	exitTimeLimit       = 124 // of a job that has reached its time limit
	exitCommandNotFound = 127 // of a shell that does not find a program
)

// Hint names the files that a program may have missed on its nodes, after it failed with an exit
// status, or says why it may not have ended. args are its arguments. The hint is empty if nothing
// is known.
func (f *Files) Hint(code int, args []string) string {
	if code == exitTimeLimit {
		return f.hintOfLimit()
	}
	hints := []string{f.hintOf(code)}
	if left := f.leftBehind(args); len(left) > 0 && code < 128 { // no signal has ended it
		hint := "files that arguments name are not copied automatically: --with " + strings.Join(left, " --with ")
		if code == exitCommandNotFound {
			return hint // a shell that does not find its script
		}
		hints = append(hints, hint)
	}
	return strings.Join(slices.DeleteFunc(hints, func(hint string) bool { return hint == "" }), "; ")
}

// mostLeftBehind is how many files are named that did not go along.
const mostLeftBehind = 3

// leftBehind returns the first arguments that are the names of files here which did not go along,
// as far as a node has none itself.
func (f *Files) leftBehind(args []string) (left []string) {
	for _, arg := range args {
		path, err := filepath.Abs(arg)
		if err != nil || f.have[path] || slices.Contains(made, path) || slices.Contains(left, arg) || len(left) == mostLeftBehind {
			continue
		}
		if f.host && ofHost(path) {
			continue
		}
		if slices.ContainsFunc(hidden, func(folder string) bool { return strings.HasPrefix(path, folder+"/") }) {
			continue
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			left = append(left, arg)
		}
	}
	return left
}

// hintOf says what an interpreter may have missed.
func (f *Files) hintOf(code int) string {
	for _, path := range f.elves {
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			continue
		}
		if f.host && ofHost(real) {
			continue // all that it needs is there
		}
		name := filepath.Base(real)
		if code == exitCommandNotFound && slices.Contains(shells, name) {
			if path != f.Program { // such as a wrapper that has the name of another program
				name = fmt.Sprintf("%s is a script for %s, which", filepath.Base(f.Program), name)
			}
			return name + " finds no other programs on a node than those that go along: --with \"$(command -v NAME)\" takes one, --root host has all of this host"
		}
		for interpreter, places := range libraryPlaces {
			if !strings.HasPrefix(name, interpreter) {
				continue
			}
			if missing := f.notTaken(filepath.Dir(filepath.Dir(real)), name, places); len(missing) > 0 {
				return fmt.Sprintf("%s went along without its library: --with %s, or --root host", filepath.Base(path), strings.Join(missing, " --with "))
			}
		}
	}
	return ""
}

// notTaken returns the folders below prefix that are here and do not go along.
func (f *Files) notTaken(prefix, name string, places []string) (folders []string) {
	for _, place := range places {
		found, _ := filepath.Glob(filepath.Join(prefix, strings.ReplaceAll(place, "NAME", name)))
		for _, folder := range found {
			if info, err := os.Stat(folder); err == nil && info.IsDir() && !f.have[folder] {
				folders = append(folders, folder)
			}
		}
	}
	return folders
}

// hangingMPICH begin the names of the libraries of MPICH 4.0 and 4.1. Their last barrier of PMI is
// behind the close of connections, and a rank that is in it answers no close of another one.
var hangingMPICH = []string{"libmpich.so.12.2.", "libmpich.so.12.3.", "libmpi.so.12.2.", "libmpi.so.12.3."}

// hintOfLimit says why a program may not have ended.
func (f *Files) hintOfLimit() string {
	if f.root != nil || !slices.ContainsFunc(f.List, func(file File) bool {
		real, err := filepath.EvalSymlinks(file.Path)
		return mpichLibrary(file.Path) && err == nil && begins(real, hangingMPICH)
	}) {
		return ""
	}
	return "between nodes, MPICH 4.0 and 4.1 may hang in MPI_Finalize, and MPICH 4.2 does not: docs/mpi.md shows how to run the program with its library"
}
