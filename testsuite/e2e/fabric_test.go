package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// On fabrics of datagrams a job counts what a sequential program does, and passes barriers. Nothing is
// lost while a node kernel stands still for two seconds.
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
			if r := m.run(0, "-n", "8", probe(), "barrier"); strings.Count(r.stdout, "passed 10 barriers") != 8 {
				t.Error(r)
			}
		}})
	}
	inTurns(t, tests...)
}

// standStill stops one node kernel for two seconds while messages go to and fro.
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
