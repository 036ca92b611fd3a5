package client

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"margay/cluster/site"
)

// A door is a folder with a second socket of a machine's serve. Other users reach it; the folder of
// the machine is its owner's alone. The name of the folder above has the owner's user id, so the
// same path always stands for the same owner: Dial refuses a serve of another user there.

// doors begins the name of the folder with all doors of a user.
const doors = "margay-users-"

// DoorVariable is the environment variable that names the folder with the folders of doors. The
// owner of a machine and its users must agree on it.
const DoorVariable = "MARGAY_USERS_DIR"

// Door returns the socket in the door of a user's machine.
func Door(owner uint32, machine string) string {
	base := os.Getenv(DoorVariable)
	switch {
	case base != "":
	case owner == 0:
		base = "/run"
	default:
		base = "/tmp" // every user must look in the same folder, whatever TMPDIR says
	}
	return site.Socket(filepath.Join(base, fmt.Sprint(doors, owner), machine))
}

// doorOwner returns the owner of a door by the path of its socket, and whether it is one.
func doorOwner(socket string) (owner uint32, is bool) {
	number, is := strings.CutPrefix(filepath.Base(filepath.Dir(filepath.Dir(socket))), doors)
	if !is {
		return 0, false
	}
	uid, err := strconv.ParseUint(number, 10, 32)
	return uint32(uid), err == nil
}
