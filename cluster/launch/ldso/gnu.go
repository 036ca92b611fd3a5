package ldso

import (
	"cmp"
	"iter"
	"path/filepath"
	"slices"
	"strings"
)

// gnu is the loader of the GNU C library.
type gnu struct{ *walk }

func (gnu) provides(string) bool { return false }

func (g gnu) index() string { return g.config("ld.so.cache") }

// named: RPATH of the file and of those that brought it, unless it has a RUNPATH, which comes after
// the environment.
func (g gnu) named(by *loaded) iter.Seq[string] {
	return func(yield func(string) bool) {
		for l := by; l != nil && !by.hasRunpath; l = l.by {
			for folder := range g.expandAll(list(l.rpath), l) {
				if !yield(folder) {
					return
				}
			}
		}
		for folder := range g.expandAll(list(strings.ReplaceAll(g.LibraryPath, ";", ":")), g.queue[0]) {
			if !yield(folder) {
				return
			}
		}
		g.expandAll(list(by.runpath), by)(yield)
	}
}

// list splits a list of folders. An empty one is the working directory; an empty list has none.
func list(text string) []string {
	if text == "" {
		return nil
	}
	folders := strings.Split(text, ":")
	for i, folder := range folders {
		folders[i] = cmp.Or(folder, ".")
	}
	return folders
}

// indexed: what the cache says, but for default folders if the file does not want those.
func (g gnu) indexed(name string, by *loaded) iter.Seq[string] {
	if g.cache == nil {
		g.cache = readCache(g.index())
	}
	g.work += g.cache.size()
	return func(yield func(string) bool) {
		if g.work > maxWork {
			return
		}
		for _, path := range g.cache.paths(name) {
			if by.noDefault && slices.Contains(g.system(), filepath.Dir(path)) {
				continue
			}
			if !yield(path) {
				return
			}
		}
	}
}

// system: the folders of the distributions. A loader in another folder has its own C library beside
// it.
func (g gnu) system() (folders []string) {
	for _, lib := range libFolders(g.needs.Machine) {
		folders = append(folders, "/"+lib, "/usr/"+lib)
	}
	if own := filepath.Dir(g.needs.Loader); !slices.Contains(folders, own) {
		folders = slices.Insert(folders, 0, own)
	}
	return folders
}
