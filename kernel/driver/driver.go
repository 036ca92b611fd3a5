// Package driver loads the drivers that a node needs. The node image says which devices each of its
// drivers is for (node.ParseDrivers), and Linux says which devices there are. A driver that is
// loaded can bring further devices, for instance the driver of a bus, so a look does not end before
// no new device needs a new driver. When Linux has loaded a driver, it has also offered it the
// devices that there are. Others appear later, for instance behind a USB controller: a Loader can
// look again. Linux has a way to load drivers itself, but by a program, which a node does not have.
package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/node"
)

// Device is a device of a node.
type Device struct {
	Bus      string // for instance pci
	Name     string // on its bus, for instance 0000:00:02.0
	Modalias string // what it is, as drivers match it
	Driven   bool   // a driver has it
}

func (d Device) String() string { return d.Bus + " " + d.Name }

// Use is a driver that was loaded, and the devices that it was loaded for.
type Use struct {
	Driver  string
	Devices []Device
}

func (u Use) String() string {
	names := make([]string, len(u.Devices))
	for i, d := range u.Devices {
		names[i] = d.String()
	}
	return u.Driver + " for " + strings.Join(names, ", ")
}

// Node is how a Loader reaches the Linux of a node.
type Node struct {
	Devices func() ([]Device, error) // lists the devices of the node
	Insert  func(path string) error  // loads a module
}

// Loader loads the drivers that the devices of a node need. It is not safe for concurrent use.
type Loader struct {
	node    Node
	drivers []node.Driver
	needed  [][]Device      // by the drivers: what they were loaded for
	seen    map[Device]bool // at the last look, but for whether a driver had them
	loaded  map[string]bool // modules, by their path
	unused  map[string]bool // network cards that an error was about, by their bus and name
}

// NewLoader makes a loader of those drivers of the node image that are given.
func NewLoader(n Node, drivers []node.Driver) *Loader {
	return &Loader{
		node: n, drivers: drivers, needed: make([][]Device, len(drivers)),
		loaded: make(map[string]bool), unused: make(map[string]bool),
	}
}

// Look loads the drivers that a device needs which was not there at the last look, each after what
// it needs itself, and returns them in the order in which they were loaded. It goes on after a
// driver that cannot be loaded, and returns all errors; an Ethernet card that no driver has in the
// end is one of them, once.
func (l *Loader) Look() (uses []Use, err error) {
	var errs []error
	var order []int // of the drivers that were loaded
	for {
		devices, err := l.node.Devices()
		if err != nil {
			return l.uses(order), errors.Join(append(errs, err)...)
		}
		fresh := l.fresh(devices)
		more := false
		for i, d := range l.drivers {
			before := len(l.needed[i])
			for _, device := range fresh {
				if d.For(device.Modalias) {
					l.needed[i] = append(l.needed[i], device)
				}
			}
			if len(l.needed[i]) == before || l.has(d) {
				continue
			}
			more = true
			for _, err := range l.insert(d) {
				errs = append(errs, fmt.Errorf("driver %s for %v: %w", d.Name(), l.needed[i][before], err))
			}
			if l.has(d) {
				order = append(order, i)
			}
		}
		if !more {
			return l.uses(order), errors.Join(append(errs, l.idle(devices)...)...)
		}
	}
}

// fresh returns the devices that are not the ones of the last look, and remembers all. Another
// device may have taken the name of one that is gone.
func (l *Loader) fresh(devices []Device) (fresh []Device) {
	before := l.seen
	l.seen = make(map[Device]bool, len(devices))
	for _, d := range devices {
		same := d
		same.Driven = false
		if l.seen[same] = true; !before[same] {
			fresh = append(fresh, d)
		}
	}
	return fresh
}

// has reports whether a driver is loaded.
func (l *Loader) has(d node.Driver) bool { return l.loaded[d.Modules[len(d.Modules)-1]] }

func (l *Loader) uses(order []int) (all []Use) {
	for _, i := range order {
		all = append(all, Use{l.drivers[i].Name(), l.needed[i]})
	}
	return all
}

// insert loads the modules of a driver that were not loaded before. It goes on after an error: the
// driver may do without that module, and Linux refuses one that does not.
func (l *Loader) insert(d node.Driver) (errs []error) {
	for _, path := range d.Modules {
		if l.loaded[path] {
			continue
		}
		if err := l.node.Insert(path); err != nil && !errors.Is(err, unix.EEXIST) {
			errs = append(errs, fmt.Errorf("load %s: %w", filepath.Base(path), err))
			continue
		}
		l.loaded[path] = true
	}
	return errs
}

// idle returns an error for each network card that no driver has, and that it has not returned one
// for.
func (l *Loader) idle(devices []Device) (errs []error) {
	for _, d := range devices {
		if d.Driven || !isCard(d.Modalias) || l.unused[d.String()] {
			continue
		}
		l.unused[d.String()] = true
		why := "the node image has no driver for it"
		if i := slices.IndexFunc(l.drivers, func(driver node.Driver) bool { return driver.For(d.Modalias) }); i >= 0 {
			why = "driver " + l.drivers[i].Name() + " did not take it"
		}
		errs = append(errs, fmt.Errorf("network card %v (%s) is not used: %s", d, d.Modalias, why))
	}
	return errs
}

// isCard reports whether a modalias is of an Ethernet controller on a PCI bus, whose class is 2 and
// whose subclass is 0.
func isCard(modalias string) bool {
	return strings.HasPrefix(modalias, "pci:") && strings.Contains(modalias, "bc02sc00")
}

// Devices returns the devices of the buses below a folder, which is /sys but for tests, in the
// order of their names. A device without a modalias needs no driver, and is not returned. The file
// modalias is not there on each bus, for instance not on the auxiliary one; uevent is.
func Devices(sys string) ([]Device, error) {
	links, err := filepath.Glob(filepath.Join(sys, "bus", "*", "devices", "*"))
	if err != nil {
		return nil, fmt.Errorf("devices: %w", err)
	}
	var devices []Device
	for _, link := range links {
		text, err := os.ReadFile(filepath.Join(link, "uevent"))
		if err != nil { // it is gone
			continue
		}
		modalias := modaliasOf(string(text))
		if modalias == "" {
			continue
		}
		_, err = os.Lstat(filepath.Join(link, "driver"))
		devices = append(devices, Device{
			Bus: filepath.Base(filepath.Dir(filepath.Dir(link))), Name: filepath.Base(link), Modalias: modalias, Driven: !errors.Is(err, fs.ErrNotExist),
		})
	}
	return devices, nil
}

// modaliasOf returns the modalias in the text of a file uevent, empty if it has none.
func modaliasOf(uevent string) string {
	for line := range strings.Lines(uevent) {
		if modalias, ok := strings.CutPrefix(line, "MODALIAS="); ok {
			return strings.TrimSpace(modalias)
		}
	}
	return ""
}

// Modules returns the names of the modules that the Linux of this node has loaded, in their order.
func Modules() ([]string, error) {
	text, err := os.ReadFile("/proc/modules")
	if errors.Is(err, fs.ErrNotExist) { // a Linux without modules
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("loaded modules: %w", err)
	}
	return moduleNames(string(text)), nil
}

// moduleNames returns the first word of each line of /proc/modules.
func moduleNames(text string) (names []string) {
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) > 0 {
			names = append(names, words[0])
		}
	}
	slices.Sort(names)
	return names
}
