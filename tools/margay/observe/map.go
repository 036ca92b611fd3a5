package observe

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"margay/cluster/control"
	"margay/internal/nodeset"
	"margay/tools/margay/show"
)

// jobSigns are the characters of nodes with one job, for as many jobs. crowd is the character of a
// node with several ones, or with a job that has no sign of its own.
const (
	jobSigns = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	crowd    = '*'
)

// stateSigns are the characters of nodes that get no jobs, by their state, in the order of the
// explanation.
var stateSigns = []struct {
	state string
	sign  rune
}{
	{"draining", '/'}, {"drained", '='}, {"ill", '!'}, {"booting", ':'}, {"waiting", '~'}, {"late", '?'}, {"off", '_'}, {"dead", '#'}, {"refused", '%'},
}

// usualWidth is how wide a map is where there is no terminal, in columns.
const usualWidth = 80

// printMap prints a character for each node, in rows that begin with the number of their first
// node, and what the characters mean. A number without a node is a space.
func printMap(w io.Writer, nodes *control.Nodes) error {
	if len(nodes.Nodes) == 0 {
		_, err := fmt.Fprintln(w, "the machine has no nodes")
		return err
	}
	width := show.Width(w)
	if width == 0 {
		width = usualWidth
	}
	m := newNodeMap(nodes)
	label := len(fmt.Sprint(m.last)) + 1
	each := max(10, (width-label)/10*10) // nodes in a row
	var b strings.Builder
	for first := m.first / uint32(each) * uint32(each); first <= m.last; first += uint32(each) {
		row := make([]rune, each)
		for i := range row {
			row[i] = ' '
			if sign, is := m.signs[first+uint32(i)]; is {
				row[i] = sign
			}
		}
		fmt.Fprintf(&b, "%*d %s\n", label-1, first, strings.TrimRight(string(row), " "))
	}
	for _, line := range m.explained() {
		fmt.Fprintln(&b, show.Fold(line, width, 4))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// nodeMap is what a map shows.
type nodeMap struct {
	signs       map[uint32]rune // by node
	first, last uint32
	jobs        []uint32 // in the order of their signs; those behind have none
	idle        int
	crowded     []uint32
	states      map[string][]uint32 // nodes that get no jobs, by their state
}

func newNodeMap(nodes *control.Nodes) *nodeMap {
	m := &nodeMap{signs: make(map[uint32]rune), first: nodes.Nodes[0].Node, states: make(map[string][]uint32)}
	for _, n := range nodes.Nodes {
		m.first, m.last = min(m.first, n.Node), max(m.last, n.Node)
		m.signs[n.Node] = m.sign(n)
	}
	return m
}

// sign returns the character of a node, which it counts.
func (m *nodeMap) sign(n *control.NodeState) rune {
	state := State(n)
	for _, s := range stateSigns {
		if s.state == state {
			m.states[state] = append(m.states[state], n.Node)
			return s.sign
		}
	}
	var jobs []uint32
	for _, core := range n.Cores {
		if core.Job != 0 && !slices.Contains(jobs, core.Job) {
			jobs = append(jobs, core.Job)
		}
	}
	switch len(jobs) {
	case 0:
		m.idle++
		return '.'
	case 1:
		i := slices.Index(m.jobs, jobs[0])
		if i < 0 {
			i, m.jobs = len(m.jobs), append(m.jobs, jobs[0])
		}
		if i < len(jobSigns) {
			return rune(jobSigns[i])
		}
	}
	m.crowded = append(m.crowded, n.Node)
	return crowd
}

// explained returns what the characters on the map mean.
func (m *nodeMap) explained() (lines []string) {
	line := fmt.Sprintf(". idle: %d of %d nodes", m.idle, len(m.signs))
	if len(m.crowded) > 0 {
		line += fmt.Sprintf("; %c several jobs, or one without a letter: %s", crowd, nodeset.Ranges(m.crowded))
	}
	lines = append(lines, line)
	if len(m.jobs) > 0 {
		var named []string
		for i, job := range m.jobs[:min(len(m.jobs), len(jobSigns))] {
			named = append(named, fmt.Sprintf("%c %d", jobSigns[i], job))
		}
		lines = append(lines, "jobs: "+strings.Join(named, ", "))
	}
	var out []string
	for _, s := range stateSigns {
		if of := m.states[s.state]; len(of) > 0 {
			out = append(out, fmt.Sprintf("%c %s: %s", s.sign, s.state, nodeset.Ranges(of)))
		}
	}
	if len(out) > 0 {
		lines = append(lines, strings.Join(out, "; "))
	}
	return lines
}
