package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/provision"
	"margay/cluster/provision/emulator"
	"margay/initramfs"
	"margay/internal/check"
	"margay/kernel/abi/node"
	"margay/qemu"
)

// A machine of its own, played by a QEMU, boots from its network card by the boot services on
// ordinary sockets of a network interface. It waits until it is made a node, also over a restart of
// serve, and runs an application. It loads the driver of its card alone. Its console shows what its
// programs write. Its Linux panics, and the next boot brings what the firmware (ERST) has kept of
// that. The machine leaves nothing on the interface.
func TestNetboot(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can give an address to a network interface and serve DHCP there")
	}
	ownMachine(t, "own virtual")
	wire, card := ownWire(t)
	m := &machine{t: t, name: fmt.Sprintf("t%d", machineNumber.Add(1)), substrate: "metal", nodes: 1, cores: 1}
	t.Cleanup(func() {
		m.logs()
		m.margay("machine", "down") // it is down already, unless the test has failed
	})
	// An emulated machine may be silent for long on a busy host.
	r := m.margay("machine", "up", "--substrate", "metal", "--interface", wire, "--range", "10.8.0.0/24", "--boot-timeout", bootsWithin.String(), "--dead-after", "2m",
		"--kernel-args", qemu.CommandLine(qemu.TCG, "sysrq_always_enabled"))
	if r.code != 0 || !strings.Contains(r.stderr, "machines can boot now") {
		t.Fatal(r)
	}
	const mac = "52:54:00:12:34:56"
	monitor, firmware := filepath.Join(t.TempDir(), "monitor"), filepath.Join(t.TempDir(), "erst")
	emulate(t, card, "-device", "virtio-net-pci,netdev=net,bootindex=0,mac="+mac, "-monitor", "unix:"+monitor+",server,nowait",
		"-object", "memory-backend-file,id=erst,share=on,size=64K,mem-path="+firmware, "-device", "acpi-erst,memdev=erst")
	waits := func() bool {
		return strings.Contains(m.margay("nodes").stdout, "margay node approve -m "+m.name+" "+mac)
	}
	nodes := func() string { return m.margay("nodes").String() }
	eventually(t, "machine that waits", waits, nodes)
	_, serve := m.status()
	kill(t, serve)
	eventually(t, "machine that waits after a restart of serve", waits, nodes)
	if r := m.margay("node", "approve", "--no-wait", mac); r.code != 0 || !strings.Contains(r.stderr, mac+" is node0") {
		t.Fatal(r)
	}
	check.AwaitFor(t, bootsWithin, "node that is up", func() bool {
		time.Sleep(250 * time.Millisecond)
		return strings.Contains(m.margay("nodes").stdout, "node0  up ")
	})
	m.countsWords()
	m.loadsItsCard("virtio_net")
	// By this answer the holder knows that the node is up (metal.Wire.Alive).
	if conn, err := net.DialTimeout("tcp4", "10.8.0.2:80", time.Minute); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a connection to the node: %v, %v", conn, err)
	}
	m.showsConsole()
	panics(t, monitor)
	m.keepsPanic(firmware)
	if r := m.margay("machine", "down"); r.code != 0 {
		t.Error(r)
	}
	left, err := net.InterfaceByName(wire)
	if err != nil {
		t.Fatal(err)
	}
	if addresses, err := left.Addrs(); err != nil || strings.Contains(fmt.Sprint(addresses), "10.8.0.") {
		t.Errorf("the interface has %v, %v", addresses, err)
	}
}

// loadsItsCard requires that node0 has loaded the driver of a network card, and none of the others
// that its image has.
func (m *machine) loadsItsCard(driver string) {
	m.t.Helper()
	f, err := os.Open(m.file("image"))
	if err != nil {
		m.t.Fatal(err)
	}
	defer f.Close()
	entries, err := initramfs.List(f)
	if err != nil {
		m.t.Fatal(err)
	}
	loaded := m.listNodes()[0].Info.Modules
	var others []string
	for _, e := range entries {
		name := node.ModuleName(e.Path)
		if !strings.Contains(e.Path, "/drivers/net/ethernet/") || path.Ext(e.Path) != ".ko" || name == driver {
			continue
		}
		others = append(others, name)
		if slices.Contains(loaded, name) {
			m.t.Errorf("the node has loaded %s: it has %v", name, loaded)
		}
	}
	if len(others) == 0 || !slices.Contains(loaded, driver) {
		m.t.Errorf("the node has loaded %v, and its image has %v as well", loaded, others)
	}
}

// panics presses the key by which the Linux of a node panics, in the monitor of its QEMU.
func panics(t *testing.T, monitor string) {
	t.Helper()
	conn, err := net.Dial("unix", monitor)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("sendkey alt-sysrq-c\n")); err != nil {
		t.Fatal(err)
	}
}

// panicked is the reason of the panic.
const panicked = "sysrq triggered crash"

// showsConsole requires one of the lines of PID 1 and the node kernel on the console of node0:
// datagrams may be lost.
func (m *machine) showsConsole() {
	m.t.Helper()
	lines := []string{"] margay: loaded ", "] margay: node0 of machine " + m.name + " is up", " registered with serve at 10.8.0.1:7117\n"}
	console := func() string { return m.margay("machine", "console", "0").stdout }
	eventually(m.t, "line on the console", func() bool {
		text := console()
		return slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(text, line) })
	}, console)
}

// keepsPanic requires that node0 boots again, and that the firmware has kept its panic, which is
// shown as a part of its console, and is not in the firmware any more.
func (m *machine) keepsPanic(firmware string) {
	m.t.Helper()
	check.AwaitFor(m.t, bootsWithin, "panic that the firmware has kept", func() bool {
		time.Sleep(250 * time.Millisecond)
		return strings.Contains(m.margay("nodes").stdout, "node0: firmware has kept a panic: "+panicked+", of an earlier boot")
	})
	if r := m.margay("machine", "console", "0", "--previous"); !strings.Contains(r.stdout, "-- kept by the firmware of node0, and read on ") || !strings.Contains(r.stdout, "Kernel panic - not syncing: "+panicked+"\n") {
		m.t.Errorf("the previous console: %v", r)
	}
	if line, serve := "node0: its firmware has kept a panic: "+panicked, m.margay("machine", "logs", "serve").stdout; !strings.Contains(serve, line) {
		m.t.Errorf("the log of serve has no %q:\n%s", line, serve)
	}
	records := func() string {
		text, err := os.ReadFile(firmware)
		if err != nil || len(text) < 24 {
			m.t.Fatal(len(text), err)
		}
		return fmt.Sprint(binary.LittleEndian.Uint32(text[20:])) // record_count in hw/acpi/erst.c of QEMU
	}
	eventually(m.t, "end of the records in the firmware", func() bool { return records() == "0" }, records)
}

// countsWords runs the histogram on all cores.
func (m *machine) countsWords() {
	m.t.Helper()
	text := filepath.Join(m.t.TempDir(), "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("the quick brown fox\n", 1000)), 0o644); err != nil {
		m.t.Fatal(err)
	}
	if r := m.run(0, "-n", fmt.Sprint(m.nodes*m.cores), "--with", text, filepath.Join(bin, "histogram"), text); !strings.Contains(r.stdout, "      1000  the\n") {
		m.t.Errorf("the histogram: %v", r)
	}
}

// bootsWithin bounds the boot of an emulated machine, which takes half a minute on an idle host.
const bootsWithin = 10 * time.Minute

// ownWire moves the rest of the test into a network namespace with one Ethernet interface, and
// returns its name and the other end of the wire, into which a QEMU can be plugged.
func ownWire(t *testing.T) (name string, card *os.File) {
	t.Helper()
	runtime.LockOSThread() // and never unlocks: the thread ends in the other namespace
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("make a network namespace: %v", err)
	}
	const wire = "wire"
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("open /dev/net/tun: %v", err)
	}
	card = os.NewFile(uintptr(fd), "card")
	t.Cleanup(func() { card.Close() })
	request, err := unix.NewIfreq(wire)
	if err != nil {
		t.Fatal(err)
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		t.Fatalf("make an interface: %v", err)
	}
	return wire, card
}

// emulate starts an emulated machine at the end of a wire, with further arguments of QEMU. The test
// ends it, unless the caller does.
func emulate(t *testing.T, card *os.File, more ...string) (end func()) {
	t.Helper()
	return emulateOn(t, card, filepath.Join(t.TempDir(), "console"), more...)
}

// emulateOn is emulate with a file for the output of the serial port.
func emulateOn(t *testing.T, card *os.File, console string, more ...string) (end func()) {
	t.Helper()
	found, err := provision.FindEmulator(t.Context(), emulator.Options{Arch: qemu.Arch(runtime.GOARCH)})
	if err != nil {
		t.Fatal(err)
	}
	args := []string{
		"-M", "q35,graphics=off", "-accel", "tcg,thread=multi", "-cpu", "max,-cx16", "-smp", "2", "-m", "384", "-nodefaults", "-no-user-config", "-display", "none",
		"-boot", "strict=on,reboot-timeout=1000", "-serial", "file:" + console,
		"-netdev", "tap,id=net,fd=3",
	}
	args = append(args, more...)
	for _, dir := range found.Firmware() {
		args = append(args, "-L", dir)
	}
	cmd := exec.Command(found.Path(), args...)
	cmd.ExtraFiles = []*os.File{card}
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // an error is its end
		_ = cmd.Wait()         // it was killed
		if text, _ := os.ReadFile(console); t.Failed() {
			t.Logf("QEMU: %s\n%s", said.String(), text)
		}
	})
	t.Cleanup(end)
	return end
}
