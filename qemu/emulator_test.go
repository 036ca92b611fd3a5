package qemu

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"margay/qemu/ether"
)

const okVersion = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)"

// script makes a program that stands in for QEMU: it says a version and otherwise does what the
// shell commands say.
func script(t testing.TB, version, commands string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "qemu")
	text := fmt.Sprintf("#!/bin/sh\nif [ \"$1\" = --version ]; then echo '%s'; exit; fi\n%s\n", version, commands)
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func find(t testing.TB, binary string) *Emulator {
	t.Helper()
	e, err := Find(t.Context(), AMD64, binary)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestFind(t *testing.T) {
	path := script(t, okVersion, "")
	if e := find(t, path); e.Version() != (Version{7, 2, 22}) || e.Path() != path {
		t.Errorf("%v at %s", e.Version(), e.Path())
	}
	if e := find(t, path); e.Sound() || len(e.Firmware()) != 0 {
		t.Errorf("%v is sound: %v; firmware in %q", e.Version(), e.Sound(), e.Firmware())
	}
	for version, sound := range map[string]bool{"8.0.5": false, "8.1.0": true, "10.0.2": true} {
		e, err := Find(t.Context(), AMD64, script(t, "QEMU emulator version "+version, ""), "/a", "/b")
		if err != nil || e.Sound() != sound || !slices.Equal(e.Firmware(), []string{"/a", "/b"}) {
			t.Errorf("%s: %+v, %v", version, e, err)
		}
	}
	fails := filepath.Join(t.TempDir(), "fails")
	if err := os.WriteFile(fails, []byte("#!/bin/sh\necho library missing >&2; exit 127\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	cases := []struct{ name, arch, binary, want string }{
		{"missing", "amd64", "no-such-qemu", "apt-get install qemu-system-x86"},
		{"too old", "amd64", script(t, "QEMU emulator version 7.1.0", ""), "7.1.0, want 7.2.0 or newer"},
		{"other program", "amd64", script(t, "busybox 1.2", ""), `not a QEMU: its version reads "busybox 1.2`},
		{"broken", "amd64", fails, "library missing"},
		{"architecture", "vax", path, "want one of [amd64]"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := Find(t.Context(), Arch(c.arch), c.binary)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want ...%s...", err, c.want)
			}
			if errors.Is(err, exec.ErrNotFound) != (c.name == "missing") {
				t.Errorf("%v: wraps exec.ErrNotFound wrongly", err)
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	hung := filepath.Join(t.TempDir(), "hung")
	if err := os.WriteFile(hung, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Find(ctx, AMD64, hung); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("hung: %v", err)
	}
}

func TestParseVersion(t *testing.T) {
	for out, want := range map[string]Version{
		"QEMU emulator version 10.0.2 (Debian 1:10.0.2)\nCopyright": {10, 0, 2},
		"QEMU emulator version 8.0":                                 {8, 0, 0},
		"warning: x\nQEMU emulator version 9.2.50 (v9.2.0-1-g)":     {9, 2, 50},
	} {
		if got, err := parseVersion(out); err != nil || got != want {
			t.Errorf("%q: got %v, %v; want %v", out, got, err, want)
		}
	}
	if (Version{7, 2, 0}).less(MinVersion) || !(Version{7, 1, 99}).less(MinVersion) || (Version{10, 0, 0}).less(MinVersion) {
		t.Error("wrong order of versions")
	}
}

func TestArguments(t *testing.T) {
	socket := listenUnix(t)
	image := kernel(t, "", hangs)
	cfg := Config{
		Name: "n1", Kernel: image, Initrd: image, Cmdline: "console=ttyS0 a=b,c", MemoryMiB: 300, CPUs: 3,
		NIC: NIC{Socket: socket, MAC: ether.MAC{2, 0, 0, 0, 0, 9}, MTU: 9000},
	}
	if err := cfg.validate(); err != nil {
		t.Fatal(err)
	}
	e := &Emulator{arch: AMD64, firmware: []string{"/a/b", "/c,d"}}
	cmdline := strings.Join(append(clockParameters(), "mitigations=off no_timer_check cryptomgr.notests console=ttyS0 a=b,c"), " ")
	want := []string{
		"-name", "guest=n1,debug-threads=on", "-M", "q35,hpet=off", "-accel", "tcg,thread=multi", "-cpu", "max,-cx16,-erms,-fsrm,-aes",
		"-smp", "3", "-m", "300", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-L", "/a/b", "-L", "/c,d", "-kernel", image, "-initrd", image, "-append", cmdline,
		"-netdev", "stream,id=net,server=off,addr.type=unix,addr.path=" + strings.ReplaceAll(socket, ",", ",,"),
		"-device", "virtio-net-pci,netdev=net,mac=02:00:00:00:00:09,romfile=,host_mtu=9000",
	}
	if got := e.args(&cfg); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	small := Config{Name: "n1", Kernel: image, Accel: KVM}
	if err := small.validate(); err != nil {
		t.Fatal(err)
	}
	line := strings.Join(e.args(&small), " ")
	for _, want := range []string{"-accel kvm -cpu host -smp 1 -m 256 ", "-kernel " + image} {
		if !strings.Contains(line, want) {
			t.Errorf("%q lacks %q", line, want)
		}
	}
	if strings.Contains(line, "-append") {
		t.Errorf("%q has parameters for an emulated processor", line)
	}
	boots := Config{
		Name: "n1", NetBoot: true, Items: map[string]string{"margay/b": image, "margay/a": socket + "x"},
		NIC: NIC{Socket: socket, MAC: ether.MAC{2, 0, 0, 0, 0, 9}, MTU: 9000},
	}
	if err := os.WriteFile(socket+"x", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := boots.validate(); err != nil {
		t.Fatal(err)
	}
	want = []string{
		"-name", "guest=n1,debug-threads=on", "-M", "q35,hpet=off,graphics=off", "-accel", "tcg,thread=multi", "-cpu", "max,-cx16,-erms,-fsrm,-aes",
		"-smp", "1", "-m", "256", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console", "-L", "/a/b", "-L", "/c,d",
		"-fw_cfg", "name=opt/margay/a,file=" + strings.ReplaceAll(socket, ",", ",,") + "x", "-fw_cfg", "name=opt/margay/b,file=" + image,
		"-boot", "strict=on,reboot-timeout=1000",
		"-netdev", "stream,id=net,server=off,addr.type=unix,addr.path=" + strings.ReplaceAll(socket, ",", ",,"),
		"-device", "virtio-net-pci,netdev=net,mac=02:00:00:00:00:09,bootindex=0",
	}
	if got := e.args(&boots); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	boots.UEFI = image
	for _, http := range []bool{false, true} {
		boots.HTTPBoot = http
		if err := boots.validate(); err != nil {
			t.Fatal(err)
		}
		line := strings.Join(e.args(&boots), " ")
		if !strings.Contains(line, " -bios "+image+" -fw_cfg name=opt/org.tianocore/IPv6Support,string=no ") || strings.Contains(line, "reboot-timeout") ||
			!strings.HasSuffix(line, ",romfile=,bootindex=0") || strings.Contains(line, "name=opt/org.tianocore/IPv4PXESupport,string=no") != http {
			t.Errorf("HTTP %v: %q", http, line)
		}
	}
}

// A QEMU without the boot program of its network card is refused with the package that has it.
func TestCheckNetBoot(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	e := &Emulator{arch: AMD64, path: script(t, "", ""), firmware: []string{dir}}
	if err := os.WriteFile(e.path, fmt.Appendf(nil, "#!/bin/sh\necho %s\n", other), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := e.CheckNetBoot(t.Context()); err == nil || !strings.Contains(err.Error(), "apt-get install ipxe-qemu") {
		t.Errorf("error %v", err)
	}
	for _, folder := range []string{dir, other} {
		rom := filepath.Join(folder, ROMFile)
		if err := os.WriteFile(rom, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := e.CheckNetBoot(t.Context()); err != nil {
			t.Errorf("with a boot program in %s: %v", folder, err)
		}
		if err := os.Remove(rom); err != nil {
			t.Fatal(err)
		}
	}
}

func listenUnix(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "a,b")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return path
}

func TestConfigIsChecked(t *testing.T) {
	e := find(t, script(t, okVersion, ""))
	socket, image := listenUnix(t), kernel(t, "", hangs)
	cases := []struct {
		name, want string
		spoil      func(*Config)
	}{
		{"no name", "name", func(c *Config) { c.Name = "" }},
		{"option in the name", "name", func(c *Config) { c.Name = "a,process=b" }},
		{"accelerator", "accelerator", func(c *Config) { c.Accel = "hax" }},
		{"memory", "memory", func(c *Config) { c.MemoryMiB = -1 }},
		{"CPUs", "CPUs", func(c *Config) { c.CPUs = 256 }},
		{"no kernel", "no kernel", func(c *Config) { c.Kernel = "" }},
		{"network and kernel", "the network is to bring them", func(c *Config) { c.NetBoot = true }},
		{"UEFI and kernel", "UEFI firmware is for a VM that boots from its network card", func(c *Config) { c.UEFI = image }},
		{"HTTP without UEFI", "HTTP for UEFI firmware", func(c *Config) { c.NetBoot, c.Kernel, c.HTTPBoot = true, "", true }},
		{"UEFI missing", "no such file", func(c *Config) { c.NetBoot, c.Kernel, c.UEFI = true, "", image+"x" }},
		{"network without a card", "no network card", func(c *Config) { c.NetBoot, c.Kernel, c.NIC = true, "", NIC{} }},
		{"item missing", "no such file", func(c *Config) { c.Items = map[string]string{"a": image + "x"} }},
		{"name of an item", "item", func(c *Config) { c.Items = map[string]string{"a,b": image} }},
		{"long name of an item", "item", func(c *Config) { c.Items = map[string]string{strings.Repeat("x", maxItemName+1): image} }},
		{"kernel missing", "no such file", func(c *Config) { c.Kernel += "x" }},
		{"initrd missing", "no such file", func(c *Config) { c.Initrd = image + "x" }},
		{"command line", "line end", func(c *Config) { c.Cmdline = "a\nb" }},
		{"long command line", "Linux accepts 2047", func(c *Config) { c.Cmdline = strings.Repeat("x", maxCommandLine-20) }},
		{"socket missing", "network socket", func(c *Config) { c.NIC.Socket += "x" }},
		{"no socket", "not a socket", func(c *Config) { c.NIC.Socket = image }},
		{"MAC", "one station", func(c *Config) { c.NIC.MAC = ether.Broadcast }},
		{"MTU", "MTU", func(c *Config) { c.NIC.MTU = 67 }},
		{"console", "no such file", func(c *Config) { c.Console.Path = filepath.Join(image+"x", "y") }},
		{"stderr", "no such file", func(c *Config) { c.Stderr.Path = filepath.Join(image+"x", "y") }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			cfg := Config{Name: "n1", Kernel: image, NIC: NIC{Socket: socket, MAC: ether.MAC{2, 0, 0, 0, 0, 9}}}
			c.spoil(&cfg)
			vm, err := e.Start(t.Context(), cfg)
			if err == nil {
				vm.Kill()
				t.Fatal("accepted")
			}
			if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "start VM") {
				t.Errorf("got %v, want ...%s...", err, c.want)
			}
		})
	}
}
