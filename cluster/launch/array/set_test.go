package array

import (
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Set{
		"7":             {Tasks: []uint32{7}, Step: 1},
		"0-3":           {Tasks: []uint32{0, 1, 2, 3}, Step: 1},
		"0-3%2":         {Tasks: []uint32{0, 1, 2, 3}, Step: 1, Limit: 2},
		"1,3,8-10":      {Tasks: []uint32{1, 3, 8, 9, 10}, Step: 1},
		"0-20:5":        {Tasks: []uint32{0, 5, 10, 15, 20}, Step: 5},
		"0-4:3,9":       {Tasks: []uint32{0, 3, 9}, Step: 1},
		"5,1-3,2,5%100": {Tasks: []uint32{1, 2, 3, 5}, Step: 1, Limit: 100},
		"4194303":       {Tasks: []uint32{4194303}, Step: 1},
	} {
		got, err := Parse(text)
		if err != nil || !slices.Equal(got.Tasks, want.Tasks) || got.Limit != want.Limit || got.Step != want.Step {
			t.Errorf("%q is %v, %v; it should be %v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"":                    "names no task",
		"%5":                  "names no task",
		"1,":                  `"" is not the number of a task`,
		"a":                   `"a" is not the number of a task`,
		"-1":                  `"" is not the number of a task`,
		"4194304":             "which is 0 to 4194303",
		"99999999999":         "which is 0 to 4194303",
		"3-1":                 "the range 3-1 runs backwards",
		"3:2":                 "a step is for a range",
		"0-9:0":               "the step is a number, at least 1",
		"0-9:x":               "the step is a number, at least 1",
		"0-9%0":               "at least 1",
		"0-9%":                "at least 1",
		"0-9%1%2":             "at least 1",
		"0-4194303,0":         "more than 4194304 tasks",
		"0-4194303,0-4194303": "more than 4194304 tasks",
	} {
		if got, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is %d tasks, %v; it should be refused with %q", text, len(got.Tasks), err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"0-9%2", "1,3,8-10", "0-20:5", "7", "0-4194303", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		if len(s.Tasks) == 0 || len(s.Tasks) > Most || s.Limit < 0 || s.Step == 0 {
			t.Errorf("%q: %d tasks, limit %d, step %d", text, len(s.Tasks), s.Limit, s.Step)
		}
		for i, task := range s.Tasks {
			if task >= Most || i > 0 && task <= s.Tasks[i-1] {
				t.Fatalf("%q: task %d", text, task)
			}
		}
	})
}
