package machine

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"margay/cluster/folder"
	"margay/cluster/roster"
	"margay/cluster/trust"
	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
	"margay/kernel/neighbour"
	"margay/qemu/child"
	"margay/qemu/console"
)

// bridge is the name of the device that joins hosted nodes, in the holder's network namespace.
const bridge = "margay"

// hosted runs each node in namespaces of its own. The holder, and serve with it, runs in a network
// namespace of the machine, where a bridge joins the nodes.
type hosted struct {
	spec Spec
	dir  Dir
	cert []byte
	room int64 // bytes of memory that this host has

	mu    sync.Mutex
	nodes map[id.Node]*hostedNode
}

type hostedNode struct {
	cmd      *exec.Cmd
	lifeline *os.File
}

// checkRoot returns an error if this process is in a chroot, where neither nodes nor jobs can get
// roots of their own.
func checkRoot() error {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, "/", 0, unix.STATX_BASIC_STATS, &st); err != nil {
		return fmt.Errorf("look at /: %w", err)
	}
	if st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return fmt.Errorf("hosted nodes cannot be made in a chroot, since its / is not a mount point; use --substrate %s", node.Virtual)
	}
	return nil
}

// newHosted makes the bridge, and the folder in which margay run lends files to nodes.
func newHosted(s Spec, d Dir, a *trust.Authority) (*hosted, error) {
	var host unix.Sysinfo_t
	if err := unix.Sysinfo(&host); err != nil {
		return nil, fmt.Errorf("memory of this host: %w", err)
	}
	h := &hosted{spec: s, dir: d, cert: a.Certificate(), room: int64(host.Totalram) * int64(host.Unit), nodes: make(map[id.Node]*hostedNode)}
	if err := os.Mkdir(folder.Dir(d).Lent(), 0o700); err != nil {
		return nil, fmt.Errorf("the folder for files that are lent: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("hosted network: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return nil, fmt.Errorf("hosted network: %w", err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = bridge
	// Without a fixed address, a bridge changes its address when ports come and go, and frames to
	// the address that a neighbour has learnt are lost.
	attrs.HardwareAddr = serveMAC[:]
	br := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(br); err != nil {
		return nil, fmt.Errorf("hosted network: make bridge: %w", err)
	}
	address := &netlink.Addr{IPNet: ipNet(serveAddress)}
	if err := netlink.AddrAdd(br, address); err != nil {
		return nil, fmt.Errorf("hosted network: give %v to the bridge: %w", serveAddress, err)
	}
	if err := neighbour.Quiet(new(netlink.Handle), br); err != nil {
		return nil, fmt.Errorf("hosted network: %w", err)
	}
	if err := netlink.LinkSetUp(br); err != nil {
		return nil, fmt.Errorf("hosted network: turn on the bridge: %w", err)
	}
	return h, nil
}

// start implements substrate.
func (h *hosted) start(node id.Node, term uint32) (int, <-chan exit, error) {
	if err := h.writeConfig(node, term); err != nil {
		return 0, nil, err
	}
	log, err := console.New(console.Config{Path: h.dir.ConsoleLog(node)})
	if err != nil {
		return 0, nil, err
	}
	n, err := h.spawn(node, log)
	if err != nil {
		return 0, nil, errors.Join(err, log.Close())
	}
	h.mu.Lock()
	h.nodes[node] = n
	h.mu.Unlock()
	ended := make(chan exit, 1)
	go func() {
		n.cmd.Wait() // an error would only repeat the state
		n.lifeline.Close()
		ended <- exit{
			Reason:  fmt.Sprintf("its PID 1 ended: %v", n.cmd.ProcessState),
			Console: log.Tail(consoleLines),
			Off:     n.cmd.ProcessState.Success(),
		}
		log.Close()
	}()
	if err := h.plugIn(node, n.cmd.Process.Pid); err != nil {
		h.stop(node)
		<-ended
		return 0, nil, err
	}
	return n.cmd.Process.Pid, ended, nil
}

func (h *hosted) writeConfig(number id.Node, term uint32) error {
	config := h.spec.bootConfig(number, term, h.cert)
	config.Contents = h.contentsOf(number)
	config.Lent = &node.Lender{User: h.spec.Owner, Folder: folder.Dir(h.dir).Lent()}
	text, err := config.Encode()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(h.dir.nodeRoot(number), 0o700); err != nil {
		return err
	}
	return writeFile(h.dir.nodeFile(number), text)
}

// contentsShare is the divisor of this host's memory for files that the nodes of a machine keep for
// later jobs. Those that a machine has got since it was made take as much together.
const contentsShare = 4

// contentsOf returns how many bytes of files a node may keep for later jobs.
func (h *hosted) contentsOf(number id.Node) int64 {
	nodes := h.spec.Nodes
	if int(number) >= nodes { // the last number is not known
		nodes = roster.Most
	}
	return max(h.room/contentsShare/int64(nodes), 1)
}

// spawn starts the PID 1 of a node, which waits for its network card.
func (h *hosted) spawn(number id.Node, log *console.Log) (*hostedNode, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	cmd := exec.Command(h.spec.Program, node.Hosted, h.dir.nodeFile(number), h.dir.nodeRoot(number), h.spec.JobInit)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{r}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Setsid:     true,
	}
	if err := child.Start(cmd); err != nil {
		w.Close()
		return nil, fmt.Errorf("start node%d: %w", number, err)
	}
	return &hostedNode{cmd: cmd, lifeline: w}, nil
}

// plugIn joins a node's network namespace with the bridge.
func (h *hosted) plugIn(node id.Node, pid int) error {
	br, err := netlink.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("node%d: bridge: %w", node, err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = fmt.Sprintf("node%d", node)
	attrs.MasterIndex = br.Attrs().Index
	mac := nodeMAC(node)
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerHardwareAddr: mac[:], PeerNamespace: netlink.NsPid(pid)}
	if err := unplug(attrs.Name); err != nil {
		return fmt.Errorf("node%d: take its last network card away: %w", node, err)
	}
	if err := netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("node%d: make its network card: %w", node, err)
	}
	if err := neighbour.Quiet(new(netlink.Handle), pair); err != nil {
		return fmt.Errorf("node%d: %w", node, err)
	}
	if err := netlink.LinkSetUp(pair); err != nil {
		return fmt.Errorf("node%d: turn on its network card: %w", node, err)
	}
	if err := neighbour.Enter(br.Attrs().Index, nodeAddress(node).Addr(), net.HardwareAddr(mac[:])); err != nil {
		return fmt.Errorf("node%d: %w", node, err)
	}
	return nil
}

// unplug removes a card if there is one of that name. Linux removes the cards of a network
// namespace with it, but only some time after its last process has ended.
func unplug(name string) error {
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if errors.As(err, new(netlink.LinkNotFoundError)) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// stop implements substrate.
func (h *hosted) stop(node id.Node) (failed <-chan error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := h.nodes[node]; n != nil {
		// It may have ended a moment ago. With its PID 1 the kernel ends every process of the node.
		_ = n.cmd.Process.Kill()
		delete(h.nodes, node)
	}
	return nil
}

// remove implements substrate. The network card of a node goes with its network namespace. What
// stays shows a node that ended: its console.
func (h *hosted) remove(node id.Node) {
	if err := removeFiles(h.dir.nodeFile(node), h.dir.nodeRoot(node)); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// close implements substrate: the bridge goes with the network namespace.
func (h *hosted) close() error { return nil }
