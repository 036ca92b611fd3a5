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

	"margay/cluster/roster"
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
	cmd.Dir = t.TempDir() // the folder of the machine, as far as it needs one
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

// All nodes of a host together keep half of its memory at most, and a quarter unless nodes come
// later.
func TestContentsOfHost(t *testing.T) {
	for _, nodes := range []int{1, 4, 999} {
		h := &hosted{room: 24 << 30, spec: Spec{Nodes: nodes}}
		var kept int64
		for number := range id.Node(roster.Most) {
			kept += h.contentsOf(number)
			if int(number) == nodes-1 && (kept > 6<<30 || kept < 6<<30-1000) {
				t.Errorf("%d nodes keep %d bytes", nodes, kept)
			}
		}
		if kept > 12<<30 {
			t.Errorf("%d nodes, and those that come later, keep %d bytes", nodes, kept)
		}
	}
}

// A node gets files from the owner of the machine, as the host counts users, and keeps its part of
// others.
func TestFilesOfHostedNode(t *testing.T) {
	h := &hosted{dir: Dir(t.TempDir()), room: 24 << 30, cert: []byte("c"), spec: Spec{
		Name: "m", Substrate: node.Hosted, Nodes: 4, Cores: 1, MemoryMiB: 512, Secret: "s", Owner: 1001,
	}}
	if err := h.writeConfig(2, 1); err != nil {
		t.Fatal(err)
	}
	config, err := node.Read(h.dir.nodeFile(2))
	if err != nil {
		t.Fatal(err)
	}
	want := node.Lender{User: 1001, Folder: filepath.Join(string(h.dir), "lent")}
	if config.Lent == nil || *config.Lent != want || config.Contents != 24<<30/16 {
		t.Errorf("files are lent by %+v, not %+v, and %d bytes are kept", config.Lent, want, config.Contents)
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
