// Package login keeps what a user needs to reach machines of other hosts: for each the address of
// its serve and a token.
//
// A login is a folder with one file that only the user can read. It is named like a machine's
// folder, so the path of the socket that serve would have there stands for it: every command names
// a machine by such a path, and package client connects by TLS instead. Nothing listens there.
package login

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/site"
	"margay/cluster/trust"
	"margay/cluster/way"
	"margay/internal/machinename"
)

// The names of the folder with all logins of a user, and of the file of a login.
const (
	folderName = "margay-logins"
	fileName   = "login.json"
)

// Login is how to reach a machine.
type Login struct {
	Address string    // host and port of its serve
	Machine string    // its name on its own host
	Token   string    // as margay machine token create prints it
	Since   time.Time // when it was made
}

// mostFile bounds the file of a login, in bytes.
const mostFile = 64 << 10

// base returns the folder with all logins: margay-logins in the folder that MARGAY_STATE names,
// else in margay in XDG_STATE_HOME or ~/.local/state. Logins outlive a session of the user.
func base() (string, error) {
	state, err := site.State()
	return filepath.Join(state, folderName), err
}

// Dir returns the folder of the login for a name. It need not exist.
func Dir(name string) (string, error) {
	if !machinename.Valid(name) {
		return "", fmt.Errorf("%q is not a name for a machine: letters, digits, '.', '_' and '-', at most 32", name)
	}
	all, err := base()
	return filepath.Join(all, name), err
}

// Of returns the folder of a login by the path of its socket, and whether the path is one of a
// login.
func Of(socket string) (dir string, is bool) {
	dir = filepath.Dir(socket)
	return dir, filepath.Base(filepath.Dir(dir)) == folderName && socket == site.Socket(dir)
}

// Exists reports whether there is a login in a folder.
func Exists(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, fileName))
	return err == nil
}

// Read reads the login in a folder. The error is fs.ErrNotExist if there is none. A file that
// another user could have read or changed is refused.
func Read(dir string) (l Login, err error) {
	path := filepath.Join(dir, fileName)
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return l, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return l, err
	}
	if !info.Mode().IsRegular() || way.UID(info) != os.Getuid() || info.Mode()&0o077 != 0 {
		return l, fmt.Errorf("login %s: other users could read or change it: it is not a regular file of yours with mode 0600", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, mostFile))
	if err == nil {
		l, err = parse(text)
	}
	if err != nil {
		return l, fmt.Errorf("login %s: %w", path, err)
	}
	return l, nil
}

// parse reads the text of a login.
func parse(text []byte) (l Login, err error) {
	if err := json.Unmarshal(text, &l); err != nil {
		return Login{}, err
	}
	if err := CheckAddress(l.Address); err != nil {
		return Login{}, err
	}
	if _, err := trust.ParseToken(l.Token); err != nil {
		return Login{}, err
	}
	if !machinename.Valid(l.Machine) {
		return Login{}, fmt.Errorf("%q is not a name for a machine", l.Machine)
	}
	return l, nil
}

// CheckAddress returns an error unless a text is a host and a port.
func CheckAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err == nil && host != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err == nil && n != 0 {
			return nil
		}
	}
	return fmt.Errorf("%q is not HOST:PORT, such as cluster.example.org:7118", address)
}

// Save makes a login, or replaces it. A reader gets the old one or the new one.
func Save(name string, l Login) error {
	dir, err := Dir(name)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return err
	}
	all := way.Folder{What: "folder of logins", Path: filepath.Dir(dir), Variable: site.StateVariable}
	if _, err := all.Follow(way.Made(0o700)); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	next := filepath.Join(dir, fileName+".next")
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(next))
	}
	return os.Rename(next, filepath.Join(dir, fileName))
}

// Remove deletes the login for a name. The error is fs.ErrNotExist if there is none.
func Remove(name string) error {
	dir, err := Dir(name)
	if err != nil {
		return err
	}
	_ = os.Remove(filepath.Join(dir, fileName+".next")) // of a Save that was killed
	if err := os.Remove(filepath.Join(dir, fileName)); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, unix.ENOTEMPTY) { // other files are the user's own
		return err
	}
	_ = os.Remove(filepath.Dir(dir)) // it stays if there are others
	return nil
}

// Names returns the names of all logins of this user, sorted.
func Names() ([]string, error) {
	all, err := base()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(all)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		if machinename.Valid(e.Name()) && Exists(filepath.Join(all, e.Name())) {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, err
}
