package machine_test

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/client"
	"margay/cluster/control"
	"margay/tools/margay/margaytest"
)

// The requests have all nodes that the arguments name. The states are those that serve reports.
func TestPower(t *testing.T) {
	list := &control.Nodes{Nodes: []*control.NodeState{
		{Node: 0, Power: control.NodePower_POWER_ON}, {Node: 1, Power: control.NodePower_POWER_OFF}, {Node: 2},
	}}
	user := client.UserName()
	for args, c := range map[string]struct {
		want   proto.Message
		output string
	}{
		"node power off 1-2":             {&control.SwitchNodes{Nodes: []uint32{1, 2}, User: user}, ""},
		"node power off -v --force 1":    {&control.SwitchNodes{Nodes: []uint32{1}, Force: true, User: user}, "margay: node1: off\n"},
		"node power on --json 0":         {&control.SwitchNodes{Nodes: []uint32{0}, On: true, User: user}, "[\n  {\n    \"node\": \"node0\",\n    \"power\": \"on\"\n  }\n]\n"},
		"node power reset 2 --force -v":  {&control.RebootNodes{Nodes: []uint32{2}, Force: true, User: user}, "margay: node2: on\n"},
		"node power status node[0-1],2":  {&control.ListNodes{}, "NODE   POWER\nnode0  on\nnode1  off\nnode2  unknown\n"},
		"node power status --json node1": {&control.ListNodes{}, "[\n  {\n    \"node\": \"node1\",\n    \"power\": \"off\"\n  }\n]\n"},
	} {
		status, stdout, stderr := margaytest.Played(t, func(question proto.Message) (proto.Message, error) {
			if !proto.Equal(question, c.want) {
				t.Errorf("%s: serve is asked %v", args, question)
			}
			if _, ok := question.(*control.ListNodes); ok {
				return list, nil
			}
			return &control.Done{}, nil
		}, strings.Fields(args)...)
		if status != 0 || stdout+stderr != c.output {
			t.Errorf("%s: status %d, %q, %q", args, status, stdout, stderr)
		}
	}
	status, _, stderr := margaytest.Played(t, func(proto.Message) (proto.Message, error) {
		return &control.Done{Notices: []string{"node1 has begun to boot"}}, nil
	}, "node", "power", "on", "1")
	margaytest.Wants(t, status, 0, stderr, "margay: node1 has begun to boot\n")
	status, _, stderr = margaytest.Played(t, func(proto.Message) (proto.Message, error) { return list, nil }, "node", "power", "status", "2..3")
	margaytest.Wants(t, status, 125, stderr, "margay: the machine has no node3: its nodes are node0-2 (margay nodes)\n")
	for args, want := range map[string]string{
		"node power":                         "node power needs a command: off, on, reset, status (margay node power --help)",
		"node power cycle 1":                 "did you mean margay node power reset?",
		"node power on":                      "node power on: NODE is missing: ",
		"node power on --force 1":            "node power on has no --force",
		"node power off x":                   `"x" is not a node`,
		"node power off 1 --file=":           "node power off: --file is empty",
		"node power off 1 --force --file x":  "node power off: --force has no meaning with --file, which knows no jobs",
		"node power status 1 --file /absent": "open /absent: no such file or directory",
	} {
		status, _, stderr := margaytest.Margay("", strings.Fields(args)...)
		margaytest.Wants(t, status, 125, stderr, "margay: ", want)
	}
}

// With a file no machine is needed. A node that fails keeps no other one from its turn.
func TestPowerByFile(t *testing.T) {
	t.Setenv("MARGAY_DIR", t.TempDir())
	folder := t.TempDir()
	path := filepath.Join(folder, "machine.yaml")
	for name, text := range map[string]string{
		path: "power: [{nodes: 0-19, driver: command, command: [./power]}, {nodes: 20, driver: wake-on-lan, mac: '52:54:00:12:34:56'}]\npace: {nodes: 32}\n",
		filepath.Join(folder, "power"): `#!/bin/sh
state=$(dirname $0)/$2
case $1-$2 in
*-node7) echo "the cable is cut" >&2; exit 1;;
on-*) echo on >$state;;
off-*) rm -f $state;;
status-*) cat $state 2>/dev/null || echo off;;
esac
`,
	} {
		if err := os.WriteFile(name, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	power := func(args ...string) (int, string, string) {
		return margaytest.Margay("", append([]string{"node", "power", "--file", path}, args...)...)
	}
	for _, step := range []struct {
		args   string
		status int
		stdout string
		stderr string
	}{
		{"on 0-6,8..19", 0, "", ""},
		{"off 1", 0, "", ""},
		{"status 0..2", 0, "NODE   POWER\nnode0  on\nnode1  off\nnode2  on\n", ""},
		{"status 6-7", 125, "NODE   POWER\nnode6  on\nnode7  unknown\n", "node7: " + filepath.Join(folder, "power") + " status node7: exit status 1: the cable is cut\n"},
		{"off 6-7 -v", 125, "", "margay: node6: off\nmargay: node7: "},
		{"reset 6", 125, "", "node6: it is off, so it cannot be reset"},
		{"reset 0 --json", 0, "\"power\": \"on\"", ""},
		{"off 20", 125, "", "node20: wake-on-LAN cannot switch a node off: not supported"},
		{"on 0,21", 125, "", "machine.yaml: node21: the file has no node21: its nodes are node0-20"},
	} {
		status, stdout, stderr := power(strings.Fields(step.args)...)
		if status != step.status || !strings.Contains(stdout, step.stdout) || !strings.Contains(stderr, step.stderr) {
			t.Errorf("%s: status %d, %q, %q", step.args, status, stdout, stderr)
		}
	}
}

// Nodes that wait for their turns to be switched on are reported, and can be interrupted.
func TestPowerPaced(t *testing.T) {
	folder := t.TempDir()
	path, said := filepath.Join(folder, "machine.yaml"), filepath.Join(folder, "said")
	for name, text := range map[string]string{
		path:                           "power: [{nodes: 0-2, driver: command, command: [./power]}]\npace: {nodes: 1, gap: 10m}\n",
		filepath.Join(folder, "power"): "#!/bin/sh\nstate=$(dirname $0)/$2\ncase $1 in\non) echo on >$state;;\n*) cat $state 2>/dev/null || echo off;;\nesac\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	p := margaytest.Shell(t, `exec "$0" node power on --file "$RACK" 0..2 2>"$SAID"`)
	p.Env = append(p.Env, "RACK="+path, "SAID="+said)
	p.Begin()
	margaytest.AwaitText(t, func() string { text, _ := os.ReadFile(said); return string(text) }, " of 3 nodes are done, and 1 are switched on every 10m0s\n")
	on := func() []string {
		nodes, _ := filepath.Glob(filepath.Join(folder, "node*"))
		return nodes
	}
	margaytest.AwaitText(t, func() string { return fmt.Sprint(len(on())) }, "1")
	p.Signal(unix.SIGINT)
	p.Ends(unix.SIGINT, true, 0)
	if nodes := on(); len(nodes) != 1 {
		t.Errorf("%v were switched on", nodes)
	}
}

// An order about power goes on when its command is interrupted, and so does the end of a machine.
// The command says how to follow it.
func TestInterruptedOrders(t *testing.T) {
	for args, want := range map[string]string{
		"node power off 1":   "margay: ended by SIGINT: an order that the machine has got goes on (margay nodes -m m)\n",
		"node power on 1":    "margay: ended by SIGINT: an order that the machine has got goes on (margay nodes -m m)\n",
		"node power reset 1": "margay: ended by SIGINT: an order that the machine has got goes on (margay nodes -m m)\n",
		"node reboot 1":      "margay: ended by SIGINT: an order that the machine has got goes on (margay nodes -m m)\n",
		"machine down":       "margay: ended by SIGINT: the machine ends nevertheless; margay machine down -m m waits until it has ended, and removes its folder\n",
	} {
		asked := make(chan struct{}, 1)
		m := margaytest.Play(t, "m", func(*control.Conn, *control.Frame) { asked <- struct{}{} })
		ended := holdAs(t, m)
		p := margaytest.Shell(t, `exec "$0" `+args)
		p.Begin()
		select {
		case <-asked:
		case <-ended:
		case <-time.After(margaytest.Patience):
			t.Fatalf("%s does nothing", args)
		}
		p.Signal(unix.SIGINT)
		p.Ends(unix.SIGINT, true, 0)
		if got := p.Err.String(); got != want {
			t.Errorf("%s: %q", args, got)
		}
	}
}

// holdAs locks a played machine as its holder does, so that margay machine down sends SIGTERM to
// this process, which puts it into the channel.
func holdAs(t *testing.T, m *margaytest.Machine) <-chan os.Signal {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(m.Base, m.Name, "lock"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: 1 << 20, Len: 1}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGTERM)
	t.Cleanup(func() { signal.Stop(ended) })
	return ended
}
