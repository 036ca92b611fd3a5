package launch

import (
	"testing"

	"margay/cluster/control"
)

func TestUnkept(t *testing.T) {
	cases := []struct {
		name  string
		nodes []*control.Unkept
		want  string
	}{
		{"none", nil, ""},
		{"one", []*control.Unkept{{Files: 1, Names: []string{"a"}}}, "1 file written by ranks was not kept: a"},
		{"two nodes", []*control.Unkept{{Files: 2, Names: []string{"a", "b"}}, {Node: 3, Files: 1, Names: []string{"a"}}},
			"3 files written by ranks were not kept: a (on 2 nodes), b"},
		{"many", []*control.Unkept{{Files: 9, Names: []string{"1", "2", "3", "4", "5"}}, {Node: 1, Files: 1, Names: []string{"6"}, More: true}},
			"at least 10 files written by ranks were not kept: 1, 2, 3, 4, 5 and 5 more"},
		{"hostile node", []*control.Unkept{{Files: 1, Names: []string{"\x1b[2J"}}}, `1 file written by ranks was not kept: "\x1b[2J"`},
	}
	for _, k := range cases {
		t.Run(k.name, func(t *testing.T) {
			if got := Unkept(k.nodes); got != k.want {
				t.Errorf("%q", got)
			}
		})
	}
}
