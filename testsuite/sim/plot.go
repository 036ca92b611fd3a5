package sim

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Line is a curve, or single points, of a plot.
type Line struct {
	Name   string
	Dots   bool // measured points, without a line between them
	Points []Point
}

// Point is a time for a number of nodes. Both are positive.
type Point struct {
	Nodes int           `json:"nodes"`
	Time  time.Duration `json:"time_ns"`
}

// Panel is one plot: both axes are logarithmic.
type Panel struct {
	Title string
	Lines []Line
}

// The size of a panel, and the room around its axes, in pixels.
const (
	panelWidth, panelHeight = 460, 380
	left, right, top, under = 58, 28, 30, 40
)

// colours are Okabe and Ito's, which differ for readers with any sight.
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"}

// SVG draws panels beside one another. The same panels give the same bytes on every machine.
func SVG(panels ...Panel) string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`+"\n", panelWidth*len(panels), panelHeight)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="#fff"/>`+"\n")
	for i, p := range panels {
		fmt.Fprintf(&b, `<g transform="translate(%d 0)">`+"\n", i*panelWidth)
		p.draw(&b)
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// axis maps powers of ten to pixels.
type axis struct {
	low, high   int // powers of ten
	begin, size float64
}

func (a axis) at(value float64) float64 {
	return a.begin + a.size*(math.Log10(value)-float64(a.low))/float64(a.high-a.low)
}

// span returns the powers of ten around some values.
func span(values []float64) (low, high int) {
	least, most := math.Inf(1), math.Inf(-1)
	for _, v := range values {
		least, most = min(least, v), max(most, v)
	}
	low, high = int(math.Floor(math.Log10(least)+1e-9)), int(math.Ceil(math.Log10(most)-1e-9))
	return low, max(high, low+1)
}

func (p Panel) draw(b *strings.Builder) {
	var nodes, seconds []float64
	for _, l := range p.Lines {
		for _, point := range l.Points {
			nodes, seconds = append(nodes, float64(point.Nodes)), append(seconds, point.Time.Seconds())
		}
	}
	x, y := axis{begin: left, size: panelWidth - left - right}, axis{begin: panelHeight - under, size: -(panelHeight - top - under)}
	x.low, x.high = span(nodes)
	y.low, y.high = span(seconds)
	fmt.Fprintf(b, `<text x="%d" y="18" font-size="13">%s</text>`+"\n", left, p.Title)
	for power := x.low; power <= x.high; power++ {
		at := x.at(math.Pow10(power))
		fmt.Fprintf(b, `<path d="M%.1f %dV%d" stroke="#ddd"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n",
			at, top, panelHeight-under, at, panelHeight-under+15, countLabel(power))
	}
	for power := y.low; power <= y.high; power++ {
		at := y.at(math.Pow10(power))
		fmt.Fprintf(b, `<path d="M%d %.1fH%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n",
			left, at, panelWidth-right, left-5, at+4, timeLabel(power))
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle">nodes</text>`+"\n", (left+panelWidth-right)/2, panelHeight-8)
	for i, l := range p.Lines {
		l.draw(b, x, y, colours[i%len(colours)])
		at, width := top+16+15*i, 2
		if l.Dots {
			width = 5
		}
		fmt.Fprintf(b, `<path d="M%d %dh18" stroke="%s" stroke-width="%d"/><text x="%d" y="%d">%s</text>`+"\n",
			left+8, at-4, colours[i%len(colours)], width, left+31, at, l.Name)
	}
}

func (l Line) draw(b *strings.Builder, x, y axis, colour string) {
	var path strings.Builder
	for i, p := range l.Points {
		at, height := x.at(float64(p.Nodes)), y.at(p.Time.Seconds())
		if l.Dots {
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="4" fill="none" stroke="%s" stroke-width="2"/>`+"\n", at, height, colour)
			continue
		}
		command := "L"
		if i == 0 {
			command = "M"
		}
		fmt.Fprintf(&path, "%s%.1f %.1f", command, at, height)
	}
	if path.Len() > 0 {
		fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", &path, colour)
	}
}

// countLabel names a power of ten.
func countLabel(power int) string {
	if power < 6 {
		return count(int(math.Pow10(power)))
	}
	return fmt.Sprintf("%d million", int(math.Pow10(power-6)))
}

// timeLabel names a power of ten of seconds.
func timeLabel(power int) string {
	switch {
	case power < -3:
		return fmt.Sprintf("%.0f µs", math.Pow10(power+6))
	case power < 0:
		return fmt.Sprintf("%.0f ms", math.Pow10(power+3))
	}
	return fmt.Sprintf("%.0f s", math.Pow10(power))
}

// count writes a number with commas between groups of three digits.
func count(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
