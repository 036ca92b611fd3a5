package fabric

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Markdown writes two tables for each place, with a column for each contender: medians with p99,
// and processor time.
func (f *Figures) Markdown(w io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s\n", f.Host.Sentence(), f.Plan)
	for _, place := range distinct(f.Results, func(r *Result) string { return r.Place }) {
		f.markdownPlace(&text, place)
	}
	text.WriteString("\nNotes:\n\n")
	for _, line := range append(slices.Clone(f.Notes), f.reasons()...) {
		fmt.Fprintf(&text, "* %s\n", line)
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// markdownPlace writes the tables of a place.
func (f *Figures) markdownPlace(w io.Writer, place string) {
	here := slices.DeleteFunc(slices.Clone(f.Results), func(r *Result) bool { return r.Place != place })
	contenders := distinct(here, func(r *Result) string { return r.Contender })
	title := place
	if i := slices.IndexFunc(Places, func(p Place) bool { return p.Name == place }); i >= 0 {
		title = Places[i].Title
	}
	fmt.Fprintf(w, "\n### %s%s\n\nMedian (p99):\n\n", strings.ToUpper(title[:1]), title[1:])
	f.markdownTable(w, here, contenders, speedColumns, func(r *Result) string {
		return fmt.Sprintf("%s (%s)", number(r.Median), number(r.P99))
	})
	fmt.Fprint(w, "\nProcessor time of all ranks + of the node kernels, µs for a repetition or a message:\n\n")
	f.markdownTable(w, here, contenders, nil, func(r *Result) string {
		if r.Kernels == 0 {
			return number(r.Ranks)
		}
		return number(r.Ranks) + " + " + number(r.Kernels)
	})
}

// markdownTable writes a table with a row for each case, a column for each contender, and how many
// times as fast Margay's best is as each of the peers.
func (f *Figures) markdownTable(w io.Writer, here []*Result, contenders, peers []string, cell func(*Result) string) {
	head, rule := "| | unit |", "|---|---|"
	for _, name := range contenders {
		head, rule = head+" "+name+" |", rule+"---:|"
	}
	for _, peer := range peers {
		head, rule = head+" best to "+peer+" |", rule+"---:|"
	}
	fmt.Fprintf(w, "%s\n%s\n", head, rule)
	for _, c := range distinct(here, func(r *Result) string { return r.Case }) {
		row := ""
		for _, name := range contenders {
			r := f.find(here[0].Place, c, name)
			if row == "" {
				row = fmt.Sprintf("| %s | %s |", r.c.Title, r.Unit)
			}
			if r.Median == 0 {
				row += " - |"
				continue
			}
			row += " " + cell(r) + " |"
		}
		for _, peer := range peers {
			row += " " + number(f.best(here, c, peer)) + " |"
		}
		fmt.Fprintln(w, row)
	}
}

// best returns how many times as fast Margay's best contender is as a peer, 0 if that is unknown.
func (f *Figures) best(here []*Result, c, peer string) (speed float64) {
	for _, r := range here {
		if r.Case == c && strings.HasPrefix(r.Contender, Ours) {
			speed = max(speed, r.Speed[peer])
		}
	}
	return speed
}

// Ours is the beginning of the names of Margay's contenders.
const Ours = "Margay"
