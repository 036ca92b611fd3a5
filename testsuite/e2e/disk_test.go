//go:build soak

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"margay/cluster/provision"
	"margay/cluster/provision/firmware"
	"margay/initramfs/guestkernel"
	"margay/internal/check"
	"margay/qemu"
)

// A machine of its own boots from a disk image under UEFI firmware, waits until it is made a node,
// and runs an application. It boots the same node image with -kernel, and joins again by its card.
// Another one needs no approval, because its disk has a token. Machines that boot over the network
// get the same image, too (TestNetboot boots one). make netboot runs this test.
func TestSoakDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can give an address to a network interface and serve DHCP there")
	}
	ownMachine(t, "own virtual")
	m := &machine{t: t, name: fmt.Sprintf("t%d", machineNumber.Add(1)), substrate: "metal", nodes: 1, cores: 1}
	// These may fetch the EFI stub and the firmware, and there is no archive at the wire.
	if r := m.margay("image", "build", "--format", "uki", "-o", filepath.Join(t.TempDir(), "node.efi"), "-q"); r.code != 0 {
		t.Fatal(r)
	}
	files, err := provision.FindFirmware(t.Context(), firmware.Options{})
	if err != nil {
		t.Fatal(err)
	}
	wire, card := ownWire(t)
	t.Cleanup(func() {
		m.logs()
		m.margay("machine", "down") // it is down already, unless the test has failed
	})
	r := m.margay("machine", "up", "--substrate", "metal", "--interface", wire, "--range", "10.8.0.0/24", "--boot-timeout", bootsWithin.String(), "--dead-after", "2m")
	if r.code != 0 {
		t.Fatal(r)
	}
	const mac = "52:54:00:12:34:57"
	nic := []string{"-device", "virtio-net-pci,netdev=net,romfile=,mac=" + mac}
	path := filepath.Join(t.TempDir(), "node.disk")
	words := qemu.CommandLine(qemu.TCG, "")
	if r := m.margay("image", "build", "--format", "disk", "-o", path, "--pin", "--kernel-args", words, "-q"); r.code != 0 {
		t.Fatal(r)
	}
	listed := m.onDisk(path)

	end := emulate(t, card, append(nic, "-bios", files.UEFI,
		"-drive", "format=raw,if=none,id=disk,file="+path, "-device", "virtio-blk-pci,drive=disk,bootindex=0")...)
	state := func(text string) func() bool {
		return func() bool {
			time.Sleep(250 * time.Millisecond)
			return strings.Contains(m.margay("nodes").stdout, text)
		}
	}
	began := time.Now()
	check.AwaitFor(t, bootsWithin, "machine that waits", state("margay node approve -m "+m.name+" "+mac))
	t.Logf("it waits after %v", time.Since(began))
	if r := m.margay("node", "approve", "--no-wait", mac); r.code != 0 {
		t.Fatal(r)
	}
	check.AwaitFor(t, bootsWithin, "node that is up", state("node0  up "))
	m.countsWords()
	end()

	// With -kernel, the command line is the one of the disk.
	image := filepath.Join(t.TempDir(), "node.img")
	r = m.margay("image", "build", "--metal", "-o", image, "--json")
	var built struct{ Kernel guestkernel.Kernel }
	if err := json.Unmarshal([]byte(r.stdout), &built); err != nil || r.code != 0 {
		t.Fatal(err, r)
	}
	for name, path := range map[string]string{"netboot": image, "of the machine": m.file("image")} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != listed.image {
			t.Errorf("the image %s is not the one on the disk: %x, %s", name, sum, listed.image)
		}
	}
	end = emulate(t, card, append(nic, "-kernel", built.Kernel.Image, "-initrd", image, "-append", listed.cmdline)...)
	check.AwaitFor(t, bootsWithin, "end of the first boot", func() bool { return !state("node0  up ")() })
	check.AwaitFor(t, bootsWithin, "second boot", state("node0  up "))
	m.countsWords()
	end()

	// Another machine is node3 by the token on its disk, without approval.
	r = m.margay("node", "token", "3")
	token := filepath.Join(t.TempDir(), "node3.token")
	if err := os.WriteFile(token, []byte(r.stdout), 0o600); err != nil || r.code != 0 {
		t.Fatal(err, r)
	}
	if r := m.margay("image", "build", "--format", "disk", "-o", path, "--pin", "--token", token, "--kernel-args", words, "-q"); r.code != 0 {
		t.Fatal(r)
	}
	emulate(t, card, "-device", "virtio-net-pci,netdev=net,romfile=,mac=52:54:00:12:34:58", "-bios", files.UEFI,
		"-drive", "format=raw,if=none,id=disk,file="+path, "-device", "virtio-blk-pci,drive=disk,bootindex=0")
	check.AwaitFor(t, bootsWithin, "node with a token", state("node3  up "))
	if r := m.margay("machine", "down"); r.code != 0 {
		t.Error(r)
	}
}

// diskImage is what a disk image consists of: the hash of the node image, and the command line.
type diskImage struct{ image, cmdline string }

// onDisk lists a disk image.
func (m *machine) onDisk(path string) (d diskImage) {
	m.t.Helper()
	r := m.margay("image", "list", "--json", path)
	var listed struct {
		Unified struct {
			Parts []struct{ Name, SHA256 string }
		}
		CommandLine string `json:"command_line"`
	}
	if err := json.Unmarshal([]byte(r.stdout), &listed); err != nil || r.code != 0 {
		m.t.Fatal(err, r)
	}
	for _, p := range listed.Unified.Parts {
		if p.Name == ".initrd" {
			d.image = p.SHA256
		}
	}
	d.cmdline = listed.CommandLine
	return d
}
