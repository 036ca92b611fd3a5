package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// answers is what the serve of a completion says.
func answers(question proto.Message) (proto.Message, error) {
	switch question.(type) {
	case *control.ListJobs:
		return &control.Jobs{Jobs: []*control.JobSummary{{Job: 5, Command: "./app", Phase: control.JobPhase_JOB_RUNNING}, {Job: 6, Command: "./b", ExitCode: 1},
			{Job: 7, Command: "./c", Detached: true}, {Job: 8, Command: "./d", Detached: true, ExitCode: 2}}}, nil
	case *control.ListNodes:
		return &control.Nodes{Nodes: []*control.NodeState{{Node: 0, Health: control.NodeHealth_NODE_UP}, {Node: 1, Health: control.NodeHealth_NODE_DEAD}}}, nil
	case *control.ListExtensions:
		return &control.Extensions{Extensions: []*control.ExtensionState{{Node: 1, Handle: 3, Name: "edf", Slot: "sched", State: "active"}, {Node: 1, Handle: 2, State: "removed"}}}, nil
	}
	return nil, nil
}

func TestCompletion(t *testing.T) {
	for line, want := range map[string]string{
		"kill|":                    "5\t./app, running|6\t./b, ended (1)|7\t./c, ended (0)|8\t./d, ended (2)",
		"logs|":                    "7\t./c, ended (0)|8\t./d, ended (2)",
		"logs|7|":                  "",
		"logs|--remove|7|":         "8\t./d, ended (2)",
		"ps|":                      "5\t./app, running|6\t./b, ended (1)|7\t./c, ended (0)|8\t./d, ended (2)",
		"record|--job|":            "5\t./app, running|6\t./b, ended (1)|7\t./c, ended (0)|8\t./d, ended (2)",
		"machine|restart|":         "node0\tup|node1\tdead",
		"machine|console|node0|":   "",
		"machine|cores|--node|":    "node0\tup|node1\tdead",
		"ext|log|--node|":          "node0\tup|node1\tdead",
		"ext|remove|":              "1.3\tedf of sched",
		"-m|":                      "m\thosted, 4 nodes, up",
		"machine|up|--substrate|":  "qemu|hosted",
		"machine|up|--profile|":    "isolated|sched",
		"machine|cores|--all|":     "on|off",
		"run|--stdin|":             "first|all|none",
		"top|--sort|":              "core|cpu|messages|switches|interrupts",
		"nimble|run|--engine|":     "subroutine|direct|portable|linux|subroutine-calls",
		"ext|insert|--slot|":       "boot|timer|sched|message|fault|exit",
		"bench|sched|--substrate|": "hosted|qemu|qemu-isolated",
		"help|ext|":                "insert\t|list\t|log\t|remove\t|slots\t|stats\t",
	} {
		_, stdout, _ := played(t, answers, append([]string{"__complete"}, strings.Split(line, "|")...)...)
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
	if status, stdout, _ := margay("", "__complete", "kill", ""); status != 0 || !strings.HasPrefix(stdout, ":") {
		t.Errorf("without a machine: status %d, %q", status, stdout)
	}
}

func TestMachineList(t *testing.T) {
	m := playMachine(t, "one", func(*control.Conn, *control.Frame) {})
	playMachineIn(t, m.base, "two", func(*control.Conn, *control.Frame) {})
	status, stdout, stderr := margay("", "machine", "list", "--json")
	var list []machineState
	if err := json.Unmarshal([]byte(stdout), &list); status != 0 || err != nil || len(list) != 2 {
		t.Fatalf("status %d, %v: %s%s", status, err, stdout, stderr)
	}
	for i, name := range []string{"one", "two"} {
		if x := list[i]; x.Machine != name || x.State != "up" || x.Substrate != "hosted" || x.Nodes != 4 || x.Cores != 2 || x.HolderPID != 4711 || x.Since.IsZero() || x.Owner == "" {
			t.Errorf("%+v", x)
		}
	}
	status, stdout, stderr = margay("", "machine", "list")
	wants(t, status, 0, stdout+stderr, "MACHINE  STATE  SUBSTRATE  NODES  CORES  OWNER", "\none      up     hosted     4      2 ", "\ntwo ", "4711\n")

	// One that is being made, and one whose making was killed.
	dir := filepath.Join(m.base, "two")
	making, err := os.Create(filepath.Join(dir, "making"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lock", "machine.json"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.FcntlFlock(making.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		t.Fatal(err)
	}
	status, stdout, stderr = margay("", "machine", "list")
	wants(t, status, 0, stdout+stderr, "\ntwo      making ")
	making.Close()
	status, stdout, stderr = margay("", "machine", "list")
	wants(t, status, 0, stdout+stderr, "\ntwo      dead ", "\ntwo is dead: margay machine down -m two removes what is left of it\n")

	base := t.TempDir()
	t.Setenv("MARGAY_DIR", base)
	if status, stdout, stderr = margay("", "machine", "list", "--json"); status != 0 || stdout != "[]\n" || stderr != "" {
		t.Errorf("without machines: status %d, %q, %q", status, stdout, stderr)
	}
	t.Chdir(filepath.Dir(base))
	t.Setenv("MARGAY_DIR", filepath.Base(base)) // the folder is named whole
	if status, _, stderr = margay("", "machine", "list"); status != 0 || stderr != "margay: there is no machine in "+base+"\n" {
		t.Errorf("without machines: status %d, %q", status, stderr)
	}
	for _, other := range []string{"photos", "work"} {
		if err := os.Mkdir(filepath.Join(base, other), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	want := "margay: " + base + " has no machine of yours; these folders in it are none: photos, work\n"
	if status, stdout, stderr = margay("", "machine", "list", "--json"); status != 0 || stdout != "[]\n" || stderr != want {
		t.Errorf("beside folders of others: status %d, %q, %q", status, stdout, stderr)
	}
}

func TestVersion(t *testing.T) {
	status, stdout, _ := margay("", "version")
	wants(t, status, 0, stdout, "margay "+version, runtime.Version(), fmt.Sprintf("control protocol %d", control.Version))
	status, stdout, _ = margay("", "version", "--json")
	wants(t, status, 0, stdout, `"version": "unknown"`, `"go": "`+runtime.Version(), fmt.Sprintf(`"protocol": %d`, control.Version))
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
			status, _, stderr := played(t, func(question proto.Message) (proto.Message, error) {
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
			wants(t, status, 0, stderr)
		}
	}
	status, _, stderr := margay("", "ext", "list", "--node", "x2")
	wants(t, status, 125, stderr, `ext list: --node x2: "x2" is no node: they are called node0 or 0`)
}

func TestOneNode(t *testing.T) {
	nodes := &control.Nodes{Nodes: []*control.NodeState{{Node: 0}, {Node: 1, Reason: "no power"}, {Node: 2}}}
	list := func(args ...string) (status int, stdout, stderr string) {
		return played(t, func(proto.Message) (proto.Message, error) { return nodes, nil }, args...)
	}
	status, stdout, stderr := list("nodes", "--node", "node1")
	wants(t, status, 0, stderr)
	if strings.Contains(stdout, "node0") || strings.Contains(stdout, "node2") || !strings.Contains(stdout, "node1: no power") {
		t.Errorf("it lists\n%s", stdout)
	}
	if _, stdout, _ := list("nodes", "--node", "1", "--json"); strings.Count(stdout, `"health"`) != 1 || !strings.Contains(stdout, "no power") {
		t.Errorf("it lists\n%s", stdout)
	}
	status, _, stderr = list("nodes", "--node", "7")
	wants(t, status, 125, stderr, "the machine has no node7")
}
