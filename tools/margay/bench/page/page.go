// Package page has what pages with figures of different measurements have in common: a sentence
// about the host, and the lines between which a measurement writes its figures.
package page

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Host is the machine of a measurement and its state before.
type Host struct {
	Date   string  `json:"date"`
	CPU    string  `json:"cpu"`
	CPUs   int     `json:"cpus"`
	Linux  string  `json:"linux"`
	Load   float64 `json:"load"` // average of the last minute
	Margay string  `json:"margay"`
}

// busyLoad is the load for each CPU from which a machine is called busy.
const busyLoad = 0.3

// ThisHost describes this machine.
func ThisHost(version string) Host {
	h := Host{Date: time.Now().Format(time.DateOnly), CPU: "unknown", CPUs: runtime.NumCPU(), Linux: "unknown", Margay: version}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		h.CPU = cpuModel(string(text))
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		fmt.Sscan(string(text), &h.Load)
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.Linux = unix.ByteSliceToString(u.Release[:])
	}
	return h
}

// cpuModel finds the model in the text of /proc/cpuinfo.
func cpuModel(text string) string {
	for line := range strings.Lines(text) {
		if name, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// Busy reports whether other programs used the machine before the measurement.
func (h Host) Busy() bool { return h.Load > busyLoad*float64(h.CPUs) }

// Sentence describes the host for people.
func (h Host) Sentence() string {
	s := fmt.Sprintf("Measured on %s: %d CPUs (%s), Linux %s, Margay %s.", h.Date, h.CPUs, h.CPU, h.Linux, h.Margay)
	if h.Busy() {
		s += fmt.Sprintf(" The machine was busy with other work (load %.1f before the measurement): compare figures of one row only.", h.Load)
	}
	return s
}

// Table takes the rows of figures.
type Table interface {
	Row(cells ...any)
}

// Figures are a whole measurement that can be printed.
type Figures interface {
	Rows(t Table)
	Text(w io.Writer) error     // what people must know about the rows
	Markdown(w io.Writer) error // everything, for a page
}

// Insert replaces the part of a page that a command writes: all between its two lines.
func Insert(page, command, figures string) (string, error) {
	begin, end := "<!-- begin: written by "+command+" -->\n", "<!-- end: written by "+command+" -->\n"
	before, rest, found := strings.Cut(page, begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		return "", errors.New("the page lacks the line " + strings.TrimSpace(begin) + " or, after it, " + strings.TrimSpace(end))
	}
	return before + begin + "\n" + figures + "\n" + end + after, nil
}
