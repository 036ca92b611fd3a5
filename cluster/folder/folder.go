// Package folder recognises the folder of a machine. It reads what clients must know before they
// connect: whether there is such a machine, and whether it has a holder. Package machine makes,
// changes and removes machines.
//
// A folder is a machine's when it has the marker: a regular file of this user's, with this name and
// this text. The marker is the first file that machine up makes in a folder and the last one that
// is removed from it, so it exists whenever any other part of a machine does.
//
// Clients start often and end soon, so this package imports little.
package folder

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"margay/cluster/site"
)

// The marker of a machine's folder: its name and its text.
const (
	Marker     = "margay-machine"
	MarkerText = "This folder belongs to a machine. margay machine up made it, margay machine down removes it.\n"
)

// The names of files in a machine's folder: of the lock, which names the holder, of the spec, and
// of the folder with files that are lent.
const (
	LockName = "lock"
	SpecName = "machine.json"
	LentName = "lent"
)

// LongestSocket is the longest name of a socket that Linux accepts, in bytes.
const LongestSocket = 107

// ErrNoMachine reports a name that no machine has.
var ErrNoMachine = errors.New("there is no such machine")

// Dir is the folder of one machine.
type Dir string

// Of returns the folder of the machine called name.
func Of(name string) (Dir, error) {
	path, err := site.Folder(name)
	if err != nil {
		return "", err
	}
	d := Dir(path)
	if longest := d.Port("service"); len(longest) > LongestSocket {
		return "", fmt.Errorf("%s is too long for a socket's name: set MARGAY_DIR to a shorter path", longest)
	}
	return d, nil
}

// File is the path of a file in the folder.
func (d Dir) File(parts ...string) string {
	return filepath.Join(append([]string{string(d)}, parts...)...)
}

// Lent is the folder into which margay run puts contents of files for the hosted nodes of a machine
// (package lend). Another machine has none.
func (d Dir) Lent() string { return d.File(LentName) }

// Port is the socket of a port of the machine's switch.
func (d Dir) Port(name string) string { return d.File("ports", name) }

// Socket is where serve listens to clients and to the holder.
func (d Dir) Socket() string { return site.Socket(string(d)) }

// Name is the machine's name.
func (d Dir) Name() string { return filepath.Base(string(d)) }

// Holder returns the pid of the machine's holder, and whether it lives. The pid of a holder that
// does not live remains from one that was killed; 0 means that there never was a holder, or that it
// is just starting.
func (d Dir) Holder() (pid int, alive bool) {
	f, err := Open(d.File(LockName), os.O_RDONLY)
	if err != nil {
		return 0, false
	}
	defer f.Close()
	text := make([]byte, 32)
	n, _ := f.Read(text)
	pid, _ = strconv.Atoi(strings.TrimSpace(string(text[:n])))
	return pid, Locked(f)
}

// Check reports an error unless the folder is a machine's: ErrNoMachine where there is none.
func (d Dir) Check() error {
	base, err := OpenBase(filepath.Dir(string(d)))
	if err == nil {
		defer base.Close()
		var root *os.Root
		var c Condition
		if root, c, err = base.Open(d.Name()); err == nil {
			root.Close()
			if c != Empty {
				return nil
			}
			return d.missing() // machine up would take it, and machine down leaves one for a moment
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return d.missing()
	}
	return fmt.Errorf("machine %s: %w", d.Name(), err)
}

// Made returns an error unless the machine has been made: ErrNoMachine if the folder is missing or
// not a machine's. It names the command that makes the machine.
func (d Dir) Made() error {
	_, err := d.ReadSpec()
	return err
}

// ReadSpec reads the file of the machine's spec. It returns the same errors as Made.
func (d Dir) ReadSpec() ([]byte, error) {
	if err := d.Check(); err != nil {
		if foreign := (*ForeignError)(nil); errors.Is(err, ErrNoMachine) && !errors.As(err, &foreign) {
			err = fmt.Errorf("%w; %s makes one", err, d.upCommand())
		}
		return nil, err
	}
	text, err := Read(d.File(SpecName))
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w; %s makes one", d.missing(), d.upCommand())
	}
	return text, err
}

// upCommand is the command that makes the machine.
func (d Dir) upCommand() string {
	if d.Name() == site.DefaultName {
		return "margay machine up"
	}
	return "margay machine up -m " + d.Name()
}

// missing is the ErrNoMachine of this folder. It names the folder of all machines, because
// MARGAY_DIR may be relative.
func (d Dir) missing() error {
	return fmt.Errorf("machine %s: %w in %s", d.Name(), ErrNoMachine, filepath.Dir(string(d)))
}
