package node

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"strings"
)

// Drivers is the file of a node image that says which devices its drivers are for. A node image
// whose drivers are all in LoadOrder has none.
//
// Each driver is a group of lines. The first ones are absolute paths of modules, one per line, in
// load order: what the driver needs in addition to LoadOrder, and then the driver itself. The other
// ones begin with a tab and are its aliases, one per line: a driver is for the devices whose
// modalias matches one of them.
//
// An alias is a pattern as in modules.alias of Linux: `*` stands for any number of characters, `?`
// for one character, `[0-9A]` for one of a set, and `[^0-9A]` for one that is not in a set. A
// backslash takes the meaning from the character after it. None of them stands for a slash, which
// modaliases of network cards and their buses do not have.
const Drivers = "/lib/modules/drivers"

// Driver is a driver of a node image that a node loads if it has a device for it.
type Driver struct {
	Modules []string // absolute paths, in load order; the last one is the driver
	Aliases []string // of its devices
}

// maxDrivers bounds the file, in bytes.
const maxDrivers = 8 << 20

// Name returns the name of the driver's module as Linux writes it.
func (d Driver) Name() string { return ModuleName(d.Modules[len(d.Modules)-1]) }

// ModuleName returns the name by which Linux calls the module of a file.
func ModuleName(file string) string {
	return strings.ReplaceAll(strings.TrimSuffix(path.Base(file), ".ko"), "-", "_")
}

// For reports whether the driver is for a device with a modalias.
func (d Driver) For(modalias string) bool {
	for _, alias := range d.Aliases {
		if matches, err := path.Match(alias, modalias); err == nil && matches {
			return true
		}
	}
	return false
}

func (d Driver) check() error {
	switch {
	case len(d.Modules) == 0:
		return errors.New("an alias without a module")
	case len(d.Aliases) == 0:
		return fmt.Errorf("%s has no aliases", d.Modules[len(d.Modules)-1])
	}
	for _, m := range d.Modules {
		if !path.IsAbs(m) || path.Clean(m) != m || path.Ext(m) != ".ko" || ModuleName(m) == "" || strings.ContainsAny(m, "\n\x00") {
			return fmt.Errorf("%q is not the path of a module", m)
		}
	}
	for _, a := range d.Aliases {
		if _, err := path.Match(a, ""); err != nil || a == "" || strings.ContainsAny(a, "\n\x00") {
			return fmt.Errorf("%q of %s is not an alias", a, d.Name())
		}
	}
	return nil
}

// EncodeDrivers returns the text of the file Drivers.
func EncodeDrivers(drivers []Driver) ([]byte, error) {
	var text bytes.Buffer
	for _, d := range drivers {
		if err := d.check(); err != nil {
			return nil, fmt.Errorf("drivers: %w", err)
		}
		for _, m := range d.Modules {
			text.WriteString(m + "\n")
		}
		for _, a := range d.Aliases {
			text.WriteString("\t" + a + "\n")
		}
	}
	if text.Len() > maxDrivers {
		return nil, fmt.Errorf("drivers: %d bytes, at most %d are allowed", text.Len(), maxDrivers)
	}
	return text.Bytes(), nil
}

// ParseDrivers parses and checks the text of the file Drivers.
func ParseDrivers(text []byte) ([]Driver, error) {
	if len(text) > maxDrivers {
		return nil, fmt.Errorf("drivers: %d bytes, at most %d are allowed", len(text), maxDrivers)
	}
	var drivers []Driver
	var d Driver
	end := func() error {
		if err := d.check(); err != nil {
			return fmt.Errorf("drivers: %w", err)
		}
		drivers, d = append(drivers, d), Driver{}
		return nil
	}
	for line := range strings.Lines(string(text)) {
		line, ended := strings.CutSuffix(line, "\n")
		if !ended {
			return nil, errors.New("drivers: the file is truncated")
		}
		if alias, ok := strings.CutPrefix(line, "\t"); ok {
			d.Aliases = append(d.Aliases, alias)
			continue
		}
		if len(d.Aliases) > 0 {
			if err := end(); err != nil {
				return nil, err
			}
		}
		d.Modules = append(d.Modules, line)
	}
	if len(text) == 0 {
		return nil, nil
	}
	if err := end(); err != nil {
		return nil, err
	}
	return drivers, nil
}
