package launch

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"margay/cluster/control"
	"margay/internal/nodeset"
)

// summary counts the ends of an array's tasks.
type summary struct {
	ok, failed int
	status     int                 // the highest
	groups     map[string][]uint32 // tasks that have failed, by how
	unstarted  []uint32
	lost       []uint32 // tasks whose end is not known
}

func newSummary() *summary { return &summary{groups: make(map[string][]uint32)} }

// mostGroups bounds the ways of failing that a summary names; the others are one group.
const mostGroups = 10

// add counts the end of a task.
func (s *summary) add(end TaskEnd, m *control.JobState) {
	if end.Status == 0 {
		s.ok++
		return
	}
	s.failed++
	s.status = max(s.status, end.Status)
	how := howFailed(end, m)
	if s.groups[how] == nil && len(s.groups) >= mostGroups {
		how = "failed in other ways"
	}
	s.groups[how] = append(s.groups[how], end.Task)
}

// howFailed says how a task has failed, in words that are the same for tasks that fail alike.
func howFailed(end TaskEnd, m *control.JobState) string {
	if first := int(m.GetFirstFailed()); first >= 0 && first < len(m.GetRanks()) {
		return Describe(m.Ranks[first].Exit)
	}
	return fmt.Sprintf("exited with status %d", end.Status)
}

// mostListed bounds the text of a list of tasks, in bytes.
const mostListed = 200

// listed writes tasks as ranges.
func listed(tasks []uint32) string {
	tasks = slices.Clone(tasks)
	slices.Sort(tasks)
	text := nodeset.Ranges(tasks)
	if len(text) > mostListed {
		end := strings.LastIndexByte(text[:mostListed], ',')
		text = text[:max(end, 0)] + ",..."
	}
	return text
}

// text sums the array up in a line: 9,998 ok, 2 failed: 17,4002 exited with status 1.
func (s *summary) text() string {
	parts := []string{grouped(s.ok) + " ok"}
	if s.failed > 0 {
		type group struct {
			how   string
			tasks []uint32
		}
		var groups []group
		for how, tasks := range s.groups {
			groups = append(groups, group{how, tasks})
		}
		slices.SortFunc(groups, func(a, b group) int { return cmp.Or(len(b.tasks)-len(a.tasks), cmp.Compare(a.how, b.how)) })
		var texts []string
		for _, g := range groups {
			how := g.how
			if len(g.tasks) > 1 && strings.HasPrefix(how, "was ") {
				how = "were " + strings.TrimPrefix(how, "was ")
			}
			texts = append(texts, listed(g.tasks)+" "+how)
		}
		parts = append(parts, grouped(s.failed)+" failed: "+strings.Join(texts, "; "))
	}
	for _, list := range []struct {
		what  string
		tasks []uint32
	}{{"lost", s.lost}, {"not started", s.unstarted}} {
		if len(list.tasks) > 0 {
			parts = append(parts, fmt.Sprintf("%s %s: %s", grouped(len(list.tasks)), list.what, listed(list.tasks)))
		}
	}
	return strings.Join(parts, ", ")
}

// grouped writes a number with a comma before each three digits.
func grouped(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// arrayProgress is a line on a terminal that says how far an array has come.
type arrayProgress struct {
	status  *Status
	started time.Time
	shown   bool
}

// show writes the line, once the array takes a while.
func (p *arrayProgress) show(s *summary, total, running int) {
	if !p.status.Terminal {
		return
	}
	if p.started.IsZero() {
		p.started = time.Now()
	}
	if time.Since(p.started) < progressDelay {
		return
	}
	p.shown = true
	text := fmt.Sprintf("%s of %s ok, %s running", grouped(s.ok), grouped(total), grouped(running))
	if s.failed > 0 {
		text += fmt.Sprintf(", %s failed", grouped(s.failed))
	}
	p.status.mu.Lock()
	defer p.status.mu.Unlock()
	p.status.progress(fmt.Sprintf("\r\x1b[Kmargay: %s", text))
}

// clear removes the line, before something else is written.
func (p *arrayProgress) clear() {
	if p.shown {
		p.shown = false
		p.status.mu.Lock()
		defer p.status.mu.Unlock()
		p.status.progress("\r\x1b[K")
	}
}

// nodesOf lists the nodes of places: 0-3,10.
func nodesOf(places []*control.Place) string {
	var nodes []uint32
	for _, p := range places {
		nodes = append(nodes, p.Node)
	}
	slices.Sort(nodes)
	return nodeset.Ranges(slices.Compact(nodes))
}
