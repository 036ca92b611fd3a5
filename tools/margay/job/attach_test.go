package job

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// A debugger gets all ranks, or none.
func TestDebuggerTable(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	programs := []string{"/a", "/a", "/b"}
	zero, one, two := heldRank{0, 1, 43, 0}, heldRank{1, 0, 44, 0}, heldRank{2, 0, 45, 4711}
	for name, c := range map[string]struct {
		ranks []heldRank
		want  string
	}{
		"all":            {[]heldRank{two, one, zero}, fmt.Sprintf("[{node1 /a 43} {node0 /a 44} {%s /b 4711}] <nil>", host)},
		"none":           {nil, "[] the process of rank 0 is not known: its node has not answered"},
		"one is missing": {[]heldRank{zero, two}, "[] the process of rank 1 is not known: its node has not answered"},
		"no process":     {[]heldRank{zero, {1, 0, 0, 0}, two}, "[] the process of rank 1 is not known: its node has not answered"},
		"one too many":   {[]heldRank{zero, one, two, {3, 2, 46, 0}}, "[] node2 reports rank 3 of 3"},
	} {
		table, err := debuggerTable(c.ranks, programs)
		if got := fmt.Sprint(table, " ", err); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// Ranks are found below the holder of their machine alone: other machines have jobs of the same
// number. Neither what a rank has started nor a process that has just ended is one.
func TestProcessesOf(t *testing.T) {
	proc := t.TempDir()
	add := func(pid, parent int, environ string) {
		dir := filepath.Join(proc, strconv.Itoa(pid))
		if err := errors.Join(
			os.Mkdir(dir, 0o700),
			os.WriteFile(filepath.Join(dir, "status"), fmt.Appendf(nil, "Name:\tx\nPPid:\t%d\n", parent), 0o600),
			os.WriteFile(filepath.Join(dir, "environ"), []byte(environ), 0o600),
		); err != nil {
			t.Fatal(err)
		}
	}
	rank := func(job, rank int) string {
		return fmt.Sprintf("A=1\x00MARGAY_JOB=%d\x00MARGAY_RANK=%d\x00", job, rank)
	}
	add(100, 1, "")      // the holder
	add(110, 100, "A=1") // a node
	add(120, 110, "A=1") // an init
	add(121, 120, rank(1, 0))
	add(122, 120, rank(1, 1))
	add(123, 122, rank(1, 1)) // started by rank 1
	add(124, 120, rank(2, 0)) // of another job
	add(125, 120, "MARGAY_JOB=1\x00MARGAY_RANK=x\x00")
	add(126, 120, "MARGAY_RANK=3\x00")
	add(200, 1, "") // another machine
	add(201, 200, rank(1, 0))
	add(202, 999, rank(1, 2))                                           // its parent has ended
	if err := os.Mkdir(filepath.Join(proc, "130"), 0o700); err != nil { // it has ended
		t.Fatal(err)
	}
	if got, want := processesOf(proc, 100, 1), map[uint32]int{0: 121, 1: 122}; !maps.Equal(got, want) {
		t.Errorf("the ranks are %v, want %v", got, want)
	}
}
