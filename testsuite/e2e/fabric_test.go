package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
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

// Nothing is lost, duplicated or reordered while nodes lose a fifth of their datagrams, and all of
// them for three seconds. This holds for messages and operations, and while node kernels are
// killed.
func TestLossyWire(t *testing.T) {
	inC, inGo := operationPrograms(t)
	var tests []turnOf
	for _, fabric := range []string{"tcp-trusted", "udp"} {
		tests = append(tests, turnOf{fabric, expect("own"), func(t *testing.T, _ *machine) {
			m := up(t, "hosted", 4, 2, "--fabric", fabric)
			m.lose("numgen random mod 5 0")
			operations{m, inC, inGo, check.Seed(t)}.check(20, 100)
			m.killedMeanwhile()
			const rounds = 200
			c := m.start("run", "-n", "8", probe(), "pingpong", fmt.Sprint(rounds), "5", "20000")
			c.awaitOutput("playing\n")
			m.lose("")
			time.Sleep(3 * time.Second)
			m.lose("numgen random mod 5 0")
			if r := c.wait(); r.code != 0 || !strings.Contains(r.stdout, fmt.Sprintf("%d messages came back", 7*rounds)) {
				t.Error(r)
			}
			m.usable()
		}})
	}
	inTurns(t, tests...)
}

// lose makes each hosted node lose the arriving datagrams that match an nft expression.
func (m *machine) lose(which string) {
	m.t.Helper()
	rules := fmt.Sprintf(`
table ip lossy
delete table ip lossy
table ip lossy {
	chain in {
		type filter hook input priority 0
		meta l4proto udp %s drop
	}
}
`, which)
	for _, kernel := range m.nodeKernels() {
		nft := exec.Command("nsenter", "-t", fmt.Sprint(kernel), "-n", "nft", "-f", "-")
		nft.Stdin = strings.NewReader(rules)
		if out, err := nft.CombinedOutput(); err != nil {
			m.t.Fatalf("%v\n%s", err, out)
		}
	}
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
	_, inGo := operationPrograms(t)
	seed := check.Seed(t)
	inTurns(t, turnOf{"wire", expect("own"), func(t *testing.T, _ *machine) {
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
