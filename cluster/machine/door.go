package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"margay/cluster/client"
	"margay/cluster/folder"
	"margay/cluster/permit"
	"margay/cluster/way"
	"margay/kernel/abi/node"
)

// A machine that lets other users in has a door: a folder outside its own with a second socket of
// its serve (client.Door). Serve makes the door and has it locked as long as it lives, so a door
// belongs to one machine, and the next serve of this machine can take it after a kill. It goes with
// the machine.

// The names of the audit log and of the file before it.
const (
	auditName    = "audit.log"
	oldAuditName = auditName + ".old"
)

// openAudit opens the audit log of a machine that other users or other hosts reach, or whose nodes
// can have tokens.
func (d Dir) openAudit(s Spec) (*permit.Audit, error) {
	if !s.Access.Open() && s.Listen == "" && s.Substrate != node.Metal {
		return nil, nil
	}
	return permit.OpenAudit(d.file(auditName))
}

// completeAccess checks the policy of the machine, and names the door. uid is the owner's.
func (s *Spec) completeAccess(uid int) error {
	switch a := s.Access; {
	case a.Cores < 0 || a.Jobs < 0 || a.Output < 0:
		return fmt.Errorf("a user may have at most %d cores, %d jobs and %d MiB of output: none can be negative", a.Cores, a.Jobs, a.Output)
	case !a.Open() && a.Cores+a.Jobs+a.Output > 0:
		return errors.New("limits are for users who are let in (--users)")
	case !a.Open():
		return nil
	case uid != 0 && s.Substrate != node.Virtual:
		return fmt.Errorf("in the user namespaces of your %s nodes all other users are the same one, so they cannot be let in: become root, or use --substrate %s", s.Substrate, node.Virtual)
	}
	if s.Access.Output == 0 {
		s.Access.Output = permit.DefaultOutput
	}
	s.Door = client.Door(uint32(uid), s.Name)
	if !filepath.IsAbs(s.Door) { // serve works in another folder
		return fmt.Errorf("%s=%s is not an absolute path", client.DoorVariable, os.Getenv(client.DoorVariable))
	}
	if len(s.Door) > folder.LongestSocket {
		return fmt.Errorf("%s is too long for a socket's name: set %s to a shorter path", s.Door, client.DoorVariable)
	}
	return nil
}

// doorMode are the permissions of the folders of a door: others go through them and cannot list
// them. What they can open for reading, they could lock.
const doorMode = 0o711

// lockDoor makes the folders of a door and locks the inner one until it is closed.
func lockDoor(socket string) (*os.File, error) {
	inner := filepath.Dir(socket)
	doors := way.Folder{What: "folder of doors", Path: filepath.Dir(inner), Variable: client.DoorVariable}
	if err := doors.Check(os.Lstat); err != nil {
		return nil, err
	}
	for _, path := range []string{doors.Path, inner} {
		if err := os.Mkdir(path, doorMode); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return nil, err
		}
		if why := folder.NotOwn(info); why != "" {
			return nil, fmt.Errorf("folder of doors: %s %s: %s", path, why, doors.Out(path, info))
		}
		if err := os.Chmod(path, doorMode); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(inner, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errors.New("another machine of yours with this name lets others in there: name this one otherwise")
	}
	if err == nil {
		err = folder.IsStill(inner, f)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("door %s: %w", inner, err)
	}
	return f, nil
}

// checkDoor reports whether serve will be able to make a door, so that machine up can say so. It
// leaves none.
func checkDoor(socket string) error {
	if socket == "" {
		return nil
	}
	f, err := lockDoor(socket)
	if err != nil {
		return err
	}
	defer f.Close()
	clearDoor(socket)
	return nil
}

// removeDoor removes the door of a machine that has ended. A serve that was killed leaves it.
func (d Dir) removeDoor() {
	spec, err := d.ReadSpec()
	if err != nil || spec.Door == "" {
		return
	}
	f, err := lockDoor(spec.Door)
	if err != nil {
		return // another machine has it, or it is gone
	}
	defer f.Close()
	clearDoor(spec.Door)
}

// clearDoor removes a door, whose lock the caller holds. The folder of all doors stays if there are
// others.
func clearDoor(socket string) {
	inner := filepath.Dir(socket)
	_ = removeFiles(socket, inner)
	_ = os.Remove(filepath.Dir(inner))
}

// doors is a listener of two sockets: the owner's, and the one in the door.
type doors struct {
	net.Listener // the owner's
	door         net.Listener
	accepted     chan accepted
	closed       chan struct{}
	once         sync.Once
	accepting    sync.WaitGroup
}

type accepted struct {
	conn net.Conn
	err  error
}

// addDoor has a listener accept what arrives in a door, too, whose lock the caller holds. On an
// error it closes the listener.
func addDoor(own net.Listener, socket string) (net.Listener, error) {
	door, err := listenClients(socket)
	if err == nil {
		err = os.Chmod(socket, 0o666) // serve checks the user of each connection
	}
	if err != nil {
		if door != nil {
			door.Close()
		}
		return nil, errors.Join(err, own.Close())
	}
	l := &doors{Listener: own, door: door, accepted: make(chan accepted), closed: make(chan struct{})}
	for _, one := range []net.Listener{own, door} {
		l.accepting.Go(func() { l.acceptFrom(one) })
	}
	return l, nil
}

// acceptFrom passes on the connections and errors of one listener, up to its end.
func (l *doors) acceptFrom(one net.Listener) {
	for {
		c, err := one.Accept()
		select {
		case l.accepted <- accepted{c, err}:
		case <-l.closed:
			if c != nil {
				c.Close()
			}
			return
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

func (l *doors) Accept() (net.Conn, error) {
	select {
	case a := <-l.accepted:
		return a.conn, a.err
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends both listeners.
func (l *doors) Close() (err error) {
	l.once.Do(func() {
		close(l.closed)
		err = errors.Join(l.Listener.Close(), l.door.Close())
		l.accepting.Wait()
	})
	return err
}
