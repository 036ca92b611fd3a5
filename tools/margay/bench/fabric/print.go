package fabric

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"margay/tools/margay/bench/page"
)

// Figures are a whole measurement.
type Figures struct {
	Host    page.Host `json:"host"`
	Plan    string    `json:"plan"`
	Notes   []string  `json:"notes"` // versions of the peers, peers that are not there, how their nodes are joined
	Results []*Result `json:"results"`
}

// Headings are the columns of Rows.
var Headings = []string{"PLACE", "CASE", "CONTENDER", "MEDIAN", "P99", "UNIT", "SPEED TO MPICH", "TO OPEN MPI", "RANKS' CPU µs", "KERNELS' CPU µs"}

// speedColumns are the peers of the columns of Headings.
var speedColumns = []string{"MPICH", "Open MPI"}

// Rows writes a row for each result, except for operations that another contender than Margay does
// not have.
func (f *Figures) Rows(t page.Table) {
	for _, r := range f.Results {
		if r.Absent != "" && !strings.HasPrefix(r.Contender, Ours) {
			continue
		}
		cells := []any{r.Place, r.c.Title, r.Contender, number(r.Median), number(r.P99), r.Unit}
		for _, peer := range speedColumns {
			cells = append(cells, number(r.Speed[peer]))
		}
		t.Row(append(cells, number(r.Ranks), number(r.Kernels))...)
	}
}

// number prints three digits, and - for a figure that is not there.
func number(v float64) string {
	switch {
	case v == 0:
		return "-"
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	}
	decimals := 2 - int(math.Floor(math.Log10(v)))
	return fmt.Sprintf("%.*f", min(decimals, 4), v)
}

// Text writes notes for people.
func (f *Figures) Text(w io.Writer) error {
	lines := append([]string{f.Host.Sentence(), f.Plan}, f.Notes...)
	for _, line := range append(lines, f.reasons()...) {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

// reasons are why figures are missing. Contenders and cases with the same reason share a line.
func (f *Figures) reasons() (lines []string) {
	texts := distinct(f.Results, (*Result).reason)
	for _, text := range texts {
		if text == "" {
			continue
		}
		missing := slices.DeleteFunc(slices.Clone(f.Results), func(r *Result) bool { return r.reason() != text })
		var subjects []string // contenders, by their cases
		for _, c := range distinct(missing, func(r *Result) string { return cases(missing, r.Contender) }) {
			of := slices.DeleteFunc(slices.Clone(missing), func(r *Result) bool { return cases(missing, r.Contender) != c })
			subjects = append(subjects, strings.Join(distinct(of, func(r *Result) string { return r.Contender }), ", ")+": "+c)
		}
		lines = append(lines, text+": "+strings.Join(subjects, "; ")+".")
	}
	return lines
}

// reason is why a result has no figures, or lacks some rounds.
func (r *Result) reason() string {
	switch {
	case r.Error != "":
		return fmt.Sprintf("Failed in %d of the rounds on %s (%s)", r.Failed, r.Place, r.Error)
	case r.Absent != "":
		return strings.ToUpper(r.Absent[:1]) + r.Absent[1:]
	}
	return ""
}

// cases lists the cases of a contender in some results.
func cases(results []*Result, contender string) string {
	of := slices.DeleteFunc(slices.Clone(results), func(r *Result) bool { return r.Contender != contender })
	return strings.Join(distinct(of, func(r *Result) string { return r.c.Title }), ", ")
}

// distinct returns the values of results in the order of their first appearance.
func distinct(results []*Result, value func(*Result) string) (values []string) {
	for _, r := range results {
		if v := value(r); !slices.Contains(values, v) {
			values = append(values, v)
		}
	}
	return values
}

// find returns a result, nil if there is none.
func (f *Figures) find(place, c, contender string) *Result {
	for _, r := range f.Results {
		if r.Place == place && r.Case == c && r.Contender == contender {
			return r
		}
	}
	return nil
}
