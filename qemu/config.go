package qemu

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"margay/qemu/console"
	"margay/qemu/ether"
)

// A Config describes a VM. Only Name and either Kernel or NetBoot are required.
type Config struct {
	Name  string // for messages and the process list: letters, digits, '-', '_', '.'
	Accel Accel  // empty means TCG

	Kernel  string // path of a kernel image
	Initrd  string // path of its initramfs; may be empty
	Cmdline string // further kernel parameters; must name the serial console
	// NetBoot starts the VM from its network card: the firmware runs the card's boot program
	// (ROMFile), which finds a kernel by DHCP. Its output goes to the console. If it finds none,
	// the VM ends. Kernel, Initrd and Cmdline are empty then.
	NetBoot bool
	// UEFI is the path of a UEFI firmware. With NetBoot it boots from the card without the card's
	// boot program: by HTTP if HTTPBoot is set, else by PXE. If it finds nothing, the VM waits.
	// Empty: a BIOS.
	UEFI     string
	HTTPBoot bool
	// Items are files that the guest, and no station on its network, can read: their paths by their
	// names, which QEMU prefixes with "opt/". Linux shows them below
	// /sys/firmware/qemu_fw_cfg/by_name.
	Items map[string]string

	MemoryMiB int // zero means DefaultMemoryMiB
	CPUs      int // zero means 1
	NIC       NIC // zero: no network

	Console console.Config // where the serial console is logged
	Stderr  console.Config // where QEMU's own messages are logged
}

// A NIC is a VM's network card, of type virtio-net, and what it is plugged into.
type NIC struct {
	Socket string    // of a vswitch port; empty means no card
	MAC    ether.MAC // of the same port
	MTU    int       // bytes, offered to the guest, whose driver sets it; zero leaves it at 1500
}

// Defaults and bounds of a Config.
const (
	DefaultMemoryMiB = 256
	maxMemoryMiB     = 1 << 24
	maxCPUs          = 255
	minMTU           = 68
	maxMTU           = 65535
)

// validate fills in defaults and rejects values that QEMU reports late or unclearly.
func (c *Config) validate() error {
	if c.Accel == "" {
		c.Accel = TCG
	}
	if c.MemoryMiB == 0 {
		c.MemoryMiB = DefaultMemoryMiB
	}
	if c.CPUs == 0 {
		c.CPUs = 1
	}
	switch {
	case c.Name == "" || strings.Trim(c.Name, nameChars) != "":
		return fmt.Errorf("name %q: want letters, digits, '-', '_' and '.'", c.Name)
	case c.Accel != TCG && c.Accel != KVM:
		return fmt.Errorf("accelerator %q, want %s or %s", c.Accel, TCG, KVM)
	case c.MemoryMiB < 1 || c.MemoryMiB > maxMemoryMiB:
		return fmt.Errorf("memory %d MiB, want 1 to %d", c.MemoryMiB, maxMemoryMiB)
	case c.CPUs < 1 || c.CPUs > maxCPUs:
		return fmt.Errorf("%d CPUs, want 1 to %d", c.CPUs, maxCPUs)
	case c.NetBoot && (c.Kernel != "" || c.Initrd != "" || c.Cmdline != ""):
		return errors.New("a kernel, an initramfs or a command line is given, and the network is to bring them")
	case !c.NetBoot && c.UEFI != "" || c.UEFI == "" && c.HTTPBoot:
		return errors.New("UEFI firmware is for a VM that boots from its network card, and HTTP for UEFI firmware")
	case c.NetBoot && c.NIC.Socket == "":
		return errors.New("no network card to boot from")
	case !c.NetBoot && c.Kernel == "":
		return errors.New("no kernel")
	case strings.ContainsAny(c.Cmdline, "\x00\n"):
		return fmt.Errorf("kernel command line %q contains a line end or NUL", c.Cmdline)
	case len(CommandLine(c.Accel, c.Cmdline)) > maxCommandLine:
		return fmt.Errorf("kernel command line: %d bytes, Linux accepts %d", len(CommandLine(c.Accel, c.Cmdline)), maxCommandLine)
	}
	for name, path := range c.Items {
		if name == "" || len(name) > maxItemName || strings.Trim(name, nameChars+"/") != "" {
			return fmt.Errorf("item %q: want a name of letters, digits, '-', '_', '.' and '/', at most %d", name, maxItemName)
		}
		if err := checkFile(path); err != nil {
			return err
		}
	}
	for _, path := range []string{c.Kernel, c.Initrd, c.UEFI} {
		if err := checkFile(path); err != nil {
			return err
		}
	}
	return c.NIC.validate()
}

// maxItemName is the length of the longest name of an item: QEMU's names have at most 55 bytes.
const maxItemName = 55 - len(itemPrefix)

// itemPrefix precedes the names of items that are not QEMU's own.
const itemPrefix = "opt/"

const nameChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."

func checkFile(path string) error {
	if path == "" {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return f.Close()
}

func (n *NIC) validate() error {
	if n.Socket == "" {
		return nil
	}
	// A QEMU that cannot connect runs without a working network.
	info, err := os.Stat(n.Socket)
	switch {
	case err != nil:
		return fmt.Errorf("network socket: %w", err)
	case info.Mode().Type() != os.ModeSocket:
		return fmt.Errorf("network socket: %s is not a socket", n.Socket)
	case !n.MAC.Station():
		return fmt.Errorf("network card: %v is not the address of one station", n.MAC)
	case n.MTU != 0 && (n.MTU < minMTU || n.MTU > maxMTU):
		return fmt.Errorf("network card: MTU %d, want %d to %d", n.MTU, minMTU, maxMTU)
	}
	return nil
}

// args returns QEMU's arguments for a valid config.
func (e *Emulator) args(c *Config) []string {
	row := arches[e.arch]
	accel := string(c.Accel)
	if c.Accel == TCG {
		accel += ",thread=multi"
	}
	machine := row.machine
	if c.NetBoot {
		machine += ",graphics=off" // the firmware uses the serial console
	}
	args := []string{
		"-name", "guest=" + c.Name + ",debug-threads=on",
		"-M", machine,
		"-accel", accel,
		"-cpu", row.cpu[c.Accel],
		"-smp", strconv.Itoa(c.CPUs),
		"-m", strconv.Itoa(c.MemoryMiB),
		"-nodefaults", "-no-user-config",
		"-display", "none",
		"-no-reboot", // a guest that restarts ends
		"-chardev", "stdio,id=console,signal=off",
		"-serial", "chardev:console",
	}
	for _, dir := range e.firmware {
		args = append(args, "-L", dir)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Items)) {
		args = append(args, "-fw_cfg", "name="+itemPrefix+name+",file="+escape(c.Items[name]))
	}
	return append(append(args, c.bootArgs()...), c.nicArgs()...)
}

// bootArgs returns the arguments that say what the VM boots.
func (c *Config) bootArgs() []string {
	if c.UEFI != "" {
		return c.uefiArgs()
	}
	if c.NetBoot {
		// The firmware restarts the VM when there is nothing to boot, and that ends it.
		return []string{"-boot", "strict=on,reboot-timeout=1000"}
	}
	args := []string{"-kernel", c.Kernel}
	if c.Initrd != "" {
		args = append(args, "-initrd", c.Initrd)
	}
	if line := CommandLine(c.Accel, c.Cmdline); line != "" {
		args = append(args, "-append", line)
	}
	return args
}

// uefiArgs returns the arguments by which UEFI firmware boots over IPv4, by PXE or by HTTP alone.
// By default it tries all ways in turn, for up to minutes each.
func (c *Config) uefiArgs() []string {
	args := []string{"-bios", c.UEFI, "-fw_cfg", "name=opt/org.tianocore/IPv6Support,string=no"}
	if c.HTTPBoot {
		for _, name := range []string{"IPv4PXESupport", "IPv6PXESupport"} {
			args = append(args, "-fw_cfg", "name=opt/org.tianocore/"+name+",string=no")
		}
	}
	return args
}

// maxCommandLine is the number of bytes that Linux accepts on its command line (COMMAND_LINE_SIZE
// of x86 and arm64, without the NUL).
const maxCommandLine = 2047

// CommandLine returns the command line of the Linux of a VM. The given parameters come last, so
// that they take precedence.
func CommandLine(a Accel, cmdline string) string {
	var words []string
	if a == TCG {
		words = emulatedParameters()
	}
	if cmdline != "" {
		words = append(words, cmdline)
	}
	return strings.Join(words, " ")
}

// emulatedParameters are kernel parameters for an emulated processor. Mitigations of speculative
// execution protect against nothing there and are expensive to emulate. Linux tests for a tenth of
// a second whether the timer ticks, which is too short on a busy host. Tests of its ciphers take a
// quarter of its boot.
func emulatedParameters() []string {
	return append(clockParameters(), "mitigations=off", "no_timer_check", "cryptomgr.notests")
}

// nicArgs returns the arguments of the card. The boot program takes a buffer of the MTU for each of
// many frames from a memory of half a megabyte, so a card to boot from offers no MTU: the guest's
// driver can set any.
func (c *Config) nicArgs() []string {
	n := &c.NIC
	if n.Socket == "" {
		return nil
	}
	device := "virtio-net-pci,netdev=net,mac=" + n.MAC.String()
	if !c.NetBoot || c.UEFI != "" {
		// Elsewhere ROMFile is not named: QEMU writes the card's type only into the default one.
		device += ",romfile="
	}
	switch {
	case c.NetBoot:
		device += ",bootindex=0"
	case n.MTU != 0:
		device += ",host_mtu=" + strconv.Itoa(n.MTU)
	}
	return []string{
		"-netdev", "stream,id=net,server=off,addr.type=unix,addr.path=" + escape(n.Socket),
		"-device", device,
	}
}

// escape quotes a string as a value in one of QEMU's comma-separated options.
func escape(s string) string { return strings.ReplaceAll(s, ",", ",,") }
