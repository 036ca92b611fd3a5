package boots

import (
	"fmt"
	"io"
	"strings"

	"margay/tools/margay/bench/page"
)

// Figures are a whole measurement.
type Figures struct {
	Host    page.Host `json:"host"`
	Plan    string    `json:"plan"`
	Results []*Result `json:"results"`
}

// Headings are the columns of Rows.
var Headings = []string{"MACHINES", "BOOTED", "MEDIAN s", "P99", "LAST", "MB/s", "MEMORY MiB", "PROCESSOR s", "WAITS", "REPEATED", "REFUSED"}

// Rows writes a row for each number of machines.
func (f *Figures) Rows(t page.Table) {
	for _, r := range f.Results {
		t.Row(r.cells()...)
	}
}

// cells are a row.
func (r *Result) cells() []any {
	rate := "-"
	if r.Last > 0 {
		rate = fmt.Sprintf("%.0f", float64(r.Bytes)/1e6/r.Last)
	}
	return []any{
		r.Clients, r.Booted, seconds(r.Median), seconds(r.P99), seconds(r.Last), rate, fmt.Sprintf("%.0f", float64(r.Peak)/1024),
		fmt.Sprintf("%.1f", r.Processor), r.Waits, r.DHCP + r.TFTP + r.HTTP, r.Refused,
	}
}

// seconds prints a time, and - for one that is not there.
func seconds(s float64) string {
	if s == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", s)
}

// Text writes what belongs to the table.
func (f *Figures) Text(w io.Writer) error {
	for _, line := range append([]string{f.Host.Sentence(), f.Plan}, f.failures()...) {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

// failures are sentences about machines that have not booted.
func (f *Figures) failures() (lines []string) {
	for _, r := range f.Results {
		if r.Booted < r.Clients {
			lines = append(lines, fmt.Sprintf("%d of %d machines have not booted (%s).", r.Clients-r.Booted, r.Clients, r.Error))
		}
	}
	return lines
}

// units have capital letters in a heading of a page, too.
var units = strings.NewReplacer("mb/s", "MB/s", "mib", "MiB")

// Markdown writes the table for a page.
func (f *Figures) Markdown(w io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s\n\n|", f.Host.Sentence(), f.Plan)
	for _, h := range Headings {
		fmt.Fprintf(&text, " %s |", units.Replace(strings.ToLower(h)))
	}
	text.WriteString("\n|" + strings.Repeat("---:|", len(Headings)) + "\n")
	for _, r := range f.Results {
		text.WriteString("|")
		for _, c := range r.cells() {
			fmt.Fprintf(&text, " %v |", c)
		}
		text.WriteString("\n")
	}
	for _, line := range f.failures() {
		fmt.Fprintf(&text, "\n* %s\n", strings.ReplaceAll(line, "\n", " "))
	}
	_, err := io.WriteString(w, text.String())
	return err
}
