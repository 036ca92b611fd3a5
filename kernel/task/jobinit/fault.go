package jobinit

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/throwaway"
	"margay/kernel/abi/node"
	"margay/kernel/stack"
	"margay/kernel/task"
)

// A rank that ends by a fault is not traced, so nothing slows it down. Linux dumps its memory into
// a small file, which the init reads and removes. A node with its own Linux has a folder for that;
// elsewhere the host's setting decides, and there are no dumps if that hands them to a program.

// dumps is where Linux writes the memory of a process of the job.
type dumps struct {
	dir  string // in the job's root
	name string // with %p for the pid
	most uint64 // the largest dump that Linux lets this process allow
}

// Bounds of what the init says about a fault, and of the time that it takes.
const (
	faultFrames = 16
	faultPaths  = 4 << 10 // bytes
	faultWait   = 15 * time.Second
)

// errDumps reports that dumps of memory cannot be found here.
var errDumps = errors.New("the host does not leave dumps of memory in files that a job can find")

// placeOfDumps finds out where the dump of a process goes that is in the folder dir, from two
// settings of Linux (core(5)).
func placeOfDumps(pattern string, usesPID bool, dir string) (dumps, error) {
	pattern = strings.TrimSpace(pattern)
	if pattern == "" || strings.ContainsAny(pattern[:1], "|@") {
		return dumps{}, errDumps
	}
	rest := strings.ReplaceAll(strings.ReplaceAll(pattern, "%%", ""), "%p", "")
	if strings.Contains(rest, "%") {
		return dumps{}, errDumps
	}
	if usesPID && !strings.Contains(pattern, "%p") {
		pattern += ".%p"
	}
	full := pattern
	if !path.IsAbs(pattern) {
		full = path.Join(dir, pattern)
	}
	return dumps{dir: path.Dir(full), name: path.Base(full)}, nil
}

// file is the name of the dump of a process.
func (d dumps) file(pid int) string {
	return strings.NewReplacer("%%", "%", "%p", strconv.Itoa(pid)).Replace(d.name)
}

// wantDumps lets Linux dump the memory of ranks that a fault ends, unless the user has asked for
// dumps already: those stay.
func (in *initProcess) wantDumps() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &limit); err != nil || limit.Cur > 0 || limit.Max == 0 {
		return err
	}
	pattern, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	if err != nil {
		return err
	}
	uses, _ := os.ReadFile("/proc/sys/kernel/core_uses_pid")
	place, err := placeOfDumps(string(pattern), strings.TrimSpace(string(uses)) == "1", in.spec.Dir)
	if err != nil {
		return err
	}
	if err := place.prepare(in.spec); err != nil {
		return err
	}
	if err := os.WriteFile("/proc/self/coredump_filter", []byte(stack.CoreFilter), 0); err != nil {
		return err
	}
	limit.Cur = min(stack.CoreSize, limit.Max)
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &limit); err != nil {
		return err
	}
	place.most = limit.Max
	in.dumps = &place
	return nil
}

// prepare makes the folder of dumps, or checks that they come into the job's RAM disk: those in a
// folder of the user would be the user's.
func (d dumps) prepare(s task.Spec) error {
	if d.dir == node.Dumps {
		if err := os.Mkdir(d.dir, 0o700); err != nil {
			return err
		}
		options := fmt.Sprintf("mode=700,uid=%d,gid=%d,%s", s.UID, s.GID, room(2*stack.CoreSize))
		return unix.Mount("dumps", d.dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options)
	}
	dir, err := d.open()
	if err != nil {
		return err
	}
	return dir.Close()
}

// open opens the folder of dumps, which no rank can have exchanged for one outside the job's
// memory.
func (d dumps) open() (*os.File, error) {
	top, rest := "/", d.dir
	if d.dir == node.Dumps {
		top, rest = d.dir, "."
	}
	root, err := os.OpenFile(top, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return openBelow(root, path.Join(".", rest), unix.O_PATH|unix.O_DIRECTORY)
}

// read reads and removes the dump of a process. Where all dumps in a folder have the same name,
// another process may have overwritten it with its own, which stays for that process.
func (d dumps) read(pid int, open stack.Opener) (*stack.Fault, error) {
	dir, err := d.open()
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	f, err := openBelow(dir, d.file(pid), unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := mustBeRegular(f); err != nil {
		return nil, err
	}
	fault, err := stack.ReadCore(f, pid, open)
	if err == nil || strings.Contains(d.name, "%p") {
		err = errors.Join(err, unix.Unlinkat(int(dir.Fd()), d.file(pid), 0))
	}
	return fault, err
}

// fault returns where a process was that has dumped its memory, nil if that is not known.
func (in *initProcess) fault(pid int) *stack.Fault {
	if in.dumps == nil {
		return nil
	}
	found := make(chan *stack.Fault, 1)
	go func() {
		f, _ := in.dumps.read(pid, in.openModule) // after an error nothing is known
		if f != nil {
			f.Shorten(faultFrames, faultPaths)
		}
		found <- f
	}()
	select {
	case f := <-found:
		return f
	case <-time.After(faultWait): // a file of a server does not answer
		return nil
	}
}

// openModule opens a file that a rank executes. It may be on any mount of the job. A rank can make
// its maps and its dump name any file, and what stands there becomes part of a report: so only a
// file is opened that the user of the ranks may read.
func (in *initProcess) openModule(name string) (stack.File, error) {
	type result struct {
		file *os.File
		err  error
	}
	opened := make(chan result)
	throwaway.Go(func() { // it becomes the user's
		var r result
		if r.err = accessAs(in.spec.UID, in.spec.GID); r.err == nil {
			r.file, r.err = openPlain(name)
		}
		opened <- r
	})
	r := <-opened
	if r.err != nil {
		return nil, fmt.Errorf("open %s: %w", name, r.err)
	}
	return r.file, nil
}

// accessAs gives this thread the rights of a user for accesses to files.
func accessAs(uid, gid int) error {
	if uid == os.Geteuid() {
		return nil
	}
	// The kernel of a node without root refuses that; its groups are the user's then.
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 && errno != unix.EPERM {
		return errno
	}
	if err := errors.Join(unix.Setfsgid(gid), unix.Setfsuid(uid)); err != nil {
		return err
	}
	if is, err := unix.SetfsuidRetUid(-1); err != nil || is != uid {
		return unix.EPERM
	}
	return nil
}

// openPlain opens a regular file. One of proc is memory of a process, maybe of this one.
func openPlain(name string) (*os.File, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	var system unix.Statfs_t
	err = errors.Join(mustBeRegular(f), unix.Fstatfs(fd, &system))
	if err == nil && system.Type == unix.PROC_SUPER_MAGIC {
		err = unix.EACCES
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// mustBeRegular refuses pipes and devices, which a rank may have put in place of a file.
func mustBeRegular(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("%s: it is not a regular file", f.Name())
	}
	return nil
}
