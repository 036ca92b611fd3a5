package array

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Most bounds the tasks of an array, and their numbers.
const Most = 1 << 22

// Set is the tasks of an array as a user has named them.
type Set struct {
	Tasks []uint32 // in ascending order, each once
	Limit int      // how many run at a time; 0: any number
	Step  uint32   // between the tasks of the only range; 1 if there are several
}

// Parse reads a set of tasks as Slurm does: numbers and ranges such as 0-9999, 1,3,8-10 and 0-20:5,
// with the number of tasks that run at a time after a %: 0-9999%200.
func Parse(text string) (s Set, err error) {
	list, limit, limited := strings.Cut(text, "%")
	if limited {
		n, err := number(limit)
		if err != nil || n == 0 {
			return Set{}, fmt.Errorf("%q after %%: it is the number of tasks that run at a time, at least 1", limit)
		}
		s.Limit = int(n)
	}
	if list == "" {
		return Set{}, errors.New("it names no task: it is a list such as 0-9999, 1,3,8-10 or 0-20:5")
	}
	s.Step = 1
	ranges := strings.Split(list, ",")
	for _, item := range ranges {
		first, last, step, err := parseRange(item)
		if err != nil {
			return Set{}, err
		}
		if int((last-first)/step)+len(s.Tasks) >= Most {
			return Set{}, fmt.Errorf("%s: there are more than %d tasks", item, Most)
		}
		for task := first; task <= last; task += step {
			s.Tasks = append(s.Tasks, task)
		}
		if len(ranges) == 1 {
			s.Step = step
		}
	}
	slices.Sort(s.Tasks)
	s.Tasks = slices.Compact(s.Tasks)
	return s, nil
}

// parseRange reads a number, a range, or a range with a step.
func parseRange(text string) (first, last, step uint32, err error) {
	bounds, by, stepped := strings.Cut(text, ":")
	from, to, isRange := strings.Cut(bounds, "-")
	if first, err = number(from); err != nil {
		return 0, 0, 0, err
	}
	if last, step = first, 1; isRange {
		if last, err = number(to); err != nil {
			return 0, 0, 0, err
		}
	}
	switch {
	case last < first:
		return 0, 0, 0, fmt.Errorf("the range %s runs backwards", text)
	case stepped && !isRange:
		return 0, 0, 0, fmt.Errorf("%s: a step is for a range, such as 0-20:5", text)
	case stepped:
		if step, err = number(by); err != nil || step == 0 {
			return 0, 0, 0, fmt.Errorf("%s: the step is a number, at least 1", text)
		}
	}
	return first, last, step, nil
}

func number(text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n >= Most {
		return 0, fmt.Errorf("%q is not the number of a task, which is 0 to %d", text, Most-1)
	}
	return uint32(n), nil
}
