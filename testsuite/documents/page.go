// Package documents reads the examples in a Markdown page, so that a test can run them as a reader
// would.
//
// An example is a fenced block that begins in the first column. Its info string says what it is:
//
//	console   a session: "$ " begins a command, "> " continues it, everything else is the output of the command before
//	sh        commands whose output the page does not show
//	c, go     a program, which goes into the file that its mark names
//
// A comment directly in front of a block is its mark, which readers do not see. Semicolons separate
// its clauses; the last one of these stands alone:
//
//	<!-- example: file greet.c -->          the name of the file
//	<!-- example: vary order, figures -->   what may differ in the output: see Class
//	<!-- example: on qemu -->               only on nodes of this substrate
//	<!-- example: as root -->               only where the reader is root
//	<!-- example: not run: REASON -->       not an example, or one that no test can run
//
// A line "..." of an output stands for any lines.
//
// A block with another info string, or with none, must be marked as not run. So every block is
// either run or has a reason that a test can list.
package documents

import (
	"fmt"
	"strings"
)

// Example is one fenced block of a page.
type Example struct {
	Page    string
	Line    int    // of the opening fence, from 1
	Section string // the heading above the block
	Kind    string // the info string
	Text    string // the lines between the fences
	Mark    Mark
}

// String names an example for messages.
func (e Example) String() string { return fmt.Sprintf("%s:%d (%s)", e.Page, e.Line, e.Section) }

// Command is what a reader types, and what the page says it prints.
type Command struct {
	Example Example
	Line    int    // of the page, from 1
	Text    string // one or more lines
	Want    string // the output, if Shown
	Shown   bool   // the page shows the output of this command, which may be none
}

// Parse returns the examples of a page in their order. It refuses a page with a block that is
// neither run nor marked.
func Parse(page, text string) ([]Example, error) {
	p := parser{page: page}
	for line := range strings.Lines(text) {
		p.line++
		if err := p.take(strings.TrimSuffix(line, "\n")); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", page, p.line, err)
		}
	}
	switch {
	case p.open != nil:
		return nil, fmt.Errorf("%s: the block is not closed", p.open)
	case p.mark != "":
		return nil, fmt.Errorf("%s: the mark %q has no block behind it", page, p.mark)
	}
	return p.examples, nil
}

const fence = "```"

type parser struct {
	page     string
	line     int
	section  string
	mark     string   // of the block to come
	open     *Example // the block that the line is in
	examples []Example
}

func (p *parser) take(line string) error {
	switch {
	case p.open != nil && line == fence:
		e := *p.open
		p.open = nil
		p.examples = append(p.examples, e)
		return e.check()
	case p.open != nil:
		p.open.Text += line + "\n"
	case strings.HasPrefix(line, fence):
		mark, err := parseMark(p.mark)
		if err != nil {
			return err
		}
		p.open = &Example{Page: p.page, Line: p.line, Section: p.section, Kind: strings.TrimPrefix(line, fence), Mark: mark}
		p.mark = ""
	case strings.HasPrefix(strings.TrimSpace(line), fence):
		return fmt.Errorf("a block must begin in the first column: %q", line)
	case p.mark != "":
		return fmt.Errorf("the mark %q has no block directly behind it", p.mark)
	case strings.HasPrefix(line, markBegin):
		p.mark = line
	case strings.HasPrefix(line, "#"):
		p.section = strings.TrimSpace(strings.TrimLeft(line, "#"))
	}
	return nil
}

// check refuses a block that a test could only pass over.
func (e Example) check() error {
	if e.Mark.NotRun != "" {
		return nil
	}
	switch e.Kind {
	case "c", "go":
		if e.Mark.File == "" || e.Mark.Vary != nil {
			return fmt.Errorf("%s: the mark of a program names its file, and nothing that varies", e)
		}
		return nil
	case "sh":
		if e.Mark.Vary != nil {
			return fmt.Errorf("%s: the output of a block %q is not compared, so nothing of it varies", e, e.Kind)
		}
	case "console":
	default:
		return fmt.Errorf("%s: a block of kind %q is not run: mark it with the reason, or make it console, sh, c or go", e, e.Kind)
	}
	if e.Mark.File != "" {
		return fmt.Errorf("%s: only a program has a file", e)
	}
	_, err := e.Commands()
	return err
}

// Commands returns the commands of a block console or sh, none for a program.
func (e Example) Commands() ([]Command, error) {
	switch e.Kind {
	case "sh":
		if strings.TrimSpace(e.Text) == "" {
			return nil, fmt.Errorf("%s: the block is empty", e)
		}
		return []Command{{Example: e, Line: e.Line + 1, Text: e.Text}}, nil
	case "console":
		return e.session()
	}
	return nil, nil
}

func (e Example) session() ([]Command, error) {
	var all []Command
	at := e.Line
	typed := false // the line before belongs to a command
	for line := range strings.Lines(e.Text) {
		at++
		if text, ok := strings.CutPrefix(line, "$ "); ok {
			all = append(all, Command{Example: e, Line: at, Text: text, Shown: true})
			typed = true
			continue
		}
		if len(all) == 0 {
			return nil, fmt.Errorf("%s: a session begins with a command: %q", e, line)
		}
		last := &all[len(all)-1]
		text, more := strings.CutPrefix(line, "> ")
		if typed = typed && more; typed {
			last.Text += text
		} else {
			last.Want += line
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: the block is empty", e)
	}
	return all, nil
}
