package root_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/tools/margay/margaytest"
)

// answers is what the serve of a completion says.
func answers(question proto.Message) (proto.Message, error) {
	switch question.(type) {
	case *control.ListJobs:
		return &control.Jobs{Jobs: []*control.JobSummary{{Job: 5, Command: "./app", Ranks: 6, Allocation: true, Phase: control.JobPhase_JOB_RUNNING}, {Job: 6, Command: "./b", Phase: control.JobPhase_JOB_DONE, ExitCode: 1},
			{Job: 7, Command: "./c", Detached: true, Phase: control.JobPhase_JOB_DONE}, {Job: 8, Command: "./d", Detached: true, Phase: control.JobPhase_JOB_DONE, ExitCode: 2}}}, nil
	case *control.ListNodes:
		return &control.Nodes{Nodes: []*control.NodeState{{Node: 0, Health: control.NodeHealth_NODE_UP}, {Node: 1, Health: control.NodeHealth_NODE_DEAD},
			{Node: 2, Health: control.NodeHealth_NODE_UP, Drain: &control.Drain{State: control.DrainState_DRAIN_DRAINED}}}}, nil
	case *control.ListExtensions:
		return &control.Extensions{Extensions: []*control.ExtensionState{{Node: 1, Handle: 3, Name: "edf", Slot: "sched", State: "active"}, {Node: 1, Handle: 2, State: "removed"},
			{Node: control.Allocator, Handle: 7, Name: "pack", Slot: "place", State: "active"}}}, nil
	}
	return nil, nil
}

func TestCompletion(t *testing.T) {
	for line, want := range map[string]string{
		"kill|":                    "5\t./app, allocated",
		"backtrace|":               "5\t./app, allocated",
		"backtrace|5|1|":           "0|2|3|4|5",
		"run|--allocation|":        "5\t./app, allocated|none",
		"run|--mpi|":               "auto|pmi1|none",
		"run|--label=":             "rank|host|both",
		"history|--state|":         "completed|failed|killed|timeout|node-lost|down",
		"logs|":                    "7\t./c, ended (0)|8\t./d, ended (2)",
		"logs|7|":                  "",
		"logs|--remove|7|":         "8\t./d, ended (2)",
		"ps|":                      "5\t./app, allocated|6\t./b, ended (1)|7\t./c, ended (0)|8\t./d, ended (2)",
		"record|--job|":            "5\t./app, allocated",
		"machine|restart|":         "node0\tup|node1\tdead|node2\tdrained",
		"machine|console|node0|":   "",
		"machine|cores|--node|":    "node0\tup|node1\tdead|node2\tdrained",
		"node|drain|node0|":        "node1\tdead|node2\tdrained",
		"node|resume|":             "node2\tdrained",
		"ext|log|--node|":          "node0\tup|node1\tdead|node2\tdrained",
		"ext|remove|":              "1.3\tedf of sched|serve.7\tpack of place",
		"-m|":                      "m\thosted, 4 nodes, up",
		"machine|up|--substrate|":  "qemu|hosted|hosts|metal",
		"machine|up|--fabric|":     "auto|tcp|tcp-trusted|udp|udp-trusted",
		"machine|up|--profile|":    "isolated|ticking|sched",
		"machine|cores|--all|":     "on|off",
		"run|--stdin|":             "first|all|none",
		"run|-w|":                  "node0\tup|node1\tdead|node2\tdrained",
		"run|--exclude|":           "node0\tup|node1\tdead|node2\tdrained",
		"wait|5|":                  "6\t./b, ended (1)|7\t./c, ended (0)|8\t./d, ended (2)",
		"top|--sort|":              "core|cpu|messages|switches|interrupts",
		"nimble|run|--engine|":     "subroutine|direct|portable|linux|subroutine-calls",
		"ext|insert|--slot|":       "boot|timer|sched|message|packet|fault|exit|place",
		"bench|sched|--substrate|": "hosted|qemu|qemu-isolated",
		"help|ext|":                "insert\t|list\t|log\t|remove\t|slots\t|stats\t",
	} {
		_, stdout, _ := margaytest.Played(t, answers, append([]string{"__complete"}, strings.Split(line, "|")...)...)
		lines := strings.Split(strings.TrimSpace(stdout), "\n")
		got := strings.Join(lines[:len(lines)-1], "|")
		if strings.HasPrefix(line, "help") {
			for i, entry := range lines {
				name, _, _ := strings.Cut(entry, "\t")
				lines[i] = name + "\t"
			}
			got = strings.Join(lines[:len(lines)-1], "|")
		}
		if got != want {
			t.Errorf("%q: %q instead of %q", line, got, want)
		}
	}
	t.Setenv("MARGAY_DIR", t.TempDir())
	if status, stdout, _ := margaytest.Margay("", "__complete", "kill", ""); status != 0 || !strings.HasPrefix(stdout, ":") {
		t.Errorf("without a machine: status %d, %q", status, stdout)
	}
}

func TestVersion(t *testing.T) {
	status, stdout, _ := margaytest.Margay("", "version")
	margaytest.Wants(t, status, 0, stdout, "margay unknown", runtime.Version(), fmt.Sprintf("control protocol %d", control.Version))
	status, stdout, _ = margaytest.Margay("", "version", "--json")
	margaytest.Wants(t, status, 0, stdout, `"version": "unknown"`, `"go": "`+runtime.Version(), fmt.Sprintf(`"protocol": %d`, control.Version))
}

// A node is called node2 or 2 wherever one is named.
func TestNodeNames(t *testing.T) {
	for _, text := range []string{"node2", "2"} {
		for line, asked := range map[string]func(m proto.Message) bool{
			"ext list --node NODE":               func(m proto.Message) bool { return m.(*control.ListExtensions).Node == 2 },
			"ext log --node=NODE":                func(m proto.Message) bool { return m.(*control.ExtensionLog).Node == 2 },
			"ext remove NODE.7":                  func(m proto.Message) bool { return m.(*control.RemoveExtension).Node == 2 },
			"machine cores --all on --node NODE": func(m proto.Message) bool { return m.(*control.SetDuties).Node == 2 },
			"machine restart NODE":               func(m proto.Message) bool { return m.(*control.RestartKernel).Node == 2 },
			"nodes --noise 1s --node NODE":       func(m proto.Message) bool { return m.(*control.Noise).Node == 2 },
		} {
			line = strings.ReplaceAll(line, "NODE", text)
			status, _, stderr := margaytest.Played(t, func(question proto.Message) (proto.Message, error) {
				if !asked(question) {
					t.Errorf("%q asks %v", line, question)
				}
				switch question.(type) {
				case *control.ListExtensions:
					return &control.Extensions{}, nil
				case *control.ExtensionLog:
					return &control.ExtensionNotes{}, nil
				case *control.Noise:
					return &control.NoiseReport{}, nil
				}
				return &control.Done{}, nil
			}, strings.Fields(line)...)
			margaytest.Wants(t, status, 0, stderr)
		}
	}
	status, _, stderr := margaytest.Margay("", "ext", "list", "--node", "x2")
	margaytest.Wants(t, status, 125, stderr, `ext list: --node x2: "x2" is not a node: nodes are called node0 or 0`)
}
