// Package way checks the paths of folders whose contents a user's programs trust. It finds the
// component of a path with which another user could redirect the path.
package way

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxLinks bounds the symbolic links on a path, as Linux does.
const maxLinks = 40

// Folder is a folder that is trusted if root and this user alone can change it.
type Folder struct {
	What     string // description, for errors
	Path     string // absolute
	Variable string // the environment variable that selects another folder
}

// Look examines a component of a path without following a link: os.Lstat, or the result of Made.
type Look func(path string) (fs.FileInfo, error)

// Check returns an error unless only root and this user can change where the path leads. It walks
// from / through each folder and each link before the last component. Each must belong to root or
// this user, and a folder that others can write to must be sticky, as /tmp is. So no component can
// be replaced after it was checked. The caller checks the last component.
func (f Folder) Check(look Look) error {
	_, err := f.walk(filepath.Dir(f.Path), look)
	return err
}

// Follow is Check for the whole path: the last component may be a folder or a link to one, and no
// other user may have write permission on the folder, even if it is sticky. It returns the path
// without links.
func (f Folder) Follow(look Look) (string, error) {
	at, err := f.walk(f.Path, look)
	if err != nil {
		return "", err
	}
	info, err := look(at)
	if err != nil {
		return "", err
	}
	why := ""
	switch {
	case !info.IsDir():
		why = "is not a folder"
	case info.Mode()&0o022 != 0:
		why = fmt.Sprintf("can be written by others (mode %v)", info.Mode())
	default:
		return at, nil
	}
	return "", fmt.Errorf("%s: %s %s: %s", f.What, at, why, f.Out(at, info))
}

// walk checks all components of a path, and returns the path without links.
func (f Folder) walk(path string, look Look) (string, error) {
	trusted, err := trustedUsers()
	if err != nil {
		return "", err
	}
	links := 0
	at, rest := "/", strings.Split(path, "/") // at leads through no link
	for len(rest) > 0 {
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		info, err := look(next)
		if err != nil {
			return "", err
		}
		if why := exchangeable(info, trusted); why != "" {
			return "", fmt.Errorf("%s: %s leads through %s, which %s: %s", f.What, f.Path, next, why, f.Out(next, info))
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return "", &fs.PathError{Op: "open", Path: f.Path, Err: unix.ELOOP}
		}
		target, err := os.Readlink(next)
		if err != nil {
			return "", err
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return at, nil
}

// trustedUsers returns root and this user. In the user namespace of a holder, root has the overflow
// user ID, which is why the owner of / is taken for root.
func trustedUsers() ([]int, error) {
	slash, err := os.Lstat("/")
	if err != nil {
		return nil, err
	}
	return []int{0, os.Getuid(), UID(slash)}, nil
}

// exchangeable returns the reason why an untrusted user can change where a path through this
// component leads, or "". In a sticky folder users can rename and remove only their own files.
func exchangeable(info fs.FileInfo, trusted []int) string {
	switch {
	case !slices.Contains(trusted, UID(info)):
		return fmt.Sprintf("belongs to user %d (mode %v)", UID(info), info.Mode())
	case info.IsDir() && info.Mode()&0o022 != 0 && info.Mode()&fs.ModeSticky == 0:
		return fmt.Sprintf("can be written by others (mode %v)", info.Mode())
	}
	return ""
}

// Out returns the way out for an error about a component of the path or the folder itself.
func (f Folder) Out(part string, info fs.FileInfo) string {
	own := fmt.Sprintf("set %s to a folder of your own that no other user can write to", f.Variable)
	if info.IsDir() && UID(info) == os.Getuid() {
		return fmt.Sprintf("chmod go-w %s, or %s", part, own)
	}
	return own
}

// Made returns a Look that creates missing folders with this mode.
func Made(mode fs.FileMode) Look {
	return func(path string) (fs.FileInfo, error) {
		info, err := os.Lstat(path)
		if !errors.Is(err, fs.ErrNotExist) {
			return info, err
		}
		if err := os.Mkdir(path, mode); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		return os.Lstat(path)
	}
}

// UID returns the owner of a file.
func UID(info fs.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }
