package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/folder"
	"margay/cluster/site"
	"margay/cluster/trust"
	"margay/internal/progress"
	"margay/kernel/abi/node"
	"margay/kernel/descriptor"
)

// UpOptions are the options of machine up.
type UpOptions struct {
	Spec   Spec
	Holder []string // command that becomes the holder; it gets the machine's name and flags as further arguments
	// Session has the machine end with the leader of this process's session.
	Session bool
	// Callbacks for notices, in lines for people: how it goes, and what the machine will lack.
	Told func(format string, args ...any)
	Lost func(format string, args ...any)
	// Progress receives the steps of lengthy operations.
	Progress func(progress.Step)

	users *os.File // the socket for users of other hosts; nil: there is none
}

// upPoll is how often Up polls the state of the nodes.
const upPoll = 50 * time.Millisecond

// Up makes a machine and waits until every node has registered. A machine of hosts may lack some of
// them. On an error Up leaves nothing of the machine.
func Up(ctx context.Context, o UpOptions) (err error) {
	// The machine, which outlives this process, must not inherit its descriptors.
	if err := descriptor.CloseOnExec(3); err != nil {
		return fmt.Errorf("machine up: %w", err)
	}
	if err := o.Spec.complete(); err != nil {
		return err
	}
	d, err := DirOf(o.Spec.Name)
	if err != nil {
		return err
	}
	base := filepath.Dir(string(d))
	if _, missing := os.Lstat(base); errors.Is(missing, fs.ErrNotExist) {
		defer func() {
			if err == nil {
				return
			}
			if locked, err := lockBase(base); err == nil {
				_ = os.Remove(base) // unless it has another machine now
				locked.Close()
			}
		}()
	}
	claim, err := claim(d, o.Told)
	if err != nil {
		return err
	}
	defer claim.Close()
	defer func() {
		if o.users != nil {
			o.users.Close()
		}
	}()
	if err := prepare(ctx, d, &o); err != nil {
		return errors.Join(err, undo(ctx, d, claim, o.Told))
	}
	holder, err := startHolder(d, o)
	if err != nil {
		return errors.Join(err, undo(ctx, d, claim, o.Told))
	}
	ended := make(chan error, 1)
	go func() { ended <- holder.Wait() }()
	if err := awaitNodes(ctx, d, o, ended); err != nil {
		return errors.Join(err, undo(ctx, d, claim, o.Told))
	}
	return nil
}

// undo ends and removes the machine that claim has claimed, unless a margay machine down has done
// so, and another up made a machine in its place.
func undo(ctx context.Context, d Dir, claim *os.File, told func(string, ...any)) error {
	return (&ending{Dir: d, making: claim, notice: told}).run(context.WithoutCancel(ctx))
}

// claim makes the machine's folder, which belongs to the caller while the returned file is open: no
// other process can make a machine of this name until then.
func claim(d Dir, told func(string, ...any)) (*os.File, error) {
	base, err := makeBase(filepath.Dir(string(d)))
	if err != nil {
		return nil, err
	}
	defer base.Close()
	if err := clearWay(base, d, told); err != nil {
		return nil, fmt.Errorf("machine %s: %w", d.Name(), err)
	}
	if err := checkSpace(base.Path); err != nil { // after the remains have gone
		base.removeEmpty()
		return nil, fmt.Errorf("machine %s: %w", d.Name(), err)
	}
	claimed, err := base.create(d.Name())
	if err != nil {
		base.removeEmpty()
		return nil, fmt.Errorf("machine %s: %w", d.Name(), err)
	}
	return claimed, nil
}

// BeingMade reports whether a margay machine up is making the machine in this folder.
func (d Dir) BeingMade() bool {
	f, err := folder.Open(d.makingFile(), os.O_RDONLY)
	if err != nil {
		return false
	}
	defer f.Close()
	return folder.Locked(f)
}

// errLeave is the way out where a foreign file has the name of a machine's folder.
var errLeave = errors.New("it is left as it is: name the machine otherwise with -m, or set MARGAY_DIR to another folder")

// errBeingMade reports a machine that has no holder yet.
var errBeingMade = errors.New("another margay machine up is making it")

// clearWay makes sure that no machine of this name runs, and removes the remains of one whose
// holder was killed. A file or folder that is not a machine's is an error and stays.
func clearWay(b *machines, d Dir, told func(string, ...any)) error {
	root, found, err := b.Open(d.Name())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if errors.Is(err, ErrNoMachine) {
		return fmt.Errorf("%w; %w", err, errLeave)
	}
	if err != nil {
		return err
	}
	defer root.Close()
	if found != folder.Marked {
		return nil
	}
	pid, alive := d.Holder()
	if alive {
		return fmt.Errorf("%w: process %d holds it; margay machine status -m %[3]s shows it, margay machine down -m %[3]s ends it",
			ErrLocked, pid, d.Name())
	}
	if d.BeingMade() {
		return errBeingMade
	}
	left, err := strangers(root)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("the folder %s of an earlier one holds files that are not its own (%s): move them away, or name the machine otherwise with -m",
			d, strings.Join(left, ", "))
	}
	if pid == 0 {
		told("removing the remains of an earlier machine %s, which has no holder", d.Name())
	} else {
		told("removing the remains of an earlier machine %s, whose holder (process %d) was killed", d.Name(), pid)
	}
	d.settleHistory(told)
	return clear(root)
}

// prepare makes the machine's key and files.
func prepare(ctx context.Context, d Dir, o *UpOptions) error {
	authority, err := trust.NewAuthority(o.Spec.Name)
	if err != nil {
		return err
	}
	if err := authority.Save(d.keyFile()); err != nil {
		return err
	}
	o.Spec.Owner, o.Spec.Secret = uint32(os.Getuid()), trust.NewToken()
	o.Spec.keepHistory(o.Told)
	if err := checkDoor(o.Spec.Door); err != nil {
		return err
	}
	if err := o.listen(); err != nil {
		return err
	}
	switch o.Spec.Substrate {
	case node.Hosted:
		err = checkRoot()
	case node.Virtual:
		err = prepareVirtual(ctx, d, o)
	case node.Metal:
		err = prepareMetal(ctx, d, o)
	}
	if err != nil {
		return err
	}
	return d.writeSpec(o.Spec)
}

// startHolder starts the holder, detached from this terminal. The holder of a hosted machine gets
// namespaces of its own. If this user is not root, these include a user namespace in which it is
// root.
func startHolder(d Dir, o UpOptions) (*exec.Cmd, error) {
	log, err := folder.Open(d.Log("holder"), os.O_WRONLY|os.O_CREATE|os.O_APPEND)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(o.Holder[0], append(o.Holder[1:], d.Name())...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = "/"
	// In a user namespace the holder has another user id, and a path relative to / means another
	// file.
	cmd.Env = append(os.Environ(), site.BaseVariable+"="+filepath.Dir(string(d)))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if o.Session {
		leader, err := sessionLeader()
		if err != nil {
			return nil, fmt.Errorf("start holder: %w", err)
		}
		defer leader.Close()
		give(cmd, "--until", leader)
	}
	if o.users != nil {
		give(cmd, "--users", o.users)
	}
	if o.Spec.Substrate == node.Hosted {
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNET
		if os.Getuid() != 0 {
			cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
			cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
			cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
		}
	}
	if err := cmd.Start(); err != nil {
		if o.Spec.Substrate == node.Hosted && errors.Is(err, unix.EPERM) {
			return nil, fmt.Errorf("start holder: hosted nodes need namespaces, and this system does not let an ordinary user make them "+
				"(look at the sysctls kernel.unprivileged_userns_clone, user.max_user_namespaces and "+
				"kernel.apparmor_restrict_unprivileged_userns); become root, or use --substrate %s: %w", node.Virtual, err)
		}
		return nil, fmt.Errorf("start holder: %w", err)
	}
	return cmd, nil
}

// sessionLeader returns a pidfd of the leader of this process's session, or of the parent if this
// process is the leader, or the leader is not visible here.
func sessionLeader() (*os.File, error) {
	pid, err := unix.Getsid(0)
	if err != nil || pid == os.Getpid() || pid == 0 {
		pid = os.Getppid()
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("watch process %d, with which the machine ends: %w", pid, err)
	}
	return os.NewFile(uintptr(fd), "session leader"), nil
}

// serveWait bounds how long serve may take to answer for the first time.
const serveWait = 30 * time.Second

// leastSpace is the free space, in bytes, that any machine needs in its folder to come up: it fills
// 60 KiB before its first job, besides the node images of virtual machines.
const leastSpace = 128 << 10

// checkSpace returns an error if the file system of a folder has no room for a machine.
func checkSpace(path string) error {
	var disk unix.Statfs_t
	if err := unix.Statfs(path, &disk); err != nil {
		return nil // the first file says so
	}
	return tooFull(path, &disk, os.Geteuid() == 0)
}

// tooFull returns an error if a machine has no room in a folder on that disk. Root may use all
// blocks.
func tooFull(path string, disk *unix.Statfs_t, root bool) error {
	free := disk.Bavail * uint64(disk.Bsize)
	if root {
		free = disk.Bfree * uint64(disk.Bsize)
	}
	if disk.Blocks == 0 || free >= leastSpace { // of no size: it does not say
		return nil
	}
	return fmt.Errorf("the disk is full: the file system of %s has %d KiB left, and a machine needs %d KiB there: make room, or set MARGAY_DIR to a folder elsewhere",
		path, free>>10, leastSpace>>10)
}

// scarce is the free space, in bytes, below which an error about a failed start mentions it.
const scarce = 1 << 20

// hints returns the hints for an error about a process of the machine: how little space the disk
// has, which may have kept the process from writing its log as well, and the last lines of that
// log.
func (d Dir) hints(who string) (text string) {
	var disk unix.Statfs_t
	if err := unix.Statfs(string(d), &disk); err == nil && disk.Bavail*uint64(disk.Bsize) < scarce {
		text = fmt.Sprintf("; the file system of %s has only %d KiB left", d, disk.Bavail*uint64(disk.Bsize)>>10)
	}
	if lines := tail(d.Log(who), consoleLines); strings.Join(lines, "") != "" {
		text += fmt.Sprintf("; the last lines of the log of %s:\n    %s", who, strings.Join(lines, "\n    "))
	}
	return text
}

// awaitNodes waits until the nodes are up, or can no longer come up, or the holder ends.
func awaitNodes(ctx context.Context, d Dir, o UpOptions, ended <-chan error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case err := <-ended:
			cancel(fmt.Errorf("the holder ended: %v%s", err, d.hints("holder")))
		case <-ctx.Done():
		}
	}()
	if o.Spec.Substrate == node.Metal {
		return d.awaitServing(ctx, o.Told)
	}
	if o.Spec.Substrate == node.Hosts {
		return d.await(ctx, &rising{told: o.Told, lost: o.Lost})
	}
	return d.await(ctx, &rising{told: o.Told})
}

// firstCause prefers the reason why the context ended to the errors that follow from it.
func firstCause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
