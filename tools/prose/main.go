// Command prose checks the language of comments, strings and documents.
//
//	go run ./tools/prose            check the tree
//	go run ./tools/prose PATH...    check these files and folders
//
// It refuses phrases that this project has unlearned (patterns.go) and comments wider than 100
// columns. Exempt are folders named testdata, programs and pages that make build puts into bin,
// docs/features.md, which quotes what others promise, and the patterns themselves.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

// width is how many columns a line of comments may have; a tab counts as four.
const width = 100

// exempt are paths that are not checked.
var exempt = []string{".git", "bin", "docs/features.md", "tools/prose/patterns.go", "tools/prose/prose_test.go"}

var errFound = errors.New("prose: see CONTRIBUTING.md, \"Prose\"")

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(paths []string, out io.Writer) error {
	if len(paths) == 0 {
		paths = []string{"."}
	}
	found := false
	for _, p := range paths {
		files, err := expand(p)
		if err != nil {
			return err
		}
		for _, name := range files {
			content, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			for _, complaint := range check(name, content) {
				found = true
				fmt.Fprintln(out, complaint)
			}
		}
	}
	if found {
		return errFound
	}
	return nil
}

// expand returns the files of a path: the file itself, or the files below a folder that are not
// exempt. A path without files is an error.
func expand(root string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(path.Clean(root), func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case slices.Contains(exempt, name) || d.IsDir() && d.Name() == "testdata":
			if d.IsDir() {
				return filepath.SkipDir
			}
		case d.Type().IsRegular():
			files = append(files, name)
		}
		return nil
	})
	if err == nil && len(files) == 0 {
		err = errors.New("no files")
	}
	if err != nil {
		return nil, fmt.Errorf("prose: %s: %w", root, err)
	}
	return files, nil
}

// check returns a complaint for each line of a file and each pattern.
func check(name string, content []byte) []string {
	var all []string
	lines := prose(name, content)
	for _, l := range lines {
		for _, p := range find(l.text) {
			all = append(all, fmt.Sprintf("%s:%d: %s: %s: %s", name, l.number, p.name, strings.TrimSpace(l.text), p.advice))
		}
	}
	return append(all, wide(name, content, lines)...)
}

// wide returns a complaint for each comment among the lines of prose that is wider than the width.
// Preformatted text and words that cannot be broken may be.
func wide(name string, content []byte, prose []line) []string {
	comments := make(map[int]bool)
	for _, l := range prose {
		comments[l.number] = comments[l.number] || l.comment
	}
	var all []string
	lines := bufio.NewScanner(bytes.NewReader(content))
	lines.Buffer(nil, len(content)+1)
	for number := 1; lines.Scan(); number++ {
		text := strings.ReplaceAll(lines.Text(), "\t", "    ")
		columns := utf8.RuneCountInString(text)
		preformatted := strings.Contains(lines.Text(), "//\t") || strings.Contains(lines.Text(), "//  ")
		if comments[number] && columns > width && !preformatted && len(strings.Fields(text)) > 2 {
			all = append(all, fmt.Sprintf("%s:%d: %d columns: wrap comments at %d", name, number, columns, width))
		}
	}
	return all
}
