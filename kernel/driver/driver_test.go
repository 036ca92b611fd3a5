package driver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/node"
)

// A played /sys, where the parts of a machine appear when their drivers are loaded.
type played struct {
	t        *testing.T
	sys      string
	brings   map[string][]string // devices, as add takes them, by the module that finds them
	fails    map[string]error    // by module
	inserted []string            // names of modules
	looks    int
}

func play(t *testing.T, devices ...string) *played {
	p := &played{t: t, sys: t.TempDir(), brings: map[string][]string{}, fails: map[string]error{}}
	if err := os.MkdirAll(filepath.Join(p.sys, "bus"), 0o755); err != nil {
		t.Fatal(err)
	}
	p.add(devices...)
	return p
}

// add adds devices, or changes them: "BUS NAME MODALIAS", or "BUS NAME MODALIAS driven".
func (p *played) add(devices ...string) {
	for _, d := range devices {
		words := strings.Fields(d)
		dir := filepath.Join(p.sys, "devices", words[0], words[1])
		link := filepath.Join(p.sys, "bus", words[0], "devices", words[1])
		err := errors.Join(os.MkdirAll(dir, 0o755), os.MkdirAll(filepath.Dir(link), 0o755))
		uevent := "SUBSYSTEM=" + words[0] + "\n"
		if len(words) > 2 {
			uevent += "MODALIAS=" + words[2] + "\n"
		}
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, "uevent"), []byte(uevent), 0o644))
		if len(words) > 3 {
			err = errors.Join(err, os.Symlink("nowhere", filepath.Join(dir, "driver")))
		}
		if _, exists := os.Lstat(link); exists != nil {
			err = errors.Join(err, os.Symlink(dir, link))
		}
		if err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p *played) node() Node {
	return Node{
		Devices: func() ([]Device, error) {
			p.looks++
			return Devices(p.sys)
		},
		Insert: func(path string) error {
			name := node.ModuleName(path)
			if err := p.fails[name]; err != nil {
				return err
			}
			p.inserted = append(p.inserted, name)
			p.add(p.brings[name]...)
			return nil
		},
	}
}

// of returns the drivers that a table lists: "MODULE MODULE: ALIAS ALIAS" per line.
func of(table string) (drivers []node.Driver) {
	for line := range strings.Lines(table) {
		modules, aliases, _ := strings.Cut(line, ": ")
		var d node.Driver
		for name := range strings.FieldsSeq(modules) {
			d.Modules = append(d.Modules, "/m/"+name+".ko")
		}
		d.Aliases = strings.Fields(aliases)
		drivers = append(drivers, d)
	}
	return drivers
}

const (
	intel   = "pci:v00008086d000010D3sv00008086sd0000A01Fbc02sc00i00"
	storage = "pci:v00008086d00002922sv00001AF4sd00001100bc01sc06i01"
	virtio  = "pci:v00001AF4d00001041sv00001AF4sd00001100bc02sc00i00"
	mellox  = "pci:v000015B3d00001007sv000015B3sd00000006bc02sc00i00"
	table   = `mdio i2c-algo igb: pci:v00008086d000010C9sv*sd*bc*sc*i*
e1000e: pci:v00008086d0000105Esv*sd*bc*sc*i* pci:v00008086d000010D3sv*sd*bc*sc*i*
virtio_pci: pci:v00001AF4d*sv*sd*bc*sc*i*
failover virtio_net: virtio:d00000001v*
mlx4_core: pci:v000015B3d0000100[67]sv*sd*bc*sc*i*
mlx4_core mlx4_en: auxiliary:mlx4_core.eth
mdio realtek r8169: pci:v000010ECd00008168sv*sd*bc*sc*i*
`
)

func TestLoad(t *testing.T) {
	for name, c := range map[string]struct {
		devices  []string
		brings   map[string][]string
		fails    map[string]error
		inserted string // modules, in their order
		uses     []string
		err      []string // that the error has; none: no error
		looks    int
	}{
		"nothing": {looks: 1},
		"one card, and a disk": {
			devices: []string{"pci 0000:00:02.0 " + intel, "pci 0000:00:1f.2 " + storage + " driven", "acpi PNP0C0A:00"},
			brings:  map[string][]string{"e1000e": {"pci 0000:00:02.0 " + intel + " driven"}},
			// The image has no driver of a disk, and the report is about network cards.
			inserted: "e1000e", uses: []string{"e1000e for pci 0000:00:02.0"}, looks: 2,
		},
		"two cards of a kind": {
			devices:  []string{"pci 0000:00:03.0 " + intel + " driven", "pci 0000:00:02.0 " + intel + " driven"},
			inserted: "e1000e", uses: []string{"e1000e for pci 0000:00:02.0, pci 0000:00:03.0"}, looks: 2,
		},
		"a bus and what is on it": {
			devices: []string{"pci 0000:00:02.0 " + virtio},
			brings: map[string][]string{"virtio_pci": {"pci 0000:00:02.0 " + virtio + " driven", "virtio virtio0 virtio:d00000001v00001AF4"},
				"virtio_net": {"virtio virtio1 virtio:d00000001v00001AF4"}}, // it brings one more of its kind
			inserted: "virtio_pci failover virtio_net", looks: 3,
			uses: []string{"virtio_pci for pci 0000:00:02.0", "virtio_net for virtio virtio0, virtio virtio1"},
		},
		"what both need": {
			devices:  []string{"pci a pci:v00008086d000010C9sv0sd0bc02sc00i00 driven", "pci b pci:v000010ECd00008168sv0sd0bc02sc00i00 driven"},
			inserted: "mdio i2c_algo igb realtek r8169", uses: []string{"igb for pci a", "r8169 for pci b"}, looks: 2,
		},
		"a driver of its own that another one needs": {
			devices:  []string{"pci a " + mellox + " driven"},
			brings:   map[string][]string{"mlx4_core": {"auxiliary mlx4_core.eth.0 auxiliary:mlx4_core.eth"}},
			inserted: "mlx4_core mlx4_en", uses: []string{"mlx4_core for pci a", "mlx4_en for auxiliary mlx4_core.eth.0"}, looks: 3,
		},
		"loaded already": {
			devices: []string{"pci a " + intel + " driven"}, fails: map[string]error{"e1000e": unix.EEXIST},
			uses: []string{"e1000e for pci a"}, looks: 2,
		},
		"one cannot be loaded": {
			devices: []string{"pci a pci:v00008086d000010C9sv0sd0bc02sc00i00", "pci b pci:v000010ECd00008168sv0sd0bc02sc00i00 driven"},
			fails:   map[string]error{"i2c_algo": unix.ENOEXEC, "igb": unix.ENOENT}, inserted: "mdio realtek r8169", uses: []string{"r8169 for pci b"}, looks: 2,
			err: []string{"driver igb for pci a: load i2c-algo.ko: exec format error\n", "driver igb for pci a: load igb.ko: no such file or directory\n",
				"network card pci a (pci:v00008086d000010C9sv0sd0bc02sc00i00) is not used: driver igb did not take it"},
		},
		"one does without its helper": {
			devices: []string{"pci b pci:v000010ECd00008168sv0sd0bc02sc00i00 driven"},
			fails:   map[string]error{"realtek": unix.ENODEV}, inserted: "mdio r8169", uses: []string{"r8169 for pci b"}, looks: 2,
			err: []string{"driver r8169 for pci b: load realtek.ko: no such device"},
		},
		"a card without a driver": {
			devices: []string{"pci a pci:v00001234d00005678sv0sd0bc02sc00i00", "pci wireless pci:v00001234d00005678sv0sd0bc02sc80i00"}, looks: 1,
			err: []string{"network card pci a (pci:v00001234d00005678sv0sd0bc02sc00i00) is not used: the node image has no driver for it"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := play(t, c.devices...)
			if c.brings != nil {
				p.brings = c.brings
			}
			p.fails = c.fails
			uses, err := NewLoader(p.node(), of(table)).Look()
			var got []string
			for _, u := range uses {
				got = append(got, u.String())
			}
			if strings.Join(p.inserted, " ") != c.inserted || !slices.Equal(got, c.uses) || p.looks != c.looks {
				t.Errorf("inserted %v, uses %q, looked %d times", p.inserted, got, p.looks)
			}
			if text := fmt.Sprint(err); len(c.err) == 0 && err != nil || text != strings.Join(c.err, "") && len(c.err) > 0 {
				t.Errorf("error %v", err)
			}
		})
	}
}

// However many devices each driver brings, Load ends: it looks once more than there are drivers.
func TestLoadEnds(t *testing.T) {
	var drivers []node.Driver
	p := play(t, "bus d0 is:0")
	for i := range 20 {
		drivers = append(drivers, node.Driver{Modules: []string{fmt.Sprintf("/m/m%d.ko", i)}, Aliases: []string{fmt.Sprintf("is:%d", i)}})
		p.brings[fmt.Sprintf("m%d", i)] = []string{fmt.Sprintf("bus d%d is:%d", i+1, i+1)}
	}
	slices.Reverse(drivers) // a device that appears is for a driver that was looked at before
	uses, err := NewLoader(p.node(), drivers).Look()
	if err != nil || len(uses) != 20 || p.looks != 21 {
		t.Errorf("%v after %d looks, %v", uses, p.looks, err)
	}
}

// Devices that appear later get their drivers at the next look. Nothing is loaded or said twice.
func TestLookAgain(t *testing.T) {
	const unknown, realtek = "pci:v00001234d00005678sv0sd0bc02sc00i00", "pci:v000010ECd00008168sv0sd0bc02sc00i00"
	p := play(t, "pci a "+intel+" driven", "pci b "+unknown)
	p.fails["r8169"] = unix.ENOMEM
	l := NewLoader(p.node(), of(table))
	for i, c := range []struct{ appears, inserted, uses, err string }{
		{"", "e1000e", "[e1000e for pci a]", "network card pci b (" + unknown + ") is not used: the node image has no driver for it"},
		{"", "e1000e", "[]", "<nil>"},
		{"pci c " + intel + " driven", "e1000e", "[]", "<nil>"}, // Linux offers it to the driver that is there
		{"virtio d virtio:d00000001v00001AF4", "e1000e failover virtio_net", "[virtio_net for virtio d]", "<nil>"},
		{"pci e " + unknown, "e1000e failover virtio_net", "[]", "network card pci e (" + unknown + ") is not used: the node image has no driver for it"},
		{"pci f " + realtek + " driven", "e1000e failover virtio_net mdio realtek", "[]", "driver r8169 for pci f: load r8169.ko: cannot allocate memory"},
		{"", "e1000e failover virtio_net mdio realtek", "[]", "<nil>"},
		// Another device with a driver that failed, and one in the place of another.
		{"pci g " + realtek + " driven", "e1000e failover virtio_net mdio realtek r8169", "[r8169 for pci f, pci g]", "<nil>"},
		{"pci b " + virtio + " driven", "e1000e failover virtio_net mdio realtek r8169 virtio_pci", "[virtio_pci for pci b]", "<nil>"},
	} {
		if c.appears != "" {
			p.add(c.appears)
		}
		if i == 7 {
			delete(p.fails, "r8169")
		}
		if uses, err := l.Look(); strings.Join(p.inserted, " ") != c.inserted || fmt.Sprint(uses) != c.uses || fmt.Sprint(err) != c.err {
			t.Errorf("look %d: inserted %v, uses %v, %v", i, p.inserted, uses, err)
		}
	}
}

// Without a list of devices the node has what was loaded before.
func TestNoDevices(t *testing.T) {
	p := play(t, "pci a "+intel)
	n := p.node()
	list := n.Devices
	n.Devices = func() ([]Device, error) {
		if p.looks > 0 {
			return nil, unix.EIO
		}
		return list()
	}
	if uses, err := NewLoader(n, of(table)).Look(); len(uses) != 1 || !errors.Is(err, unix.EIO) {
		t.Errorf("%v, %v", uses, err)
	}
	if devices, err := Devices(filepath.Join(p.sys, "none")); err != nil || len(devices) != 0 {
		t.Errorf("without a /sys: %v, %v", devices, err)
	}
}

// The modules of this host, as its own tools list them.
func TestModules(t *testing.T) {
	names, err := Modules()
	if err != nil || !slices.IsSorted(names) {
		t.Fatal(names, err)
	}
	after, err := Modules() // a module may have gone since
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if _, err := os.Stat("/sys/module/" + name); err != nil && slices.Contains(after, name) {
			t.Error(err)
		}
	}
	const text = "e1000e 360448 0 - Live 0x0000000000000000\nptp 40960 1 e1000e, Live 0x0\n\n"
	if got := moduleNames(text); !slices.Equal(got, []string{"e1000e", "ptp"}) {
		t.Errorf("modules %q", got)
	}
}

func FuzzModuleNames(f *testing.F) {
	f.Add("e1000e 360448 0 - Live 0x0\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, name := range moduleNames(text) {
			if name == "" || strings.ContainsAny(name, " \n") {
				t.Errorf("module %q", name)
			}
		}
	})
}
