//go:build soak

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"margay/cluster/provision"
	"margay/initramfs"
	"margay/internal/check"
	"margay/qemu"
)

// A machine with the generic kernel, with a card as real machines have and with disks, loads the
// driver of its card and no other one. It boots from its first card by that card's iPXE, and, as
// the second one has none, with -kernel. With panic=0 a panic of its Linux is on its console. make
// netboot runs this test.
func TestSoakDrivers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can give an address to a network interface and serve DHCP there")
	}
	ownMachine(t, "own virtual")
	m := &machine{t: t, name: fmt.Sprintf("t%d", machineNumber.Add(1)), substrate: "metal", nodes: 1, cores: 1}
	// This may fetch the kernel, and there is no archive at the wire.
	var built provision.Image
	r := m.margay("image", "build", "--metal", "--kernel", provision.Generic, "--json")
	if err := json.Unmarshal([]byte(r.stdout), &built); err != nil || r.code != 0 {
		t.Fatal(err, r)
	}
	if all := built.Manifest.Drivers; len(all) < 20 || !slices.Contains(all, "e1000e") || !slices.Contains(all, "igb") {
		t.Fatalf("the image has the drivers %v", all)
	}
	wire, card := ownWire(t)
	t.Cleanup(func() {
		m.logs()
		m.margay("machine", "down") // it is down already, unless the test has failed
	})
	words := qemu.CommandLine(qemu.TCG, "sysrq_always_enabled panic=0")
	r = m.margay("machine", "up", "--substrate", "metal", "--interface", wire, "--range", "10.8.0.0/24", "--boot-timeout", bootsWithin.String(), "--dead-after", "2m",
		"--kernel", provision.Generic, "--kernel-args", words)
	if r.code != 0 {
		t.Fatal(r)
	}
	var disks []string
	for id, device := range map[string]string{"nvme": "nvme,serial=1", "sata": "ide-hd,bus=ide.0"} { // the machine has an AHCI for the second one
		path := filepath.Join(t.TempDir(), "disk")
		if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		disks = append(disks, "-drive", "format=raw,if=none,id="+id+",file="+path, "-device", device+",drive="+id)
	}
	state := func(text string) func() bool {
		return func() bool { return strings.Contains(m.margay("nodes").stdout, text) }
	}
	loads := func(want ...string) {
		t.Helper()
		check.AwaitFor(t, bootsWithin, "node that is up", state("node0  up "))
		want = slices.Sorted(slices.Values(slices.Concat(want, built.Manifest.Modules)))
		got := m.listNodes()[0].Info.Modules
		t.Logf("loaded: %v", got)
		if !slices.Equal(got, want) {
			t.Errorf("want the modules %v", want)
		}
		m.countsWords()
	}
	const mac = "52:54:00:12:34:58"
	end := emulate(t, card, append(disks, "-device", "e1000e,netdev=net,bootindex=0,mac="+mac)...)
	check.AwaitFor(t, bootsWithin, "machine that waits", state("margay node approve -m "+m.name+" "+mac))
	if r := m.margay("node", "approve", "--no-wait", mac); r.code != 0 {
		t.Fatal(r)
	}
	loads("e1000e", initramfs.ItemsModule)
	end()

	// The command line is the one of a disk image.
	line, err := initramfs.Cmdline(built.Kernel, initramfs.Ticking, initramfs.AllCores, "margay.machine=any", words)
	if err != nil {
		t.Fatal(err)
	}
	monitor := filepath.Join(t.TempDir(), "monitor")
	emulate(t, card, append(disks, "-monitor", "unix:"+monitor+",server,nowait", "-device", "igb,netdev=net,mac="+mac, "-kernel", built.Kernel.Image, "-initrd", m.file("image"), "-append", line)...)
	check.AwaitFor(t, bootsWithin, "end of the first boot", func() bool { return !state("node0  up ")() })
	loads("dca", "i2c_algo_bit", "igb", initramfs.ItemsModule)
	panics(t, monitor)
	console := func() string { return m.margay("machine", "console", "0").stdout }
	eventually(t, "panic on the console", func() bool { return strings.Contains(console(), "] Kernel panic - not syncing: "+panicked+"\n") }, console)
	serves := func() string { return m.margay("machine", "logs", "serve").stdout }
	eventually(t, "panic in the log of serve", func() bool {
		return strings.Contains(serves(), "node0: its console says that its Linux has panicked: "+panicked+"\n")
	}, serves)
	if r := m.margay("machine", "down"); r.code != 0 {
		t.Error(r)
	}
}

// A card whose driver needs a firmware file works with --card-firmware, and without it the console
// names the driver, the file and the way out. The driver of this card asks for the file when the
// card is turned on; QEMU's card does without its contents. make netboot runs this test.
func TestSoakCardFirmware(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can give an address to a network interface and serve DHCP there")
	}
	ownMachine(t, "own virtual")
	m := &machine{t: t, name: fmt.Sprintf("t%d", machineNumber.Add(1)), substrate: "metal", nodes: 1, cores: 1}
	const file, size = "e100/d102e_ucode.bin", 539 // the driver takes no other size
	folder, bare := t.TempDir(), filepath.Join(t.TempDir(), "bare")
	for name, length := range map[string]int{file: size, "other.bin": 1} {
		if err := errors.Join(os.MkdirAll(filepath.Join(folder, filepath.Dir(name)), 0o755), os.WriteFile(filepath.Join(folder, name), make([]byte, length), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if r := m.margay("image", "build", "--metal", "--kernel", provision.Generic, "-o", bare, "-q"); r.code != 0 {
		t.Fatal(r)
	}
	var built provision.Image
	r := m.margay("image", "build", "--metal", "--kernel", provision.Generic, "--card-firmware", folder, "--json")
	if err := json.Unmarshal([]byte(r.stdout), &built); err != nil || r.code != 0 {
		t.Fatal(err, r)
	}
	if f := built.Manifest; !slices.Equal(f.Firmware, []string{file}) || !slices.Contains(f.NoFirmware, "intel/ice/ddp/ice.pkg") || f.Compressed >= 16<<20 {
		t.Errorf("the image of %d bytes has %v, and not %v", f.Compressed, f.Firmware, f.NoFirmware)
	}
	wire, card := ownWire(t)
	t.Cleanup(func() {
		m.logs()
		m.margay("machine", "down") // it is down already, unless the test has failed
	})
	words := qemu.CommandLine(qemu.TCG, "")
	r = m.margay("machine", "up", "--substrate", "metal", "--interface", wire, "--range", "10.8.0.0/24", "--boot-timeout", bootsWithin.String(), "--dead-after", "2m",
		"--approve-all", "--kernel", provision.Generic, "--kernel-args", words, "--card-firmware", folder)
	if r.code != 0 || !strings.Contains(r.stderr, "firmware files of network cards: 1, 0.0 MB") {
		t.Fatal(r)
	}
	line, err := initramfs.Cmdline(built.Kernel, initramfs.Ticking, initramfs.AllCores, "margay.machine=any", words)
	if err != nil {
		t.Fatal(err)
	}
	boot := func(image string) (end func(), console func() string) {
		path := filepath.Join(t.TempDir(), "console")
		end = emulateOn(t, card, path, "-device", "i82551,netdev=net,addr=5", "-kernel", built.Kernel.Image, "-initrd", image, "-append", line)
		return end, func() string {
			text, _ := os.ReadFile(path) // QEMU may not have made it
			return string(text)
		}
	}
	const lack = "margay: driver e100 asks for the firmware file " + file + " for 0000:00:05.0, and the node image does not have it"
	end, console := boot(bare)
	check.AwaitFor(t, bootsWithin, "error of the card", func() bool { return strings.Contains(console(), "turn it on: no such file or directory") })
	if before, _, _ := strings.Cut(console(), "turn it on"); !strings.Contains(before, lack) {
		t.Errorf("the reason is not before the error of the card: %s", before)
	}
	if r := m.margay("nodes"); strings.Contains(r.stdout, "node0  up ") {
		t.Errorf("without its firmware file, the card works: %s", r)
	}
	end()
	_, console = boot(m.file("image"))
	check.AwaitFor(t, bootsWithin, "node that is up", func() bool { return strings.Contains(m.margay("nodes").stdout, "node0  up ") })
	m.countsWords()
	if strings.Contains(console(), "firmware file") {
		t.Errorf("with the firmware file, the console is\n%s", console())
	}
	if r := m.margay("machine", "down"); r.code != 0 {
		t.Error(r)
	}
}
