package jobinit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/link"
)

// sandbox is what the init keeps from job to job: its process and its namespaces.
type sandbox struct {
	conn   *link.Conn
	stage  error    // why the stage could not be set, or nil
	group  *os.File // control group for the ranks, or nil
	device *os.File // of file systems in user space, opened with O_PATH; nil: there is none

	root   *os.File // the node's root, below the job's; nil: there is only one job
	queues *os.File // the folder of POSIX message queues; nil: Linux has none
	umask  int      // as it was before the first job
	limit  int      // of processes, which Linux lets no job raise; 0: none yet

	traits         traits
	files, sockets int // how many are open without a job
}

// traits are properties of this process that a rank with the same user id can change, and that
// later ranks inherit.
type traits struct {
	limits [unix.RLIMIT_RTTIME + 1]unix.Rlimit
	group  string // of its session, in which Linux schedules it: autogroup of proc(5)
	thread thread // of each thread
}

// thread is how Linux schedules a thread.
type thread struct {
	attributes unix.SchedAttr
	cpus       unix.CPUSet
	io         uintptr
}

// Bounds of an init that waits for another job.
const (
	heapRoom  = 4 << 20     // bytes that its heap has taken from Linux
	garbage   = 1 << 20     // bytes of the heap after which it is collected: Go would wait for 16 MiB
	resetWait = time.Second // for the goroutines and the threads of the job before
)

// errThreads reports threads of this process that Linux does not schedule as at the begin. Those
// that a function had for itself (package throwaway) end a moment after it.
var errThreads = errors.New("threads of the job init are scheduled in another way")

// setUp makes what all jobs of this init have in common, and sets the first one's stage.
func (s *sandbox) setUp() error {
	if err := loopbackUp(); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return failure("make mounts private", err)
	}
	// Linux lets the ranks mount a /proc in namespaces of their own if there is one without covers
	// in this namespace of mounts, and be it below their root.
	if err := hide(); err != nil {
		return err
	}
	s.umask = unix.Umask(0)
	unix.Umask(s.umask)
	var err error
	if s.root, err = os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
		return failure("open the node's root", err)
	}
	s.queues = messageQueues()
	if err := setStage(); err != nil {
		return err
	}
	if s.traits, err = traitsOfThis(); err == nil {
		s.files, s.sockets, err = open()
	}
	if err != nil { // reset could not compare
		s.root.Close()
		s.root = nil
	}
	return nil
}

// reset makes the init of a job that has ended one that has had no job, or reports why it cannot.
// It clears nothing in namespaces: it only looks, and an init whose job has left something there
// ends with it. Processes have ended, and the job's mounts go with its root. Jobs that were more
// than ranks with output and input are left out, for they have threads, descriptors and mounts of
// several kinds.
func (in *initProcess) reset() error {
	if err := in.plain(); err != nil {
		return err
	}
	if err := in.stop(); err != nil {
		return err
	}
	for _, f := range in.held {
		f.Close()
	}
	in.kept.Close()
	if in.dumps != nil {
		if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Max: in.dumps.most}); err != nil {
			return err
		}
	}
	if err := errors.Join(in.nothingLeft(), in.keys(), in.unchanged()); err != nil {
		return err
	}
	unix.Umask(in.umask)
	if err := in.leaveRoot(); err != nil {
		return err
	}
	if err := setStage(); err != nil {
		return err
	}
	files, sockets, err := open()
	if err == nil && (files != in.files || sockets != in.sockets) {
		err = fmt.Errorf("%d descriptors and %d sockets are open, not %d and %d", files, sockets, in.files, in.sockets)
	}
	return err
}

// plain reports why the job was more than ranks with output and input.
func (in *initProcess) plain() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, r := range in.ranks {
		if r.terminal != nil || r.faulted {
			return errors.New("a rank had a terminal, or a fault")
		}
	}
	if s := in.spec; in.special || !in.started || in.unpacking != nil || in.pmi != nil || len(s.Shared) > 0 || len(s.Interfaces) > 0 || s.Hold {
		return errors.New("the job was a special one")
	}
	if in.root == nil || !alone() {
		return errors.New("there is no root, or not only this process")
	}
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	if taken := memory.HeapSys - memory.HeapReleased; taken > heapRoom {
		return fmt.Errorf("the heap has taken %d bytes", taken)
	}
	if memory.HeapAlloc > garbage {
		defer runtime.GC()
	}
	return nil
}

// stop ends the goroutines of the job.
func (in *initProcess) stop() error {
	if in.reaping.Stop() {
		in.work.Done()
	}
	close(in.over)
	in.output.journal.Close()
	ended := make(chan struct{})
	go func() {
		in.output.work.Wait()
		in.work.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-time.After(resetWait):
		return errors.New("a goroutine of the job does not end")
	}
}

// keys reports whether the ranks have made keyrings in a namespace of users that the next job has,
// too. Other jobs have another user id, and their keys are gone (forgetKeys). To ask Linux for the
// keyrings would make them.
func (in *initProcess) keys() error {
	if os.Geteuid() != in.spec.UID {
		return nil
	}
	text, err := os.ReadFile("/proc/keys")
	if errors.Is(err, os.ErrNotExist) {
		return nil // a Linux without keys
	}
	if err != nil {
		return err
	}
	for _, name := range []string{"_uid", "_uid_ses", "_persistent"} {
		if ring := fmt.Sprintf(" %s.%d:", name, in.spec.UID); bytes.Contains(text, []byte(ring)) {
			return fmt.Errorf("keyring%s is left", ring)
		}
	}
	return nil
}

// nothingLeft reports what the job has left in the namespaces: memory, semaphores and messages of
// System V, message queues of POSIX, sockets that outlive their processes.
func (in *initProcess) nothingLeft() error {
	for _, kind := range []string{"shm", "sem", "msg"} {
		text, err := os.ReadFile("/proc/sysvipc/" + kind)
		if errors.Is(err, os.ErrNotExist) {
			continue // a Linux without them
		}
		if err != nil || bytes.Count(text, []byte{'\n'}) > 1 {
			return errors.Join(err, fmt.Errorf("left are, with a title: %s", text))
		}
	}
	if in.queues != nil {
		if _, err := in.queues.Seek(0, io.SeekStart); err != nil {
			return err
		}
		if names, err := in.queues.Readdirnames(1); err != io.EOF {
			return errors.Join(err, fmt.Errorf("message queue %s is left", names))
		}
	}
	for _, family := range []string{"sockstat", "sockstat6"} {
		text, err := os.ReadFile("/proc/net/" + family)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if busy(string(text)) {
			return fmt.Errorf("sockets are left: %s", text)
		}
	}
	return nil
}

// busy reports whether statistics of sockets (sockstat of proc(5)) count any of this namespace but
// the sum of all kinds. Some figures are of the whole system.
func busy(stats string) bool {
	for line := range strings.Lines(stats) {
		words := strings.Fields(line)
		for i := 1; i+1 < len(words); i += 2 {
			if name := words[i]; (name == "inuse" || name == "tw") && words[i+1] != "0" {
				return true
			}
		}
	}
	return false
}

// unchanged reports whether this process is as it was before its first job.
func (s *sandbox) unchanged() error {
	for end := time.Now().Add(resetWait); ; time.Sleep(time.Millisecond) {
		now, err := traitsOfThis()
		switch {
		case errors.Is(err, errThreads) && time.Now().Before(end):
			continue
		case err != nil:
			return err
		case now != s.traits:
			return fmt.Errorf("the job init is not as it was: %+v, %+v", s.traits, now)
		}
		return nil
	}
}

func traitsOfThis() (t traits, err error) {
	for i := range t.limits {
		if err := unix.Getrlimit(i, &t.limits[i]); err != nil {
			return t, err
		}
	}
	text, err := os.ReadFile("/proc/self/autogroup")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return t, err
	}
	t.group = string(text)
	if t.thread, err = threadOf(os.Getpid()); err != nil {
		return t, err
	}
	names, err := os.ReadDir("/proc/self/task")
	for _, name := range names {
		number, _ := strconv.Atoi(name.Name())
		other, err := threadOf(number)
		if err == unix.ESRCH {
			continue // it has ended
		}
		if err != nil {
			return t, err
		}
		if other != t.thread {
			return t, errThreads
		}
	}
	return t, err
}

func threadOf(number int) (t thread, err error) {
	attributes, err := unix.SchedGetAttr(number, 0)
	if err != nil {
		return t, err
	}
	t.attributes = *attributes
	if err := unix.SchedGetaffinity(number, &t.cpus); err != nil {
		return t, err
	}
	const process = 1 // IOPRIO_WHO_PROCESS
	io, _, errno := unix.Syscall(unix.SYS_IOPRIO_GET, process, uintptr(number), 0)
	if errno != 0 {
		return t, errno
	}
	t.io = io
	return t, nil
}

// messageQueues opens the folder of the namespace's message queues, which is mounted nowhere.
func messageQueues() *os.File {
	config, err := unix.Fsopen("mqueue", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil
	}
	defer unix.Close(config)
	if err := unix.FsconfigCreate(config); err != nil {
		return nil
	}
	mount, err := unix.Fsmount(config, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(mount)
	fd, err := unix.Openat(mount, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), "message queues")
}

// leaveRoot uncovers the node's root, and lets go of all mounts of the job.
func (s *sandbox) leaveRoot() error {
	if err := unix.Unmount("/", unix.MNT_DETACH); err != nil {
		return failure("let go of the job's root", err)
	}
	if err := s.root.Chdir(); err != nil {
		return failure("enter the node's root", err)
	}
	return changeRoot()
}

// open counts the open descriptors of this process, and the sockets of its network namespace.
func open() (files, sockets int, err error) {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0, 0, err
	}
	text, err := os.ReadFile("/proc/net/sockstat")
	if err != nil {
		return 0, 0, err
	}
	_, err = fmt.Sscanf(string(text), "sockets: used %d", &sockets)
	return len(list), sockets, err
}
