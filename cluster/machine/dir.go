package machine

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/folder"
	"margay/cluster/roster"
	"margay/cluster/site"
	"margay/cluster/trust"
	"margay/internal/machinename"
	"margay/kernel/abi/id"
	"margay/qemu/console"
)

// Dir is the folder of one machine: it holds everything that the machine's processes share, and
// nothing else. machine up makes it and machine down removes it. The holder keeps it locked for as
// long as it lives.
type Dir string

// DirOf returns the folder of the machine called name.
func DirOf(name string) (Dir, error) {
	d, err := folder.Of(name)
	return Dir(d), err
}

// The files of a machine.

// Socket is where serve listens to clients and to the holder.
func (d Dir) Socket() string { return site.Socket(string(d)) }

// ConsoleLog is where a node's console is kept.
func (d Dir) ConsoleLog(node id.Node) string {
	return d.file("log", fmt.Sprintf("node%d.console", node))
}

// PreviousConsole is where the console of a metal node's last boot before this one is kept, in two
// parts. The first is missing unless the console was long.
func (d Dir) PreviousConsole(node id.Node) (parts [2]string) {
	previous := d.ConsoleLog(node) + ".previous"
	return [2]string{previous + console.OldSuffix, previous}
}

// FirmwareLog is where serve keeps what the firmware of a node has kept of the logs of its earlier
// boots.
func (d Dir) FirmwareLog(node id.Node) string { return d.ConsoleLog(node) + ".firmware" }

// Log is where the holder or serve keeps its log.
func (d Dir) Log(who string) string { return d.file("log", who+".log") }

// Port is the socket of a port of the machine's switch.
func (d Dir) Port(name string) string { return folder.Dir(d).Port(name) }

// Fingerprint returns the hash (SHA-256, hexadecimal) of the certificate of the machine. No other
// machine has the same one.
func (d Dir) Fingerprint() (string, error) {
	authority, err := trust.Load(d.keyFile())
	if err != nil {
		return "", err
	}
	hash := authority.Fingerprint()
	return hex.EncodeToString(hash[:]), nil
}

func (d Dir) lockFile() string              { return d.file(folder.LockName) }
func (d Dir) makingFile() string            { return d.file(makingName) }
func (d Dir) specFile() string              { return d.file(folder.SpecName) }
func (d Dir) keyFile() string               { return d.file("key.pem") }
func (d Dir) nodeFile(node id.Node) string  { return d.file("nodes", fmt.Sprintf("node%d.json", node)) }
func (d Dir) nodeImage(node id.Node) string { return d.file("nodes", fmt.Sprintf("node%d.img", node)) }
func (d Dir) stagedImage(node id.Node) string {
	return d.file("nodes", fmt.Sprintf("node%d.next", node))
}
func (d Dir) nodeRoot(node id.Node) string { return d.file("nodes", fmt.Sprintf("node%d", node)) }

func (d Dir) file(parts ...string) string { return folder.Dir(d).File(parts...) }

// Name is the machine's name.
func (d Dir) Name() string { return folder.Dir(d).Name() }

// ErrLocked reports that the machine has a holder.
var ErrLocked = errors.New("the machine is up")

// lock takes the machine for the calling process until it ends. The lock file names the process.
func (d Dir) lock() (*os.File, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	f, err := folder.Open(d.lockFile(), os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	if err := lockOpen(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("%w: %w", ErrLocked, err)
	}
	if err := errors.Join(lockAsHolder(f), f.Truncate(0), writeAt(f, fmt.Sprintln(os.Getpid()))); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// holderByte is the byte of a lock file, beyond its contents, that the holder locks as a process.
// Linux names the process that has such a lock. The bytes before it have a lock of the open file,
// which no other descriptor of the file can release; Linux does not name its process.
const holderByte = 1 << 20

// lockOpen locks a file for as long as it is open, unless it is locked already.
func lockOpen(f *os.File) error {
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Len: holderByte})
}

// lockAsHolder locks a file for the calling process until the process closes any descriptor of it.
func lockAsHolder(f *os.File) error {
	return unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: holderByte, Len: 1})
}

// lockedBy returns the other process that has a file locked as its holder, or 0 if there is none
// that this process can see.
func lockedBy(f *os.File) int {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: holderByte, Len: 1}
	if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &lock); err != nil || lock.Type == unix.F_UNLCK {
		return 0
	}
	return max(0, int(lock.Pid)) // it is -1 when no process has the lock, but an open file
}

func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// Holder returns the pid of the machine's holder, and whether it lives, as folder.Dir.Holder does.
func (d Dir) Holder() (pid int, alive bool) { return folder.Dir(d).Holder() }

// removeEmpty removes the folder of all machines unless the user has named it.
func (b *machines) removeEmpty() {
	if os.Getenv(site.BaseVariable) == "" {
		_ = os.Remove(b.Path) // it stays when there are other machines
	}
}

// check reports an error unless the folder is a machine's: ErrNoMachine where there is none.
func (d Dir) check() error { return folder.Dir(d).Check() }

// List returns the folders of all machines of this user, running or left behind.
func List() ([]Dir, error) {
	path, err := site.Base()
	if err != nil {
		return nil, err
	}
	base, err := folder.OpenBase(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer base.Close()
	names, err := folder.Names(base.Root)
	var dirs []Dir
	for _, name := range names {
		if d := Dir(filepath.Join(base.Path, name)); machinename.Valid(name) && d.check() == nil {
			dirs = append(dirs, d)
		}
	}
	return dirs, err
}

// Others returns the names in a folder of all machines that look like machines' but do not belong
// to machines of this user.
func Others(base string) (names []string) {
	entries, _ := os.ReadDir(base)
	for _, e := range entries {
		if machinename.Valid(e.Name()) && e.IsDir() && Dir(filepath.Join(base, e.Name())).check() != nil {
			names = append(names, e.Name())
		}
	}
	return names
}

func (d Dir) writeSpec(s Spec) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(d.specFile(), append(text, '\n'))
}

// Made returns when the machine was made.
func (d Dir) Made() (time.Time, error) {
	info, err := os.Stat(d.specFile()) // which is written once
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// writeRoster records the nodes that the machine has now. A reader gets the whole roster, the last
// one or this one.
func (d Dir) writeRoster(r roster.Roster) error { return d.replace(rosterName, nextRosterName, r) }

// replace writes a value to a file of the folder, by way of a second one. A reader gets the whole
// file, the last one or this one.
func (d Dir) replace(name, next string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if err := writeFile(d.file(next), append(text, '\n')); err != nil {
		return err
	}
	return os.Rename(d.file(next), d.file(name))
}

// ReadRoster returns the nodes that the machine has now. Before its first change these are the
// nodes that it was made with.
func (d Dir) ReadRoster(s Spec) (r roster.Roster, err error) {
	text, err := folder.Read(d.file(rosterName))
	if errors.Is(err, fs.ErrNotExist) {
		return roster.New(s.Nodes), nil
	}
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err == nil {
		err = r.Check()
	}
	if err != nil {
		return roster.Roster{}, fmt.Errorf("machine %s: %s: %w", d.Name(), d.file(rosterName), err)
	}
	return r, nil
}

// ReadSpec returns the spec from which the machine was made. The error is ErrNoMachine
// if the folder is missing or not a machine's; there is one for a damaged file, too.
func (d Dir) ReadSpec() (Spec, error) {
	text, err := folder.Dir(d).ReadSpec()
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
var ErrNoMachine = folder.ErrNoMachine
