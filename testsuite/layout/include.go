package layout

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Include is a header of this tree that a C file includes.
type Include struct {
	From, To string // folders, as packages are named
	File     string
	Test     bool // the file belongs to tests
}

var (
	includeLine = regexp.MustCompile(`(?m)^\s*#\s*include\s+(["<])([^">]+)[">]`)
	makeSearch  = regexp.MustCompile(`-I\s*(\S+)`)
	makeValue   = regexp.MustCompile(`(?m)^(\w+)\s*[:?]?=\s*(\S+)`)
	goSearch    = regexp.MustCompile(`"-I", "([^"]+)"`)
	toolchain   = []string{"go_asm.h", "textflag.h"} // of Go's assembler
)

// Includes returns the headers of the tree that its C files include. It searches as the compiler
// does: beside the file, and in the folders that -I names in the Makefiles from the file's folder
// upward or, for a file in testdata, in the tests of its package. It returns an error for a quoted
// header that it does not find. The tree has no C files in its root, but those may be there that
// the commands of the documents make.
func Includes(root fs.FS) ([]Include, error) {
	var all []Include
	err := fs.WalkDir(root, ".", func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (strings.HasPrefix(entry.Name(), ".") && file != "." || file == "bin"):
			return fs.SkipDir
		case !slices.Contains([]string{".c", ".h"}, path.Ext(file)), path.Dir(file) == ".":
			return nil
		}
		found, err := includesOf(root, file)
		all = append(all, found...)
		return err
	})
	return all, err
}

func includesOf(root fs.FS, file string) ([]Include, error) {
	text, err := fs.ReadFile(root, file)
	if err != nil {
		return nil, err
	}
	dir := path.Dir(file)
	var all []Include
	for _, m := range includeLine.FindAllStringSubmatch(string(text), -1) {
		quoted, name := m[1] == `"`, m[2]
		folders, err := searched(root, dir)
		if err != nil {
			return nil, err
		}
		if quoted {
			folders = append([]string{dir}, folders...)
		}
		i := slices.IndexFunc(folders, func(folder string) bool {
			_, err := fs.Stat(root, path.Join(folder, name))
			return err == nil
		})
		switch {
		case i >= 0:
			all = append(all, Include{From: packageOf(dir), To: packageOf(path.Dir(path.Join(folders[i], name))), File: file, Test: isTest(dir)})
		case quoted && !slices.Contains(toolchain, name):
			return nil, fmt.Errorf("%s includes %q, which is neither beside it nor in %v", file, name, folders)
		}
	}
	return all, nil
}

// packageOf returns the package that a folder belongs to.
func packageOf(dir string) string {
	pkg, _, _ := strings.Cut(dir, "/testdata")
	return pkg
}

func isTest(dir string) bool { return packageOf(dir) != dir }

// searched returns the folders that -I names for the files of a folder.
func searched(root fs.FS, dir string) ([]string, error) {
	var folders []string
	add := func(name string, bases ...string) {
		for _, base := range bases {
			if folder := path.Join(base, name); fs.ValidPath(folder) {
				folders = append(folders, folder)
			}
		}
	}
	for at := dir; ; at = path.Dir(at) {
		text, err := fs.ReadFile(root, path.Join(at, "Makefile"))
		if err == nil {
			for _, m := range makeSearch.FindAllStringSubmatch(expand(string(text)), -1) {
				add(m[1], dir, at) // a rule may change into the folder of the file
			}
		} else if !os.IsNotExist(err) {
			return nil, err
		}
		if at == "." {
			break
		}
	}
	if pkg := packageOf(dir); isTest(dir) {
		tests, err := fs.Glob(root, path.Join(pkg, "*_test.go"))
		if err != nil {
			return nil, err
		}
		for _, test := range tests {
			text, err := fs.ReadFile(root, test)
			if err != nil {
				return nil, err
			}
			for _, m := range goSearch.FindAllStringSubmatch(string(text), -1) {
				add(filepath.ToSlash(m[1]), pkg)
			}
		}
	}
	return folders, nil
}

// expand replaces the variables of a Makefile by their values.
func expand(text string) string {
	for _, m := range makeValue.FindAllStringSubmatch(text, -1) {
		text = strings.ReplaceAll(text, "$("+m[1]+")", m[2])
	}
	return text
}
