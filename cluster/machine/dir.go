package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// DefaultName is the name of a machine that is given none.
const DefaultName = "default"

// Dir is the folder of one machine: everything that its processes share, and nothing else. It is made by machine up and
// removed by machine down. The holder has it locked for as long as it lives.
type Dir string

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,31}$`)

// Base is the folder of all machines of this user: MARGAY_DIR if that is set, else a folder of the user's that does not
// outlive the host's next start.
func Base() string {
	if dir := os.Getenv("MARGAY_DIR"); dir != "" {
		return dir
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "margay")
	}
	return filepath.Join(os.TempDir(), "margay-"+strconv.Itoa(os.Getuid()))
}

// DirOf returns the folder of the machine called name.
func DirOf(name string) (Dir, error) {
	if !validName.MatchString(name) {
		return "", fmt.Errorf("%q is no name for a machine: letters, digits, '.', '_' and '-', at most 32", name)
	}
	dir, err := filepath.Abs(filepath.Join(Base(), name))
	if err != nil {
		return "", err
	}
	d := Dir(dir)
	// Linux takes no longer names for sockets.
	if longest := d.Port("service"); len(longest) > 107 {
		return "", fmt.Errorf("%s is too long for a socket's name: set MARGAY_DIR to a shorter path", longest)
	}
	return d, nil
}

// The files of a machine.

// Socket is where serve listens to clients and to the holder.
func (d Dir) Socket() string { return d.file("serve.sock") }

// ConsoleLog is where a node's console is kept.
func (d Dir) ConsoleLog(node uint32) string {
	return d.file("log", fmt.Sprintf("node%d.console", node))
}

// Log is where the holder or serve keeps its log.
func (d Dir) Log(who string) string { return d.file("log", who+".log") }

// Port is the socket of a port of the machine's switch.
func (d Dir) Port(name string) string { return d.file("ports", name) }

func (d Dir) lockFile() string             { return d.file("lock") }
func (d Dir) makingFile() string           { return d.file("making") }
func (d Dir) specFile() string             { return d.file("machine.json") }
func (d Dir) keyFile() string              { return d.file("key.pem") }
func (d Dir) nodeFile(node uint32) string  { return d.file("nodes", fmt.Sprintf("node%d.json", node)) }
func (d Dir) nodeImage(node uint32) string { return d.file("nodes", fmt.Sprintf("node%d.img", node)) }
func (d Dir) nodeRoot(node uint32) string  { return d.file("nodes", fmt.Sprintf("node%d", node)) }

func (d Dir) file(parts ...string) string {
	return filepath.Join(append([]string{string(d)}, parts...)...)
}

// Name is the machine's name.
func (d Dir) Name() string { return filepath.Base(string(d)) }

// create makes the folder and its parts. Others must not be able to look in, or to have made it.
func (d Dir) create() error {
	base := filepath.Dir(string(d))
	if err := os.MkdirAll(base, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(base)
	if err != nil {
		return err
	}
	if st := info.Sys().(*syscall.Stat_t); int(st.Uid) != os.Getuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s belongs to another user or can be written by others: set MARGAY_DIR to a folder of your own", base)
	}
	for _, dir := range []string{"", "log", "ports", "nodes"} {
		if err := os.MkdirAll(d.file(dir), 0o700); err != nil {
			return err
		}
	}
	return nil
}

// ErrLocked reports that the machine has a holder.
var ErrLocked = errors.New("the machine is up")

// lock takes the machine for the calling process until it ends. The lock file names the process.
func (d Dir) lock() (*os.File, error) {
	f, err := os.OpenFile(d.lockFile(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &whole); err != nil {
		f.Close()
		return nil, fmt.Errorf("%w: %w", ErrLocked, err)
	}
	if err := errors.Join(f.Truncate(0), writeAt(f, fmt.Sprintln(os.Getpid()))); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// Holder returns the pid of the machine's holder, and whether it lives. A pid without life is that of a holder that was
// killed; 0 means that there never was one, or that it is just beginning.
func (d Dir) Holder() (pid int, alive bool) {
	f, err := os.Open(d.lockFile())
	if err != nil {
		return 0, false
	}
	defer f.Close()
	text := make([]byte, 32)
	n, _ := f.Read(text)
	pid, _ = strconv.Atoi(strings.TrimSpace(string(text[:n])))
	// This asks for the lock and does not take it, which would be in the way of a holder that begins.
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	err = unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &whole)
	return pid, err != nil || whole.Type != unix.F_UNLCK
}

// remove removes the folder, and that of all machines when it was the last one.
func (d Dir) remove() error {
	base, err := lockBase(filepath.Dir(string(d)))
	if err != nil {
		return err
	}
	defer base.Close()
	if err := os.RemoveAll(string(d)); err != nil {
		return err
	}
	_ = os.Remove(base.Name()) // it stays when there are other machines
	return nil
}

// List returns the folders of all machines of this user, running or left behind.
func List() ([]Dir, error) {
	entries, err := os.ReadDir(Base())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var dirs []Dir
	for _, e := range entries {
		if e.IsDir() && validName.MatchString(e.Name()) {
			dirs = append(dirs, Dir(filepath.Join(Base(), e.Name())))
		}
	}
	return dirs, err
}

func (d Dir) writeSpec(s Spec) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(d.specFile(), append(text, '\n'), 0o600)
}

// ReadSpec returns what the machine was made from.
func (d Dir) ReadSpec() (Spec, error) {
	text, err := os.ReadFile(d.specFile())
	if errors.Is(err, fs.ErrNotExist) {
		return Spec{}, fmt.Errorf("machine %s: %w", d.Name(), ErrNoMachine)
	}
	if err != nil {
		return Spec{}, err
	}
	var s Spec
	if err := json.Unmarshal(text, &s); err != nil {
		return Spec{}, fmt.Errorf("machine %s: %s: %w", d.Name(), d.specFile(), err)
	}
	return s, nil
}

// ErrNoMachine reports a name that no machine has.
var ErrNoMachine = errors.New("there is no such machine; margay machine up makes one")
