package folder

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"margay/cluster/client"
	"margay/cluster/way"
	"margay/internal/machinename"
)

// ErrNotShared reports that no machine has a door where it is looked for.
var ErrNotShared = errors.New("no such machine lets others in")

// Door finds the door of another user's machine, which is named OWNER:MACHINE. It reports whether
// the name is of this form. The Dir of a door has the machine's name and socket and nothing else.
func Door(name string) (d Dir, is bool, err error) {
	owner, machine, is := strings.Cut(name, ":")
	if !is {
		return "", false, nil
	}
	if !machinename.Valid(machine) {
		return "", true, fmt.Errorf("%q is not a machine of another user: it is OWNER:MACHINE, as root:lab", name)
	}
	uid, err := strconv.ParseUint(owner, 10, 32)
	if err != nil {
		u, failed := user.Lookup(owner)
		if failed == nil {
			uid, failed = strconv.ParseUint(u.Uid, 10, 32)
		}
		if failed != nil {
			return "", true, fmt.Errorf("machine %s: there is no user %q: its number can be given instead: %w", name, owner, failed)
		}
	}
	d = Dir(filepath.Dir(client.Door(uint32(uid), machine)))
	// The user of the serve is checked when it is connected to. This finds links to other sockets.
	for _, path := range []string{filepath.Dir(string(d)), string(d)} {
		info, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return "", true, fmt.Errorf("machine %s: %w: there is no folder %s", name, ErrNotShared, d)
		case err != nil:
			return "", true, fmt.Errorf("machine %s: %w", name, err)
		case !info.IsDir() || way.UID(info) != int(uid):
			return "", true, fmt.Errorf("machine %s: %s is no folder of %s's", name, path, owner)
		}
	}
	return d, true, nil
}
