package e2e

import (
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// object is the path of an extension of the tree.
func object(t testing.TB, name string) string {
	t.Helper()
	absolute, err := filepath.Abs(fmt.Sprintf("../../ext/%s/%s.o", name, path.Base(name)))
	if err != nil {
		t.Fatal(err)
	}
	return absolute
}

// machineExtensions returns flags of machine up.
func machineExtensions(t testing.TB) []string {
	return []string{"--extension", object(t, "boot/minimum") + ",cores=2,memory=1000000", "--extension", object(t, "exit/account")}
}

// Nodes insert the extensions that the machine was made with, and run them when the events of their
// slots occur. TestVMKilled has such a machine of virtual nodes.
func TestMachineExtensions(t *testing.T) {
	ownMachine(t, "own")
	m := up(t, "hosted", 2, 2, append(machineExtensions(t), "--extension", object(t, "timer/heartbeat"), "--extension", object(t, "fault/tolerate")+",faults=0")...)
	list := m.margay("ext", "list").stdout
	for _, name := range []string{"boot +minimum", "timer +heartbeat", "exit +account", "fault +tolerate"} {
		if n := len(regexp.MustCompile(name).FindAllString(list, -1)); n != 2 {
			t.Errorf("%q is there %d times on 2 nodes:\n%s", name, n, list)
		}
	}
	m.run(3, "-n", "4", "--keep-going", "/bin/sh", "-c", "exit 3")
	r := m.run(125, "-n", "4", "--keep-going", "/bin/sh", "-c", "[ $MARGAY_RANK = 2 ] && kill -SEGV $$; while :; do :; done")
	if !strings.Contains(r.stderr, "(tolerate) in slot fault has ended it after the end of rank 2") {
		t.Error(r)
	}
	log := m.margay("ext", "log")
	if !regexp.MustCompile(`machine 1\.\d+ \(tolerate\): prints: job 2: rank 2 was ended by signal 11, which is one too many`).MatchString(log.stdout) {
		t.Error(log)
	}
	// One run for each process of the first job on node1. The processes of the second job are
	// ended with it, after slot fault.
	runs := regexp.MustCompile(`1\.\d+ +machine +exit +account +\S+ +(\d+) `).FindStringSubmatch(m.margay("ext", "list").stdout)
	if runs == nil || !slices.Contains([]string{"2", "3", "4"}, runs[1]) {
		t.Errorf("runs of account on node1: %q", runs)
	}
	before := m.margay("ext", "stats", "--interval", "1s")
	if !regexp.MustCompile(`timer +heartbeat +\S+ +[1-9]\d+ `).MatchString(before.stdout) {
		t.Errorf("heartbeat every 10 ms: %v", before)
	}
	// The next node kernel has all of them, and does not run slot boot again.
	m.margay("machine", "restart", "0")
	eventually(t, "extensions of the next node kernel", func() bool {
		return strings.Contains(m.margay("ext", "list", "--node", "0").stdout, "tolerate")
	}, func() string { return m.margay("ext", "list").stdout })
	if again := m.margay("ext", "list", "--node", "0").stdout; !regexp.MustCompile(`boot +minimum +\S+ +0 `).MatchString(again) {
		t.Errorf("slot boot was asked again:\n%s", again)
	}
	m.usable()
}

// A node that an extension refuses does not come up, and the user gets the reason.
func TestBootRefused(t *testing.T) {
	ownMachine(t, "own")
	m := &machine{t: t, name: "refused", nodes: 1, cores: 1}
	r := m.up("hosted", "--extension", object(t, "boot/minimum")+",cores=99")
	if r.code == 0 || !strings.Contains(r.stderr, "(minimum) in slot boot has refused it") ||
		!strings.Contains(r.stderr, "node0 has 1 application cores, the machine asks for 99") || strings.Contains(r.stderr, "being restarted") {
		t.Error(r)
	}
	m.gone()
	for _, wrong := range []string{object(t, "boot/minimum") + ",cores", "nothing.o", object(t, "boot/minimum") + ",colour=1"} {
		if r := m.up("hosted", "--extension", wrong); r.code == 0 {
			m.margay("machine", "down")
			t.Errorf("--extension %s: %v", wrong, r)
		}
	}
}

// Insertions and refusals can be read, and constants can be set.
func TestExtensionLog(t *testing.T) {
	ownMachine(t, "own")
	m := up(t, "hosted", 2, 1)
	if r := m.margay("ext", "insert", object(t, "timer/heartbeat"), "--set", "beats=3", "--set", "interval=0x200000"); r.code != 0 {
		t.Fatal(r)
	}
	if r := m.margay("ext", "insert", object(t, "timer/heartbeat"), "--set", "colour=3"); r.code == 0 || !strings.Contains(r.stderr, `no variable "colour"`) {
		t.Error(r)
	}
	if r := m.margay("ext", "insert", object(t, "boot/minimum")); r.code == 0 || !strings.Contains(r.stderr, "when it boots") {
		t.Error(r)
	}
	eventually(t, "three beats", func() bool {
		return regexp.MustCompile(`1\.1 +machine +timer +heartbeat +\S+ +3 `).MatchString(m.margay("ext", "list").stdout)
	}, func() string { return m.margay("ext", "list").stdout })
	m.margay("ext", "remove", "1.1")
	log := m.margay("ext", "log", "--node", "1").stdout
	for _, line := range []string{
		`machine 1\.1 \(heartbeat\): inserted into slot timer, engine \S+\n`, `machine 1\.0 \(heartbeat\): refused: .*no variable "colour"`,
		`machine 1\.0 \(minimum\): refused: .*when it boots`, `machine 1\.1 \(heartbeat\): removed: an operator has removed it\n`,
	} {
		if !regexp.MustCompile(line).MatchString(log) {
			t.Errorf("the log does not have %s:\n%s", line, log)
		}
	}
	slots := m.margay("ext", "slots").stdout
	for _, line := range []string{`(?m)^boot +80 `, `(?m)^sched +360 .*DEFAULT \(255\), an index \(0 to 7\)`, `(?m)^packet +1080 `, `(?m)^trap +- +- +- +later`} {
		if !regexp.MustCompile(line).MatchString(slots) {
			t.Errorf("slots have no %s:\n%s", line, slots)
		}
	}
}

// The machine's extensions are those that an operator wants on its nodes. A node that was away
// during a change gets the change when it is back.
func TestExtensionsOfNodeThatWasAway(t *testing.T) {
	ownMachine(t, "own")
	m := up(t, "hosted", 2, 1, "--dead-after", "2s")
	list := func() string { return m.margay("ext", "list").stdout }
	shows := func(lines ...string) {
		t.Helper()
		text := list()
		for _, line := range lines {
			if !regexp.MustCompile(`(?m)^` + line + `$`).MatchString(text) {
				t.Errorf("there is no %s in\n%s", line, text)
			}
		}
	}
	insert := func(name string) {
		t.Helper()
		if r := m.margay("ext", "insert", "--name", name, object(t, "timer/heartbeat")); r.code != 0 {
			t.Fatal(r)
		}
	}
	insert("early")
	kernel := m.nodeKernels()[0]
	if err := unix.Kill(kernel, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer unix.Kill(kernel, unix.SIGCONT)
	away := -1
	eventually(t, "dead node", func() bool {
		away = slices.IndexFunc(m.listNodes(), func(n nodeState) bool { return n.Health == "dead" })
		return away >= 0
	}, list)
	shows(fmt.Sprintf(`%d\.1 +machine +timer +early .* its node is away`, away))
	insert("late")
	if r := m.margay("ext", "remove", fmt.Sprintf("%d.1", away)); r.code != 0 {
		t.Error(r)
	}
	_, serve := m.status()
	kill(t, serve)
	if err := unix.Kill(kernel, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	m.awaitUp()
	shows(
		fmt.Sprintf(`%d\.1 +machine +timer +early .* active`, 1-away), fmt.Sprintf(`%d\.2 +machine +timer +late .* active`, 1-away),
		fmt.Sprintf(`%d\.1 +machine +timer +early .* removed: an operator has removed it`, away),
		fmt.Sprintf(`%d\.2 +machine +timer +late .* active`, away),
	)
}
