package ldso

import (
	"cmp"
	"iter"
	"slices"
	"strings"
)

// musl is the loader of the musl C library, which is in the same file.
type musl struct {
	*walk
	paths string // the file that lists its folders
}

// muslLibraries are the libraries that the loader is itself, after "lib".
var muslLibraries = []string{"c.", "pthread.", "rt.", "m.", "dl.", "util.", "xnet."}

func (musl) provides(name string) bool {
	rest, ok := strings.CutPrefix(name, "lib")
	return ok && slices.ContainsFunc(muslLibraries, func(library string) bool { return strings.HasPrefix(rest, library) })
}

func (m musl) index() string { return m.paths }

// named: the environment, and RUNPATH or RPATH of the file and of those that brought it.
func (m musl) named(by *loaded) iter.Seq[string] {
	return func(yield func(string) bool) {
		for folder := range m.expandAll(muslList(m.LibraryPath), m.queue[0]) {
			if !yield(folder) {
				return
			}
		}
		for l := by; l != nil; l = l.by {
			for folder := range m.expandAll(muslList(cmp.Or(l.runpath, l.rpath)), l) {
				if !yield(folder) {
					return
				}
			}
		}
	}
}

// muslList splits a list of folders. Empty ones do not count.
func muslList(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ':' || r == '\n' })
}

func (m musl) indexed(name string, _ *loaded) iter.Seq[string] {
	text, _ := readConfig(m.paths)
	return in(slices.Values(muslList(string(text))), name)
}

func (musl) system() []string { return []string{"/lib", "/usr/local/lib", "/usr/lib"} }
