package pid1_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"margay/kernel/abi/node"
	"margay/kernel/driver"
	"margay/kernel/klog"
	"margay/kernel/pid1"
)

// config is the configuration of these tests' nodes. An unusual MTU shows that it is set.
var config = node.Config{
	Machine: "test", Node: 3, Substrate: "hosted", Profile: "shared", MAC: "52:54:00:00:00:03", Address: "10.66.1.3/16", MTU: 1234,
	Serve: "10.66.0.1:7117", ServeMAC: "52:54:00:00:00:99", CA: []byte("certificate"), Token: "token",
}

// hosted is PID 1 of a hosted node, in namespaces of its own.
func hosted(file, root, jobInit string) error {
	if err := makeCard(); err != nil {
		return err
	}
	n := pid1.Hosted{Config: file, Root: root, JobInit: jobInit, Lifeline: os.NewFile(3, "lifeline")}
	got, err := n.SetUp(say)
	if err != nil {
		return err
	}
	return describe(got)
}

// machine is PID 1 of a machine of its own, in namespaces of its own.
func machine(string) error {
	if err := makeCard(); err != nil {
		return err
	}
	got, err := pid1.Machine{}.SetUp(say)
	if err != nil {
		return err
	}
	return describe(got)
}

// The configuration comes from the items of the virtual machine if the image has none, for root
// alone.
func TestConfigFromItems(t *testing.T) {
	root, items := t.TempDir(), t.TempDir()
	if err := pid1.TakeConfig(items, root); err == nil || !strings.Contains(err.Error(), "the image has no "+node.Path) {
		t.Errorf("without any: %v", err)
	}
	item, path := filepath.Join(items, node.Item), filepath.Join(root, node.Path)
	if err := os.MkdirAll(item, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"an item", "another one"} { // the second is not taken
		if err := os.WriteFile(filepath.Join(item, "raw"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := pid1.TakeConfig(items, root); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != "an item" {
			t.Errorf("%q, %v", got, err)
		}
	}
	for name, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700 | os.ModeDir} {
		if info, err := os.Stat(name); err != nil || info.Mode() != want {
			t.Errorf("%s: mode %v, %v", name, info.Mode(), err)
		}
	}
}

// A machine's PID 1 does nothing to a root that is not of a node image.
func TestForeignRoot(t *testing.T) {
	if err := pid1.CheckInitial("/proc"); err == nil || !strings.Contains(err.Error(), "a node runs from its image") {
		t.Errorf("in /proc: %v", err)
	}
	if err := pid1.CheckInitial(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("in a folder that is missing: no error")
	}
}

func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// makeCard makes the network card that the configuration is about, and another one.
func makeCard() error {
	mac, err := net.ParseMAC(config.MAC)
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "other"
	return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "card", PeerHardwareAddr: mac})
}

// describe prints the state of the node, and stays.
func describe(got node.Config) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	fmt.Println("host", name, "node", got.Node, "token", got.Token)
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	for _, l := range links {
		addresses, err := netlink.AddrList(l, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		a := l.Attrs()
		fmt.Println("interface", a.Name, a.Flags&net.FlagUp != 0, a.MTU)
		for _, address := range addresses {
			fmt.Println("address", a.Name, address.IPNet)
		}
		neighbours, err := netlink.NeighList(a.Index, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		for _, n := range neighbours {
			fmt.Println("neighbour", a.Name, n.IP, n.HardwareAddr, n.State == netlink.NUD_PERMANENT)
		}
	}
	for _, pattern := range []string{"/*", "/dev/*", "/proc/[0-9]*"} {
		names, err := filepath.Glob(pattern)
		fmt.Println(pattern, names, err)
	}
	info, err := os.Stat(node.Path)
	if err != nil {
		return err
	}
	fmt.Println(node.Path, info.Mode())
	_, err = os.OpenFile(node.JobInit, os.O_WRONLY, 0)
	fmt.Println(node.JobInit, "is written:", err)
	mounts, err := os.ReadFile("/proc/self/mounts")
	fmt.Print(string(mounts))
	fmt.Println("ready")
	time.Sleep(time.Hour)
	return err
}

// namespaces starts a part as PID 1 in namespaces of its own.
func namespaces(files ...*os.File) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) {
		cmd.ExtraFiles = files
		a := cmd.SysProcAttr
		a.Cloneflags = unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
		if os.Getuid() != 0 {
			a.Cloneflags |= unix.CLONE_NEWUSER
			a.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
			a.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
		}
	}
}

// startHosted starts a hosted node whose configuration is text, with a job init of the host. The
// node lives until the returned file is closed.
func startHosted(t *testing.T, text []byte, jobInit string) (*part, *os.File) {
	t.Helper()
	dir := t.TempDir()
	root, file := filepath.Join(dir, "root"), filepath.Join(dir, "node.json")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	t.Cleanup(func() { w.Close() })
	return play(t, namespaces(r), "hosted", file, root, jobInit), w
}

func encoded(t *testing.T) []byte {
	t.Helper()
	text, err := config.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// writeJobInit writes what a host has as its job init, and returns its path.
func writeJobInit(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "jobinit")
	if err := os.WriteFile(path, []byte("the init of jobs"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestHosted(t *testing.T) {
	p, lifeline := startHosted(t, encoded(t), writeJobInit(t))
	p.await("ready\n")
	said := p.out.String()
	device := "" // the host may have none
	if _, err := os.Stat("/dev/fuse"); err == nil {
		device = "/dev/fuse "
	}
	for _, want := range []string{
		"host node3 node 3 token token\n",
		"interface lo true 65536\n", "interface card true 1234\n", "interface other false 1500\n", "address card 10.66.1.3/16\n",
		"neighbour card 10.66.0.1 52:54:00:00:00:99 true\n",
		"/* [/dev /margay /proc /run /sbin /tmp] <nil>\n",
		"/dev/* [/dev/full " + device + "/dev/null /dev/random /dev/tty /dev/urandom /dev/zero] <nil>\n",
		"/proc/[0-9]* [/proc/1] <nil>\n",
		"/margay/node.json -rw-------\n",
		node.JobInit + " is written: open " + node.JobInit + ": read-only file system\n",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("no %q in:\n%s", want, said)
		}
	}
	if strings.Contains(said, "address other") {
		t.Errorf("the wrong interface has an address:\n%s", said)
	}
	lifeline.Close()
	contains(t, p.end(1), "margay: the holder is gone\n")
}

// A node that is up keeps its job init when the host exchanges or removes the file.
func TestHostedKeepsJobInit(t *testing.T) {
	file := writeJobInit(t)
	p, _ := startHosted(t, encoded(t), file)
	p.await("ready\n")
	seen := fmt.Sprintf("/proc/%d/root%s", p.cmd.Process.Pid, node.JobInit)
	next := filepath.Join(t.TempDir(), "next")
	if err := os.WriteFile(next, []byte("of another build"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, change := range []func() error{
		func() error { return os.Rename(next, file) },
		func() error { return os.Remove(file) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(seen); string(got) != "the init of jobs" {
			t.Errorf("the node has %q, %v", got, err)
		}
	}
}

func TestHostedRefuses(t *testing.T) {
	p, _ := startHosted(t, []byte("{}"), writeJobInit(t))
	contains(t, p.end(1), "error: node: configuration: ")
	none := filepath.Join(t.TempDir(), "jobinit")
	p, _ = startHosted(t, encoded(t), none)
	contains(t, p.end(1), "error: bind "+none+": no such file or directory")
}

// A module that cannot be loaded does not keep the next one from being tried.
func TestBadModules(t *testing.T) {
	dir := t.TempDir()
	if err := pid1.LoadModulesOf(filepath.Join(dir, "none")); err != nil {
		t.Errorf("an image without modules: %v", err)
	}
	text, list := filepath.Join(dir, "text.ko"), filepath.Join(dir, "list")
	if err := os.WriteFile(text, []byte("no module"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(list, []byte(filepath.Join(dir, "absent.ko")+"\n"+text+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	err := pid1.LoadModulesOf(list)
	if err == nil || !strings.Contains(err.Error(), "module absent.ko: ") || !strings.Contains(err.Error(), "module text.ko: ") {
		t.Error(err)
	}
}

// PID 1 reports each driver that it has loaded with its devices, also later, and those that cannot
// be loaded.
func TestDrivers(t *testing.T) {
	list := filepath.Join(t.TempDir(), "drivers")
	var said string
	log := func(format string, args ...any) { said += fmt.Sprintf(format, args...) + "\n" }
	devices := []driver.Device{{Bus: "pci", Name: "0", Modalias: "pci:a", Driven: true}, {Bus: "pci", Name: "1", Modalias: "pci:b", Driven: true}}
	n := driver.Node{
		Devices: func() ([]driver.Device, error) { return devices, nil },
		Insert: func(path string) error {
			if path == "/bad.ko" {
				return unix.ENOEXEC
			}
			return nil
		},
	}
	look, err := pid1.LookForDevices(list, n, log)
	if look(); err != nil || said != "" {
		t.Errorf("an image without drivers: %q, %v", said, err)
	}
	for _, c := range []struct{ text, said, later, err string }{
		{"/a.ko\n\tpci:a\n/bad.ko\n\tpci:b\n/c.ko\n\tpci:c\n", "loaded 1 of 3 drivers: a for pci 0\ndriver bad for pci 1: load bad.ko: exec format error\n",
			"loaded further drivers: c for pci 2\n", "<nil>"},
		{"/d.ko\n\tpci:d\n", "loaded 0 of 1 drivers: no device needs one\n", "", "<nil>"},
		{"nonsense", "", "", "drivers: the file is truncated"},
	} {
		if err := os.WriteFile(list, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		said = ""
		look, err := pid1.LookForDevices(list, n, log)
		if look(); fmt.Sprint(err) != c.err || said != c.said {
			t.Errorf("%q: it said %q, %v", c.text, said, err)
		}
		said = ""
		look()
		devices = append(devices, driver.Device{Bus: "pci", Name: "2", Modalias: "pci:c", Driven: true})
		look()
		if devices = devices[:2]; said != c.later {
			t.Errorf("%q: later it said %q", c.text, said)
		}
	}
}

// PID 1 names each firmware file that Linux has not found once, also one that was asked for later.
// What applications write into the log does not count.
func TestLacks(t *testing.T) {
	list := filepath.Join(t.TempDir(), "drivers")
	var said []string
	log := func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	const kernel, user = 4, 1<<3 | 4
	line := func(file string) string {
		return "e100 0000:00:02.0: Direct firmware load for " + file + " failed with error -2"
	}
	records := []klog.Record{{Sequence: 7, Priority: kernel, Text: "e100 0000:00:02.0: up"}, {Sequence: 8, Priority: user, Text: line("forged")},
		{Sequence: 9, Priority: kernel, Text: line("a")}, {Sequence: 10, Priority: kernel, Text: line("a")}}
	read := func(_ context.Context, q klog.Query) (b klog.Batch, err error) {
		for _, r := range records {
			if r.Sequence >= q.From {
				b.Records = append(b.Records, r)
			}
		}
		records = nil
		return b, nil
	}
	if pid1.ReportLacks(list, read, log)(); records == nil || said != nil {
		t.Errorf("an image without drivers: %q", said)
	}
	if err := os.WriteFile(list, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	report := pid1.ReportLacks(list, read, log)
	report()
	for i := range uint64(100) {
		records = append(records, klog.Record{Sequence: 10 + i, Priority: kernel, Text: line(fmt.Sprint("a", i))})
	}
	report()
	if len(said) != 64 || !strings.Contains(said[0], "firmware file a for 0000:00:02.0") || !strings.Contains(said[1], "file a1 for") {
		t.Errorf("it said %d lines: %q", len(said), said)
	}
	said = nil
	pid1.ReportLacks(list, func(context.Context, klog.Query) (klog.Batch, error) { return klog.Batch{}, unix.EACCES }, log)()
	if len(said) != 1 || !strings.Contains(said[0], "permission denied") {
		t.Errorf("without the log it said %q", said)
	}
}

// The parameter of netconsole names the card, both addresses and the receiver.
func TestConsoleWords(t *testing.T) {
	c := config
	c.Console = node.Console{Address: "10.66.0.1:6666", MAC: "52:54:00:00:00:99"}
	if words, err := pid1.ConsoleWords(c, "eth0"); err != nil || words != "netconsole=6665@10.66.1.3/eth0,6666@10.66.0.1/52:54:00:00:00:99" {
		t.Errorf("%q, %v", words, err)
	}
	list := filepath.Join(t.TempDir(), "list")
	if path, err := pid1.Listed(list, node.ConsoleModule); path != "" || err != nil {
		t.Errorf("without modules: %q, %v", path, err)
	}
	for text, want := range map[string]string{"/lib/a.ko\n/lib/net/netconsole.ko\n": "/lib/net/netconsole.ko", "/lib/xnetconsole.ko\n": ""} {
		if err := os.WriteFile(list, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if path, err := pid1.Listed(list, node.ConsoleModule); path != want || err != nil {
			t.Errorf("in %q: %q, %v", text, path, err)
		}
	}
}

// A node on metal that cannot be set up stays, so that its screen can be read, and tries again. A
// virtual one ends at once.
func TestScreenTime(t *testing.T) {
	for _, c := range []struct {
		cmdline, substrate string
		stays              bool
	}{
		{"quiet", "", false},
		{"quiet", node.Virtual, false},
		{"quiet", node.Metal, true},
		{"quiet margay.machine=any", "", true},
		{"quiet margay.machine=0a", "", true}, // which is the reason
	} {
		if stays := pid1.ScreenTime(c.cmdline, node.Config{Substrate: c.substrate}); (stays > 0) != c.stays {
			t.Errorf("%q, %s: it stays for %v", c.cmdline, c.substrate, stays)
		}
	}
}
