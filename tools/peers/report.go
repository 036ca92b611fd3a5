package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"margay/nimble/bench"
)

// report is a whole measurement, for programs that read it.
type report struct {
	OS       string    `json:"os"`
	Arch     string    `json:"arch"`
	CPUs     int       `json:"cpus"`
	Go       string    `json:"go"`
	Rounds   int       `json:"rounds"`
	Programs []figures `json:"programs"`
}

// figures holds the figures of one program.
type figures struct {
	Program    string   `json:"program"`
	About      string   `json:"about"`
	Call       string   `json:"call,omitempty"` // what a run does Calls times
	Calls      int      `json:"calls,omitempty"`
	Contenders []figure `json:"contenders"`
}

// figure is what one contender did with a program. Missing figures are 0.
type figure struct {
	Contender        string             `json:"contender"`
	Bounded          bool               `json:"bounded,omitempty"` // with fewer rounds
	Instructions     uint64             `json:"instructions,omitempty"`
	NsPerInstruction float64            `json:"ns_per_instruction,omitempty"`
	NsPerRun         float64            `json:"ns_per_run,omitempty"`
	NsPerCall        float64            `json:"ns_per_call,omitempty"`
	UsPer1000        float64            `json:"insertion_us_per_1000_instructions,omitempty"` // of the program of that many
	CodeBytes        int                `json:"code_bytes,omitempty"`
	Ratios           map[string]float64 `json:"ratios,omitempty"` // of its time per instruction to the time of each peer
	Error            string             `json:"error,omitempty"`  // why there are no figures
}

func newReport(rounds int) *report {
	return &report{OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), Go: runtime.Version(), Rounds: rounds}
}

// add takes in what the contenders did with a program.
func (r *report) add(p *bench.Program, contenders []bench.Contender, results []bench.Result) {
	each := figures{Program: p.Name, About: p.About, Call: p.Call, Calls: p.Calls}
	for i, c := range contenders {
		result := &results[i]
		f := figure{Contender: c.Name, Bounded: c.Bounded && p.Rounds > 0}
		if result.Err != nil {
			f.Error = oneLine(result.Err)
			each.Contenders = append(each.Contenders, f)
			continue
		}
		f.Instructions, f.NsPerInstruction, f.NsPerRun, f.CodeBytes = result.Instructions, result.PerInstruction(), result.Run, result.Size
		if p.Calls > 0 {
			f.NsPerCall = f.NsPerRun / float64(p.Calls)
		}
		if p.Name == bench.Straight {
			f.UsPer1000 = float64(result.Insert) / float64(time.Microsecond) / bench.StraightLength * 1000
		}
		each.Contenders = append(each.Contenders, f)
	}
	each.compare()
	r.Programs = append(r.Programs, each)
}

// compare fills in ratios.
func (f *figures) compare() {
	for i := range f.Contenders {
		ours := &f.Contenders[i]
		if ours.NsPerInstruction == 0 || slices.Contains(peers, ours.Contender) {
			continue
		}
		ours.Ratios = make(map[string]float64)
		for _, peer := range f.Contenders {
			if slices.Contains(peers, peer.Contender) && peer.NsPerInstruction > 0 {
				ours.Ratios[peer.Contender] = ours.NsPerInstruction / peer.NsPerInstruction
			}
		}
	}
}

// oneLine makes an error fit for a table.
func oneLine(err error) string {
	first, _, _ := strings.Cut(err.Error(), "\n")
	return first
}

// writeJSON writes the report for programs.
func (r *report) writeJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// writeTable writes a line for each program and contender.
func (r *report) writeTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprint(t, "PROGRAM\tCONTENDER\tINSNS/RUN\tNS/INSN\tNS/RUN\tNS/CALL\tUS/1000 INSERTED\tBYTES")
	for _, peer := range peers {
		fmt.Fprint(t, "\t/ ", strings.ToUpper(peer))
	}
	fmt.Fprintln(t, "\t")
	for _, p := range r.Programs {
		for _, f := range p.Contenders {
			cells := []string{p.Program, f.Contender, number(float64(f.Instructions)) + mark(f), number(f.NsPerInstruction),
				number(f.NsPerRun), number(f.NsPerCall), number(f.UsPer1000), number(float64(f.CodeBytes))}
			for _, peer := range peers {
				cells = append(cells, number(f.Ratios[peer]))
			}
			note := ""
			if f.Error != "" {
				note = "n/a (" + f.Error + ")"
			}
			fmt.Fprintln(t, strings.Join(append(cells, note), "\t"))
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, "\n"+legend)
	return err
}

// legend says what tables do not.
const legend = `A * marks a program with fewer rounds than margay nimble bench gives it: the kernel must see the end of a loop, and all
contenders do the same work. Linux repeats a program inside the kernel, without a call from Go. Times are per eBPF instruction,
on wazero too. The peers have no fuel; wazero always checks memory.`

func mark(f figure) string {
	if f.Bounded && f.Error == "" {
		return "*"
	}
	return ""
}

// number prints three significant digits, and whole numbers unchanged.
func number(v float64) string {
	switch {
	case v == 0:
		return "-"
	case v == math.Trunc(v) && v >= 10:
		return fmt.Sprintf("%.0f", v)
	}
	decimals := max(0, 2-int(math.Floor(math.Log10(v))))
	return fmt.Sprintf("%.*f", min(decimals, 3), v)
}

// writeMarkdown writes the same as tables with a column for each contender.
func (r *report) writeMarkdown(w io.Writer) error {
	for _, t := range []struct {
		title string
		value func(*figures, figure) (row string, v float64)
	}{
		{"ns for an instruction", func(p *figures, f figure) (string, float64) { return p.Program, f.NsPerInstruction }},
		{"ns for a call", func(p *figures, f figure) (string, float64) {
			return p.Program + ": " + p.Call, f.NsPerCall
		}},
		{"µs to insert 1000 instructions", func(p *figures, f figure) (string, float64) { return "insertion", f.UsPer1000 }},
		{"bytes of code", func(p *figures, f figure) (string, float64) { return p.Program, float64(f.CodeBytes) }},
	} {
		if err := r.writeColumns(w, t.title, t.value); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w, legend)
	return err
}

// writeColumns writes one table, without the rows and columns that are empty.
func (r *report) writeColumns(w io.Writer, title string, value func(*figures, figure) (string, float64)) error {
	used := make(map[int]bool)
	var rows []figures
	for _, p := range r.Programs {
		any := false
		for i, f := range p.Contenders {
			_, v := value(&p, f)
			used[i], any = used[i] || v > 0 || f.Error != "", any || v > 0
		}
		if any {
			rows = append(rows, p)
		}
	}
	if len(rows) == 0 {
		return nil
	}
	head, rule := "| "+title, "|---"
	for i, f := range rows[0].Contenders {
		if used[i] {
			head, rule = head+" | "+f.Contender, rule+"|---:"
		}
	}
	text := head + " |\n" + rule + "|\n"
	for _, p := range rows {
		name, _ := value(&p, figure{})
		text += "| " + name
		for i, f := range p.Contenders {
			if !used[i] {
				continue
			}
			_, v := value(&p, f)
			cell := number(v) + mark(f)
			if f.Error != "" {
				cell = "n/a"
			}
			text += " | " + cell
		}
		text += " |\n"
	}
	_, err := fmt.Fprintln(w, text)
	return err
}
