package machine

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

// checkWay reports an error unless root and this user alone can change where the path of the folder of all machines leads. It goes from /
// on through each folder and each link before the last component: they belong to one of the two, and nobody else can write to a folder
// unless that is sticky, as /tmp is. What has been looked at cannot be exchanged any more while the rest is. look is os.Lstat, or made.
func checkWay(base string, look func(string) (fs.FileInfo, error)) error {
	slash, err := os.Lstat("/")
	if err != nil {
		return err
	}
	// The owner of / is root. In the user namespace of a holder root has the number of all users that are not in it.
	trusted := []int{0, os.Getuid(), uidOf(slash)}
	links := 0
	at, rest := "/", strings.Split(filepath.Dir(base), "/") // at leads through no link
	for len(rest) > 0 {
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		info, err := look(next)
		if err != nil {
			return err
		}
		if why := exchangeable(info, trusted); why != "" {
			return fmt.Errorf("folder of all machines: %s leads through %s, which %s: %s", base, next, why, wayOut(next, info))
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return &fs.PathError{Op: "open", Path: base, Err: unix.ELOOP}
		}
		target, err := os.Readlink(next)
		if err != nil {
			return err
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return nil
}

// exchangeable says why other users than the trusted ones can change where a path leads that has this part, nothing if they cannot. They
// can rename and remove in a sticky folder only what is their own.
func exchangeable(info fs.FileInfo, trusted []int) string {
	switch {
	case !slices.Contains(trusted, uidOf(info)):
		return fmt.Sprintf("belongs to user %d (mode %v)", uidOf(info), info.Mode())
	case info.IsDir() && info.Mode()&0o022 != 0 && info.Mode()&fs.ModeSticky == 0:
		return fmt.Sprintf("can be written by others (mode %v)", info.Mode())
	}
	return ""
}

// wayOut says what to do about a folder that is or leads to that of all machines, and cannot be used.
func wayOut(path string, info fs.FileInfo) string {
	const own = "set MARGAY_DIR to a folder of your own that nobody else can write to"
	if info.IsDir() && uidOf(info) == os.Getuid() {
		return fmt.Sprintf("chmod go-w %s, or %s", path, own)
	}
	return own
}

// made looks at a folder, and makes it if it is missing.
func made(path string) (fs.FileInfo, error) {
	info, err := os.Lstat(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return info, err
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return os.Lstat(path)
}

// uidOf is the user that a file belongs to.
func uidOf(info fs.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }
