package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// Virtual nodes boot from their network cards by each firmware, and run an application. Their
// virtual machines are killed during their boots, and boot again. serve is killed as well. One
// takes an image of an update.
func TestFirmware(t *testing.T) {
	ownMachine(t, "own virtual")
	t.Run("bios", func(t *testing.T) {
		m := netboot(t, "bios", "it has got its address",
			"it has got its address", "it fetches the script", "it fetches the kernel", "it fetches the node image", "it has fetched everything, and starts Linux")
		// The configuration, which has a secret, did not come over the network.
		path := m.file("nodes", "node0.json")
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v", path, info, err)
		}
		if _, err := os.Stat(m.file("nodes", "node0.img")); err == nil {
			t.Error("there is an image with the configuration of a node")
		}
		// It takes an image by kexec, without its firmware.
		before := m.holderLog()
		if r := m.margay("node", "update", "0", "--force"); r.code != 0 || !strings.Contains(r.stderr, "node0: in service again") {
			t.Error(r)
		}
		if log := strings.TrimPrefix(m.holderLog(), before); !strings.Contains(log, "node0 boots image") || strings.Contains(log, "it fetches") {
			t.Errorf("the log of the holder of that:\n%s", log)
		}
	})
	for _, way := range []string{"uefi", "http"} {
		t.Run(way, func(t *testing.T) {
			netboot(t, way, "it fetches iPXE", "its firmware has got an address", "it fetches iPXE", "it has got its address",
				"it fetches the script", "it fetches the kernel", "it fetches the node image", "it has fetched everything, and starts Linux")
		})
	}
}

// holderLog returns the log of the holder.
func (m *machine) holderLog() string {
	text, _ := os.ReadFile(m.file("log", "holder.log"))
	return string(text)
}

// netboot makes a machine of one node that boots in a way, kills the node and serve at a stage of
// the boot, requires stages of the boot that follows, in their order, and runs an application.
func netboot(t *testing.T, way, killAt string, stages ...string) *machine {
	t.Helper()
	m := &machine{t: t, name: fmt.Sprintf("t%d", machineNumber.Add(1)), substrate: "qemu", nodes: 1, cores: 2}
	t.Cleanup(func() {
		m.logs()
		if r := m.margay("machine", "down"); r.code != 0 && !strings.Contains(r.stderr, "there is no such machine") {
			t.Errorf("machine down: %v", r)
		}
	})
	c := start(t, nil, m.upArgs("qemu", "--boot", way)...)
	log := m.holderLog
	eventually(t, killAt, func() bool { return strings.Contains(log(), "node0: "+killAt+"\n") }, log)
	// The path is of this machine alone, whatever other tests run.
	killed := pids(t, m.file("ports", "node0"))
	if len(killed) != 1 {
		t.Fatalf("node0 has the processes %v", killed)
	}
	kill(t, killed[0])
	_, serve := m.status()
	kill(t, serve)
	r := c.wait()
	if r.code != 0 {
		t.Fatalf("machine up: %v", r)
	}
	_, up, found := strings.Cut(r.stderr, "node0 is up on boot 2 after")
	if !found {
		t.Errorf("machine up: %v", r)
	}
	t.Logf("%s: node0 is up after%s", way, strings.TrimRight(up, "\n"))
	_, rest, _ := strings.Cut(log(), fmt.Sprintf("VM %q ended", m.name+"-node0"))
	for _, stage := range stages {
		if _, rest, found = strings.Cut(rest, fmt.Sprintf("node0: %s\n", stage)); !found {
			t.Errorf("no stage %q, or in another order, in:\n%s", stage, log())
		}
	}
	m.countsWords()
	return m
}
