package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// logged are the records that margay node dmesg --json has printed, whole lines of it.
func logged(t *testing.T, text string) (records []kernelRecord) {
	t.Helper()
	whole := text[:strings.LastIndex(text, "\n")+1]
	for d := json.NewDecoder(strings.NewReader(whole)); ; {
		var r kernelRecord
		switch err := d.Decode(&r); err {
		case nil:
			records = append(records, r)
		case io.EOF:
			return records
		default:
			t.Fatalf("%v: %s", err, text)
		}
	}
}

type kernelRecord struct {
	Node, Sequence, Missing uint64
	Facility, Level, Text   string
}

// The log of a node's kernel has every record from its boot on, each once, also records that are
// added while it is followed, and after a restart of the node kernel.
func TestKernelLog(t *testing.T) {
	m := use(t, "qemu")
	r := m.margay("node", "dmesg", "1", "9")
	if r.code != 125 || !strings.HasPrefix(r.stdout, "[node1] ") || r.stderr != "margay: the machine has no node9: its nodes are node0-1 (margay nodes)\n" {
		t.Error(r)
	}
	r = m.margay("node", "dmesg", "node[0-1]")
	for node := range 2 {
		if lines := regexp.MustCompile(fmt.Sprintf(`(?m)^\[node%d\] \[ *\d+\.\d{6}\] \S`, node)).FindAllString(r.stdout, -1); r.code != 0 || len(lines) < 100 {
			t.Errorf("%d records of node%d: %v", len(lines), node, r)
		}
	}
	before := logged(t, m.margay("node", "dmesg", "1", "--json").stdout)
	// After other tests, Linux may have overwritten its first records.
	if len(before) < 100 || before[0].Sequence != 0 || before[0].Missing == 0 && !strings.HasPrefix(before[0].Text, "Linux version ") {
		t.Fatalf("%d records: %v", len(before), before)
	}
	c := m.start("node", "dmesg", "1", "--follow", "--json")
	follows := func() []kernelRecord { return logged(t, c.stdout.String()) }
	last := before[len(before)-1].Sequence
	// One kill has several records, so each program has a name of its own.
	eats := func(name string) {
		t.Helper()
		program := filepath.Join(scratch, name)
		if err := os.Link(probe(), program); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(program)
		m.run(137, "-n", "1", "--nodelist", "node1", "--memory", "64", program, "eat")
		eventually(t, "a record of the end of "+name, func() bool {
			return slices.ContainsFunc(follows(), func(r kernelRecord) bool {
				return r.Sequence > last && strings.HasPrefix(r.Text, "Memory cgroup out of memory: Killed process ") && strings.Contains(r.Text, " ("+name+") ")
			})
		}, func() string { return c.stdout.String() + c.stderr.String() })
	}
	eats("glutton")
	if r := m.margay("machine", "restart", "1"); r.code != 0 {
		t.Fatal(r)
	}
	eats("gourmand")
	c.signal(unix.SIGINT)
	if r := c.wait(); r.code != 128+int(unix.SIGINT) {
		t.Errorf("status %d, %s", r.code, r.stderr)
	}
	next := uint64(0)
	for i, r := range follows() {
		if r.Sequence != next || r.Node != 1 || r.Missing != 0 && i > 0 {
			t.Fatalf("record %d is %+v, not %d", i, r, next)
		}
		next += max(1, r.Missing)
	}
	if r := m.margay("node", "dmesg", "node1", "--level", "err+"); !strings.Contains(r.stdout, "] Memory cgroup out of memory: ") || strings.Contains(r.stdout, "Linux version") {
		t.Error(r)
	}
}

// Hosted nodes have no kernel of their own.
func TestNoKernelLog(t *testing.T) {
	m := use(t, "hosted")
	r := m.margay("node", "dmesg", "0", "2")
	var want strings.Builder
	for _, node := range []int{0, 2} {
		fmt.Fprintf(&want, "margay: node%d: it is a hosted node, which has the kernel of its host: run dmesg there\n", node)
	}
	if r.code != 125 || r.stdout != "" || r.stderr != want.String() {
		t.Error(r)
	}
}
