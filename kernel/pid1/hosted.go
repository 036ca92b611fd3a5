package pid1

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/node"
)

// Hosted is a node that is a set of namespaces on a host. The creator of the namespaces starts PID
// 1 in them.
type Hosted struct {
	Config   string   // the node's configuration file
	Root     string   // an empty folder to mount the node's root on; empty: one is made, and removed when the node has its root
	JobInit  string   // the host's file that the node has at node.JobInit
	Lifeline *os.File // a pipe; the node ends when all its writers are gone
}

// fuse is the device of file systems in user space, which not every host gives its users.
const fuse = "/dev/fuse"

var hostedDevices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// SetUp builds a root of its own, so that the node sees nothing of the host's files but programs
// and configuration for jobs that ask for them, and configures the network.
func (h Hosted) SetUp(log func(format string, args ...any)) (node.Config, error) {
	go h.watchLifeline()
	config, err := node.Read(h.Config)
	if err != nil {
		return config, err
	}
	if err := h.makeRoot(&config, log); err != nil {
		return config, err
	}
	text, err := config.Encode()
	if err != nil {
		return config, err
	}
	if err := os.WriteFile(node.Path, text, 0o600); err != nil {
		return config, err
	}
	if err := unix.Sethostname([]byte(config.Hostname())); err != nil {
		return config, fmt.Errorf("set host name: %w", err)
	}
	if config.Host != "" {
		return config, nil // the network is the host's
	}
	_, err = configureNetwork(config, func() {})
	return config, err
}

// Off ends the node: with its PID 1, the kernel ends every process of the node.
func (h Hosted) Off(func(format string, args ...any)) { os.Exit(0) }

// Log implements Node. The log is of the host.
func (Hosted) Log() *os.File { return nil }

// watchLifeline ends the node when its holder has ended for any reason.
func (h Hosted) watchLifeline() {
	_, _ = io.Copy(io.Discard, h.Lifeline)
	logf("the holder is gone")
	os.Exit(1)
}

// makeRoot makes the root of the node. It notes in the configuration what this host does not let
// the node have.
func (h Hosted) makeRoot(config *node.Config, log func(format string, args ...any)) (err error) {
	if h.Root == "" {
		folder, err := makeMountPoint()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, folder.remove()) }()
		h.Root = folder.path
	}
	steps := []mount{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE, ""},
		{"node", h.Root, "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=755"},
	}
	for _, m := range steps {
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mount on %s: %w", m.target, err)
		}
	}
	for _, dir := range []string{"dev", "proc", "run", "tmp", filepath.Dir(node.Path), filepath.Dir(node.JobInit)} {
		if err := os.Mkdir(filepath.Join(h.Root, dir), 0o755); err != nil {
			return err
		}
	}
	for _, name := range hostedDevices {
		if err := bindFile("/dev/"+name, filepath.Join(h.Root, "dev", name)); err != nil {
			return err
		}
	}
	if err := errors.Join(canOpen(fuse), bindFile(fuse, filepath.Join(h.Root, fuse))); err != nil {
		config.Lacks = append(config.Lacks, fmt.Sprintf("folders that jobs share with margay run (--files): %v", err))
	}
	if err := bindProgram(h.JobInit, filepath.Join(h.Root, node.JobInit)); err != nil {
		return err
	}
	if err := bindHost(filepath.Join(h.Root, node.HostRoot)); err != nil {
		log("jobs cannot have the files of this host (--root host): %v", err)
	}
	if config.Lent != nil {
		if err := bindFolder(config.Lent.Folder, filepath.Join(h.Root, node.Lent)); err != nil {
			log("jobs bring all files, as margay run cannot lend them: %v", err)
			config.Lent = nil
		}
	}
	proc := filepath.Join(h.Root, "proc")
	if err := unix.Mount("proc", proc, "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount %s: %w", proc, err)
	}
	if err := os.Chdir(h.Root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("exchange roots: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("let go of the host's root: %w", err)
	}
	return os.Chdir("/")
}

// canOpen returns an error unless this process may read and write a device.
func canOpen(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// mountPoint is an empty folder of the host, which can be removed when the host's root is out of
// sight.
type mountPoint struct {
	path   string
	parent *os.File
}

func makeMountPoint() (m mountPoint, err error) {
	if m.parent, err = os.Open(os.TempDir()); err != nil {
		return m, err
	}
	if m.path, err = os.MkdirTemp(os.TempDir(), "margay-node"); err != nil {
		m.parent.Close()
	}
	return m, err
}

func (m mountPoint) remove() error {
	defer m.parent.Close()
	if err := unix.Unlinkat(int(m.parent.Fd()), filepath.Base(m.path), unix.AT_REMOVEDIR); err != nil {
		return fmt.Errorf("remove %s: %w", m.path, err)
	}
	return nil
}

func bindFile(source, target string) error {
	f, err := os.Create(target)
	if err != nil {
		return err
	}
	f.Close()
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return errors.Join(fmt.Errorf("bind %s: %w", source, err), os.Remove(target))
	}
	return nil
}

// bindHost makes node.HostRoot at a path: read-only mounts of folders of the host, without devices
// and without programs that change their user. If that fails, the path is empty.
func bindHost(path string) (err error) {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = unix.Unmount(path, unix.MNT_DETACH)
		}
	}()
	if err := unix.Mount("host", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,size=64k"); err != nil {
		return fmt.Errorf("mount %s: %w", path, err)
	}
	for _, name := range node.HostFolders {
		source, target := filepath.Join("/", name), filepath.Join(path, name)
		info, err := os.Lstat(source)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err == nil && info.IsDir():
			err = bindFolder(source, target)
		case err == nil && info.Mode().Type() == fs.ModeSymlink:
			err = copyLink(source, target)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bindFolder binds a folder with all that is mounted in it. Mounts of the host's that are missing
// would show what they hide.
func bindFolder(source, target string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s: %w", source, err)
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if err := unix.MountSetattr(unix.AT_FDCWD, target, unix.AT_RECURSIVE, &attr); err != nil {
		return errors.Join(fmt.Errorf("make the mount of %s read-only: %w", source, err), unix.Unmount(target, unix.MNT_DETACH))
	}
	return nil
}

func copyLink(source, target string) error {
	to, err := os.Readlink(source)
	if err != nil {
		return err
	}
	return os.Symlink(to, target)
}

// bindProgram binds a program of the host, so that the node can run it and not write to it. The
// node keeps the file if the host exchanges or removes it.
func bindProgram(source, target string) error {
	if err := bindFile(source, target); err != nil {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(target, &st); err != nil {
		return fmt.Errorf("look at the mount of %s: %w", source, err)
	}
	// In a user namespace a remount may not drop what the host's mount has.
	own := uintptr(st.Flags) & (unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|own, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", source, err)
	}
	return nil
}
