// Package way checks the paths of folders whose contents a user's programs trust: it finds the part of a path through which another user
// could replace what the path leads to.
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

// maxLinks bounds the symbolic links that a path leads through, as Linux does.
const maxLinks = 40

// Folder is a folder that is trusted if root and this user alone can change it.
type Folder struct {
	What     string // what it is, for errors
	Path     string // absolute
	Variable string // the variable of the environment that names another folder instead
}

// Look looks at a part of a path without following a link: os.Lstat, or what Made returns.
type Look func(path string) (fs.FileInfo, error)

// Check reports an error unless root and this user alone can change where the path leads. It goes from / on through each folder and each
// link before the last component: they belong to one of the two, and nobody else can write to a folder unless that is sticky, as /tmp is.
// What has been looked at cannot be exchanged any more while the rest is. The last component is for the caller to check.
func (f Folder) Check(look Look) error {
	_, err := f.walk(filepath.Dir(f.Path), look)
	return err
}

// Follow checks as Check does, and all the way: the last component may be a link, to a folder that nobody else can write to, sticky or
// not. It returns where the path leads.
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
		why = "is no folder"
	case info.Mode()&0o022 != 0:
		why = fmt.Sprintf("can be written by others (mode %v)", info.Mode())
	default:
		return at, nil
	}
	return "", fmt.Errorf("%s: %s %s: %s", f.What, at, why, f.Out(at, info))
}

// walk checks all parts of a path, and returns where it leads without links.
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

// trustedUsers are root and this user. The owner of / is root. In the user namespace of a holder root has the number of all users that are
// not in it.
func trustedUsers() ([]int, error) {
	slash, err := os.Lstat("/")
	if err != nil {
		return nil, err
	}
	return []int{0, os.Getuid(), UID(slash)}, nil
}

// exchangeable says why other users than the trusted ones can change where a path leads that has this part, nothing if they cannot. They
// can rename and remove in a sticky folder only what is their own.
func exchangeable(info fs.FileInfo, trusted []int) string {
	switch {
	case !slices.Contains(trusted, UID(info)):
		return fmt.Sprintf("belongs to user %d (mode %v)", UID(info), info.Mode())
	case info.IsDir() && info.Mode()&0o022 != 0 && info.Mode()&fs.ModeSticky == 0:
		return fmt.Sprintf("can be written by others (mode %v)", info.Mode())
	}
	return ""
}

// Out says what to do about a part of the path, or the folder itself, that cannot be used.
func (f Folder) Out(part string, info fs.FileInfo) string {
	own := fmt.Sprintf("set %s to a folder of your own that nobody else can write to", f.Variable)
	if info.IsDir() && UID(info) == os.Getuid() {
		return fmt.Sprintf("chmod go-w %s, or %s", part, own)
	}
	return own
}

// Made returns a Look that makes folders with a mode where they are missing.
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

// UID is the user that a file belongs to.
func UID(info fs.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }
