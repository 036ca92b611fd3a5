package observe

import (
	"errors"
	"strings"
	"testing"
	"time"

	"margay/cluster/rates"
	"margay/tools/margay/command"
	"margay/tools/margay/show"
)

// busy is a machine of one core with one rank.
var busy = &rates.View{Cores: []rates.Core{{Node: 12, Core: 1, Interrupts: 3336, Turns: 46, Ranks: []rates.Rank{
	{Job: 10, Rank: 100, PID: 12345, CPU: 69.3, Voluntary: 10, Involuntary: 747, Sent: 123456, Arrived: 123456, Why: "has the core: extension 1 (weighted)"},
}}}}

// A terminal of 80 columns has the pid and why a rank has its core, and those columns that are
// sorted by.
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
		if test.width >= 80 && show.Widest(lines) > test.width {
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

// A core with a rank of another user is not free, and shows no figures of it.
func TestTopHidden(t *testing.T) {
	lines := coreLines(&rates.View{Cores: []rates.Core{{Core: 1, Ranks: []rates.Rank{{Job: 2, Hidden: true, Why: "of another user"}}}}}, 0, rates.ByCore)
	if got := strings.Join(strings.Fields(lines[1]), " "); got != "node0 1 0 0 2.0 - - - - - - of another user" {
		t.Errorf("%q", got)
	}
}

// Keys of top: arrows and letters scroll, ? shows what all of them do.
func TestTopKeys(t *testing.T) {
	x := &topLoop{commands: commands{&command.App{Machine: "m"}}, order: rates.ByCore, view: busy, interval: time.Second}
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

// Each node with an error takes a line of the screen. The last line shows the error when no node
// answers.
func TestTopTrouble(t *testing.T) {
	x := &topLoop{commands: commands{&command.App{Machine: "m"}}, order: rates.ByCore, view: &rates.View{Trouble: "node1: it is silent\nnode2: it was killed"}}
	lines, _ := x.content(80)
	if last := lines[len(lines)-2:]; last[0] != "node1: it is silent" || last[1] != "node2: it was killed" {
		t.Errorf("the last lines are %q", last)
	}
	x.trouble = errors.New("node1: it does not answer\nnode2: it does not answer")
	if _, status := x.content(80); status != "node1: it does not answer" {
		t.Errorf("status %q", status)
	}
}
