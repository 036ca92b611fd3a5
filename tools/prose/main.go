// Command prose checks the language of comments, strings and documents.
//
//	go run ./tools/prose            check the files that tools/prose/clean.txt lists
//	go run ./tools/prose PATH...    check these files and folders
//
// It refuses phrases that this project has unlearned (patterns.go) and comments wider than 100
// columns. A text is checked once an editor has been through it and has added its folder to
// clean.txt: from then on it stays clean. A list needs no history of the repository, so the check
// says the same in a shallow clone, and it does not depend on where a line was moved from.
package main

import (
	"bufio"
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// width is how many columns a line of comments may have; a tab counts as four.
const width = 100

//go:embed clean.txt
var clean string

var errFound = errors.New("prose: see CONTRIBUTING.md, \"Prose\"")

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(paths []string, out io.Writer) error {
	if len(paths) == 0 {
		paths = strings.Fields(clean)
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

// expand returns the files of a path: the file itself, the files in a folder, or with /... also
// those in its subfolders. A path without files is an error, so that the list does not outlive its
// files. Folders named testdata are skipped.
func expand(p string) ([]string, error) {
	root, deep := strings.CutSuffix(path.Clean(p), "/...")
	var files []string
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != root && (!deep || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.Type().IsRegular():
			files = append(files, name)
		}
		return nil
	})
	if err == nil && len(files) == 0 {
		err = errors.New("no files")
	}
	if err != nil {
		return nil, fmt.Errorf("prose: %s: %w; correct tools/prose/clean.txt", p, err)
	}
	return files, nil
}

// check returns a complaint for each line of a file and each pattern.
func check(name string, content []byte) []string {
	var all []string
	for _, l := range prose(name, content) {
		for _, p := range find(l.text) {
			all = append(all, fmt.Sprintf("%s:%d: %s: %s: %s", name, l.number, p.name, strings.TrimSpace(l.text), p.advice))
		}
	}
	return append(all, wide(name, content)...)
}

// wide returns a complaint for each comment that is wider than the width. Preformatted
// text and words that cannot be broken may be.
func wide(name string, content []byte) []string {
	comments := make(map[int]bool)
	for _, l := range prose(name, content) {
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
