package e2e

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/kernel/abi/wire"
)

// A node that is stopped for a while is late, and loses nothing.
func TestVMStoppedForAWhile(t *testing.T) {
	m := use(t, "qemu")
	c, complete := countJob(t, m, m.nodes*m.cores, 0, 200)
	vms := pids(t, "guest="+m.name+"-node1,")
	if len(vms) != 1 {
		t.Fatalf("processes of node1: %v", vms)
	}
	if err := unix.Kill(vms[0], unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer unix.Kill(vms[0], unix.SIGCONT)
	stopped := time.Now()
	m.awaitHealth(1, "late")
	time.Sleep(5*time.Second - time.Since(stopped))
	if err := unix.Kill(vms[0], unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	m.awaitHealth(1, "up")
	c.signal(unix.SIGUSR1)
	complete(c.wait())
}

// A node that is silent for too long is given up with its jobs. It is taken back when it sends
// again.
func TestVMStoppedForGood(t *testing.T) {
	m := use(t, "mortal")
	c := m.start("run", "-n", m.all(), probe(), "sleep")
	c.awaitRanks("sleeping", m.nodes*m.cores)
	vms := pids(t, "guest="+m.name+"-node1,")
	if err := unix.Kill(vms[0], unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	r := c.wait()
	if r.code != 125 || !strings.Contains(r.stderr, "node1: it has been silent for 10s") {
		t.Error(r)
	}
	m.run(0, "-n", "1", probe(), "hello")
	if err := unix.Kill(vms[0], unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	m.awaitHealth(1, "up")
	m.usable()
}

// The end of a virtual machine ends its node and the jobs on it at once. The other jobs continue.
// The node is started once more.
func TestVMKilled(t *testing.T) {
	m := use(t, "mortal")
	other := m.start("run", "-n", "1", probe(), "count", "60", "100")
	other.awaitOutput("out 0 3\n")
	c := m.start("run", "-n", "2", "--ppn", "1", probe(), "sleep")
	c.awaitRanks("sleeping", 2)
	vms := pids(t, "guest="+m.name+"-node1,")
	if len(vms) != 1 {
		t.Fatalf("processes of node1: %v", vms)
	}
	kill(t, vms[0])
	if r := c.wait(); r.code != 125 || !strings.Contains(r.stderr, "node1: ") || !strings.Contains(r.stderr, "signal 9") || !strings.Contains(r.stderr, "it is being restarted") {
		t.Error(r)
	}
	m.run(0, "-n", "1", probe(), "hello")
	if r := other.wait(); r.code != 0 || strings.Count(r.stdout, "\n") != 60 {
		t.Errorf("the job on another node: %v", r)
	}
	m.usable()
	if n := m.awaitHealth(1, "up"); n.Boots != 2 {
		t.Errorf("then node1 is %+v", n)
	}
	// It has the machine's extensions again.
	list := func() string { return m.margay("ext", "list", "--node", "1").stdout }
	eventually(t, "machine's extensions", func() bool {
		return regexp.MustCompile(`machine +boot +minimum +\S+ +1 `).MatchString(list()) && regexp.MustCompile(`machine +exit +account +\S+ +[1-9]`).MatchString(list())
	}, list)
}

// A node that ends is restarted a few times, with a new root, RAM disk and connections to other
// nodes. Then it stays dead until it is restarted by an order. An order for a node with a job needs
// force, and ends the job. A node that is switched off is not restarted at all.
func TestReboot(t *testing.T) {
	ownMachine(t, "own")
	m := up(t, "hosted", 2, 1)
	for boots := 2; ; boots++ {
		nodes := pids(t, m.file("nodes", "node1.json"))
		if len(nodes) != 1 {
			t.Fatalf("processes of node1: %v", nodes)
		}
		kill(t, nodes[0])
		if boots > 4 {
			break
		}
		var n nodeState
		eventually(t, fmt.Sprintf("boot %d of node1", boots), func() bool {
			n = m.listNodes()[1]
			return n.Health == "up" && n.Boots == boots
		}, func() string { return fmt.Sprintf("%+v", n) })
		m.usable()
	}
	if n := m.awaitHealth(1, "dead"); !strings.Contains(n.Reason, "it has ended 4 times within 10m0s") {
		t.Errorf("node1 %+v", n)
	}
	if r := m.margay("node", "reboot", "node1"); r.code != 0 {
		t.Fatal(r)
	}
	m.usable()
	c := m.start("run", "-n", "1", "-w", "node1", probe(), "sleep")
	c.awaitRanks("sleeping", 1)
	if r := m.margay("node", "reboot", "1"); r.code != 125 || !strings.Contains(r.stderr, "drain it and wait, or end them with --force") {
		t.Error(r)
	}
	if r := m.margay("node", "reboot", "1", "--force"); r.code != 0 {
		t.Error(r)
	}
	if r := c.wait(); r.code != 125 || !strings.Contains(r.stderr, "ended by order of ") {
		t.Error(r)
	}
	m.usable()

	// A node that is switched off stays off when serve is killed, until it is switched on.
	if r := m.margay("node", "power", "off", "1"); r.code != 0 || len(pids(t, m.file("nodes", "node1.json"))) > 0 {
		t.Errorf("%v, and processes %v of node1", r, pids(t, m.file("nodes", "node1.json")))
	}
	_, serve := m.status()
	kill(t, serve)
	if n := m.awaitHealth(1, "off"); !strings.HasPrefix(n.Reason, "switched off by ") {
		t.Errorf("node1 %+v", n)
	}
	if r := m.margay("node", "power", "on", "1"); r.code != 0 {
		t.Error(r)
	}
	m.usable()
}

// The error names a node that boots and never registers, and shows its console. Nothing is left of
// the machine.
func TestNodeNeverRegisters(t *testing.T) {
	ownMachine(t, "own")
	program := filepath.Join(scratch, "hang")
	writeProgram(t, program, []byte("#!/bin/sh\necho I have lost my way >&2\nexec sleep 1000\n"))
	m := &machine{t: t, name: "never", nodes: 2, cores: 1}
	r := m.up("hosted", "--node-program", program, "--boot-timeout", "2s")
	if r.code != 125 || !strings.Contains(r.stderr, "did not register within 2s") || !strings.Contains(r.stderr, "I have lost my way") {
		t.Error(r)
	}
	m.gone()
}

func TestOldNodeImage(t *testing.T) {
	ownMachine(t, "own")
	m := &machine{t: t, name: "old", nodes: 1, cores: 1}
	r := m.up("hosted", "--node-program", filepath.Join(scratch, "oldnode"))
	want := fmt.Sprintf("node0 was refused: the image of node0 (margay old) speaks version %d of the control protocol", control.Version+41)
	if r.code != 125 || !strings.Contains(r.stderr, want) {
		t.Error(r)
	}
	m.gone()
}

func TestOldLibrary(t *testing.T) {
	m := use(t, "hosted")
	r := m.run(3, filepath.Join(scratch, "oldlib"))
	want := fmt.Sprintf("the library speaks version %d of the application interface, this node kernel version %d", wire.Version+41, wire.Version)
	if !strings.Contains(r.stdout, want) {
		t.Error(r)
	}
}
