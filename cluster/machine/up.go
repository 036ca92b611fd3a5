package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/client"
	"margay/cluster/control"
	"margay/cluster/trust"
	"margay/initramfs/guestkernel"
)

// UpOptions are what machine up is asked for.
type UpOptions struct {
	Spec   Spec
	Holder []string // command that becomes the holder; it is given the machine's name as a further argument
	// Told is told what happens, in lines for people.
	Told func(format string, args ...any)
	// Progress is told of the steps of what takes a while.
	Progress func(guestkernel.Step)
}

// upPoll is how often Up looks how far the nodes are.
const upPoll = 50 * time.Millisecond

// Up makes a machine and waits until every node has registered. When it fails, nothing of the machine is left.
func Up(ctx context.Context, o UpOptions) (err error) {
	if err := o.Spec.complete(); err != nil {
		return err
	}
	d, err := DirOf(o.Spec.Name)
	if err != nil {
		return err
	}
	claim, err := claim(d, o.Told)
	if err != nil {
		return err
	}
	defer claim.Close()
	if err := prepare(ctx, d, &o); err != nil {
		return errors.Join(err, d.remove())
	}
	holder, err := startHolder(d, o)
	if err != nil {
		return errors.Join(err, d.remove())
	}
	ended := make(chan error, 1)
	go func() { ended <- holder.Wait() }()
	if err := awaitNodes(ctx, d, o, ended); err != nil {
		downErr := Down(context.WithoutCancel(ctx), d)
		if errors.Is(downErr, ErrNoMachine) {
			downErr = nil
		}
		return errors.Join(err, downErr)
	}
	return nil
}

// claim makes the machine's folder, which is the caller's while the returned file is open: nobody else makes a machine of
// this name meanwhile.
func claim(d Dir, told func(string, ...any)) (*os.File, error) {
	base, err := lockBase(filepath.Dir(string(d)))
	if err != nil {
		return nil, err
	}
	defer base.Close()
	if err := clearWay(d, told); err != nil {
		return nil, err
	}
	if err := d.create(); err != nil {
		return nil, fmt.Errorf("machine %s: %w", d.Name(), err)
	}
	f, err := os.Create(d.makingFile())
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return f, nil
}

// lockBase makes the folder of all machines and locks it for the moment in which one machine is claimed or removed.
func lockBase(base string) (locked *os.File, err error) {
	for {
		if err := os.MkdirAll(base, 0o700); err != nil {
			return nil, err
		}
		f, err := os.Open(base)
		if errors.Is(err, os.ErrNotExist) {
			continue // the last machine in it has just been removed
		}
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", base, err)
		}
		if isStill(base, f) {
			return f, nil
		}
		f.Close()
	}
}

// isStill reports whether path names the open file f.
func isStill(path string, f *os.File) bool {
	now, err := os.Stat(path)
	if err != nil {
		return false
	}
	then, err := f.Stat()
	return err == nil && os.SameFile(now, then)
}

// beingMade reports whether somebody is making a machine in this folder.
func (d Dir) beingMade() bool {
	f, err := os.Open(d.makingFile())
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil
}

// clearWay makes sure that no machine of this name runs, and removes what is left of one whose holder was killed. The folder of
// all machines is locked.
func clearWay(d Dir, told func(string, ...any)) error {
	pid, alive := d.Holder()
	if alive {
		return fmt.Errorf("machine %s: %w: process %d holds it; margay machine status -m %[1]s shows it, margay machine down -m %[1]s ends it",
			d.Name(), ErrLocked, pid)
	}
	if _, err := os.Stat(string(d)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if d.beingMade() {
		return fmt.Errorf("machine %s: another margay machine up is making it", d.Name())
	}
	told("removing what is left of an earlier machine %s, whose holder (process %d) was killed", d.Name(), pid)
	return os.RemoveAll(string(d))
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
	o.Spec.Token = trust.NewToken()
	if o.Spec.Substrate == Hosted {
		if err := checkRoot(); err != nil {
			return err
		}
	} else if err := prepareVirtual(ctx, d, o); err != nil {
		return err
	}
	return d.writeSpec(o.Spec)
}

// startHolder starts the holder, apart from this terminal. That of a hosted machine gets namespaces of its own, and where
// this user is not root a user namespace in which it is.
func startHolder(d Dir, o UpOptions) (*exec.Cmd, error) {
	log, err := os.OpenFile(d.Log("holder"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(o.Holder[0], append(o.Holder[1:], d.Name())...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if o.Spec.Substrate == Hosted {
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNET
		if os.Getuid() != 0 {
			cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
			cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
			cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
		}
	}
	if err := cmd.Start(); err != nil {
		if o.Spec.Substrate == Hosted && errors.Is(err, unix.EPERM) {
			return nil, fmt.Errorf("start holder: hosted nodes need namespaces, and this system does not let an ordinary user make them "+
				"(look at the sysctls kernel.unprivileged_userns_clone, user.max_user_namespaces and "+
				"kernel.apparmor_restrict_unprivileged_userns); become root, or use --substrate %s: %w", Virtual, err)
		}
		return nil, fmt.Errorf("start holder: %w", err)
	}
	return cmd, nil
}

// awaitNodes waits until every node is up, or cannot come up any more.
func awaitNodes(ctx context.Context, d Dir, o UpOptions, ended <-chan error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case err := <-ended:
			cancel(fmt.Errorf("the holder ended: %v:\n    %s", err, strings.Join(tail(d.Log("holder"), consoleLines), "\n    ")))
		case <-ctx.Done():
		}
	}()
	conn, err := client.Dial(ctx, d.Socket())
	if err != nil {
		return firstCause(ctx, err)
	}
	defer conn.Close()
	go conn.Serve(func(*control.Frame) {})
	started := time.Now()
	up := make(map[uint32]bool)
	again := make(map[uint32]string) // why it boots again
	for {
		answer, err := conn.Call(ctx, &control.ListNodes{})
		if err != nil {
			return firstCause(ctx, err)
		}
		nodes, ok := answer.(*control.Nodes)
		if !ok {
			return fmt.Errorf("serve answered ListNodes with %T", answer)
		}
		for _, n := range nodes.Nodes {
			if strings.Contains(n.Reason, "started once more") && n.Reason != again[n.Node] {
				again[n.Node] = n.Reason
				o.Told("node%d: %s", n.Node, n.Reason)
			}
			switch n.Health {
			case control.NodeHealth_NODE_UP:
				if !up[n.Node] {
					up[n.Node] = true
					boot := ""
					if n.Boots > 1 {
						boot = fmt.Sprintf(" at the %d. boot", n.Boots)
					}
					o.Told("node%d is up%s after %.1f s (%d of %d)", n.Node, boot, time.Since(started).Seconds(), len(up), len(nodes.Nodes))
				}
			case control.NodeHealth_NODE_REFUSED:
				return fmt.Errorf("node%d was refused: %s", n.Node, n.Reason)
			case control.NodeHealth_NODE_DEAD:
				if !strings.Contains(n.Reason, "started once more") {
					return fmt.Errorf("node%d did not come up: %s", n.Node, n.Reason)
				}
			}
		}
		if len(up) == len(nodes.Nodes) {
			return nil
		}
		select {
		case <-time.After(upPoll):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// firstCause prefers why the context ended to what broke because of it.
func firstCause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// downWait bounds how long a holder may take to end its machine.
const downWait = 15 * time.Second

// Down ends a machine and removes its folder.
func Down(ctx context.Context, d Dir) error {
	if _, alive := d.Holder(); !alive {
		if _, err := os.Stat(string(d)); errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("machine %s: %w", d.Name(), ErrNoMachine)
		}
		return d.remove()
	}
	deadline := time.Now().Add(downWait)
	for told, killed := false, false; ; {
		pid, alive := d.Holder()
		if !alive {
			return d.remove()
		}
		if pid > 0 && !told {
			told = true
			if err := unix.Kill(pid, unix.SIGTERM); err != nil && err != unix.ESRCH {
				return fmt.Errorf("machine %s: end its holder (process %d): %w", d.Name(), pid, err)
			}
		}
		if time.Now().After(deadline) {
			if killed {
				return fmt.Errorf("machine %s: its holder (process %d) does not end", d.Name(), pid)
			}
			killed = true
			deadline = deadline.Add(downWait)
			if pid > 0 {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		select {
		case <-time.After(upPoll):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
