// Package node is the interface between the machine, which starts a node, and the programs of the
// node. It defines the configuration, which the machine writes for each node and PID 1 and the node
// kernel read, the names of the substrates, and the paths in a node image. On a virtual machine the
// configuration is appended to the node image, or, if that comes over the network, an item of the
// virtual machine; on a hosted node it is a file; on a metal node it comes with the node image, or
// PID 1 fetches it. The package is a leaf.
package node

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"margay/kernel/abi/id"
)

// Path is the path of the configuration on a node.
const Path = "/margay/node.json"

// Item is the name of the configuration among the items of a virtual machine that boots from its
// network card. It has secrets, so the network does not carry it.
const Item = "margay/node.json"

// How a node that boots from a disk gets its configuration (kernel/seek): the user class of its
// questions by DHCP, the path of the configuration on the boot services and their port, and the
// word of the kernel command line that names its machine, with the value for any machine.
const (
	UserClass   = "Margay"
	FetchPath   = "/node.json"
	BootPort    = 80
	MachineWord = "margay.machine"
	AnyMachine  = "any"
)

// How such a node presents the token by which it becomes a node without approval: the word of the
// kernel command line that has the token, and the header of the request for the configuration.
const (
	TokenWord   = "margay.token"
	TokenHeader = "Margay-Token"
)

// PinHeader is the header of the request in which such a node, whose image belongs to one machine
// alone, says which one: the value of MachineWord.
const PinHeader = "Margay-Machine"

// How such a node finds out that the machine that it seeks has written the configuration that came:
// it sends NonceSize random bytes, and gets the signature of Statement by the machine's key. Both
// headers have hexadecimal digits.
const (
	NonceHeader     = "Margay-Nonce"
	SignatureHeader = "Margay-Signature"
	NonceSize       = 16
)

// Statement returns what a machine's key (Ed25519) signs of the text of a configuration, for the
// one request that had the nonce.
func Statement(nonce, text []byte) []byte {
	return slices.Concat([]byte("Margay node configuration\n"), nonce, text)
}

// ImageWord is the word of the kernel command line that names the image which an update has given
// the node (margay node update).
const ImageWord = "margay.image"

// LoadOrder is the file of a node image that lists its kernel modules: one absolute path per line,
// dependencies first.
const LoadOrder = "/lib/modules/load-order"

// ConsoleModule is the module that sends a node's console over the network. If LoadOrder has it, it
// is loaded when the network is configured, and only where there is a receiver (Config.Console).
const ConsoleModule = "netconsole"

// ConsoleSender is the UDP port from which Linux sends a node's console over the network.
const ConsoleSender = 6665

// JobInit is the path of the job init on a node (tools/jobinit). A node image contains it; a hosted
// node sees a file of its host there. Linux names each process after its last element.
const JobInit = "/sbin/margay-jobinit"

// Contents is where a node has mounted the files that jobs have brought (kernel/content). It is in
// the root of the node's own processes, which no job sees.
const Contents = "/run/margay/contents"

// Lent is where a hosted node has the folder of its host mounted, read-only, into which margay run
// puts contents of files (Config.Lent). No job sees it.
const Lent = "/run/margay/lent"

// HostRoot is where a hosted node has folders of its host mounted, read-only, for jobs that ask for
// them (JobSpec.host_root of the control protocol): HostFolders, as far as the host has them. Where
// the host has a link instead, so has the node.
const HostRoot = "/run/margay/host"

// Dumps is the folder in a job's root where a node with its own Linux leaves the memory of ranks
// that a fault has ended: the name of each file is the pid.
const Dumps = "/dev/dumps"

// HostFolders are the folders of a host with its programs, libraries and their configuration. They
// are in its root.
var HostFolders = []string{"bin", "etc", "lib", "lib32", "lib64", "libx32", "sbin", "usr"}

// The substrates: what a node runs on.
const (
	Virtual = "qemu"   // a virtual machine
	Hosted  = "hosted" // namespaces of a host, whose Linux the node shares
	Metal   = "metal"  // a machine of its own
	Hosts   = "hosts"  // of a machine only: its nodes are hosted ones on hosts of a list
)

// The profiles: how the Linux kernel of a node is configured.
const (
	Isolated = "isolated" // application cores with as little noise as possible
	Ticking  = "ticking"  // the same, but for the tick of Linux's timer
	Sched    = "sched"    // with sched_ext, which does not work on isolated cores
	Shared   = "shared"   // on cores that the node shares with others
)

// The fabrics: how messages travel between the nodes of a machine, which all use the same one.
const (
	TCP        = "tcp"         // TLS over TCP
	TrustedTCP = "tcp-trusted" // the same, and datagrams of ranks, neither encrypted nor authenticated
	UDP        = "udp"         // sealed datagrams of a reliable protocol; streams over TLS
	TrustedUDP = "udp-trusted" // the same, and datagrams of ranks, neither encrypted nor authenticated
)

// Fabrics are all of them.
var Fabrics = []string{TCP, TrustedTCP, UDP, TrustedUDP}

// maxSize bounds the file, in bytes.
const maxSize = 8 << 20

// Config is the content of the file.
type Config struct {
	Machine   string   `json:"machine"`
	Node      id.Node  `json:"node"`
	Substrate string   `json:"substrate"`           // Virtual, Hosted or Metal
	Host      string   `json:"host,omitempty"`      // hosted only: its host, whose network it uses and which has no other node of the machine; empty: the service host
	Profile   string   `json:"profile"`             // Isolated, Ticking, Sched or Shared
	MAC       string   `json:"mac,omitempty"`       // of the interface to the other nodes; empty if Host is set
	Address   string   `json:"address"`             // of this node on that interface, or of its host, with prefix length
	MTU       int      `json:"mtu,omitempty"`       // of that interface, in bytes; 0: as it is
	Fabric    string   `json:"fabric,omitempty"`    // one of the fabrics; empty: TCP
	Serve     string   `json:"serve"`               // host:port of the machine's serve
	ServeMAC  string   `json:"serve_mac,omitempty"` // of serve's interface; set where nodes enter the hardware addresses of others themselves (Neighbour)
	CA        []byte   `json:"ca"`                  // certificate (DER) of the machine's key
	Token     string   `json:"token"`               // proves that this node belongs to the machine
	Lacks     []string `json:"lacks,omitempty"`     // what the node's Linux kernel lacks
	Console   Console  `json:"console,omitzero"`    // metal only: where its Linux sends its console as well
	Cores     int      `json:"cores,omitempty"`     // hosted only: number of application cores
	Memory    int64    `json:"memory,omitempty"`    // hosted only: bytes for jobs
	Lent      *Lender  `json:"lent,omitempty"`      // hosted only: the user that lends files to jobs; nil: there is none
	Contents  int64    `json:"contents,omitempty"`  // hosted only: most bytes of files that are kept for later jobs; 0: as many as Memory allows

	AllCores    bool `json:"all_cores,omitempty"`    // core 0 is an application core, too
	MessageCore bool `json:"message_core,omitempty"` // the last core is the message core
	Offload     bool `json:"offload,omitempty"`      // extensions of jobs, too, may run on the interface to the other nodes

	Extensions []Extension `json:"extensions,omitempty"` // the machine's own, in the order of their insertion
}

// Console is a receiver of consoles (netconsole) on the network of the node. The zero value is
// none.
type Console struct {
	Address string `json:"address"` // IPv4 address:port
	MAC     string `json:"mac"`     // of its interface
}

// Lender is a user of a hosted node's host whose jobs get contents of files from a folder there.
// Each file in it is named by the digest of its content, and no other user can write to it.
type Lender struct {
	User   uint32 `json:"user"`
	Folder string `json:"folder"`
}

// Extension is an extension that a node inserts when it boots. It is trusted, as the whole image
// is.
type Extension struct {
	Name      string            `json:"name"`
	Object    []byte            `json:"object"`              // an ELF file
	Constants map[string]uint64 `json:"constants,omitempty"` // values of its constants
}

// Hostname returns the host name of the node.
func (c Config) Hostname() string { return fmt.Sprintf("node%d", c.Node) }

// Prefix returns the parsed Address.
func (c Config) Prefix() netip.Prefix { return netip.MustParsePrefix(c.Address) }

// Neighbour returns the hardware address of serve or another node by its address, and false where
// that does not follow from the configuration. The hardware addresses of nodes differ as their
// addresses do.
func (c Config) Neighbour(a netip.Addr) (net.HardwareAddr, bool) {
	if c.ServeMAC == "" || !a.Is4() || !c.Prefix().Contains(a) {
		return nil, false
	}
	if serve, err := netip.ParseAddrPort(c.Serve); err == nil && serve.Addr() == a {
		mac, err := net.ParseMAC(c.ServeMAC)
		return mac, err == nil
	}
	mac, err := net.ParseMAC(c.MAC)
	if err != nil || len(mac) != 6 {
		return nil, false
	}
	own, other := c.Prefix().Addr().As4(), a.As4()
	distance := binary.BigEndian.Uint32(other[:]) - binary.BigEndian.Uint32(own[:])
	binary.BigEndian.PutUint32(mac[2:], binary.BigEndian.Uint32(mac[2:])+distance)
	return mac, true
}

// Datagrams reports whether the frames of node kernels travel in datagrams on a fabric.
func Datagrams(fabric string) bool { return fabric == UDP || fabric == TrustedUDP }

// TrustsWire reports whether ranks of different nodes exchange datagrams on a fabric.
func TrustsWire(fabric string) bool { return fabric == TrustedTCP || fabric == TrustedUDP }

// CheckFabric returns an error that lists the fabrics unless name is one of them.
func CheckFabric(name string) error {
	if slices.Contains(Fabrics, name) {
		return nil
	}
	return fmt.Errorf("there is no fabric %q: use %s or %s", name, strings.Join(Fabrics[:len(Fabrics)-1], ", "), Fabrics[len(Fabrics)-1])
}

// Read reads and checks the file at path.
func Read(path string) (Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("node: %w", err)
	}
	return Parse(text)
}

// Encode returns the text of the file.
func (c Config) Encode() ([]byte, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	return json.MarshalIndent(c, "", "  ")
}

// Parse parses and checks the text of a configuration, which is untrusted.
func Parse(text []byte) (Config, error) {
	var c Config
	if len(text) > maxSize {
		return Config{}, fmt.Errorf("node: configuration of %d bytes, at most %d are allowed", len(text), maxSize)
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return Config{}, fmt.Errorf("node: configuration: %w", err)
	}
	if err := c.check(); err != nil {
		return Config{}, err
	}
	return c, nil
}

func (c Config) check() error {
	var errs []error
	if c.Machine == "" || strings.ContainsAny(c.Machine, "/ \n") {
		errs = append(errs, fmt.Errorf("machine %q is not a name", c.Machine))
	}
	if _, err := net.ParseMAC(c.MAC); err != nil && c.Host == "" {
		errs = append(errs, err)
	}
	if _, err := net.ParseMAC(c.ServeMAC); err != nil && c.ServeMAC != "" {
		errs = append(errs, err)
	}
	if p, err := netip.ParsePrefix(c.Address); err != nil {
		errs = append(errs, err)
	} else if !p.Addr().Is4() {
		errs = append(errs, fmt.Errorf("address %s is not IPv4", c.Address))
	}
	if _, err := netip.ParseAddrPort(c.Serve); err != nil {
		errs = append(errs, err)
	}
	if c.Console != (Console{}) {
		errs = append(errs, c.Console.check())
	}
	if c.MTU < 0 || c.MTU > 65535 || c.Cores < 0 || c.Cores > 4096 || c.Memory < 0 || c.Contents < 0 {
		errs = append(errs, fmt.Errorf("mtu %d, cores %d, memory %d or contents %d is out of range", c.MTU, c.Cores, c.Memory, c.Contents))
	}
	if c.Fabric != "" {
		errs = append(errs, CheckFabric(c.Fabric))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("node: configuration: %w", err)
	}
	return nil
}

func (c Console) check() error {
	to, err := netip.ParseAddrPort(c.Address)
	if err == nil && !to.Addr().Is4() {
		err = fmt.Errorf("address %s is not IPv4", c.Address)
	}
	_, noMAC := net.ParseMAC(c.MAC)
	return errors.Join(err, noMAC)
}
