// Package site knows where a user's machines are: the folder of each, by its name, and the socket
// of its serve. It touches no file.
package site

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"margay/internal/machinename"
)

// DefaultName is the name of a machine that is given none.
const DefaultName = "default"

// The environment variables that name the folder of all machines, a folder of the user's that does
// not outlive its session, and the machine that commands use.
const (
	BaseVariable    = "MARGAY_DIR"
	RuntimeVariable = "XDG_RUNTIME_DIR"
	MachineVariable = "MARGAY_MACHINE"
)

// StateVariable is the environment variable that names the folder for what outlives machines and
// sessions of the user.
const StateVariable = "MARGAY_STATE"

// State returns the absolute path of the folder for what outlives machines and sessions of this
// user: the one that MARGAY_STATE names, else margay in XDG_STATE_HOME or ~/.local/state.
func State() (string, error) {
	if dir := os.Getenv(StateVariable); dir != "" {
		return filepath.Abs(dir)
	}
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) { // a relative one is invalid
		return filepath.Join(dir, "margay"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("%w; set %s", err, StateVariable)
	}
	return filepath.Abs(filepath.Join(home, ".local", "state", "margay"))
}

// Base is the absolute path of the folder of all machines of this user: MARGAY_DIR if that is set,
// else a folder of the user's that does not outlive the host's next start.
func Base() (string, error) {
	if dir := os.Getenv(BaseVariable); dir != "" {
		return filepath.Abs(dir)
	}
	if dir := os.Getenv(RuntimeVariable); dir != "" {
		return filepath.Abs(filepath.Join(dir, "margay"))
	}
	return filepath.Abs(filepath.Join(os.TempDir(), "margay-"+strconv.Itoa(os.Getuid())))
}

// Folder returns the folder of the machine called name.
func Folder(name string) (string, error) {
	if !machinename.Valid(name) {
		return "", fmt.Errorf("%q is not a name for a machine: letters, digits, '.', '_' and '-', at most 32", name)
	}
	base, err := Base()
	return filepath.Join(base, name), err
}

// Socket is where the serve of a machine listens to clients and to the holder.
func Socket(folder string) string { return filepath.Join(folder, "serve.sock") }

// EndingName is the file in a machine's folder that its holder makes when the machine goes down:
// there is no serve from then on.
const EndingName = "ending"
