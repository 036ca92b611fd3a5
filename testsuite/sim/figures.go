package sim

import (
	"fmt"
	"math"
	"strings"
	"time"

	"margay/internal/tree"
)

// Row is the simulated times of jobs on a number of nodes.
type Row struct {
	Nodes   int           `json:"nodes"`
	Star    time.Duration `json:"star_ns"`     // a job that does nothing, as it is today
	Counted time.Duration `json:"counted_ns"`  // the same if serve counted the nodes that have ended, looked at none, and recorded no more than their ends
	Lean    time.Duration `json:"lean_ns"`     // the same, and its messages took it no longer than their codec and their connection
	Trees   []Point       `json:"trees"`       // as today, but with trees of Fanouts, by fan-out in place of nodes
	Files   time.Duration `json:"files_ns"`    // a job whose files are on no node, as it is today
	Silence time.Duration `json:"silence_ns"`  // after which a node is dead
	Death   time.Duration `json:"death_ns"`    // a job that loses a node during its launch, as it is today
	Chance  float64       `json:"death_share"` // of jobs in whose time a node dies
}

// Fanouts are the fan-outs that are compared.
var Fanouts = []tree.Fanout{2, 4, 8, 16, 32, 64}

// many is from how many nodes on only the most important jobs are simulated.
const many = 100_000

// FileBytes is the size of the files of a cold job.
const FileBytes = 12 << 20

// lifetime is the mean time between deaths of one node.
const lifetime = 5 * 365 * 24 * time.Hour

// Simulate returns the row of a number of nodes on a machine.
func Simulate(s Setting, nodes int, fanouts []tree.Fanout) (row Row, err error) {
	row = Row{Nodes: nodes, Silence: s.Silence(nodes)}
	chosen, err := Job{Nodes: nodes}.choose(nil)
	run := func(s Setting, j Job) (r Result) {
		if err == nil {
			j.Nodes, j.Spares, j.chosen = nodes, true, chosen
			r, err = Run(s, j)
		}
		return r
	}
	star := run(s, Job{})
	row.Star = star.Done
	counting := s
	counting.Work.Look, counting.Work.Save = 0, 0
	if nodes <= many {
		row.Counted = run(counting, Job{}).Done
	}
	counting.Work.Message, counting.Work.Client = min(counting.Work.Message, leanMessage), min(counting.Work.Client, leanMessage)
	row.Lean = run(counting, Job{}).Done
	for _, f := range fanouts {
		row.Trees = append(row.Trees, Point{int(f), run(s, Job{Fanout: f}).Done})
	}
	row.Chance = -math.Expm1(-float64(nodes) * star.Done.Seconds() / lifetime.Seconds())
	load := Load{Nodes: nodes, Bytes: FileBytes, Fanout: tree.Binary}
	if s.Processors > 0 {
		row.Files = star.Done + load.Simulate(s)
	} else {
		row.Files = star.Done + load.Time(s)
	}
	if nodes > many {
		return row, err
	}
	row.Death = run(s, Job{Deaths: []Death{{Node: uint32(nodes / 2), At: star.Prepared / 2}}}).Done
	return row, err
}

// Tree returns the time with a tree of a fan-out; 0 if it was not simulated.
func (r Row) Tree(f tree.Fanout) time.Duration {
	for _, p := range r.Trees {
		if p.Nodes == int(f) {
			return p.Time
		}
	}
	return 0
}

// Check is a measured time beside the simulated one.
type Check struct {
	Measured
	Fitted    bool          `json:"fitted"`       // the constants are chosen so that it is right
	Simulated time.Duration `json:"simulated_ns"` // by the constants of its series
}

// Error is by how much the simulated time is off.
func (c Check) Error() float64 { return float64(c.Simulated-c.Time) / float64(c.Time) }

// Figures are everything that the page docs/scale.md shows.
type Figures struct {
	Checks  []Check `json:"checks"`
	Host    []Row   `json:"host"`
	Cluster []Row   `json:"cluster"`
}

// busy is the host of a series, with work in the proportions of a busy host.
func busy(m measurements) Setting {
	s := OneHost
	s.Work, s.Others = work, m.Others
	return s
}

// Validate fits the constants of one host to the smallest machines of each series, and simulates
// the others.
func Validate() (checks []Check, err error) {
	var fitted Setting
	for _, s := range series {
		if s.Points[0].Nodes == 1 {
			if fitted, err = Fit(busy(s), s.at(1), s.at(8)); err != nil {
				return nil, err
			}
		}
		for _, p := range s.Points {
			r, err := Run(fitted, Job{Nodes: p.Nodes, Spares: true})
			if err != nil {
				return nil, err
			}
			checks = append(checks, Check{Measured{s.Name, p}, p.Nodes <= 8, r.Done})
		}
	}
	for _, p := range files.Points {
		l := Load{Nodes: p.Nodes, Bytes: FileBytes, Fanout: tree.Binary}
		checks = append(checks, Check{Measured{files.Name, p}, p.Nodes <= 8, l.Simulate(busy(files))})
	}
	return checks, nil
}

// Compute simulates machines of these numbers of nodes; of one host, those up to 1,000.
func Compute(nodes []int) (f Figures, err error) {
	if f.Checks, err = Validate(); err != nil {
		return f, err
	}
	for _, n := range nodes {
		if n <= 1000 {
			row, err := Simulate(OneHost, n, nil)
			if err != nil {
				return f, err
			}
			f.Host = append(f.Host, row)
		}
		fanouts := Fanouts
		if n > many {
			fanouts = []tree.Fanout{best}
		}
		row, err := Simulate(Cluster, n, fanouts)
		if err != nil {
			return f, err
		}
		f.Cluster = append(f.Cluster, row)
	}
	return f, nil
}

// best is the fan-out of the plotted tree.
const best tree.Fanout = 8

// short writes a time with three digits.
func short(d time.Duration) string {
	switch {
	case d == 0:
		return "-"
	case d < time.Second:
		return fmt.Sprintf("%.3g ms", float64(d)/1e6)
	case d < 1000*time.Second:
		return fmt.Sprintf("%.3g s", d.Seconds())
	}
	return fmt.Sprintf("%s s", count(int(d.Seconds())))
}

// percent writes a share with two digits.
func percent(share float64) string {
	if share < 0.1 {
		return fmt.Sprintf("%.2g", 100*share)
	}
	return fmt.Sprintf("%.0f", 100*share)
}

// Markdown returns the tables of the page.
func (f Figures) Markdown() string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	p("### Simulated beside measured\n\nOn one host, a job that does nothing, and the copy of files of a cold job:\n\n| series | nodes | measured | simulated | error |\n|---|---:|---:|---:|---:|\n")
	for _, c := range f.Checks {
		off := fmt.Sprintf("%+d %%", int(math.Round(100*c.Error())))
		if c.Fitted {
			off += ", fitted"
		}
		p("| %s | %s | %s | %s | %s |\n", c.Series, count(c.Nodes), short(c.Time), short(c.Simulated), off)
	}
	p("\n### A cluster\n\nA job that does nothing. serve asks each node as it does; *counting* the nodes that have ended, and recording their ends alone, and not looking at all of them ")
	p("and recording the whole job again and again; also *lean*, with 9 µs for a message; and as it is, but with a tree to the nodes:\n\n| nodes | as it is | counting | lean |")
	for _, fanout := range Fanouts {
		p(" tree of %d |", fanout)
	}
	p("\n|---:|---:|---:|---:|%s\n", strings.Repeat("---:|", len(Fanouts)))
	for _, r := range f.Cluster {
		p("| %s | %s | %s | %s |", count(r.Nodes), short(r.Star), short(r.Counted), short(r.Lean))
		for _, fanout := range Fanouts {
			p(" %s |", short(r.Tree(fanout)))
		}
		p("\n")
	}
	p("\nOther jobs, with serve as it is. A node dies on average after %d years:\n\n", lifetime/(365*24*time.Hour))
	p("| nodes | 12 MB of files, cold | silence after which a node is dead | job whose launch loses a node | jobs in whose time a node dies |\n|---:|---:|---:|---:|---:|\n")
	for _, r := range f.Cluster {
		p("| %s | %s | %s | %s | %s %% |\n", count(r.Nodes), short(r.Files), short(r.Silence), short(r.Death), percent(r.Chance))
	}
	return b.String()
}

// Plot draws the curves.
func (f Figures) Plot() string {
	line := func(name string, rows []Row, time func(Row) time.Duration) Line {
		l := Line{Name: name}
		for _, r := range rows {
			if t := time(r); t > 0 {
				l.Points = append(l.Points, Point{r.Nodes, t})
			}
		}
		return l
	}
	star := func(r Row) time.Duration { return r.Star }
	host := Panel{Title: "A job that does nothing, all nodes on one host", Lines: []Line{line("simulated, quiet", f.Host, star), {Name: "simulated, busy"}}}
	for _, c := range f.Checks {
		if c.Series == series[1].Name {
			host.Lines[1].Points = append(host.Lines[1].Points, Point{c.Nodes, c.Simulated})
		}
	}
	for _, s := range series {
		host.Lines = append(host.Lines, Line{Name: "measured, " + s.Name, Dots: true, Points: s.Points})
	}
	cluster := Panel{Title: "A cluster of 25 Gbit/s: no point is measured", Lines: []Line{
		line("nothing, serve asks each node", f.Cluster, star),
		line("the same, counting and lean (not built)", f.Cluster, func(r Row) time.Duration { return r.Lean }),
		line(fmt.Sprintf("nothing, a tree of %d (not built)", best), f.Cluster, func(r Row) time.Duration { return r.Tree(best) }),
		line("12 MB of files, cold", f.Cluster, func(r Row) time.Duration { return r.Files }),
	}}
	return SVG(host, cluster)
}
