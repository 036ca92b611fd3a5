// Package show prints for people and for programs: tables that fit a terminal, and JSON.
package show

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"margay/internal/printable"
)

// Value writes a value that is no message as JSON for programs.
func Value(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// Table prints columns. On a terminal lines that are too long for it are folded.
type Table struct {
	w    *tabwriter.Writer
	out  io.Writer
	text bytes.Buffer
	last string // column
}

// NewTable begins a table with its line of headings.
func NewTable(w io.Writer, columns ...string) *Table {
	t := &Table{out: w, last: columns[len(columns)-1]}
	t.w = tabwriter.NewWriter(&t.text, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t.w, strings.Join(columns, "\t"))
	return t
}

// Row adds a line. What is not printable in a cell is escaped.
func (t *Table) Row(cells ...any) {
	for i, cell := range cells {
		if i > 0 {
			fmt.Fprint(t.w, "\t")
		}
		fmt.Fprint(t.w, printable.Line(fmt.Sprint(cell)))
	}
	fmt.Fprintln(t.w)
}

// Flush prints the table.
func (t *Table) Flush() error {
	if err := t.w.Flush(); err != nil {
		return err
	}
	text := t.text.String()
	if width := Width(t.out); width > 0 {
		text = foldTable(text, width, t.last)
	}
	_, err := io.WriteString(t.out, text)
	return err
}

// Ranges writes numbers that are in order as ranges.
func Ranges(numbers []uint32) string {
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
