package bench

import (
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	for _, test := range []struct {
		text string
		want process
		ok   bool
	}{
		{"12 (exe) S 7 12 12 0 -1 4194304 1 2 3 4 250 50 9 9 20", process{12, 7, 3 * time.Second}, true},
		{"12 (a) R 1 (b) S 7 12 12 0 -1 4194304 1 2 3 4 0 1", process{12, 7, 10 * time.Millisecond}, true},
		{"12 (exe) S 7 12 12 0 -1 4194304 1 2 3 4 250", process{}, false},
		{"12 (exe) S x 12 12 0 -1 4194304 1 2 3 4 250 50", process{}, false},
		{"12 exe S 7 12 12 0 -1 4194304 1 2 3 4 250 50", process{}, false},
		{"", process{}, false},
	} {
		if p, ok := parseStat(test.text); p != test.want || ok != test.ok {
			t.Errorf("%q: %+v, %t", test.text, p, ok)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add("12 (a) R 1 (b) S 7 12 12 0 -1 4194304 1 2 3 4 0 1")
	f.Fuzz(func(_ *testing.T, text string) { parseStat(text) })
}

// A family has the processes below its roots and no others, also if processes form a circle.
func TestFamily(t *testing.T) {
	all := []process{{pid: 1}, {pid: 2, parent: 1}, {pid: 3, parent: 2}, {pid: 4, parent: 3}, {pid: 5, parent: 1}, {pid: 6, parent: 7}, {pid: 7, parent: 6}}
	for _, test := range []struct{ roots, want []int }{{[]int{2}, []int{2, 3, 4}}, {[]int{3, 5}, []int{3, 4, 5}}, {[]int{2, 4}, []int{2, 3, 4}}, {[]int{6}, []int{6, 7}}, {[]int{9}, nil}} {
		var got []int
		for _, p := range family(all, test.roots...) {
			got = append(got, p.pid)
		}
		slices.Sort(got)
		if !slices.Equal(got, test.want) {
			t.Errorf("%v: %v", test.roots, got)
		}
	}
}

// A process that this one has started is among its family.
func TestOwnFamily(t *testing.T) {
	cmd := exec.Command("cat")
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	all, err := allProcesses()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(family(all, os.Getpid()), func(p process) bool { return p.pid == cmd.Process.Pid && p.parent == os.Getpid() }) {
		t.Errorf("process %d is not below %d", cmd.Process.Pid, os.Getpid())
	}
}
