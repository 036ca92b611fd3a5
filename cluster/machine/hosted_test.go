package machine

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"margay/cluster/trust"
	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
)

// plugged names the part of this binary that plugs nodes in, in a network namespace of its own.
const plugged = "plug nodes in"

// Linux removes a node's network namespace some time after its last process has ended, and the card
// with it. A node that is started again before that still gets a card.
func TestPluggedInAgain(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", plugged, "twice")
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
	if uid, gid := os.Getuid(), os.Getgid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: gid, Size: 1}}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// All nodes of a host together keep a quarter of its memory at most, also those that a machine has
// got later.
func TestContentsOfHost(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		nodes  int
		number id.Node
		want   int64
	}{{4, 0, 24 * gib / 16}, {1000, 0, 24 * gib / 4000}, {1000, 999, 24 * gib / 4000}, {4, 999, 24 * gib / 4000}} {
		h := &hosted{dir: Dir(t.TempDir()), room: 24 * gib, cert: []byte("c"), spec: Spec{
			Name: "m", Substrate: node.Hosted, Nodes: c.nodes, Cores: 1, MemoryMiB: 512, Secret: "s", Owner: 1001,
		}}
		if err := h.writeConfig(c.number, 1); err != nil {
			t.Fatal(err)
		}
		config, err := node.Read(h.dir.nodeFile(c.number))
		if err != nil || config.Contents != c.want {
			t.Errorf("node %d of %d may keep %d bytes, not %d: %v", c.number, c.nodes, config.Contents, c.want, err)
		}
		if lent := (node.Lender{User: 1001, Folder: filepath.Join(string(h.dir), "lent")}); config.Lent == nil || *config.Lent != lent {
			t.Errorf("files are lent by %+v, not %+v", config.Lent, lent)
		}
	}
}

// plugTwice gives the card of node 0 to one process, and to another one while the first still
// lives.
func plugTwice() error {
	authority, err := trust.NewAuthority("test")
	if err != nil {
		return err
	}
	h, err := newHosted(Spec{}, "", authority)
	if err != nil {
		return err
	}
	for range 2 {
		in, out, err := os.Pipe()
		if err != nil {
			return err
		}
		defer out.Close()
		cmd := exec.Command("cat")
		cmd.Stdin = in
		cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
		if err := cmd.Start(); err != nil {
			return err
		}
		in.Close()
		if err := h.plugIn(0, cmd.Process.Pid); err != nil {
			return err
		}
	}
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	if len(links) != 3 {
		return fmt.Errorf("lo, the bridge and one card are wanted, there are %v", links)
	}
	return nil
}
