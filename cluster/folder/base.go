package folder

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

// ForeignError reports that a machine's name belongs to a file or folder that is not a machine's.
type ForeignError struct{ path, why string }

func (e *ForeignError) Error() string {
	return fmt.Sprintf("%s exists and is not a machine's folder: %s", e.path, e.why)
}

// Is makes it an ErrNoMachine.
func (e *ForeignError) Is(target error) bool { return target == ErrNoMachine }

// Base is the open folder of all machines. A process has Lock locked while it claims or removes a
// machine.
type Base struct {
	Path string
	Root *os.Root
	Lock *os.File // the folder itself
}

// All is the folder of all machines, for errors and for the check of the way to it.
func All(path string) way.Folder {
	return way.Folder{What: "folder of all machines", Path: path, Variable: site.BaseVariable}
}

// ForeignRuntime adds to an error a cause that users overlook: su and sudo may leave them with the
// runtime folder of the previous user.
func ForeignRuntime(err error) error {
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

// OpenBase opens the folder of all machines. The error is fs.ErrNotExist where there is none.
func OpenBase(path string) (*Base, error) {
	var info fs.FileInfo
	err := All(path).Check(os.Lstat)
	if err == nil {
		info, err = os.Lstat(path)
	}
	if err != nil {
		return nil, ForeignRuntime(err)
	}
	if why := NotOwn(info); why != "" {
		return nil, fmt.Errorf("folder of all machines: %s %s: %s", path, why, All(path).Out(path, info))
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	b := &Base{Path: path, Root: root}
	if b.Lock, err = root.Open("."); err == nil {
		err = IsStill(path, b.Lock) // and no link in its place
	}
	if err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// Close closes it, and ends the lock.
func (b *Base) Close() {
	if b.Lock != nil {
		b.Lock.Close()
	}
	b.Root.Close()
}

// IsStill reports whether path names the file that f has open. The error is fs.ErrNotExist if it
// does not.
func IsStill(path string, f *os.File) error {
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

// NotOwn says why something is no folder that this user alone can change, nothing if it is one.
func NotOwn(info fs.FileInfo) string {
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

// Condition describes the folder that has a machine's name.
type Condition int

const (
	Empty  Condition = iota // it has no files: any program may have made it
	Begun                   // machine up was interrupted before the marker was whole
	Marked                  // a machine's
)

// Open opens the folder of a machine without following a link. The error is fs.ErrNotExist or a
// ForeignError if there is no such folder.
func (b *Base) Open(name string) (*os.Root, Condition, error) {
	for range 100 {
		// Between two looks, a machine of this name may be removed and another one made.
		if root, c, err := b.look(name); !errors.Is(err, errExchanged) {
			return root, c, err
		}
	}
	return nil, 0, &ForeignError{filepath.Join(b.Path, name), "it is being exchanged"}
}

// errExchanged reports that another folder has replaced the one that was looked at.
var errExchanged = errors.New("another folder is in its place")

func (b *Base) look(name string) (*os.Root, Condition, error) {
	path := filepath.Join(b.Path, name)
	info, err := b.Root.Lstat(name)
	if err != nil {
		return nil, 0, err
	}
	if why := NotOwn(info); why != "" {
		return nil, 0, &ForeignError{path, "it " + why}
	}
	root, err := b.Root.OpenRoot(name)
	if err != nil {
		return nil, 0, err
	}
	opened, err := root.Stat(".")
	if err == nil && !os.SameFile(info, opened) {
		err = errExchanged
	}
	var c Condition
	if err == nil {
		c, err = recognise(root, path)
	}
	if err != nil {
		root.Close()
		return nil, 0, err
	}
	return root, c, nil
}

// recognise determines whether an open folder is a machine's. The error is a ForeignError if it is
// not.
func recognise(root *os.Root, path string) (Condition, error) {
	names, err := Names(root)
	if err != nil {
		return 0, err
	}
	if len(names) == 0 {
		return Empty, nil
	}
	text, err := readMarker(root)
	switch {
	case err == nil && text == MarkerText:
		return Marked, nil
	case err == nil && len(names) == 1 && strings.HasPrefix(MarkerText, text):
		return Begun, nil
	case err == nil:
		err = errors.New("it has another text")
	case errors.Is(err, fs.ErrNotExist) && slices.Contains(names, Marker):
		return recognise(root, path) // it has just been removed
	case errors.Is(err, fs.ErrNotExist):
		return 0, &ForeignError{path, fmt.Sprintf("it lacks the file %s, which every machine has", Marker)}
	}
	return 0, &ForeignError{path, fmt.Sprintf("its file %s is not a machine's: %v", Marker, err)}
}

// readMarker returns the text of a folder's marker.
func readMarker(root *os.Root) (string, error) {
	info, err := root.Lstat(Marker)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() || way.UID(info) != os.Getuid() {
		return "", errors.New("it is not a regular file of this user")
	}
	f, err := root.OpenFile(Marker, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, int64(len(MarkerText))+1))
	return string(text), err
}

// Names returns the names in a folder.
func Names(root *os.Root) ([]string, error) {
	f, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}
