package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/rates"
)

func TestFold(t *testing.T) {
	for _, test := range []struct {
		line          string
		width, indent int
		want          string
	}{
		{"short", 40, 4, "short"},
		{"node0-3 lacks cgroups: nothing adds up what ranks use", 30, 4, "node0-3 lacks cgroups: nothing\n    adds up what ranks use"},
		{"NAME  one two three four five six seven", 27, 6, "NAME  one two three four\n      five six seven"},
		{"NAME  " + strings.Repeat("x", 30), 30, 6, "NAME  " + strings.Repeat("x", 24) + "\n      xxxxxx"},
		{"no room for an indent like this one, which is folded at four", 30, 25, "no room for an indent like\n    this one, which is folded\n    at four"},
		{"a terminal that is too narrow for anything", 10, 4, "a terminal that is too narrow for anything"},
	} {
		if got := fold(test.line, test.width, test.indent); got != test.want {
			t.Errorf("%q in %d columns: %q", test.line, test.width, got)
		}
	}
}

// shown runs a command on a terminal of 80 columns and returns what that shows.
func shown(t *testing.T, args ...string) string {
	t.Helper()
	master, slave := openTerminal(t, 80, 24)
	got := make(chan string)
	go func() {
		var all strings.Builder
		buf := make([]byte, 4096)
		for !strings.Contains(all.String(), "\x04") {
			n, err := master.Read(buf)
			if err != nil {
				break
			}
			all.Write(buf[:n])
		}
		got <- strings.TrimSuffix(strings.ReplaceAll(all.String(), "\r\n", "\n"), "\x04")
	}()
	var stderr bytes.Buffer
	if status := run(context.Background(), args, strings.NewReader(""), slave, &stderr); status != 0 {
		t.Errorf("%v: status %d, %s", args, status, stderr.String())
	}
	if _, err := slave.WriteString("\x04"); err != nil {
		t.Fatal(err)
	}
	select {
	case text := <-got:
		return text
	case <-time.After(patience):
		t.Fatal("the terminal shows no end")
		return ""
	}
}

// margay top --once leaves out columns on a terminal that is too narrow for them.
func TestTopOnceFitsTerminal(t *testing.T) {
	var looked atomic.Uint64
	playMachine(t, "m", func(c *control.Conn, f *control.Frame) {
		looks := looked.Add(1)
		sample := &control.NodeSample{TimeNs: int64(looks) * 1e9, Cores: []*control.CoreSample{{Core: 1, Interrupts: looks * 1e9}}}
		for i := range uint32(3) {
			sample.Ranks = append(sample.Ranks, &control.RankSample{Job: 123456, Rank: i, Core: 1, Pid: 1234567, Why: "weighted: its turn"})
		}
		c.Answer(f, &control.Samples{Nodes: []*control.NodeSample{sample}}, nil)
	})
	text := shown(t, "top", "--once", "--interval=200ms")
	if n := widest(strings.Split(text, "\n")); n > 80 || !strings.Contains(text, "CPU%") {
		t.Errorf("%d columns:\n%s", n, text)
	}
	if _, stdout, _ := margay("", "top", "--once", "--interval=200ms"); widest(strings.Split(stdout, "\n")) <= 80 {
		t.Errorf("elsewhere:\n%s", stdout)
	}
}

// What commands print fits a terminal, and is not folded elsewhere.
func TestFitsTerminal(t *testing.T) {
	var nodes control.Nodes
	for i := range uint32(4) {
		nodes.Nodes = append(nodes.Nodes, &control.NodeState{Node: i, Health: control.NodeHealth_NODE_UP, Info: &control.NodeInfo{
			Memory: 512 << 20, Profile: "shared", Scheduler: "priority", Kernel: "6.18.5-cloud-amd64", AllCores: i == 2,
			Lacks: []string{"control groups: " + strings.Repeat("nothing adds up what ranks use ", 6)},
		}})
	}
	noise := control.NoiseReport{Cores: []*control.CoreNoise{{Core: 1, Seconds: 1}}}
	for range 6 {
		noise.Cores[0].Rows = append(noise.Cores[0].Rows, &control.InterruptRow{Name: "LOC Local timer interrupts", Count: 100})
	}
	playMachine(t, "m", func(c *control.Conn, f *control.Frame) {
		var answer proto.Message = &nodes
		if f.GetNoise() != nil {
			answer = &noise
		}
		c.Answer(f, answer, nil)
	})
	for _, args := range [][]string{{"nodes"}, {"nodes", "--noise=1s"}, {"ext", "slots"}} {
		folded := 0
		for line := range strings.Lines(shown(t, args...)) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("%v: a line of %d columns: %s", args, n, line)
			}
			folded++
		}
		_, stdout, _ := margay("", args...)
		if lines := strings.Count(stdout, "\n"); lines >= folded || widest(strings.Split(stdout, "\n")) <= 80 {
			t.Errorf("%v: %d lines on a terminal, elsewhere %d:\n%s", args, folded, lines, stdout)
		}
	}
	if _, stdout, _ := margay("", "nodes"); !strings.Contains(stdout, "\nnode0-3 lack control groups") || !strings.Contains(stdout, "\nnode2 computes on core 0") {
		t.Errorf("nodes:\n%s", stdout)
	}
}

// busy is a machine of one core with one rank.
var busy = &rates.View{Cores: []rates.Core{{Node: 12, Core: 1, Interrupts: 3336, Turns: 46, Ranks: []rates.Rank{
	{Job: 10, Rank: 100, PID: 12345, CPU: 69.3, Voluntary: 10, Involuntary: 747, Sent: 123456, Arrived: 123456, Why: "has the core: extension 1 (weighted)"},
}}}}

// A terminal of 80 columns has the pid and why a rank has its core, and those columns that are sorted by.
func TestTopColumns(t *testing.T) {
	for _, test := range []struct {
		width         int
		order         rates.Order
		with, without string
	}{
		{0, rates.ByCore, "NODE CORE INTR/S TURNS/S RANK CPU% SWITCH/S LOST/S SENT/S ARRIVED/S PID WHY", ""},
		{80, rates.ByCore, "NODE CORE RANK CPU% PID WHY", "SENT/S ARRIVED/S TURNS/S"},
		{100, rates.ByMessages, "SENT/S ARRIVED/S PID WHY", "TURNS/S"},
		{40, rates.ByCore, "NODE CORE RANK CPU% PID WHY", "LOST/S INTR/S"},
	} {
		lines := coreLines(busy, test.width, test.order)
		if test.width >= 80 && widest(lines) > test.width {
			t.Errorf("%d columns: %q", test.width, lines)
		}
		for _, name := range strings.Fields(test.with) {
			if !strings.Contains(lines[0], name) {
				t.Errorf("%d columns by %s: no %s in %q", test.width, test.order, name, lines[0])
			}
		}
		for _, name := range strings.Fields(test.without) {
			if strings.Contains(lines[0], name) {
				t.Errorf("%d columns by %s: %s in %q", test.width, test.order, name, lines[0])
			}
		}
	}
}

// Keys of top: arrows and letters scroll, ? shows what all of them do.
func TestTopKeys(t *testing.T) {
	x := &topLoop{app: &app{machine: "m"}, order: rates.ByCore, view: busy, interval: time.Second}
	press := func(keys string) {
		for _, key := range []byte(keys) {
			x.key(key)
		}
	}
	press("\x1b[C\x1b[C\x1bOD") // right, right, left
	if x.left != sideways || x.top != 0 {
		t.Errorf("after arrow keys: %d to the side, %d down", x.left, x.top)
	}
	press("hhjj\x1b[A")
	if x.left != 0 || x.top != 1 {
		t.Errorf("after letters: %d to the side, %d down", x.left, x.top)
	}
	press("cw")
	if x.order != rates.ByCPU || !x.wide || x.top != 0 {
		t.Errorf("%+v", x)
	}
	content := func() (string, string) {
		lines, status := x.content(80)
		return strings.Join(lines, "\n"), status
	}
	lines, _ := content()
	if !strings.Contains(lines, "ARRIVED/S") || strings.Contains(lines, "scroll sideways") {
		t.Errorf("all columns: %s", lines)
	}
	press("?")
	if lines, status := content(); !strings.Contains(lines, "scroll sideways") || !strings.Contains(status, "? help") {
		t.Errorf("the help: %s, %s", lines, status)
	}
}

// What is wrong with several nodes takes a line of the screen for each, and one at the bottom when none answers.
func TestTopTrouble(t *testing.T) {
	x := &topLoop{app: &app{machine: "m"}, order: rates.ByCore, view: &rates.View{Trouble: "node1: it is silent\nnode2: it was killed"}}
	lines, _ := x.content(80)
	if last := lines[len(lines)-2:]; last[0] != "node1: it is silent" || last[1] != "node2: it was killed" {
		t.Errorf("the last lines are %q", last)
	}
	x.trouble = errors.New("node1: it does not answer\nnode2: it does not answer")
	if _, status := x.content(80); status != "node1: it does not answer" {
		t.Errorf("status %q", status)
	}
}
