package serve

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"margay/cluster/control"
	"margay/kernel/abi/id"
)

// What the firmware of a node has kept is written before the node gets its answer, shown while the
// boot lasts that has brought it, also after a restart of serve, and bounded.
func TestFirmwareLog(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var kept []string
		var full error
		m := up(t, 2, func(c *Config) {
			c.KeepFirmwareLog = func(node id.Node, text []byte, first bool) error {
				if full == nil {
					kept = append(kept, fmt.Sprint(node, " ", first, " ", string(text)))
				}
				return full
			}
		})
		c := m.client()
		bring := func(text, want string) {
			t.Helper()
			_, err := m.played[1].conn.Call(t.Context(), &control.FirmwareLog{Text: []byte(text)})
			if said := fmt.Sprint(err); said != want {
				t.Errorf("%.40q: %v", text, said)
			}
		}
		shown := func(want string) {
			t.Helper()
			if got := c.node(1).Panic; got != want {
				t.Errorf("shown: %q, want %q", got, want)
			}
		}
		full = errors.New("the disk is full")
		bring("x", "the disk is full")
		shown("")
		full = nil
		bring("<6>[    1.0] x\n<0>[    9.0] Kernel panic - not syncing: a\x1b[2J\n", "<nil>")
		shown("a panic: a?[2J")
		if !m.logged("node1: its firmware has kept a panic: a?[2J (margay machine console -m m 1 --previous shows it)") || !m.logged("node1: what its firmware has kept stays there: the disk is full") {
			t.Error("the log has no line of it")
		}
		bring("more", "<nil>")
		shown("the end of a log")
		if want := []string{"1 true <6>[    1.0] x\n<0>[    9.0] Kernel panic - not syncing: a\x1b[2J\n", "1 false more"}; !slices.Equal(kept, want) {
			t.Errorf("kept: %q", kept)
		}
		m.restart()
		c = m.client()
		h := m.local(control.Role_ROLE_HOLDER)
		h.tell(&control.NodeBoot{Node: 1, Boots: 1}) // repeated
		m.played[1].connect()
		shown("the end of a log")
		bring("the rest", "<nil>") // the log before the restart is not in the firmware any more
		if last := kept[len(kept)-1]; last != "1 false the rest" {
			t.Errorf("kept after the restart: %q", last)
		}
		h.tell(&control.NodeBoot{Node: 1, Boots: 2})
		shown("")
		m.played[1].boot = "another boot"
		m.played[1].connect()
		bring("again", "<nil>")
		if last := kept[len(kept)-1]; last != "1 true again" {
			t.Errorf("kept last: %q", last)
		}
		m.played[1].boot = "by kexec"
		m.played[1].connect()
		shown("")
		bring("", "node1: a log of firmware that is empty or too long")
		long := strings.Repeat("x", control.MaxFirmwareLog)
		bring(long+"x", "node1: a log of firmware that is empty or too long")
		for range firmwareBurst/len(long) - 1 {
			bring(long, "<nil>")
		}
		bring(long, "node1: logs of its firmware come too fast")
		m.played[0].connect()
		for range firmwareBurst / firmwareLeast { // serve writes a file for each
			_, _ = m.played[0].conn.Call(t.Context(), &control.FirmwareLog{Text: []byte("x")})
		}
		if _, err := m.played[0].conn.Call(t.Context(), &control.FirmwareLog{Text: []byte("x")}); err == nil || err.Error() != "node0: logs of its firmware come too fast" {
			t.Errorf("many small logs: %v", err)
		}
	})
}

// A serve that keeps no logs of firmware says so, and the node keeps them.
func TestNoFirmwareLog(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		if _, err := m.played[0].conn.Call(t.Context(), &control.FirmwareLog{Text: []byte("x")}); err == nil || err.Error() != "node0: no logs of firmware are kept here" {
			t.Error(err)
		}
	})
}

// A log that is still being written when its node leaves is removed, so that the next node of the
// number does not have it, and the two write one after the other.
func TestFirmwareLogOfOneThatLeaves(t *testing.T) {
	bubble(t, func(t *testing.T) {
		written := make(chan struct{})
		var did []string
		m := up(t, 2, func(c *Config) {
			c.KeepFirmwareLog = func(node id.Node, text []byte, first bool) error {
				<-written
				did = append(did, fmt.Sprint(node, " ", first, " ", string(text)))
				return nil
			}
			c.RemoveFirmwareLog = func(node id.Node) error {
				did = append(did, fmt.Sprint(node, " is removed"))
				return nil
			}
		})
		m.rosterHolder()
		c := m.client()
		m.played[1].conn.Ask(&control.FirmwareLog{Text: []byte("old")})
		synctest.Wait()
		must[*control.NodesLeaving](c, leave(true, 1))
		synctest.Wait()
		c.has(0)
		must[*control.NodesAdded](c, &control.GrowMachine{Count: 1, User: "op"})
		m.played[1].connect()
		bring := func() error {
			_, err := m.played[1].conn.Call(t.Context(), &control.FirmwareLog{Text: []byte("new")})
			return err
		}
		if err := bring(); err == nil || err.Error() != "node1: its last log of firmware is still being written" {
			t.Errorf("beside the last one: %v", err)
		}
		close(written)
		synctest.Wait()
		if err := bring(); err != nil {
			t.Error(err)
		}
		if want := []string{"1 true old", "1 is removed", "1 true new"}; !slices.Equal(did, want) {
			t.Errorf("%q, want %q", did, want)
		}
	})
}
