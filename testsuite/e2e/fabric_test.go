package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/check"
	"margay/kernel/abi/node"
)

// On datagram fabrics, a job counts the same as a sequential program, and passes barriers. Nothing
// is lost while a node kernel stands still for two seconds.
func TestDatagramFabrics(t *testing.T) {
	text := filepath.Join(bin, "..", "ARCHITECTURE.md")
	plain, err := exec.Command(filepath.Join(bin, "plain"), text).Output()
	if err != nil {
		t.Fatal(err)
	}
	var tests []turnOf
	for _, fabric := range []string{"udp", "udp-trusted"} {
		tests = append(tests, turnOf{fabric, expect("own"), func(t *testing.T, _ *machine) {
			m := up(t, "hosted", 4, 2, "--fabric", fabric)
			for _, n := range m.listNodes() {
				if n.Info.Fabric != fabric {
					t.Errorf("node%d says %q", n.Node, n.Info.Fabric)
				}
			}
			r := m.run(0, "-n", "8", "--with", text, filepath.Join(bin, "histogram"), text)
			if counts, _, _ := cutLast(r.stdout); counts != string(plain) {
				t.Errorf("want\n%s%v", plain, r)
			}
			m.standStill()
			m.killedMeanwhile()
			if r := m.run(0, "-n", "8", probe(), "barrier"); strings.Count(r.stdout, "passed 10 barriers") != 8 {
				t.Error(r)
			}
		}})
	}
	inTurns(t, tests...)
}

// Nothing is lost, duplicated or reordered while the wire between nodes loses a fifth of all
// datagrams, repeats, delays and reorders others, and loses all for three seconds. This holds for
// messages and operations, on a trusted wire while node kernels are killed, and for the job after
// the death of a node kernel.
func TestLossyWire(t *testing.T) {
	seed := check.Seed(t)
	var tests []turnOf
	for _, fabric := range []string{"tcp-trusted", "udp"} {
		tests = append(tests, turnOf{fabric, expect("own"), func(t *testing.T, _ *machine) {
			inC, inGo := operationPrograms(t)
			m := up(t, "hosted", 4, 2, "--fabric", fabric)
			w := m.hostileWire()
			operations{m, inC, inGo, seed}.check(20, 60)
			m.storm(&w.weather, inGo, seed, 5)
			m.afterDeath(inGo)
		}})
	}
	inTurns(t, tests...)
}

// doubts are the ends of jobs that node kernels, killed at the wrong moment, may cause.
var doubts = []string{"it is not known whether an atomic access", "were lost when "}

// storm runs four ranks that send messages, make accesses, meet and reduce for some seconds. In
// this time the wire is cut for three seconds, and on a trusted wire between hosted nodes a node
// kernel is killed each second. A job that a killed node kernel has ended with a reason is
// repeated.
func (m *machine) storm(w *weather, program string, seed uint64, seconds int) {
	m.t.Helper()
	kills := m.substrate == "hosted" && node.TrustsWire(m.listNodes()[0].Info.Fabric)
	for try := range 4 {
		r := m.stormOnce(w, program, seed, seconds, kills)
		doubt := r.code == 125 && slices.ContainsFunc(doubts, func(d string) bool { return strings.Contains(r.stderr, d) })
		switch {
		case r.code == 0 && strings.Count(r.stdout, "whole ") == 4:
			m.t.Log(r.stdout)
			return
		case !doubt || try == 3 || !kills:
			m.t.Fatal(r)
		}
		m.t.Log(r)
	}
}

func (m *machine) stormOnce(w *weather, program string, seed uint64, seconds int, kills bool) result {
	m.t.Helper()
	m.awaitUp()
	c := m.start("run", "-n", "4", "-N", fmt.Sprint(m.nodes), program, "rank", "storm", fmt.Sprint(seed), fmt.Sprint(seconds))
	eventually(m.t, "ranks that play", func() bool { return c.ended() || strings.Count(c.stdout.String(), "playing ") == 4 },
		func() string { return c.stdout.String() + c.stderr.String() })
	w.cut.Store(true)
	time.Sleep(3 * time.Second)
	w.cut.Store(false)
	for i := 0; kills && !c.ended(); i++ {
		kernels := m.nodeKernels()
		kill(m.t, kernels[i%len(kernels)])
		time.Sleep(time.Second)
	}
	return c.wait()
}

// afterDeath kills the node kernel of node0, and then has ranks of other nodes send messages to
// rank 0 before it has joined the messages of its job: their nodes do not know of the death.
func (m *machine) afterDeath(program string) {
	m.t.Helper()
	m.usable()
	first := pids(m.t, m.file("nodes", "node0.json"))[0]
	kernels := m.nodeKernels()
	victim := kernels[slices.IndexFunc(kernels, func(pid int) bool { return parent(pid) == first })]
	kill(m.t, victim)
	eventually(m.t, "another node kernel", func() bool { return !slices.Contains(m.nodeKernels(), victim) }, func() string { return "" })
	m.awaitUp()
	n := fmt.Sprint(m.nodes)
	m.run(0, "-n", n, "-N", n, "--with", program, "sh", "-c", fmt.Sprintf("[ $MARGAY_RANK != 0 ] || sleep 1; exec %s rank visited", program))
}

// killedMeanwhile kills node kernels while messages are exchanged. On a trusted wire, messages
// bypass the node kernels once there are mirrored channels, and none is lost. A lost message ends
// the job.
func (m *machine) killedMeanwhile() {
	m.t.Helper()
	if !node.TrustsWire(m.listNodes()[0].Info.Fabric) {
		return
	}
	const rounds = 200
	c := m.start("run", "-n", "4", "-N", "4", probe(), "pingpong", fmt.Sprint(rounds), "20", "100000")
	c.awaitOutput("playing\n")
	time.Sleep(time.Second) // so that all pairs have their channels
	for range 2 {
		for _, kernel := range m.nodeKernels() {
			kill(m.t, kernel)
			time.Sleep(200 * time.Millisecond)
		}
	}
	if r := c.wait(); r.code != 0 || !strings.Contains(r.stdout, fmt.Sprintf("%d messages came back", 3*rounds)) {
		m.t.Error(r)
	}
}

// Operations on windows of other nodes take effect exactly once while the node kernels that carry
// them out are killed, again and again. A job that cannot know whether one of them took effect
// ends.
func TestOperationsOutliveNodeKernels(t *testing.T) {
	seed := check.Seed(t)
	inTurns(t, turnOf{"wire", expect("own"), func(t *testing.T, _ *machine) {
		_, inGo := operationPrograms(t)
		m := up(t, "hosted", 4, 2, "--fabric", "udp-trusted")
		const doubt = "it is not known whether an atomic access"
		r := m.operationsAndKills(inGo, seed)
		for try := 0; try < 3 && r.code == 125 && strings.Contains(r.stderr, doubt); try++ {
			t.Log(r)
			r = m.operationsAndKills(inGo, seed)
		}
		if r.code != 0 || strings.Count(r.stdout, "whole\n") != 4 {
			t.Error(r)
		}
	}})
}

// operationsAndKills kills each node kernel of a machine twice while four ranks make accesses.
func (m *machine) operationsAndKills(program string, seed uint64) result {
	m.t.Helper()
	c := m.start("run", "-n", "4", "-N", "4", program, "rank", "unharmed", fmt.Sprint(seed), "2")
	c.awaitRanks("playing", 4)
	for range 2 {
		for _, kernel := range m.nodeKernels() {
			kill(m.t, kernel)
			time.Sleep(100 * time.Millisecond) // of accesses
		}
	}
	return c.wait()
}

// A rank's abuse of the socket of its mirrored channels is refused, and datagrams that it sends
// through the socket harm neither the job beside it nor the node kernels. A rank that writes
// nonsense into its mirrored channels harms its own job.
func TestAttackerOfWire(t *testing.T) {
	inTurns(t, turnOf{"wire", expect("own"), func(t *testing.T, _ *machine) {
		m := up(t, "hosted", 2, 2, "--fabric", "udp-trusted")
		const rounds = 400
		victim := m.start("run", "-n", "2", "-N", "2", probe(), "pingpong", fmt.Sprint(rounds), "20")
		victim.awaitOutput("playing\n")
		r := m.run(0, "-n", "2", "-N", "2", attacker(), "datagrams")
		lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
		if len(lines) != len(socketTries) {
			t.Errorf("%d lines, want %d: %v", len(lines), len(socketTries), r)
		}
		for i, want := range socketTries {
			if i < len(lines) && lines[i] != want {
				t.Errorf("%s, want %s", lines[i], want)
			}
		}
		if r := m.run(2, "-n", "2", "-N", "2", attacker(), "mirrors"); !strings.Contains(r.stderr, "channel from rank 0") || !strings.Contains(r.stderr, "written over") {
			t.Error(r)
		}
		if r := victim.wait(); r.code != 0 || !strings.Contains(r.stdout, fmt.Sprintf("%d messages came back", rounds)) {
			t.Error(r)
		}
		m.usable()
	}})
}

// socketTries are a rank's attempts to abuse the socket of its mirrored channels, and the errors
// that they get.
var socketTries = []string{
	"move a socket to another port: refused: invalid argument",
	"move a socket that was disconnected: refused: invalid argument",
	"take any source address: refused: operation not permitted",
	"take a route of its own: refused: operation not permitted",
	"mark packets: refused: operation not permitted",
	"take more memory than allowed: refused: operation not permitted",
	"open a raw socket: refused: operation not permitted",
}

// standStill stops one node kernel for two seconds while messages are exchanged.
func (m *machine) standStill() {
	m.t.Helper()
	const rounds = 100
	c := m.start("run", "-n", "8", probe(), "pingpong", fmt.Sprint(rounds), "5")
	c.awaitOutput("playing\n")
	kernel := m.nodeKernels()[1]
	if err := unix.Kill(kernel, unix.SIGSTOP); err != nil {
		m.t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	if err := unix.Kill(kernel, unix.SIGCONT); err != nil {
		m.t.Fatal(err)
	}
	if r := c.wait(); r.code != 0 || !strings.Contains(r.stdout, fmt.Sprintf("%d messages came back", 7*rounds)) {
		m.t.Error(r)
	}
}

// The loss of a node in the middle of any operation ends the job, with that reason, whichever wire
// the operation takes. The node comes back, and nothing of the job is left.
func TestNodeLostInOperation(t *testing.T) {
	var tests []turnOf
	for _, c := range []struct {
		fabric     string
		operations []string
	}{
		{"tcp-trusted", []string{"message", "long", "put", "get", "add", "swap", "barrier", "broadcast", "all-reduce"}},
		{"udp", []string{"message", "get", "barrier"}},
	} {
		tests = append(tests, turnOf{c.fabric, expect("own"), func(t *testing.T, _ *machine) {
			_, inGo := operationPrograms(t)
			// A node that ends is started again after a pause, which grows with its ends, so the
			// nodes end in turn. After more than three ends a node stays dead.
			const victims = 3
			m := up(t, "hosted", 1+victims, 1, "--fabric", c.fabric)
			for i, operation := range c.operations {
				victim := fmt.Sprintf("node%d", 1+i%victims)
				m.awaitHealth(1+i%victims, "up")
				c := m.start("run", "-n", "2", "-w", "node0,"+victim, inGo, "rank", "endless", operation)
				eventually(t, "ranks that play", func() bool { return c.ended() || strings.Count(c.stdout.String(), "playing ") == 2 },
					func() string { return c.stdout.String() + c.stderr.String() })
				kill(t, pids(t, m.file("nodes", victim+".json"))[0])
				if r := c.wait(); r.code != 125 || !strings.Contains(r.stderr, victim+": its PID 1 ended") {
					t.Errorf("%s: %v", operation, r)
				}
				m.awaitIdle()
			}
			m.usable()
		}})
	}
	inTurns(t, tests...)
}
