package pid1

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/node"
	"margay/kernel/driver"
	"margay/kernel/klog"
	"margay/kernel/pstore"
	"margay/kernel/seek"
)

// Machine is a node that has its Linux kernel to itself: a virtual machine, or metal.
type Machine struct{}

type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

var mounts = []mount{
	{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
	{"sysfs", "/sys", "sysfs", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
	{"dev", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=755"},
	{"run", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=755"},
	{"tmp", "/tmp", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777,size=16m"},
	{"cgroup", "/sys/fs/cgroup", "cgroup2", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
}

// withheld lists resources that Linux gives to every process and that jobs must not have, with
// their new limits; the limit of keys cannot be zero. In a user namespace a process has all
// privileges over its own objects and reaches parts of Linux that are not meant for it. Keys
// outlive their creator.
var withheld = map[string]string{"user/max_user_namespaces": "0", "kernel/keys/maxbytes": "1"}

// ample lists the limits of Linux on the processes and threads of all jobs and the node kernel
// together. They depend on the size of the node, and a small node has fewer than two jobs may
// have. A job could use them up, and the node kernel ends if it gets no thread. A job has limits of
// its own, and its memory has to hold what Linux keeps of its processes.
var ample = map[string]string{"kernel/pid_max": "4194304", "kernel/threads-max": "4194304"}

// limit sets limits of Linux.
func limit(values map[string]string) error {
	var errs []error
	for name, value := range values {
		if err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0); err != nil {
			errs = append(errs, fmt.Errorf("set the limit %s to %s: %w", name, value, err))
		}
	}
	return errors.Join(errs...)
}

// dumpToJobs has Linux leave dumps of memory where the job init of the dumped process looks.
func dumpToJobs() error {
	if err := os.WriteFile("/proc/sys/kernel/core_pattern", []byte(node.Dumps+"/%p"), 0); err != nil {
		return fmt.Errorf("set the place of dumps: %w", err)
	}
	return nil
}

// logsPatience bounds how long the boot waits for what the firmware has kept.
const logsPatience = 10 * time.Second

// mountLogs mounts the file system in which Linux shows what the firmware has kept of the logs of
// earlier boots, unless Linux has none. Linux reads all of it from the firmware in that time, which
// may be slow, or broken: then the node boots without it.
func mountLogs() error {
	if _, err := os.Stat(pstore.Dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	mounted := make(chan error, 1)
	go func() {
		mounted <- unix.Mount("pstore", pstore.Dir, "pstore", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	}()
	select {
	case err := <-mounted:
		if err != nil {
			return fmt.Errorf("mount %s: %w", pstore.Dir, err)
		}
		return nil
	case <-time.After(logsPatience):
		return fmt.Errorf("mount %s: the firmware needs more than %v for the logs that it has kept: the node boots without them", pstore.Dir, logsPatience)
	}
}

// SetUp mounts, loads the image's modules and the drivers that its devices need, withholds from
// jobs what they are not to have, configures the network, and begins to send the console there if
// the configuration names a receiver. While the network lacks its card, it looks for further
// devices. It does nothing in a root that is not of a node image.
func (m Machine) SetUp(log func(format string, args ...any)) (node.Config, error) {
	if err := checkInitial("/"); err != nil {
		return node.Config{}, err
	}
	if err := m.Mount(); err != nil {
		return node.Config{}, err
	}
	load, err := lookForDevices(node.Drivers, driver.Node{Devices: func() ([]driver.Device, error) { return driver.Devices("/sys") }, Insert: loadModule}, log)
	if err := errors.Join(err, m.LoadModules()); err != nil {
		log("%v", err)
	}
	lacks := reportLacks(node.Drivers, klog.Read, log)
	look := func() { load(); lacks() }
	look()
	if err := errors.Join(mountLogs(), limit(withheld), limit(ample), dumpToJobs()); err != nil {
		log("%v", err)
	}
	// The reason comes before the error of a card that has not got its file.
	if err := findConfig(look, func(format string, args ...any) { lacks(); log(format, args...) }); err != nil {
		return node.Config{}, err
	}
	config, err := node.Read(node.Path)
	if err != nil {
		return config, err
	}
	if err := unix.Sethostname([]byte(config.Hostname())); err != nil {
		return config, fmt.Errorf("set host name: %w", err)
	}
	nic, err := configureNetwork(config, look)
	lacks() // many a driver does not ask for a file before its card is turned on
	if err != nil {
		return config, err
	}
	if err := sendConsole(config, nic); err != nil {
		log("%v", err)
	}
	return config, nil
}

// findConfig puts the configuration into the root: it is in the node image, or an item of the
// virtual machine, or the command line says that the node seeks it. Then it calls look before each
// round of questions.
func findConfig(look func(), log func(format string, args ...any)) error {
	cmdline, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	machine, sought, err := seek.Sought(string(cmdline))
	if err != nil {
		return err
	}
	if !sought {
		return takeConfig(itemsPath, "/")
	}
	token, err := seek.Token(string(cmdline))
	if err != nil {
		log("%v", err)
	}
	log("looking for the configuration on the network")
	text, err := seek.Seeker{Network: seek.Cards{Token: token, Machine: machine, Look: look}, Machine: machine, Pause: seekPause, Log: log}.Find(context.Background())
	if err != nil {
		return err
	}
	return writeConfig("/", text)
}

// seekPause is the time between two rounds of questions for the configuration.
const seekPause = 5 * time.Second

// itemsPath is where Linux shows the items of a virtual machine.
const itemsPath = "/sys/firmware/qemu_fw_cfg/by_name/opt"

// takeConfig copies the configuration from the items of the virtual machine into the root, unless
// the node image has one.
func takeConfig(items, root string) error {
	path := filepath.Join(root, node.Path)
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text, err := os.ReadFile(filepath.Join(items, node.Item, "raw"))
	if err != nil {
		return fmt.Errorf("configuration: the image has no %s: %w", node.Path, err)
	}
	return writeConfig(root, text)
}

// writeConfig writes the configuration of the node whose root is given.
func writeConfig(root string, text []byte) error {
	path := filepath.Join(root, node.Path)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	return nil
}

// checkInitial returns an error unless a folder is in a file system in memory, as the root of a
// node image is. A container's usually is not.
func checkInitial(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("look at the root: %w", err)
	}
	if st.Type != unix.RAMFS_MAGIC && st.Type != unix.TMPFS_MAGIC {
		return fmt.Errorf("%s is in a file system of type %#x: a node runs from its image, in memory", dir, st.Type)
	}
	return nil
}

// Mount makes a root that jobs can exchange for theirs, and mounts on it what the kernel provides.
func (Machine) Mount() error {
	if err := moveRoot(); err != nil {
		return err
	}
	for _, m := range mounts {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
		// The kernel may have mounted /dev already.
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil && err != unix.EBUSY {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	return nil
}

// LoadModules loads the modules of the node image but for node.ConsoleModule. It goes on after one
// that cannot be loaded and returns all errors.
func (Machine) LoadModules() error { return loadModules(node.LoadOrder) }

// Log implements Node.
func (Machine) Log() *os.File { return openKernelLog() }

// Off turns the machine off.
func (Machine) Off(log func(format string, args ...any)) {
	unix.Sync()
	for {
		if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
			log("power off: %v", err)
		}
		time.Sleep(time.Second)
	}
}

// GiveUp ends a node that could not be set up. The holder of a virtual node has its console. On
// metal the reason may be on the screen alone, and the node may be far from all hands that could
// switch it on: it stays for a while, and then tries again.
func (m Machine) GiveUp(log func(format string, args ...any)) {
	cmdline, _ := os.ReadFile("/proc/cmdline")
	config, _ := node.Read(node.Path)
	if stays := screenTime(string(cmdline), config); stays > 0 {
		log("the node reboots in %v, and tries again", stays)
		time.Sleep(stays)
		unix.Sync()
		if err := unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART); err != nil {
			log("reboot: %v", err)
		}
	}
	m.Off(log)
}

// readTime is how long the screen of a node on metal shows why it could not be set up. Four boots
// within ten minutes would be too many (cluster/machine/life.go).
const readTime = 5 * time.Minute

// screenTime returns how long a node stays that could not be set up; 0: its screen is not needed.
// The configuration is the zero value if there is none.
func screenTime(cmdline string, c node.Config) time.Duration {
	if _, seeks, err := seek.Sought(cmdline); seeks || err != nil || c.Substrate == node.Metal {
		return readTime
	}
	return 0
}

// moveRoot makes a bind mount of the initial RAM file system the root: a job could not exchange its
// root for the initial one itself, which pivot_root refuses.
func moveRoot() error {
	const base = "/run" // any folder of the image that is mounted over later
	if err := unix.Mount("/", base, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind root: %w", err)
	}
	if err := os.Chdir(base); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("enter root: %w", err)
	}
	return os.Chdir("/")
}

// loadModules loads the modules that the file lists but for node.ConsoleModule. It goes on after
// one that cannot be loaded and returns all errors.
func loadModules(list string) error {
	f, err := os.Open(list)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("modules: %w", err)
	}
	defer f.Close()
	var errs []error
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if node.ModuleName(lines.Text()) == node.ConsoleModule {
			continue // it needs the network
		}
		if err := loadModule(lines.Text()); err != nil && !errors.Is(err, unix.EEXIST) {
			errs = append(errs, fmt.Errorf("module %s: %w", filepath.Base(lines.Text()), err))
		}
	}
	return errors.Join(append(errs, lines.Err())...)
}

// lookForDevices returns a function that loads those drivers of the file that a device of n needs
// by now, and logs which it has loaded, the first time even if there is none, and all errors. If it
// cannot read the file, the function does nothing.
func lookForDevices(list string, n driver.Node, log func(format string, args ...any)) (look func(), err error) {
	text, err := os.ReadFile(list)
	if errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	if err != nil {
		return func() {}, fmt.Errorf("drivers: %w", err)
	}
	drivers, err := node.ParseDrivers(text)
	if err != nil {
		return func() {}, err
	}
	loader, first := driver.NewLoader(n, drivers), true
	return func() {
		uses, err := loader.Look()
		said := make([]string, len(uses))
		for i, u := range uses {
			said[i] = u.String()
		}
		none := "no device needs one"
		if err != nil {
			none = "see the errors"
		}
		switch {
		case first:
			log("loaded %d of %d drivers: %s", len(uses), len(drivers), cmp.Or(strings.Join(said, "; "), none))
		case len(uses) > 0:
			log("loaded further drivers: %s", strings.Join(said, "; "))
		}
		if err != nil {
			log("%v", err)
		}
		first = false
	}, nil
}

// Bounds of reportLacks.
const (
	maxLacks = 64      // lines in all
	maxBatch = 8 << 20 // bytes of Linux's log at once
)

// reportLacks returns a function that logs, once each, the firmware files that drivers have asked
// Linux for in vain by now. Records of applications do not count. Without the file of drivers, the
// node is a virtual machine, and the function does nothing.
func reportLacks(list string, read func(context.Context, klog.Query) (klog.Batch, error), log func(format string, args ...any)) (report func()) {
	if _, err := os.Lstat(list); err != nil {
		return func() {}
	}
	var next uint64
	said := map[driver.Lack]bool{}
	return func() {
		batch, err := read(context.Background(), klog.Query{From: next, Size: maxBatch})
		if err != nil {
			log("firmware files: %v", err)
			return
		}
		for _, r := range batch.Records {
			next = r.Sequence + 1
			lack, ok := driver.ParseLack(r.Text)
			if !ok || r.Priority.Facility() != "kern" || said[lack] || len(said) == maxLacks {
				continue
			}
			said[lack] = true
			log("%v", lack)
		}
	}
}

func loadModule(path string) error { return insertModule(path, "") }

// insertModule loads a module with parameters.
func insertModule(path, parameters string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), parameters, 0)
}
