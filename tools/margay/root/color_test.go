package root_test

import (
	"strings"
	"testing"

	"margay/cluster/control"
	"margay/tools/margay/margaytest"
)

// States have colors on a terminal, and nowhere else unless they are asked for.
func TestColorsOfStates(t *testing.T) {
	margaytest.Play(t, "m", func(c *control.Conn, f *control.Frame) {
		if f.GetListNodes() != nil {
			c.Answer(f, &control.Nodes{Nodes: []*control.NodeState{
				{Node: 0, Health: control.NodeHealth_NODE_UP}, {Node: 1, Health: control.NodeHealth_NODE_LATE}, {Node: 2, Health: control.NodeHealth_NODE_DEAD},
			}}, nil)
			return
		}
		c.Answer(f, &control.Jobs{Jobs: []*control.JobSummary{
			{Job: 1, Phase: control.JobPhase_JOB_RUNNING, RankStates: []*control.RankState{
				{Rank: 0}, {Rank: 1, Ended: true, Exit: new(control.ExitStatus)}, {Rank: 2, Ended: true, Exit: &control.ExitStatus{Signal: 9}},
			}},
			{Job: 2, Phase: control.JobPhase_JOB_PREPARED}, {Job: 3, Phase: control.JobPhase_JOB_DONE}, {Job: 4, Phase: control.JobPhase_JOB_DONE, ExitCode: 3},
		}}, nil)
	})
	const green, yellow, red, faint, end = "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[2m", "\x1b[m"
	for line, want := range map[string][]string{
		"nodes":        {green + "up" + end, yellow + "late" + end, red + "dead" + end},
		"ps":           {green + "running" + end, yellow + "starting" + end, faint + "ended (0)" + end, red + "ended (3)" + end},
		"ps 1":         {green + "running" + end, faint + "exited with status 0" + end, red + "was killed by SIGKILL" + end},
		"machine list": {green + "up" + end},
	} {
		args := strings.Fields(line)
		terminal := func(term, no string, flags ...string) string {
			t.Helper()
			t.Setenv("TERM", term)
			t.Setenv("NO_COLOR", no)
			return margaytest.Shown(t, append(args, flags...)...)
		}
		elsewhere := func(flags ...string) string {
			t.Setenv("TERM", "xterm")
			t.Setenv("NO_COLOR", "")
			_, stdout, stderr := margaytest.Margay("", append(args, flags...)...)
			return stdout + stderr
		}
		for what, text := range map[string]string{
			"terminal": terminal("xterm", ""), "NO_COLOR and always": terminal("xterm", "1", "--color=always"), "always": elsewhere("--color=always"),
		} {
			for _, part := range want {
				if !strings.Contains(text, part) {
					t.Errorf("%s, %s: no %q in\n%q", line, what, part, text)
				}
			}
		}
		for what, text := range map[string]string{
			"NO_COLOR": terminal("xterm", "1"), "dumb": terminal("dumb", ""), "no TERM": terminal("", ""), "never": terminal("xterm", "", "--color=never"),
			"no terminal": elsewhere(), "JSON": elsewhere("--json", "--color=always"),
		} {
			if strings.Contains(text, "\x1b") {
				t.Errorf("%s, %s: there is a color in\n%q", line, what, text)
			}
		}
	}
	status, _, stderr := margaytest.Margay("", "ps", "--color=red")
	margaytest.Wants(t, status, 125, stderr, "margay: ps: --color red: it must be auto, always or never\n")
}
