// Package show prints for people and for programs: tables that fit a terminal, and JSON.
package show

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"margay/internal/printable"
)

// Value writes a value that is not a message as JSON for programs.
func Value(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// Table prints columns. On a terminal, lines that are too long for it are folded.
type Table struct {
	Colors bool // the cells that are a State have their color

	w       *tabwriter.Writer
	out     io.Writer
	text    bytes.Buffer
	columns []string
	rows    []map[int]State // the states of each row, by column
}

// NewTable begins a table with its line of headings.
func NewTable(w io.Writer, columns ...string) *Table {
	t := &Table{out: w, columns: columns}
	t.w = tabwriter.NewWriter(&t.text, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t.w, strings.Join(columns, "\t"))
	return t
}

// Row adds a line. Characters of a cell that are not printable are escaped.
func (t *Table) Row(cells ...any) {
	states := make(map[int]State)
	for i, cell := range cells {
		if i > 0 {
			fmt.Fprint(t.w, "\t")
		}
		text := printable.Line(fmt.Sprint(cell))
		if s, ok := cell.(State); ok {
			states[i] = State{text, s.Color}
		}
		fmt.Fprint(t.w, text)
	}
	fmt.Fprintln(t.w)
	t.rows = append(t.rows, states)
}

// Flush prints the table.
func (t *Table) Flush() error {
	if err := t.w.Flush(); err != nil {
		return err
	}
	header, body, _ := strings.Cut(t.text.String(), "\n")
	at := starts(header, t.columns)
	width := Width(t.out)
	indent := at[len(at)-1]
	var out strings.Builder
	out.WriteString(foldTo(header, width, indent) + "\n")
	row := 0
	for line := range strings.Lines(body) {
		line = foldTo(strings.TrimRight(line, " \n"), width, indent) // a last cell may be empty
		if t.Colors {
			line = paint(line, t.rows[row], at)
		}
		out.WriteString(line + "\n")
		row++
	}
	_, err := io.WriteString(t.out, out.String())
	return err
}

// starts returns the column of the screen at which each column of a table begins.
func starts(header string, columns []string) (at []int) {
	end := 0
	for _, name := range columns {
		end += strings.Index(header[end:], name)
		at = append(at, utf8.RuneCountInString(header[:end]))
		end += len(name)
	}
	return at
}

// foldTo folds a line of a table below the last column. It leaves the line as it is when there is
// no terminal, which has width 0.
func foldTo(line string, width, indent int) string {
	if width == 0 {
		return line
	}
	return Fold(line, width, indent)
}

// paint colors the states in a line, which may be folded: in its first part only.
func paint(line string, states map[int]State, at []int) string {
	first, rest, folded := strings.Cut(line, "\n")
	runes := []rune(first)
	for column := len(at) - 1; column >= 0; column-- { // from the right, so that those to the left stay where they are
		s := states[column]
		from := at[column]
		to := min(from+utf8.RuneCountInString(s.Text), len(runes))
		if s.Color == "" || from >= to {
			continue
		}
		colored := string(s.Color) + string(runes[from:to]) + uncolored
		runes = append(runes[:from:from], append([]rune(colored), runes[to:]...)...)
	}
	if folded {
		return string(runes) + "\n" + rest
	}
	return string(runes)
}
