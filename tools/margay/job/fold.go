package job

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"margay/cluster/ledger"
	"margay/internal/nodeset"
	"margay/tools/margay/show"
)

// entry is a line of margay history: a job, or the tasks of an array.
type entry struct {
	ledger.Record          // of tasks: their sum, with the worst state
	tasks         []uint32 // in ascending order; none: it is a single job
}

// arrayKey identifies an array in several histories.
type arrayKey struct {
	machine, run string
	array        uint32
}

func keyOf(r *ledger.Record) arrayKey { return arrayKey{r.Machine, r.Run, r.Array} }

// fold makes one entry of the tasks of each array, in the place of the last one.
func fold(records []*ledger.Record) (entries []*entry) {
	arrays := make(map[arrayKey]*folding)
	for _, r := range slices.Backward(records) {
		if r.Task == nil {
			entries = append(entries, &entry{Record: *r})
			continue
		}
		f := arrays[keyOf(r)]
		if f == nil {
			f = &folding{entry: &entry{Record: *r}, nodes: make(map[string]bool), seen: make(map[uint32]bool)}
			f.entry.Failed, f.entry.Job = 0, r.Array
			f.entry.Usage = ledger.Usage{}
			arrays[keyOf(r)] = f
			entries = append(entries, f.entry)
		}
		f.add(r)
	}
	for _, f := range arrays {
		f.finish()
	}
	slices.Reverse(entries)
	return entries
}

// folding is an array whose tasks are being added up.
type folding struct {
	entry *entry
	nodes map[string]bool // the sets of nodes that tasks had
	seen  map[uint32]bool // tasks
}

// add adds the record of a task. Records come from the newest to the oldest: a task has older ones
// if its launch was spoilt and repeated, and they do not count.
func (f *folding) add(r *ledger.Record) {
	e := f.entry
	if f.seen[*r.Task] {
		return
	}
	f.seen[*r.Task] = true
	e.tasks = append(e.tasks, *r.Task)
	f.nodes[r.Nodes] = true
	if r.Submitted.Before(e.Submitted) {
		e.Submitted = r.Submitted
	}
	if r.Started.Before(e.Started) {
		e.Started = r.Started
	}
	if r.Ended.After(e.Ended) {
		e.Ended = r.Ended
	}
	e.Usage.UserNs += r.Usage.UserNs
	e.Usage.SystemNs += r.Usage.SystemNs
	if r.State == ledger.Completed {
		return
	}
	if e.Failed++; e.State == ledger.Completed || r.Status >= e.Status {
		e.State, e.Status, e.Reason, e.Ends = r.State, r.Status, r.Reason, r.Ends
	}
}

func (f *folding) finish() {
	slices.Sort(f.entry.tasks)
	var nodes []uint32
	for set := range f.nodes {
		some, _ := nodeset.Parse(set) // unreadable sets are left out
		nodes = append(nodes, some...)
	}
	slices.Sort(nodes)
	f.entry.Nodes = nodeset.Ranges(slices.Compact(nodes))
}

// mostTasks bounds the list of tasks in a line, in bytes.
const mostTasks = 24

// number is the number of the job. An array has its tasks beside it: 12_[0-99]. The job of a task
// has its array and its number there: 19 (12_7).
func (e *entry) number() string {
	switch {
	case e.Task == nil:
		return fmt.Sprint(e.Job)
	case len(e.tasks) == 0:
		return fmt.Sprintf("%d (%d_%d)", e.Job, e.Array, *e.Task)
	}
	tasks := nodeset.Ranges(e.tasks)
	if len(tasks) > mostTasks {
		tasks = tasks[:max(0, strings.LastIndexByte(tasks[:mostTasks], ','))] + ",..."
	}
	return fmt.Sprintf("%d_[%s]", e.Array, tasks)
}

// state is pastState, with the number of the tasks that have not succeeded.
func (e *entry) state() show.State {
	s := pastState(&e.Record)
	if len(e.tasks) > 0 && e.Failed > 0 {
		s.Text = fmt.Sprintf("%d of %d %s", e.Failed, len(e.tasks), s.Text)
	}
	return s
}

// unfolded makes an entry of each record.
func unfolded(records []*ledger.Record) (entries []*entry) {
	for _, r := range records {
		entries = append(entries, &entry{Record: *r})
	}
	return entries
}

// last keeps the last entries.
func last(entries []*entry, n int) []*entry {
	return entries[max(0, len(entries)-cmp.Or(n, len(entries))):]
}
