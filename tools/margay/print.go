package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"margay/internal/printable"
	"strings"
	"text/tabwriter"
)

// printValue writes a value that is no message as JSON for programs.
func printValue(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// table prints columns. On a terminal lines that are too long for it are folded.
type table struct {
	w    *tabwriter.Writer
	out  io.Writer
	text bytes.Buffer
	last string // column
}

func newTable(w io.Writer, columns ...string) *table {
	t := &table{out: w, last: columns[len(columns)-1]}
	t.w = tabwriter.NewWriter(&t.text, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t.w, strings.Join(columns, "\t"))
	return t
}

func (t *table) row(cells ...any) {
	for i, cell := range cells {
		if i > 0 {
			fmt.Fprint(t.w, "\t")
		}
		fmt.Fprint(t.w, printable.Line(fmt.Sprint(cell)))
	}
	fmt.Fprintln(t.w)
}

func (t *table) flush() error {
	if err := t.w.Flush(); err != nil {
		return err
	}
	text := t.text.String()
	if width := widthOf(t.out); width > 0 {
		text = foldTable(text, width, t.last)
	}
	_, err := io.WriteString(t.out, text)
	return err
}

// ranges writes numbers that are in order as ranges.
func ranges(numbers []uint32) string {
	var parts []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		if i == j {
			parts = append(parts, fmt.Sprint(numbers[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", numbers[i], numbers[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}
