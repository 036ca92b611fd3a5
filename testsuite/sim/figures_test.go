package sim

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

// The page has the figures that are simulated now, of machines of up to 1,000 nodes, and so has the
// plot of one host, which has no larger ones. make scale alone simulates those.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/scale.md")
	if err != nil {
		t.Fatal(err)
	}
	figures, err := Compute([]int{1, 8, 64, 256, 1000})
	if err != nil {
		t.Fatal(err)
	}
	plot, err := os.ReadFile("../../docs/scale.svg")
	if err != nil {
		t.Fatal(err)
	}
	if host, _, ok := strings.Cut(figures.Plot(), "</g>"); !ok || !strings.Contains(string(plot), host[strings.Index(host, "<g"):]) {
		t.Error("docs/scale.svg has another plot of one host (make scale)")
	}
	rows := 0
	for line := range strings.Lines(figures.Markdown()) {
		if !strings.Contains(string(page), line) {
			t.Errorf("docs/scale.md lacks the line %s(make scale)", line)
		}
		if strings.HasPrefix(line, "|") {
			rows++
		}
	}
	if rows < 20 {
		t.Errorf("only %d rows were looked at", rows)
	}
}

// A plot is a well-formed picture with a curve for each line, and the same each time.
func TestPlot(t *testing.T) {
	figures := Figures{Checks: nil}
	for nodes := 1; nodes <= 1000; nodes *= 10 {
		row := Row{Nodes: nodes, Star: time.Duration(nodes) * time.Millisecond, Counted: time.Millisecond, Trees: []Point{{int(best), 2 * time.Millisecond}}}
		figures.Host, figures.Cluster = append(figures.Host, row), append(figures.Cluster, row)
	}
	plot := figures.Plot()
	if plot != figures.Plot() {
		t.Error("two plots of the same figures differ")
	}
	elements := make(map[string]int)
	for d := xml.NewDecoder(strings.NewReader(plot)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if start, ok := token.(xml.StartElement); ok {
			elements[start.Name.Local]++
		}
	}
	dots := 0
	for _, s := range series {
		dots += len(s.Points)
	}
	if elements["svg"] != 1 || elements["g"] != 2 || elements["circle"] != dots || elements["path"] < 5 {
		t.Errorf("it has %v", elements)
	}
	if !strings.Contains(plot, "M58.0 340.0L") { // 1 node and 1 ms: the lower left corner
		t.Errorf("a curve does not begin at its first point: %s", plot)
	}
}

// Times and counts are written for people.
func TestTexts(t *testing.T) {
	for want, got := range map[string]string{
		"-": short(0), "18.7 ms": short(18_700_000), "1.5 s": short(1500 * time.Millisecond), "12,345 s": short(12345 * time.Second),
		"1": count(1), "999": count(999), "1,000": count(1000), "1,234,567": count(1234567),
		"0.11": percent(0.0011), "16": percent(0.163), "100": percent(1), "100 µs": timeLabel(-4), "10 ms": timeLabel(-2), "1 s": timeLabel(0), "10,000": countLabel(4), "1 million": countLabel(6),
	} {
		if got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}
