package machine

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"margay/cluster/site"
	"margay/cluster/way"
)

// A folder is a machine's when it has the marker: a regular file of this user's, with this name and
// this text. The marker is the first file that machine up makes in a folder and the last one that
// is removed from it, so it exists whenever any other part of a machine does.
const (
	markerName = "margay-machine"
	makingName = "making" // locked while machine up makes the machine
	markerText = "This folder belongs to a machine. margay machine up made it, margay machine down removes it.\n"
)

// The names of the machine's roster, and of the file that takes its place.
const (
	rosterName     = "roster.json"
	nextRosterName = "roster.next"
)

// parts are the folders in a machine's folder that machine up makes.
var parts = []string{"log", "ports", "nodes"}

// known are the names in a machine's folder that are a machine's, besides the marker. Nothing else
// in it is ever removed.
var known = append([]string{"serve.sock", "lock", makingName, "machine.json", "key.pem", "state.db", auditName, oldAuditName, "output", imageName, rosterName, nextRosterName}, parts...)

// foreignError reports that a machine's name belongs to a file or folder that is not a machine's.
type foreignError struct{ path, why string }

func (e *foreignError) Error() string {
	return fmt.Sprintf("%s exists and is not a machine's folder: %s", e.path, e.why)
}

// Is makes it an ErrNoMachine.
func (e *foreignError) Is(target error) bool { return target == ErrNoMachine }

// machines is the open folder of all machines. It is locked while one machine is claimed or
// removed.
type machines struct {
	path string
	root *os.Root
	lock *os.File
}

// allMachines is the folder of all machines, for errors and for the check of the way to it.
func allMachines(path string) way.Folder {
	return way.Folder{What: "folder of all machines", Path: path, Variable: site.BaseVariable}
}

// made looks at a folder, and makes it for this user alone if it is missing.
var made = way.Made(0o700)

// makeBase makes the folder of all machines and its missing parents, and locks it.
func makeBase(path string) (*machines, error) {
	for {
		err := allMachines(path).Check(made)
		if err == nil {
			_, err = made(path)
		}
		if err != nil {
			return nil, foreignRuntime(err)
		}
		b, err := lockBase(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the last machine in it has just been removed
		}
		return b, err
	}
}

// foreignRuntime adds to an error a cause that users overlook: su and sudo may leave them with the
// runtime folder of the previous user.
func foreignRuntime(err error) error {
	dir := os.Getenv(site.RuntimeVariable)
	info, failed := os.Stat(dir)
	if os.Getenv(site.BaseVariable) != "" || dir == "" || failed != nil {
		return err
	}
	if uid := way.UID(info); uid != os.Geteuid() {
		return fmt.Errorf("%s=%s belongs to user %d, not to %d: unset it or set MARGAY_DIR to a folder of your own: %w",
			site.RuntimeVariable, dir, uid, os.Geteuid(), err)
	}
	return err
}

// lockBase opens and locks the folder of all machines. The error is fs.ErrNotExist if there is
// none.
func lockBase(path string) (*machines, error) {
	b, err := openBase(path)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(b.lock.Fd()), unix.LOCK_EX); err != nil {
		b.close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	// It may have been removed before it was locked.
	if err := isStill(path, b.lock); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

// openBase opens the folder of all machines. The error is fs.ErrNotExist where there is none.
func openBase(path string) (*machines, error) {
	var info fs.FileInfo
	err := allMachines(path).Check(os.Lstat)
	if err == nil {
		info, err = os.Lstat(path)
	}
	if err != nil {
		return nil, foreignRuntime(err)
	}
	if why := notOwn(info); why != "" {
		return nil, fmt.Errorf("folder of all machines: %s %s: %s", path, why, allMachines(path).Out(path, info))
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	b := &machines{path: path, root: root}
	if b.lock, err = root.Open("."); err == nil {
		err = isStill(path, b.lock) // and no link in its place
	}
	if err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *machines) close() {
	if b.lock != nil {
		b.lock.Close()
	}
	b.root.Close()
}

// isStill reports whether path names the file that f has open. The error is fs.ErrNotExist if it
// does not.
func isStill(path string, f *os.File) error {
	opened, err := f.Stat()
	if err != nil {
		return err
	}
	now, err := os.Lstat(path)
	if err == nil && !os.SameFile(now, opened) {
		err = &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	return err
}

// notOwn says why something is no folder that this user alone can change, nothing if it is one.
func notOwn(info fs.FileInfo) string {
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		return "is a symbolic link"
	case !info.IsDir():
		return "is no folder"
	case way.UID(info) != os.Getuid():
		return "belongs to another user"
	case info.Mode()&0o022 != 0:
		return "can be written by others"
	}
	return ""
}

// condition describes the folder that has a machine's name.
type condition int

const (
	empty  condition = iota // it has no files: any program may have made it
	begun                   // machine up was interrupted before the marker was whole
	marked                  // a machine's
)

// open opens the folder of a machine without following a link. The error is fs.ErrNotExist or a
// foreignError if there is no such folder.
func (b *machines) open(name string) (*os.Root, condition, error) {
	for range 100 {
		// Between two looks, a machine of this name may be removed and another one made.
		if root, c, err := b.look(name); !errors.Is(err, errExchanged) {
			return root, c, err
		}
	}
	return nil, 0, &foreignError{filepath.Join(b.path, name), "it is being exchanged"}
}

// errExchanged reports that another folder has replaced the one that was looked at.
var errExchanged = errors.New("another folder is in its place")

func (b *machines) look(name string) (*os.Root, condition, error) {
	path := filepath.Join(b.path, name)
	info, err := b.root.Lstat(name)
	if err != nil {
		return nil, 0, err
	}
	if why := notOwn(info); why != "" {
		return nil, 0, &foreignError{path, "it " + why}
	}
	root, err := b.root.OpenRoot(name)
	if err != nil {
		return nil, 0, err
	}
	opened, err := root.Stat(".")
	if err == nil && !os.SameFile(info, opened) {
		err = errExchanged
	}
	var c condition
	if err == nil {
		c, err = recognise(root, path)
	}
	if err != nil {
		root.Close()
		return nil, 0, err
	}
	return root, c, nil
}

// recognise determines whether an open folder is a machine's. The error is a foreignError if it is
// not.
func recognise(root *os.Root, path string) (condition, error) {
	names, err := list(root)
	if err != nil {
		return 0, err
	}
	if len(names) == 0 {
		return empty, nil
	}
	text, err := readMarker(root)
	switch {
	case err == nil && text == markerText:
		return marked, nil
	case err == nil && len(names) == 1 && strings.HasPrefix(markerText, text):
		return begun, nil
	case err == nil:
		err = errors.New("it has another text")
	case errors.Is(err, fs.ErrNotExist) && slices.Contains(names, markerName):
		return recognise(root, path) // it has just been removed
	case errors.Is(err, fs.ErrNotExist):
		return 0, &foreignError{path, fmt.Sprintf("it lacks the file %s, which every machine has", markerName)}
	}
	return 0, &foreignError{path, fmt.Sprintf("its file %s is not a machine's: %v", markerName, err)}
}

// readMarker returns the text of a folder's marker.
func readMarker(root *os.Root) (string, error) {
	info, err := root.Lstat(markerName)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() || way.UID(info) != os.Getuid() {
		return "", errors.New("it is not a regular file of this user")
	}
	f, err := root.OpenFile(markerName, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, int64(len(markerText))+1))
	return string(text), err
}

// list returns the names in a folder.
func list(root *os.Root) ([]string, error) {
	f, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	slices.Sort(names)
	return names, err
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
			if err := m.base.root.Mkdir(m.name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			var err error
			m.root, _, err = m.base.open(m.name)
			return err
		},
		func() error { return m.root.Chmod(".", 0o700) },
		func() (err error) {
			marker, err = m.root.OpenFile(markerName, os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
			return err
		},
		func() error {
			_, err := marker.WriteAt([]byte(markerText), 0)
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
	names, err := list(root)
	return slices.DeleteFunc(names, func(name string) bool { return name == markerName || slices.Contains(known, name) }), err
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
	root, c, err := b.open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	if c == empty {
		return b.root.Remove(name)
	}
	if err := clear(root); err != nil {
		return err
	}
	left, err := strangers(root)
	if err != nil {
		return err
	}
	if err := root.Remove(markerName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("machine %s is gone; its folder %s stays, because of files in it that are not the machine's: %s",
			name, filepath.Join(b.path, name), strings.Join(left, ", "))
	}
	return b.root.Remove(name)
}
