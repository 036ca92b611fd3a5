package ldso

import (
	"debug/elf"
	"iter"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// loader is what the loaders of the C libraries do not have in common.
type loader interface {
	// provides reports whether the loader takes itself for a library of this name.
	provides(name string) bool
	// named are the folders that files and the environment name for the libraries of a file.
	named(by *loaded) iter.Seq[string]
	// indexed are the paths of a library in the index.
	indexed(name string, by *loaded) iter.Seq[string]
	// index is the file that lists libraries, or their folders.
	index() string
	// system are the folders that the loader searches by default.
	system() []string
}

// newLoader returns the loader that the walk is for.
func (w *walk) newLoader() loader {
	if name, ok := strings.CutPrefix(filepath.Base(w.needs.Loader), "ld-musl-"); ok {
		arch, _, _ := strings.Cut(name, ".")
		return musl{w, w.config("ld-musl-" + arch + ".path")}
	}
	return gnu{w}
}

// find looks for a library that a file needs.
func (w *walk) find(name string, by *loaded) *loaded {
	if strings.Contains(name, "/") {
		return w.first(w.expand(name, by), by)
	}
	if l := w.first(in(w.loader.named(by), name), by); l != nil {
		return l
	}
	if l := w.first(w.loader.indexed(name, by), by); l != nil {
		if !slices.Contains(w.loader.system(), filepath.Dir(l.path)) {
			w.needs.Index = w.loader.index()
		}
		return l
	}
	if by.noDefault {
		return nil
	}
	return w.first(in(slices.Values(w.loader.system()), name), by)
}

// in returns the paths of a file in folders.
func in(folders iter.Seq[string], name string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for folder := range folders {
			if folder = strings.TrimRight(folder, "/"); !yield(folder + "/" + name) {
				return
			}
		}
	}
}

// first returns the first of some paths that is a library for the machine.
func (w *walk) first(paths iter.Seq[string], by *loaded) *loaded {
	for path := range paths {
		w.tried++
		if w.work += len(path); w.tried > maxTried || w.work > maxWork {
			return nil
		}
		if !filepath.IsAbs(path) {
			dir, err := w.dir()
			if err != nil {
				w.lost = err
				continue
			}
			path = dir + "/" + path // not cleaned: the component before a ".." may be a symbolic link
		}
		if o := w.object(path, w.needs.Machine); o != nil {
			return &loaded{o, path, by}
		}
	}
	return nil
}

// expandAll expands the folders of a list.
func (w *walk) expandAll(list []string, by *loaded) iter.Seq[string] {
	return func(yield func(string) bool) {
		w.work += listWork + len(list)*listWork
		for _, folder := range list {
			for text := range w.expand(folder, by) {
				if !yield(text) {
					return
				}
			}
		}
	}
}

// listWork is what a list of folders, and each folder in it, costs besides the paths that come of
// it, in bytes of maxWork.
const listWork = 16

// tokens are what stands for something else in paths.
var tokens = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\$(\{[A-Za-z_]+\}|[A-Za-z_]+)`) })

// expand replaces the tokens in a path that a file names: $ORIGIN, $PLATFORM and $LIB. A loader was
// built for one meaning of $LIB; all that are in use are tried. A result longer than a path can
// be is left out.
func (w *walk) expand(path string, by *loaded) iter.Seq[string] {
	return func(yield func(string) bool) {
		if !strings.Contains(path, "$") {
			yield(path)
			return
		}
		if len(path) >= maxName {
			return
		}
		for _, lib := range libFolders(w.needs.Machine) {
			meaning := map[string]string{"ORIGIN": by.origin(), "PLATFORM": machineNames[w.needs.Machine], "LIB": lib}
			size := 0
			text := tokens().ReplaceAllStringFunc(path, func(token string) string {
				text, ok := meaning[strings.Trim(token, "${}")]
				if !ok {
					return token
				}
				if size += len(text); size >= maxName {
					return ""
				}
				return text
			})
			if w.work += len(path) + len(text); size < maxName && !yield(text) || !strings.Contains(path, "LIB") {
				return
			}
		}
	}
}

// libFolders are the folders of a machine's libraries in / and /usr, as distributions call them.
func libFolders(m elf.Machine) []string {
	return []string{"lib/" + machineNames[m] + "-linux-gnu", "lib64", "lib"}
}
