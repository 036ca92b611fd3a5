// Package file reads a machine file: which machines are nodes, how their power is switched, and how
// their serial ports are reached. It makes the drivers of the power.
//
//	nodes:
//	  - {number: 0, mac: "52:54:00:12:34:56"}    # of the network card that it boots from
//	  - {number: 1, uuid: 4c4c4544-0042-3510-8051-b4c04f4a4e32}    # of the machine, whatever card it boots from
//	power:
//	  - nodes: 0..15
//	    driver: redfish
//	    address: https://bmc{number}.example
//	    user: operator
//	    password-file: bmc.password
//	    fingerprint: 4f1c...
//	console:
//	  - {nodes: 0..15, command: [./serial, "bmc{number}.example"]}
//
// {number} stands for the number of the node. Paths are relative to the folder of the file.
// Passwords are not in it: an entry names a file that only its owner can read, or a variable of the
// environment.
package file

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"margay/cluster/power"
	"margay/cluster/power/command"
	"margay/cluster/power/ipmi"
	"margay/cluster/power/redfish"
	"margay/cluster/power/wake"
	"margay/internal/nodeset"
	"margay/internal/printable"
	"margay/internal/uuid"
)

// Bounds on a machine file and on a file with a password, in bytes.
const (
	mostFile     = 1 << 20
	mostPassword = 4096
)

// The time that an action on a node may take, and bounds on another one that an entry sets.
const (
	DefaultTimeout = 30 * time.Second
	mostTimeout    = 10 * time.Minute
)

// number stands in an entry for the number of a node.
const number = "{number}"

// Machine is what a machine file says.
type Machine struct {
	folder string // that relative paths start from
	nodes  map[uint32]entry
	cards  []Card

	consoles map[uint32][]string // commands
	pace     power.Pace
}

// Card says how a node is known when it boots: by the network card, by the machine, or by both.
type Card struct {
	Node uint32
	MAC  net.HardwareAddr // an Ethernet address; nil: it boots from any card
	UUID uuid.ID          // of the machine; zero: any machine with the card
}

// entry says how the power of some nodes is switched.
type entry struct {
	Nodes        string   `yaml:"nodes"`
	Driver       string   `yaml:"driver"`
	Address      string   `yaml:"address"`
	User         string   `yaml:"user"`
	PasswordFile string   `yaml:"password-file"`
	PasswordEnv  string   `yaml:"password-env"`
	Fingerprint  string   `yaml:"fingerprint"`
	System       string   `yaml:"system"`
	MAC          string   `yaml:"mac"`
	Command      []string `yaml:"command"`
	Timeout      string   `yaml:"timeout"`

	timeout time.Duration
}

// drivers lists the fields that entries of each driver have beside those that all have. The first
// ones are required.
var drivers = map[string]struct{ required, optional []string }{
	"redfish":     {[]string{"address", "user", "password"}, []string{"fingerprint", "system"}},
	"ipmi":        {[]string{"address", "user", "password"}, nil},
	"wake-on-lan": {[]string{"mac"}, []string{"address"}},
	"command":     {[]string{"command"}, nil},
}

const driverNames = "redfish, ipmi, wake-on-lan or command"

// Read reads a machine file. It names programs that are executed, so no other user may be able to
// write it.
func Read(path string) (*Machine, error) {
	text, err := read(path, mostFile, 0o022, "others can write to it, and it names programs that are executed: chmod go-w")
	if err != nil {
		return nil, err
	}
	m, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if m.folder, err = filepath.Abs(filepath.Dir(path)); err != nil {
		return nil, err
	}
	return m, nil
}

// Parse reads the text of a machine file.
func Parse(text []byte) (*Machine, error) {
	var file struct {
		Nodes []struct {
			Number *uint32 `yaml:"number"`
			MAC    string  `yaml:"mac"`
			UUID   string  `yaml:"uuid"`
		} `yaml:"nodes"`
		Power   []entry   `yaml:"power"`
		Console []console `yaml:"console"`
		Pace    *pace     `yaml:"pace"`
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil {
		return nil, explain(err)
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, errors.New("it has more than one document")
	}
	if len(file.Power)+len(file.Nodes)+len(file.Console) == 0 {
		return nil, errors.New("it has no entry below nodes, power or console")
	}
	if len(file.Nodes) > nodeset.Most {
		return nil, fmt.Errorf("it has more than %d nodes", nodeset.Most)
	}
	m := &Machine{nodes: make(map[uint32]entry), consoles: make(map[uint32][]string)}
	var err error
	if m.pace, err = file.Pace.parse(); err != nil {
		return nil, fmt.Errorf("pace: %w", err)
	}
	for i, n := range file.Nodes {
		if n.Number == nil {
			return nil, fmt.Errorf("entry %d of nodes: it has no number", i+1)
		}
		if err := m.addCard(*n.Number, n.MAC, n.UUID); err != nil {
			return nil, fmt.Errorf("entry %d of nodes: %w", i+1, err)
		}
	}
	for i, e := range file.Power {
		nodes, err := e.check()
		if err != nil {
			return nil, fmt.Errorf("entry %d of power: %w", i+1, err)
		}
		for _, node := range nodes {
			if _, twice := m.nodes[node]; twice {
				return nil, fmt.Errorf("entry %d of power: an earlier entry has node%d already", i+1, node)
			}
			m.nodes[node] = e
		}
		if len(m.nodes) > nodeset.Most {
			return nil, fmt.Errorf("it has more than %d nodes", nodeset.Most)
		}
	}
	if err := m.addConsoles(file.Console); err != nil {
		return nil, err
	}
	return m, nil
}

var (
	unknownField = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`field (\S+) (not found|already set) in type .*`) })
	wrongKind    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile("cannot unmarshal .* into .*") })
)

// explain takes the names of types out of an error of the parser.
func explain(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("it is empty")
	}
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if wrong := (*yaml.TypeError)(nil); errors.As(err, &wrong) && len(wrong.Errors) > 0 {
		text = wrong.Errors[0]
	}
	text = unknownField().ReplaceAllStringFunc(text, func(found string) string {
		parts := unknownField().FindStringSubmatch(found)
		if parts[2] == "already set" {
			return fmt.Sprintf("%s is given twice", parts[1])
		}
		return fmt.Sprintf("there is no field %s", parts[1])
	})
	return errors.New(printable.Short(wrongKind().ReplaceAllString(text, "the value is of the wrong kind"), 300))
}

// check checks an entry as far as that needs no file, and returns its nodes.
func (e *entry) check() ([]uint32, error) {
	nodes, err := nodeset.Parse(e.Nodes)
	if err != nil {
		return nil, fmt.Errorf("nodes: %w", err)
	}
	has, ok := drivers[e.Driver]
	if !ok {
		return nil, fmt.Errorf("driver is %q, not %s", e.Driver, driverNames)
	}
	given := map[string]bool{
		"address": e.Address != "", "user": e.User != "", "password": e.PasswordFile+e.PasswordEnv != "", "fingerprint": e.Fingerprint != "",
		"system": e.System != "", "mac": e.MAC != "", "command": len(e.Command) > 0,
	}
	for _, field := range has.required {
		if !given[field] {
			if field == "password" {
				field = "password-file or password-env"
			}
			return nil, fmt.Errorf("driver %s needs %s", e.Driver, field)
		}
		delete(given, field)
	}
	for _, field := range slices.Sorted(fields(given)) {
		if !slices.Contains(has.optional, field) {
			return nil, fmt.Errorf("driver %s has no %s", e.Driver, field)
		}
	}
	if e.PasswordFile != "" && e.PasswordEnv != "" {
		return nil, errors.New("it has password-file and password-env: one of them must go")
	}
	e.timeout = DefaultTimeout
	if e.Timeout != "" {
		if e.timeout, err = time.ParseDuration(e.Timeout); err != nil || e.timeout <= 0 || e.timeout > mostTimeout {
			return nil, fmt.Errorf("timeout is %q, not a time such as 30s, at most %v", e.Timeout, mostTimeout)
		}
	}
	if len(nodes) > 1 && e.Driver != "command" && !strings.Contains(e.Address+e.System, number) || len(nodes) > 1 && e.MAC != "" {
		return nil, fmt.Errorf("%s would be one and the same: each needs an entry, or %s in its address", e.Nodes, number)
	}
	_, err = e.driver(nodes[0], func() (string, error) { return "", nil })
	return nodes, err
}

func fields(given map[string]bool) func(func(string) bool) {
	return func(yield func(string) bool) {
		for field, is := range given {
			if is && !yield(field) {
				return
			}
		}
	}
}

// addCard adds how a node is known.
func (m *Machine) addCard(number uint32, mac, machine string) (err error) {
	c := Card{Node: number}
	if mac != "" || machine == "" {
		c.MAC, err = net.ParseMAC(mac)
		if err != nil || len(c.MAC) != 6 || c.MAC[0]&1 != 0 {
			return fmt.Errorf("mac is %q, not the address of a network card, such as 52:54:00:12:34:56", mac)
		}
	}
	if machine != "" {
		if c.UUID, err = uuid.Parse(machine); err != nil {
			return err
		}
	}
	for _, other := range m.cards {
		if other.Node == number || c.MAC != nil && bytes.Equal(other.MAC, c.MAC) || machine != "" && other.UUID.Key() == c.UUID.Key() {
			return fmt.Errorf("node%d with %v: an earlier entry is node%d with %v", number, c, other.Node, other)
		}
	}
	m.cards = append(m.cards, c)
	return nil
}

// String names the card and the machine for people.
func (c Card) String() string {
	switch {
	case c.UUID == uuid.ID{}:
		return c.MAC.String()
	case c.MAC == nil:
		return c.UUID.String()
	}
	return fmt.Sprintf("%v and %v", c.MAC, c.UUID)
}

// Cards returns how nodes are known, in the order of the file.
func (m *Machine) Cards() []Card { return m.cards }

// Switched reports whether the file says how the power of a node is switched.
func (m *Machine) Switched(node uint32) bool {
	_, ok := m.nodes[node]
	return ok
}

// Timeout returns how long an action on one node may take at most, on the node with the longest
// time; 0: the file has no node that it says how to switch.
func (m *Machine) Timeout() (most time.Duration) {
	for _, e := range m.nodes {
		most = max(most, e.timeout)
	}
	return most
}

// Nodes returns the nodes whose power the file says how to switch, in order.
func (m *Machine) Nodes() []uint32 {
	var nodes []uint32
	for node := range m.nodes {
		nodes = append(nodes, node)
	}
	slices.Sort(nodes)
	return nodes
}

// Driver makes the driver of a node, and returns how long an action may take.
func (m *Machine) Driver(node uint32) (power.Driver, time.Duration, error) {
	e, ok := m.nodes[node]
	if !ok {
		return nil, 0, fmt.Errorf("the file has no node%d: its nodes are %s", node, nodeset.Condense(m.Nodes()))
	}
	d, err := e.driver(node, func() (string, error) { return m.password(e) })
	if p, ok := d.(command.Program); ok {
		p.Args[0] = m.program(p.Args[0])
		d = p
	}
	return d, e.timeout, err
}

// Check makes all drivers, and reports what they lack on this host: files with passwords, variables
// of the environment, programs. It sends nothing to a controller. The error has a line for each
// defect, with the nodes that have it.
func (m *Machine) Check() error {
	lacking := make(map[string][]uint32)
	var defects []string
	for _, node := range m.Nodes() {
		d, _, err := m.Driver(node)
		if p, ok := d.(command.Program); ok && err == nil {
			_, err = exec.LookPath(p.Args[0])
		}
		if err == nil {
			continue
		}
		if lacking[err.Error()] == nil {
			defects = append(defects, err.Error())
		}
		lacking[err.Error()] = append(lacking[err.Error()], node)
	}
	var errs []error
	for _, defect := range defects {
		errs = append(errs, fmt.Errorf("%s: %s", nodeset.Condense(lacking[defect]), defect))
	}
	return errors.Join(errs...)
}

// Unnamed returns the nodes with an entry below power and none below nodes. There are none if the
// file has nothing below nodes.
func (m *Machine) Unnamed() []uint32 {
	if len(m.cards) == 0 {
		return nil
	}
	return slices.DeleteFunc(m.Nodes(), func(node uint32) bool {
		return slices.ContainsFunc(m.cards, func(c Card) bool { return c.Node == node })
	})
}

// program returns a program of the file. A path may be relative to the file's folder.
func (m *Machine) program(name string) string {
	if !strings.Contains(name, "/") {
		return name
	}
	return m.path(name)
}

// path returns a path of the file, which may be relative to the file's folder.
func (m *Machine) path(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(m.folder, path)
}

// fill returns a text of an entry with the number of a node.
func fill(text string, node uint32) string {
	return strings.ReplaceAll(text, number, strconv.FormatUint(uint64(node), 10))
}

// driver makes the driver of a node. It asks for the password last.
func (e entry) driver(node uint32, password func() (string, error)) (power.Driver, error) {
	fill := func(text string) string { return fill(text, node) }
	address := fill(e.Address)
	switch e.Driver {
	case "redfish":
		u, err := url.Parse(address)
		if err != nil || u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.User != nil || u.RawQuery+u.Fragment != "" {
			return nil, fmt.Errorf("address is %q, not https://HOST or https://HOST:PORT", address)
		}
		var sum []byte
		if e.Fingerprint != "" {
			if sum, err = hex.DecodeString(strings.ReplaceAll(e.Fingerprint, ":", "")); err != nil || len(sum) != 32 {
				return nil, errors.New("fingerprint is not the SHA-256 of a certificate, 64 hexadecimal digits")
			}
		}
		secret, err := password()
		return redfish.New(redfish.Config{Address: &url.URL{Scheme: u.Scheme, Host: u.Host}, User: e.User, Password: secret, Fingerprint: sum, System: fill(e.System)}), err
	case "ipmi":
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			host, port = strings.Trim(address, "[]"), ipmi.Port
		}
		if host == "" || len(e.User) > ipmi.MaxUser {
			return nil, fmt.Errorf("address is %q and user %q, not HOST or HOST:PORT and at most %d bytes", address, e.User, ipmi.MaxUser)
		}
		secret, err := password()
		if err == nil && len(secret) > ipmi.MaxPassword {
			err = fmt.Errorf("a password of IPMI has at most %d bytes", ipmi.MaxPassword)
		}
		return ipmi.Controller{Address: net.JoinHostPort(host, port), User: e.User, Password: secret}, err
	case "wake-on-lan":
		card, err := net.ParseMAC(e.MAC)
		if err != nil || len(card) != 6 {
			return nil, fmt.Errorf("mac is %q, not the address of a network card, such as 52:54:00:12:34:56", e.MAC)
		}
		to := netip.AddrPortFrom(wake.Everywhere, 9)
		if address != "" {
			if to, err = netip.ParseAddrPort(address); err != nil || !to.Addr().Is4() {
				return nil, fmt.Errorf("address is %q, not an IPv4 address and a port, such as 10.8.255.255:9", address)
			}
		}
		return wake.Card{Address: card, Broadcast: to}, nil
	}
	p := command.Program{Node: fmt.Sprintf("node%d", node)}
	for _, arg := range e.Command {
		p.Args = append(p.Args, fill(arg))
	}
	if p.Args[0] == "" {
		return nil, errors.New("command has no program")
	}
	return p, nil
}

// password reads the password of an entry.
func (m *Machine) password(e entry) (string, error) {
	if e.PasswordEnv != "" {
		if secret := os.Getenv(e.PasswordEnv); secret != "" {
			return secret, nil
		}
		return "", fmt.Errorf("the environment has no variable %s, which has the password", e.PasswordEnv)
	}
	path := m.path(e.PasswordFile)
	text, err := read(path, mostPassword, 0o077, "others can read it, and it has a password: chmod 600")
	if err != nil {
		return "", err
	}
	secret := strings.TrimRight(string(text), "\r\n")
	if secret == "" || strings.ContainsAny(secret, "\r\n\x00") {
		return "", fmt.Errorf("%s: it must have one line, the password", path)
	}
	return secret, nil
}

// read reads a regular file of this user or root. Its mode may have none of the forbidden bits.
func read(path string, most int64, forbidden os.FileMode, why string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	owner := int(info.Sys().(*syscall.Stat_t).Uid)
	switch {
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", path)
	case owner != os.Getuid() && owner != 0:
		return nil, fmt.Errorf("%s belongs to another user", path)
	case info.Mode().Perm()&forbidden != 0:
		return nil, fmt.Errorf("%s: %s %[1]s", path, why)
	}
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s has more than %d bytes", path, most)
	}
	return text, err
}
