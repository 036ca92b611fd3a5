package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"margay/cluster/folder"
	"margay/cluster/site"
	"margay/cluster/way"
)

// The names of files in a machine's folder: of the one that is locked while machine up makes the
// machine, of the roster, and of the file that takes the roster's place.
const (
	makingName     = "making"
	rosterName     = "roster.json"
	nextRosterName = "roster.next"
)

// parts are the folders in a machine's folder that machine up makes.
var parts = []string{"log", "ports", "nodes"}

// known are the names in a machine's folder that are a machine's, besides the marker. Nothing else
// in it is ever removed.
var known = append([]string{"serve.sock", "lock", makingName, "machine.json", "key.pem", "state.db", auditName, oldAuditName, "output", imageName, rosterName, nextRosterName, imagesName, bootsName, nextBoots, tokensName, leftOnName, site.EndingName, folder.LentName}, parts...)

// machines is the open folder of all machines. It is locked while one machine is claimed or
// removed.
type machines struct{ *folder.Base }

// made looks at a folder, and makes it for this user alone if it is missing.
var made = way.Made(0o700)

// makeBase makes the folder of all machines and its missing parents, and locks it.
func makeBase(path string) (*machines, error) {
	for {
		err := folder.All(path).Check(made)
		if err == nil {
			_, err = made(path)
		}
		if err != nil {
			return nil, folder.ForeignRuntime(err)
		}
		b, err := lockBase(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the last machine in it has just been removed
		}
		return b, err
	}
}

// lockBase opens and locks the folder of all machines. The error is fs.ErrNotExist if there is
// none.
func lockBase(path string) (*machines, error) {
	opened, err := folder.OpenBase(path)
	if err != nil {
		return nil, err
	}
	b := &machines{opened}
	if err := unix.Flock(int(b.Lock.Fd()), unix.LOCK_EX); err != nil {
		b.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	// It may have been removed before it was locked.
	if err := folder.IsStill(path, b.Lock); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// making is a folder that becomes a machine's.
type making struct {
	base *machines
	name string
	root *os.Root // nil until there is one
	file *os.File // locked while machine up makes the machine
}

// steps are the steps that make a folder a machine's, in order. The next machine up recognises the
// result of any number of them. A folder that existed before is one that open accepts.
func (m *making) steps() []func() error {
	var marker *os.File
	steps := []func() error{
		func() error {
			if err := m.base.Root.Mkdir(m.name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			var err error
			m.root, _, err = m.base.Open(m.name)
			return err
		},
		func() error { return m.root.Chmod(".", 0o700) },
		func() (err error) {
			marker, err = m.root.OpenFile(folder.Marker, os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
			return err
		},
		func() error {
			_, err := marker.WriteAt([]byte(folder.MarkerText), 0)
			return errors.Join(err, marker.Sync(), marker.Close()) // on the disk before anything else is
		},
	}
	for _, part := range parts {
		steps = append(steps, func() error { return m.root.Mkdir(part, 0o700) })
	}
	return append(steps,
		func() (err error) {
			m.file, err = m.root.OpenFile(makingName, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
			return err
		},
		func() error { return lockOpen(m.file) },
	)
}

// create makes a machine's folder and its parts where no part of a machine exists. The folder
// belongs to the caller while the returned file is open. On an error, such as a full disk, it
// leaves nothing.
func (b *machines) create(name string) (*os.File, error) {
	m := &making{base: b, name: name}
	return m.run(m.steps())
}

// run takes the steps. When one fails, it removes the results of the others.
func (m *making) run(steps []func() error) (*os.File, error) {
	for _, step := range steps {
		if err := step(); err != nil {
			err = fmt.Errorf("make the machine's folder: %w", err)
			if m.root != nil { // else the name belongs to another file
				err = errors.Join(err, m.base.remove(m.name))
			}
			m.close()
			return nil, err
		}
	}
	m.root.Close()
	return m.file, nil
}

func (m *making) close() {
	if m.file != nil {
		m.file.Close()
	}
	if m.root != nil {
		m.root.Close()
	}
}

// strangers returns the names in a machine's folder that are not a machine's.
func strangers(root *os.Root) ([]string, error) {
	names, err := folder.Names(root)
	return slices.DeleteFunc(names, func(name string) bool { return name == folder.Marker || slices.Contains(known, name) }), err
}

// clear removes all of a machine's files from its folder, except the marker.
func clear(root *os.Root) error {
	for _, name := range known {
		if err := root.RemoveAll(name); err != nil {
			return err
		}
	}
	return nil
}

// remove removes a machine's folder. Foreign files in it stay, and the folder with them, which is
// an error.
func (b *machines) remove(name string) error {
	root, c, err := b.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	if c == folder.Empty {
		return b.Root.Remove(name)
	}
	if err := clear(root); err != nil {
		return err
	}
	left, err := strangers(root)
	if err != nil {
		return err
	}
	if err := root.Remove(folder.Marker); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("machine %s is gone; its folder %s stays, because of files in it that are not the machine's: %s",
			name, filepath.Join(b.Path, name), strings.Join(left, ", "))
	}
	return b.Root.Remove(name)
}
