package bench

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"margay/tools/margay/bench/page"
	"margay/tools/margay/show"
)

// intoPage replaces the figures that a command has written into a page. Without a function that
// writes them it only checks that it can.
func intoPage(path, command string, markdown func(io.Writer) error) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if markdown != nil {
		if err := markdown(&text); err != nil {
			return err
		}
	}
	changed, err := page.Insert(string(old), command, text.String())
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if markdown == nil {
		return unix.Access(path, unix.W_OK)
	}
	return os.WriteFile(path, []byte(changed), 0o644)
}

// output is how figures are printed.
type output struct {
	markdown bool
	into     string // the page of the command, which gets them, too; empty: none
	command  string
}

// print prints figures, in the terminal as a table.
func (a commands) print(f page.Figures, headings []string, o output) error {
	if o.into != "" {
		if err := intoPage(o.into, o.command, f.Markdown); err != nil {
			return err
		}
	}
	switch {
	case a.JSON:
		return show.Value(a.Stdout, f)
	case o.markdown:
		return f.Markdown(a.Stdout)
	}
	t := a.Table(headings...)
	f.Rows(t)
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(a.Stdout)
	return f.Text(a.Stdout)
}
