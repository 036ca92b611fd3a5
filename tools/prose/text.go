package main

import (
	"go/scanner"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
)

// line is the prose of one line of a file.
type line struct {
	number  int // from 1
	text    string
	comment bool // nothing but a comment: its width is bounded
}

// prose returns the comments and strings of Go, the comments of C and of shell scripts, and the
// text of Markdown outside fenced blocks. A string without a blank and preformatted
// comments are not prose. Of a Go test it
// returns the comments only, because its strings are often data. A generated file has no prose.
func prose(name string, content []byte) []line {
	switch filepath.Ext(name) {
	case ".go":
		return proseOfGo(content, strings.HasSuffix(name, "_test.go"))
	case ".c", ".h":
		return proseOfC(string(content))
	case ".md":
		return proseOfMarkdown(string(content))
	case ".sh":
		return proseOfShell(string(content))
	}
	return nil
}

// generated matches the line that marks a generated file (go help generate).
var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

func proseOfGo(content []byte, test bool) []line {
	if generated.Match(content) {
		return nil
	}
	files := token.NewFileSet()
	file := files.AddFile("", -1, len(content))
	var s scanner.Scanner
	s.Init(file, content, func(token.Position, string) {}, scanner.ScanComments)
	source := strings.Split(string(content), "\n")
	var lines []line
	for {
		at, kind, text := s.Scan()
		switch {
		case kind == token.EOF:
			return lines
		case kind == token.COMMENT && !strings.HasPrefix(text, "//go:") && !strings.HasPrefix(text, "//\t"), kind == token.STRING && !test && strings.Contains(text, " "):
			lines = append(lines, split(file.Line(at), text, source)...)
		}
	}
}

// split makes lines of a token that begins on a line of the source.
func split(number int, text string, source []string) []line {
	var lines []line
	for i, part := range strings.Split(text, "\n") {
		whole := strings.TrimSpace(source[number+i-1])
		lines = append(lines, line{number + i, part, strings.HasPrefix(whole, "//")})
	}
	return lines
}

func proseOfC(content string) []line {
	var lines []line
	inside := false // a comment of several lines
	for i, text := range strings.Split(content, "\n") {
		begun := inside
		if at := strings.Index(text, "/*"); !inside && at >= 0 {
			text, inside = text[at:], true
			begun = at == 0
		} else if !inside {
			continue
		}
		inside = !strings.Contains(text, "*/")
		lines = append(lines, line{i + 1, text, begun})
	}
	return lines
}

func proseOfMarkdown(content string) []line {
	var lines []line
	fenced := false
	for i, text := range strings.Split(content, "\n") {
		if strings.HasPrefix(text, "```") {
			fenced = !fenced
		} else if !fenced && !strings.HasPrefix(text, "<!--") {
			lines = append(lines, line{i + 1, text, false})
		}
	}
	return lines
}

func proseOfShell(content string) []line {
	var lines []line
	for i, text := range strings.Split(content, "\n") {
		if trimmed := strings.TrimSpace(text); strings.HasPrefix(trimmed, "#") {
			lines = append(lines, line{i + 1, trimmed, true})
		}
	}
	return lines
}
