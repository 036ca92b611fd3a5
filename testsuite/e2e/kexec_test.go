//go:build soak

package e2e

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/initramfs"
	"margay/internal/check"
	"margay/qemu"
)

// Virtual nodes that their firmware boots take another image by kexec, and then get it from the
// boot services as well. After an image that ends they boot the one before. make netboot runs this
// test.
func TestSoakUpdateFirmware(t *testing.T) {
	ownMachine(t, "own virtual")
	for _, way := range []string{"bios", "uefi", "http"} {
		t.Run(way, func(t *testing.T) {
			m := &machine{t: t, name: fmt.Sprintf("t%d", machineNumber.Add(1)), substrate: "qemu", nodes: 1, cores: 2}
			t.Cleanup(func() {
				m.logs()
				m.margay("machine", "down") // it is down already, unless the test has failed
			})
			if r := m.margay(m.upArgs("qemu", "--boot", way)[2:]...); r.code != 0 {
				t.Fatal(r)
			}
			m.updatesAndFallsBack(m.brokenImage([]byte("no program")), "ended before it was up", "10m")
			if r := m.margay("machine", "down"); r.code != 0 {
				t.Error(r)
			}
		})
	}
}

// A machine of its own, played by a QEMU, takes another image by kexec, and then gets it from the
// boot services as well. When a later image hangs, its power driver resets it, and it boots the one
// before. make netboot runs this test.
func TestSoakUpdateMetal(t *testing.T) {
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
	const mac = "52:54:00:12:34:58"
	folder := t.TempDir()
	monitor := filepath.Join(folder, "monitor")
	for _, end := range []string{".in", ".out"} {
		if err := unix.Mkfifo(monitor+end, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(folder, "machine.yaml")
	text := fmt.Sprintf("nodes: [{number: 0, mac: %q}]\npower: [{nodes: 0, driver: command, command: [%s]}]\n", mac, plugOf(t, folder, monitor+".in"))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	emulate(t, card, "-device", "virtio-net-pci,netdev=net,bootindex=0,mac="+mac, "-monitor", "pipe:"+monitor, "-S")
	r := m.margay("machine", "up", "--substrate", "metal", "--interface", wire, "--range", "10.8.0.0/24", "--boot-timeout", bootsWithin.String(), "--dead-after", "2m",
		"--file", file, "--kernel-args", qemu.CommandLine(qemu.TCG, ""))
	if r.code != 0 {
		t.Fatal(r)
	}
	check.AwaitFor(t, bootsWithin, "node that is up", func() bool { return strings.Contains(m.margay("nodes").stdout, "node0  up ") })
	m.updatesAndFallsBack(m.brokenImage(pausing()), "was not up within 3m0s", "3m")
	if r := m.margay("machine", "down"); r.code != 0 {
		t.Error(r)
	}
}

// plugOf writes a program that switches a machine by the monitor of its QEMU.
func plugOf(t *testing.T, folder, monitor string) string {
	t.Helper()
	program, state := filepath.Join(folder, "plug"), filepath.Join(folder, "state")
	script := fmt.Sprintf(`#!/bin/sh
case $1 in
status) cat %[2]s ;;
off) echo stop >%[1]s; echo off >%[2]s ;;
*) printf 'system_reset\ncont\n' >%[1]s; echo on >%[2]s ;;
esac
`, monitor, state)
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(state, []byte("off\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return program
}

// brokenImage writes the image of the machine with another program that Linux starts first.
func (m *machine) brokenImage(program []byte) (path string) {
	m.t.Helper()
	path = filepath.Join(m.t.TempDir(), "image")
	if err := initramfs.WriteNodeImage(m.file("image"), []initramfs.File{{Path: "/init", Mode: 0o755, Data: program}}, path); err != nil {
		m.t.Fatal(err)
	}
	return path
}

// pausing is a program for Linux on amd64 that waits for ever.
func pausing() []byte {
	const base, header, segment = 0x400000, 64, 56
	code := []byte{0xb8, 34, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7} // again: mov eax, SYS_pause; syscall; jmp again
	size := uint64(header + segment + len(code))
	b := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)...)
	le := binary.LittleEndian
	b = le.AppendUint16(b, 2)                   // ET_EXEC
	b = le.AppendUint16(b, 62)                  // EM_X86_64
	b = le.AppendUint32(b, 1)                   // version
	b = le.AppendUint64(b, base+header+segment) // entry
	b = le.AppendUint64(b, header)              // program headers
	b = append(b, make([]byte, 8+4)...)         // section headers, flags
	for _, n := range []uint16{header, segment, 1, 0, 0, 0} {
		b = le.AppendUint16(b, n)
	}
	b = le.AppendUint32(b, 1) // PT_LOAD
	b = le.AppendUint32(b, 5) // readable, executable
	for _, n := range []uint64{0, base, base, size, size, 4096} {
		b = le.AppendUint64(b, n)
	}
	return append(b, code...)
}

// updatesAndFallsBack gives node0 the image that it has once more, which it then gets at a cold
// boot, and one that fails for a reason.
func (m *machine) updatesAndFallsBack(broken, why, timeout string) {
	m.t.Helper()
	runs := func() string { return m.listNodes()[0].Info.Image }
	if r := m.margay("node", "update", "0"); r.code != 0 || !strings.Contains(r.stderr, "node0: it has the image already") || runs() != "" {
		m.t.Errorf("the image that it has: %v", r)
	}
	if r := m.margay("node", "update", "0", "--force", "--timeout", "10m"); r.code != 0 || !strings.Contains(r.stderr, "node0: in service again") {
		m.t.Fatal(r)
	}
	image := runs()
	if image == "" {
		m.t.Fatal("it runs its first image")
	}
	m.countsWords()
	if r := m.margay("node", "reboot", "0"); r.code != 0 {
		m.t.Fatal(r)
	}
	check.AwaitFor(m.t, bootsWithin, "node that is up", func() bool { return strings.Contains(m.margay("nodes").stdout, "node0  up ") })
	if got := runs(); got != image {
		m.t.Errorf("after a cold boot it runs image %q, not %s", got, image)
	}
	if r := m.margay("node", "update", "0", "--image", broken, "--timeout", timeout, "--no-wait"); r.code != 0 {
		m.t.Fatal(r)
	}
	check.AwaitFor(m.t, bootsWithin, "node that has fallen back", func() bool {
		time.Sleep(250 * time.Millisecond)
		return strings.Contains(m.margay("nodes").stdout, why+", and the node has booted its old one")
	})
	if nodes := m.margay("nodes").stdout; !strings.Contains(nodes, "node0  drained") || runs() != image {
		m.t.Errorf("it runs %s: %s", runs(), nodes)
	}
	if r := m.margay("node", "resume", "0"); r.code != 0 {
		m.t.Fatal(r)
	}
	m.countsWords()
}
