package launches

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"margay/internal/printable"
	"margay/tools/margay/bench/page"
)

// Machine is what a hosted machine has taken.
type Machine struct {
	Nodes int `json:"nodes"`
	// Jobs is how many jobs a turn has had there; 0: one.
	Jobs int `json:"jobs,omitempty"`
	// Up is the time until all nodes were up, in seconds.
	Up float64 `json:"up_s"`
	// Memory is what its processes have taken after the measurement, divided by its nodes, in MB.
	// What several processes share counts once.
	Memory float64 `json:"memory_of_a_node_mb"`
}

// Figures are a whole measurement.
type Figures struct {
	Host     page.Host `json:"host"`
	Plan     string    `json:"plan"`
	Notes    []string  `json:"notes"`
	Results  []*Result `json:"results"`
	Machines []Machine `json:"machines"`
}

// Headings are the columns of Rows.
var Headings = []string{"NODES", "MiB", "CONTENDER", "MEDIAN ms", "BEST", "WORST", "JOBS", "JOBS/s"}

// Rows writes a row for each result.
func (f *Figures) Rows(t page.Table) {
	for _, r := range f.Results {
		t.Row(r.Nodes, whole(r.Size), r.Contender, number(r.Median), number(r.Best), number(r.Worst), r.Jobs, number(r.Rate))
	}
}

// number prints a figure with one decimal, and - for one that is not there.
func number(v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", v)
}

// whole prints a whole number, and - for 0.
func whole(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

// Text writes what people must know about the rows.
func (f *Figures) Text(w io.Writer) error {
	for _, line := range f.lines() {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

func (f *Figures) lines() []string {
	lines := append([]string{f.Host.Sentence(), f.Plan}, f.Notes...)
	for _, m := range f.Machines {
		size := printable.Count(m.Nodes, "node")
		if m.Jobs > 0 {
			size += ", for many jobs,"
		}
		lines = append(lines, fmt.Sprintf("A machine of %s was up after %.1f s, and took %.1f MB for each in the end.", size, m.Up, m.Memory))
	}
	for _, r := range f.Results {
		if r.Failed > 0 {
			lines = append(lines, fmt.Sprintf("%s failed %s on %v (%s).", r.Contender, printable.Count(r.Failed, "time"), r.work, r.Error))
		}
	}
	for _, r := range f.Results {
		if r.Restless > 0 {
			lines = append(lines, fmt.Sprintf("On %v: %s of %s began before all was at rest.", r.work, printable.Count(r.Restless, "turn"), r.Contender))
		}
	}
	return lines
}

// table is a table in Markdown of results of one kind.
type table struct {
	title string
	has   func(r *Result) bool // a result of this kind
	sized bool                 // with a column for the size of the program
	cell  func(r *Result) string
}

func times(r *Result) string { return fmt.Sprintf("%s (%s)", number(r.Median), number(r.Best)) }

var tables = []table{
	{"Median (best), ms:", func(r *Result) bool { return r.Size == 0 && r.each == 1 }, false, times},
	{"Executables, median (best), ms:", func(r *Result) bool { return r.Size > 0 }, true, times},
	{"Many jobs, jobs a second:", func(r *Result) bool { return r.each > 1 }, false, func(r *Result) string { return number(r.Rate) }},
}

// Markdown writes tables with a row for each number of nodes and size of a program: what contenders
// have taken, and how many times as fast Margay is as each peer.
func (f *Figures) Markdown(w io.Writer) error {
	var text strings.Builder
	lines := f.lines()
	fmt.Fprintf(&text, "%s %s\n", lines[0], lines[1])
	for _, t := range tables {
		t.write(&text, slices.DeleteFunc(slices.Clone(f.Results), func(r *Result) bool { return !t.has(r) }))
	}
	if len(lines) > 2 {
		text.WriteString("\n")
	}
	for _, line := range lines[2:] {
		fmt.Fprintf(&text, "* %s\n", strings.ReplaceAll(line, "\n", " "))
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// write writes the table of results of its kind, if there are any.
func (t table) write(text *strings.Builder, results []*Result) {
	if len(results) == 0 {
		return
	}
	contenders := distinct(results, func(r *Result) string { return r.Contender })
	peers := distinct(slices.DeleteFunc(slices.Clone(results), func(r *Result) bool { return !r.peer }), func(r *Result) string { return r.Contender })
	head := []string{"nodes"}
	if t.sized {
		head = append(head, "MiB")
	}
	head = append(head, contenders...)
	for _, name := range peers {
		head = append(head, "speed to "+name)
	}
	fmt.Fprintf(text, "\n%s\n\n| %s |\n|%s\n", t.title, strings.Join(head, " | "), strings.Repeat("---:|", len(head)))
	for _, w := range distinct(results, func(r *Result) [2]int { return [2]int{r.Nodes, r.Size} }) {
		fmt.Fprintln(text, t.row(results, w[0], w[1], contenders, peers))
	}
}

// row is the line for a number of nodes and a size.
func (t table) row(results []*Result, nodes, size int, contenders, peers []string) string {
	find := func(contender string) *Result {
		i := slices.IndexFunc(results, func(r *Result) bool { return r.Nodes == nodes && r.Size == size && r.Contender == contender })
		if i < 0 || results[i].Jobs == 0 {
			return nil
		}
		return results[i]
	}
	cells := []string{fmt.Sprint(nodes)}
	if t.sized {
		cells = append(cells, fmt.Sprint(size))
	}
	for _, name := range contenders {
		cell := "-"
		if r := find(name); r != nil {
			cell = t.cell(r)
		}
		cells = append(cells, cell)
	}
	for _, name := range peers {
		cell := "-"
		if ours := find(Ours); ours != nil && ours.Speed[name] > 0 {
			cell = fmt.Sprintf("%.2f", ours.Speed[name])
		}
		cells = append(cells, cell)
	}
	return "| " + strings.Join(cells, " | ") + " |"
}

// distinct returns the values of results in the order of their first appearance.
func distinct[V comparable](results []*Result, value func(*Result) V) (values []V) {
	for _, r := range results {
		if v := value(r); !slices.Contains(values, v) {
			values = append(values, v)
		}
	}
	return values
}
