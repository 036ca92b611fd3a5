// Package machine makes machines out of virtual machines, namespaces, other hosts or metal, and
// holds them.
//
// machine up (Up) prepares everything in the machine's folder and starts the holder. The holder
// owns everything outside the nodes themselves: the virtual machines and their switch, the
// namespaces and their bridge, or the launchers of nodes on other hosts. It starts serve, and
// restarts it whenever it ends. When the holder ends, whatever the cause, all of it ends: children
// get a signal from the kernel (package qemu/child), and a pipe whose write end only the holder has
// reaches its end.
//
// Locks: holder.mu guards the state of nodes that serve receives. holder.changing, which is taken
// before it, serializes changes of the roster. hosted.mu, virtual.mu, remote.mu and metalNodes.mu
// guard the tables of nodes of the substrates. None of holder.mu and these is held while another
// one is taken. metalNode.switching, which is taken before metalNodes.mu, serializes actions on the
// power of a node. images.keeping, which guards the record of the images that nodes boot, is taken
// after metalNodes.mu. boundLog.mu guards the file of a daemon's log, and is taken last.
package machine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"margay/cluster/fitness"
	"margay/cluster/hosts"
	"margay/cluster/ledger"
	"margay/cluster/permit"
	"margay/cluster/provision"
	"margay/cluster/roster"
	"margay/cluster/serve"
	"margay/cluster/site"
	"margay/cluster/trust"
	"margay/initramfs"
	"margay/initramfs/guestkernel"
	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
	"margay/qemu"
	"margay/qemu/ether"
)

// Spec is the description from which a machine is made. It is plain data.
type Spec struct {
	Name      string `json:"name"`
	Substrate string `json:"substrate"` // node.Virtual, node.Hosted, node.Hosts or node.Metal
	Nodes     int    `json:"nodes"`     // at first (Dir.ReadRoster)
	Owner     uint32 `json:"owner"`     // its user, by the number on the host; in the user namespace of a holder os.Getuid is 0
	Cores     int    `json:"cores"`     // for applications, on each node; 0, with node.Hosts and node.Metal only: all that its host gives but one

	Metal MetalSpec `json:"metal,omitzero"`

	Hosts    []string       `json:"hosts,omitempty"`    // by node number
	Launcher hosts.Launcher `json:"launcher,omitempty"` // starts programs on them
	Address  string         `json:"address,omitempty"`  // address and port where they reach serve; port 0: any

	AllCores    bool `json:"all_cores,omitempty"`    // core 0 computes for applications, too
	MessageCore bool `json:"message_core,omitempty"` // the last core handles messages and nothing else
	Offload     bool `json:"offload,omitempty"`      // extensions of jobs may run on the interfaces of nodes

	Profile   string `json:"profile"`        // boot profile of nodes with a Linux of their own; empty: depends on how virtual nodes are run
	Boot      string `json:"boot,omitempty"` // one of Boots: how virtual nodes boot
	MemoryMiB int    `json:"memory_mib"`
	Accel     string `json:"accel,omitempty"`
	MTU       int    `json:"mtu,omitempty"`
	Fabric    string `json:"fabric,omitempty"` // one of package node, or FabricAuto

	Program      string   `json:"program"`                 // path of the node program, which hosted nodes run
	JobInit      string   `json:"job_init,omitempty"`      // path of the job init, which hosted nodes run
	QEMU         string   `json:"qemu,omitempty"`          // path of the program that virtual nodes run in
	Firmware     []string `json:"firmware,omitempty"`      // folders with its firmware; empty: the program finds them
	Kernel       string   `json:"kernel,omitempty"`        // path of the guest kernel
	KernelOf     string   `json:"kernel_of,omitempty"`     // what the user gave for it: provision.Generic, the path of a kernel or of its folder, or nothing
	Direct       string   `json:"direct,omitempty"`        // path of its copy that emulated nodes start, which the cache may drop at any time
	Image        string   `json:"image,omitempty"`         // path of the node image
	Cmdline      string   `json:"cmdline,omitempty"`       // of the guest kernel
	KernelWords  string   `json:"kernel_words,omitempty"`  // more of it, from the user; metal only
	CardFirmware []string `json:"card_firmware,omitempty"` // where the image's firmware files of network cards come from (provision.ImageOptions); metal only
	Lacks        []string `json:"lacks,omitempty"`         // what the guest kernel lacks
	UEFI         string   `json:"uefi,omitempty"`          // path of the firmware of nodes that boot by it
	IPXEBIOS     string   `json:"ipxe_bios,omitempty"`     // path of what a BIOS fetches first
	IPXEUEFI     string   `json:"ipxe_uefi,omitempty"`     // path of what UEFI firmware fetches first
	Secret       string   `json:"secret"`                  // from which the nodes' join tokens are made

	Extensions []node.Extension `json:"extensions,omitempty"` // that nodes insert when they boot

	HistoryMiB int    `json:"history_mib,omitempty"` // size of the history of its jobs; 0: none is kept
	History    string `json:"history,omitempty"`     // the folder of histories; empty: none is kept

	Fitness fitness.Limits `json:"fitness,omitzero"` // that idle nodes must keep

	Access permit.Policy `json:"access,omitzero"`  // lets other users in
	Door   string        `json:"door,omitempty"`   // the socket for them (client.Door); empty: the machine is its owner's alone
	Listen string        `json:"listen,omitempty"` // address and port for users of other hosts; empty: there is none

	Timing serve.Timing `json:"timing,omitzero"`
}

// The ways in which virtual nodes boot.
const (
	BootKernel = "kernel" // QEMU loads the kernel and the node image
	BootBIOS   = "bios"   // from their network card, by the card's iPXE: DHCP and HTTP bring the kernel and the image
	BootUEFI   = "uefi"   // from their network card, by UEFI firmware, which gets an iPXE by TFTP (PXE)
	BootHTTP   = "http"   // from their network card, by UEFI firmware, which gets an iPXE by HTTP
)

// Boots are the ways in which virtual nodes boot.
var Boots = []string{BootKernel, BootBIOS, BootUEFI, BootHTTP}

// fromNetwork reports whether the nodes boot from their network cards.
func (s *Spec) fromNetwork() bool { return s.Substrate == node.Virtual && s.Boot != BootKernel }

// fromFiles reports whether QEMU loads what the nodes boot.
func (s *Spec) fromFiles() bool { return s.Substrate == node.Virtual && s.Boot == BootKernel }

// byUEFI reports whether UEFI firmware boots the nodes.
func (s *Spec) byUEFI() bool { return s.fromNetwork() && s.Boot != BootBIOS }

// FabricAuto stands for the fastest fabric that is safe on the wire between the nodes.
const FabricAuto = "auto"

// defaults of a spec.
const (
	defaultNodes     = 4
	defaultCores     = 2
	defaultMemoryMiB = 512
	// The switch of virtual nodes accepts frames of any size, and fewer frames mean less emulation.
	defaultMTU = 65535
)

// complete fills in defaults and checks the rest.
func (s *Spec) complete() error {
	if s.Name == "" {
		s.Name = site.DefaultName
	}
	if s.Substrate == "" {
		s.Substrate = node.Virtual
	}
	if s.Substrate == node.Hosts {
		if err := s.completeHosts(); err != nil {
			return err
		}
	}
	if s.Nodes == 0 && s.Substrate != node.Metal {
		s.Nodes = defaultNodes
	}
	if s.Cores == 0 && s.Substrate != node.Hosts && s.Substrate != node.Metal {
		s.Cores = defaultCores
	}
	if s.Profile == "" && s.Substrate != node.Virtual {
		s.Profile = node.Isolated
	}
	if s.MTU == 0 && s.Substrate == node.Virtual {
		s.MTU = defaultMTU
	}
	if s.Boot == "" && s.Substrate == node.Virtual {
		s.Boot = BootKernel
	}
	if s.Accel == "" {
		s.Accel = string(qemu.TCG)
	}
	if s.Fabric == "" || s.Fabric == FabricAuto {
		s.Fabric = node.TrustedTCP // the wire is the machine's own
		if s.Substrate == node.Hosts || s.Substrate == node.Metal {
			s.Fabric = node.TCP
		}
	}
	if s.MemoryMiB == 0 && s.Substrate != node.Hosts {
		s.MemoryMiB = defaultMemoryMiB
	}
	switch {
	case s.Substrate != node.Virtual && s.Substrate != node.Hosted && s.Substrate != node.Hosts && s.Substrate != node.Metal:
		return fmt.Errorf("there is no substrate %q: use %s, %s, %s or %s", s.Substrate, node.Virtual, node.Hosted, node.Hosts, node.Metal)
	case s.Substrate == node.Metal && s.Metal.Interface == "":
		return fmt.Errorf("--substrate %s needs the network that the nodes boot from: name its interface (--interface eth1)", node.Metal)
	case (s.Nodes < 1 || s.Nodes > roster.Most) && s.Substrate != node.Metal:
		return fmt.Errorf("a machine has 1 to %d nodes, not %d", roster.Most, s.Nodes)
	case (s.Cores < 1 || s.Cores > mostCores) && (s.Cores != 0 || s.Substrate != node.Hosts && s.Substrate != node.Metal):
		return fmt.Errorf("a node has 1 to %d application cores, not %d", mostCores, s.Cores)
	case s.MessageCore && s.Cores == 1 && !s.AllCores:
		return errors.New("a node with one application core has none for messages alone: use --cores 2 or more, or --cores all")
	case s.Offload && (s.Substrate == node.Hosted || s.Substrate == node.Hosts):
		return fmt.Errorf("nodes of the substrate %s have the host's Linux, which no extension of a job may enter: leave out --offload", s.Substrate)
	case s.Offload && !node.TrustsWire(s.Fabric):
		return fmt.Errorf("on a wire that is not trusted no extension runs on an interface: --offload needs --fabric %s or %s", node.TrustedTCP, node.TrustedUDP)
	case s.Accel != AccelAuto && s.Accel != string(qemu.TCG) && s.Accel != string(qemu.KVM):
		return fmt.Errorf("there is no accelerator %q: use %s, %s or %s", s.Accel, qemu.TCG, qemu.KVM, AccelAuto)
	case s.Substrate == node.Virtual && !slices.Contains(Boots, s.Boot):
		return fmt.Errorf("there is no way to boot %q: use %s, %s, %s or %s", s.Boot, BootKernel, BootBIOS, BootUEFI, BootHTTP)
	case s.MemoryMiB < 128 && (s.MemoryMiB != 0 || s.Substrate != node.Hosts):
		return fmt.Errorf("a node needs 128 MiB of memory, not %d", s.MemoryMiB)
	case s.byUEFI() && s.MemoryMiB < 192:
		return fmt.Errorf("a node that boots by UEFI firmware needs 192 MiB of memory, not %d", s.MemoryMiB)
	case s.HistoryMiB != 0 && (s.HistoryMiB < ledger.MinSize>>20 || s.HistoryMiB > ledger.MaxSize>>20):
		return fmt.Errorf("a history has %d to %d MiB, or 0 for none, not %d", ledger.MinSize>>20, ledger.MaxSize>>20, s.HistoryMiB)
	case s.Timing.Boot < 0 || s.Timing.Dead < 0:
		return fmt.Errorf("a boot time-out of %v and death after %v: neither can be negative", s.Timing.Boot, s.Timing.Dead)
	}
	return errors.Join(s.completeAccess(os.Getuid()), checkListen(s.Listen), CheckFabric(s.Fabric))
}

// mostCores bounds the application cores of a node.
const mostCores = 254

// completeHosts fills in defaults of a machine of hosts and checks the rest.
func (s *Spec) completeHosts() error {
	if len(s.Hosts) == 0 {
		return errors.New("a machine of hosts needs a list of them (--hosts, --hostfile, or an allocation of Slurm or PBS)")
	}
	s.Nodes = len(s.Hosts)
	if len(s.Launcher) == 0 {
		s.Launcher = hosts.SSH
	}
	// The holder has another working directory.
	path, err := exec.LookPath(s.Launcher[0])
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return fmt.Errorf("the launcher: %w", err)
	}
	s.Launcher = slices.Concat(hosts.Launcher{path}, s.Launcher[1:])
	for _, host := range s.Hosts {
		if _, err := s.Launcher.Command(host, s.Program); err != nil {
			return err
		}
	}
	if s.Address == "" {
		own, err := hosts.Address(s.Hosts)
		if err != nil {
			return fmt.Errorf("%w: name one that they reach (--address)", err)
		}
		s.Address = own.String()
	}
	address, err := netip.ParseAddrPort(s.Address)
	if err != nil {
		var own netip.Addr
		own, err = netip.ParseAddr(s.Address)
		address = netip.AddrPortFrom(own, 0)
	}
	if err != nil || !address.Addr().Is4() || address.Addr().IsUnspecified() {
		return fmt.Errorf("%q is not an IPv4 address of this host, with or without a port", s.Address)
	}
	s.Address = address.String()
	return nil
}

// CheckFabric returns an error that lists the fabrics and FabricAuto unless name is one of them.
func CheckFabric(name string) error {
	if err := node.CheckFabric(name); err != nil && name != FabricAuto {
		return fmt.Errorf("%w, or %s", err, FabricAuto)
	}
	return nil
}

// timing returns the intervals at which serve expects signs of life from a node. A heartbeat costs
// an emulated node some 10 ms of a processor, a large part of the load of an idle node. It costs
// serve and a hosted node, which shares the processors of serve with all others, a millisecond. For
// the same reason many hosted nodes take longer to launch a job.
func (s *Spec) timing() serve.Timing {
	t := s.Timing
	if s.Substrate == node.Virtual && s.Accel == string(qemu.TCG) && t.Heartbeat == 0 && t.Late == 0 {
		t.Heartbeat, t.Late = time.Second, 3*time.Second
	}
	if s.Substrate == node.Hosted && t.Space == 0 {
		t.Space, t.Each = 4*time.Millisecond, 200*time.Millisecond
	}
	return t
}

// askedEach is how many hosted nodes take part in the launch of a job at a time, for each
// processor. More would be too slow to answer in time.
const askedEach = 32

// atOnce returns how many nodes serve asks at a time to launch or to end a job; 0: all.
func (s *Spec) atOnce() int {
	if s.Substrate == node.Hosted {
		return askedEach * runtime.GOMAXPROCS(0)
	}
	return 0
}

// The network inside a machine. It belongs to the machine alone, so every machine has the same.
var (
	serveAddress = netip.MustParsePrefix("10.66.0.1/16")
	serveMAC     = ether.MAC{0x52, 0x54, 0x00, 0xff, 0xff, 0x01}

	bootAddress = netip.MustParsePrefix("10.66.0.2/16") // of the boot services
	bootMAC     = ether.MAC{0x52, 0x54, 0x00, 0xff, 0xff, 0x02}
)

// servePort is where nodes find serve.
const servePort = 7117

// nodeAddress is a node's address in the machine's network.
func nodeAddress(node id.Node) netip.Prefix {
	base := serveAddress.Masked().Addr().As4()
	binary.BigEndian.PutUint16(base[2:], uint16(256+node))
	return netip.PrefixFrom(netip.AddrFrom4(base), serveAddress.Bits())
}

// nodeMAC is the address of a node's network card.
func nodeMAC(node id.Node) ether.MAC {
	mac := ether.MAC{0x52, 0x54, 0x00, 0x66}
	binary.BigEndian.PutUint16(mac[4:], uint16(node))
	return mac
}

// bootConfig is the configuration that a node gets at its start. The term is its number's.
func (s Spec) bootConfig(number id.Node, term uint32, certificate []byte) node.Config {
	c := node.Config{
		Machine: s.Name, Node: number, Substrate: s.Substrate, Profile: s.Profile,
		MAC: nodeMAC(number).String(), Address: nodeAddress(number).String(), MTU: s.MTU, Fabric: s.Fabric,
		Serve: netip.AddrPortFrom(serveAddress.Addr(), servePort).String(),
		CA:    certificate, Token: trust.NodeToken(s.Secret, number, term), Lacks: s.Lacks, Extensions: s.Extensions,
		AllCores: s.AllCores, MessageCore: s.MessageCore, Offload: s.Offload,
	}
	if s.Substrate == node.Hosted {
		c.Profile = node.Shared
		c.Cores = s.Cores
		c.Memory = int64(s.MemoryMiB) << 20
		c.ServeMAC = serveMAC.String()
	}
	return c
}

// cmdline is the command line with which nodes start a kernel.
func (s *Spec) cmdline(k guestkernel.Kernel) (string, error) {
	profile, err := initramfs.ParseProfile(s.Profile)
	if err != nil {
		return "", err
	}
	if s.Substrate != node.Metal {
		return initramfs.Cmdline(k, profile, s.Cores+1)
	}
	line, err := initramfs.Cmdline(k, profile, initramfs.AllCores)
	return strings.TrimSpace(provision.ScreenToo + " " + line + " " + s.KernelWords), err
}

// passed is a command line as the kernel gets it where QEMU does not load it.
func (s *Spec) passed(cmdline string) string {
	if s.Substrate == node.Virtual {
		return qemu.CommandLine(qemu.Accel(s.Accel), cmdline)
	}
	return cmdline
}

// kernelOf is a kernel as the user gave it, for another working directory.
func kernelOf(given string) (string, error) {
	if given == "" || given == provision.Generic {
		return given, nil
	}
	return filepath.Abs(given)
}

// history is the history of the machine's jobs; nil if none is kept.
func (s *Spec) history() serve.History {
	if s.History == "" {
		return nil
	}
	return ledger.New(s.History, s.Name, int64(s.HistoryMiB)<<20)
}

// keepHistory chooses and makes the folder for the history of the machine's jobs. Without a history
// the machine still starts.
func (s *Spec) keepHistory(told func(format string, args ...any)) {
	if s.HistoryMiB == 0 {
		return
	}
	base, err := ledger.Base()
	if err == nil {
		err = ledger.New(base, s.Name, int64(s.HistoryMiB)<<20).Make()
	}
	if err != nil {
		told("the history of this machine's jobs is not kept: %v", err)
		return
	}
	s.History = base
}

// exit describes the end of a node's process or virtual machine.
type exit struct {
	Reason  string
	Console []string // its last lines
	Off     bool     // it has turned itself off, and would do so again
}

// substrate is what nodes run on.
type substrate interface {
	// start starts a node, or starts it again, and returns its pid and a channel that gets its end.
	// The term is its number's.
	start(node id.Node, term uint32) (pid int, ended <-chan exit, err error)
	// stop ends a node, and keeps one that waits until it is switched on from starting. The channel
	// gets the error if the node cannot be ended after all, and it goes on then; nil: it can.
	stop(node id.Node) (failed <-chan error)
	// remove frees what starts of a node that has ended for good have left.
	remove(node id.Node)
	// close ends the parts that the nodes share.
	close() error
}

var errUnknownSubstrate = errors.New("unknown substrate")

// stopWait bounds how long the holder waits for the end of a process.
const stopWait = 5 * time.Second
