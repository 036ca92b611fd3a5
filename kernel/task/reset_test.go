package task_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"margay/internal/check"
	"margay/kernel/abi/archive"
	"margay/kernel/task"
)

// leave leaves something behind, and says so.
func leave(what string) int {
	err := leaving[what]()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// leaving are the things that leave can leave: the next job must have another init, or they must be
// gone.
var leaving = map[string]func() error{
	"shared memory": func() error {
		_, err := unix.SysvShmGet(unix.IPC_PRIVATE, 4096, unix.IPC_CREAT|0o600)
		return err
	},
	"semaphores":    func() error { return call(unix.SYS_SEMGET, unix.IPC_PRIVATE, 1, unix.IPC_CREAT|0o600) },
	"messages":      func() error { return call(unix.SYS_MSGGET, unix.IPC_PRIVATE, unix.IPC_CREAT|0o600, 0) },
	"message queue": leaveQueue,
	"connection":    leaveConnection,
	"a fault":       func() error { return unix.Kill(os.Getpid(), unix.SIGKILL) },

	// Only of a process with the same user id.
	"niceness": func() error { return unix.Setpriority(unix.PRIO_PROCESS, 1, 5) },
	"limit":    func() error { return unix.Prlimit(1, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 100, Max: 100}, nil) },
	"CPU":      func() error { return unix.SchedSetaffinity(1, lastCPU()) },

	"process": func() error {
		if orphan() != 0 {
			return errors.New("there is no process")
		}
		return nil
	},
	"files": func() error {
		var errs []error
		for _, dir := range []string{"/dev/shm", "/tmp", "/home/tester"} {
			errs = append(errs, os.WriteFile(dir+"/left", []byte("left"), 0o666))
		}
		_, _ = os.Remove("/dev/null"), os.Rename("/tmp", "/gone") // some may
		_ = os.WriteFile("/dev/left", nil, 0o666)
		return errors.Join(errs...)
	},
	"key": func() error {
		most, err := os.ReadFile("/proc/sys/kernel/keys/maxbytes")
		if errors.Is(err, os.ErrNotExist) || string(most) == "1\n" {
			return nil // a Linux without keys, or a node that withholds them
		}
		_, err = unix.AddKey("user", "left", []byte("left"), unix.KEY_SPEC_USER_KEYRING)
		return err
	},
	"socket without a name": func() error {
		_, err := net.Listen("unix", "@left")
		return err
	},
}

// lastCPU is one CPU that the process may run on, where there are several.
func lastCPU() *unix.CPUSet {
	var all, one unix.CPUSet
	_ = unix.SchedGetaffinity(0, &all)
	for i := range 1024 {
		if all.IsSet(i) {
			one.Zero()
			one.Set(i)
		}
	}
	return &one
}

func call(number, a, b, c uintptr) error {
	if _, _, errno := unix.Syscall(number, a, b, c); errno != 0 {
		return errno
	}
	return nil
}

func leaveQueue() error {
	name, err := unix.BytePtrFromString("left")
	if err != nil {
		return err
	}
	_, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(name)), unix.O_CREAT|unix.O_RDWR, 0o600, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// leaveConnection leaves a TCP connection in the state TIME_WAIT.
func leaveConnection() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return err
	}
	far, err := l.Accept()
	if err != nil {
		return err
	}
	near.Close()
	_, err = far.Read(make([]byte, 1)) // the end
	far.Close()
	if err == nil {
		err = errors.New("something came")
	}
	if err.Error() == "EOF" {
		err = nil
	}
	return err
}

// look prints leftovers of jobs before.
func look() {
	for _, dir := range []string{"/", "/dev", "/dev/shm", "/tmp", "/home/tester", "/dev/mqueue"} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if name := e.Name(); strings.Contains(name, "left") || name == "gone" {
				fmt.Println(filepath.Join(dir, name))
			}
		}
	}
	if _, err := os.Stat("/dev/null"); err != nil {
		fmt.Println(err)
	}
	// To ask for the keyring would make it.
	if text, _ := os.ReadFile("/proc/keys"); strings.Contains(string(text), fmt.Sprintf(" _uid.%d:", os.Getuid())) {
		fmt.Println(string(text))
	}
	for _, kind := range []string{"shm", "sem", "msg"} {
		if text, _ := os.ReadFile("/proc/sysvipc/" + kind); strings.Count(string(text), "\n") > 1 {
			fmt.Println(string(text))
		}
	}
	if processes, _ := filepath.Glob("/proc/[0-9]*"); len(processes) != 2 {
		fmt.Println(processes)
	}
	if text, _ := os.ReadFile("/proc/net/unix"); strings.Contains(string(text), "left") {
		fmt.Println(string(text))
	}
	if text, _ := os.ReadFile("/proc/net/sockstat"); !strings.Contains(string(text), "tw 0") && strings.Contains(string(text), "tw") {
		fmt.Println(string(text))
	}
	if nice, err := unix.Getpriority(unix.PRIO_PROCESS, 0); nice != 20 { // as Linux counts
		fmt.Println("niceness", nice, err)
	}
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil && files.Max == 100 {
		fmt.Println("limit", files)
	}
	var st unix.Stat_t
	if err := unix.Stat("/tmp", &st); err != nil || st.Mode&0o7777 != 0o1777 {
		fmt.Printf("/tmp has mode %o: %v\n", st.Mode, err)
	}
}

// pooled runs a job of one rank in a container of the pool until its end, and returns the process
// id of its init, the status of the rank and what it has said.
func pooled(t *testing.T, p *task.Pool, change func(*task.Spec), args ...string) (init int, status task.Status, said string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s := spec(1, args...)
	s.Owner = "tester"
	s.UID = int(users.Add(1)) // as on a node
	s.GID = s.UID
	s.Ranks[0].Stdin = false
	if inGuest {
		s.Memory, s.Pids = 128<<20, 40
	}
	change(&s)
	e := newEvents()
	c, err := p.New(ctx, s, e)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(lend(t, c), c.Start(ctx)); err != nil {
		t.Fatal(err)
	}
	e.await(t, "end", func() bool { return len(e.exits()) == 1 })
	if err := c.End(); err != nil {
		t.Error(err)
	}
	c.Release()
	return c.PID(), e.exits()[0], e.text(0, task.Stdout)
}

// uncoveredFolder is the folder of held, which the job's root does not cover while it is built; it
// is empty before.
var uncoveredFolder string

// held is the application in a folder of the node.
var held = sync.OnceValues(func() (*os.File, error) {
	exe, err := application()
	if err != nil {
		return nil, err
	}
	if uncoveredFolder, err = os.MkdirTemp("/run", "margay-application"); err != nil {
		return nil, err
	}
	name := filepath.Join(uncoveredFolder, archive.Digest(sha256.Sum256(exe)).String())
	if err := os.WriteFile(name, exe, 0o755); err != nil {
		return nil, err
	}
	return os.Open(name)
})

// lend gives a job the application that its node has.
func lend(t *testing.T, c *task.Container) error {
	t.Helper()
	f, err := held()
	if err != nil {
		return err
	}
	dir, name := filepath.Split(f.Name())
	digest, err := archive.Parse(name)
	if err != nil {
		return err
	}
	packed, err := pack(entry{Header: tar.Header{Name: "bin/app", Typeflag: tar.TypeReg, Mode: 0o755,
		PAXRecords: map[string]string{archive.Content: name, archive.Code: "1"}}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return errors.Join(c.Give(filepath.Clean(dir), []archive.Digest{digest}, []*os.File{f}), c.Unpack(ctx, bytes.NewReader(packed)))
}

// users are the user ids of jobs, which no two of them share, in other runs of these tests either:
// for a moment, Linux refuses keyrings to a user whose keyrings were removed.
var users atomic.Int32

func init() { users.Store(100_000 + int32(os.Getpid()%1_000_000)*1000) }

func asItIs(*task.Spec) {}

// hosts are the kinds of nodes: those with users of their own, and those whose jobs have a
// namespace of users.
func hosts(t *testing.T) map[string]task.Host {
	own := host(t)
	if inGuest || own.UserNS {
		return map[string]task.Host{"one": own}
	}
	mapped := own
	mapped.UserNS = true
	return map[string]task.Host{"users": own, "user namespace": mapped}
}

// The init of a job becomes the init of the next job of the same owner, and of no other job.
func TestReset(t *testing.T) {
	for name, h := range hosts(t) {
		t.Run(name, func(t *testing.T) {
			h.User = func() int { return int(users.Add(1)) }
			p := pool(t, h)
			first := awaitSpare(t, p, 0)
			for range 10 {
				init, status, said := pooled(t, p, func(s *task.Spec) { s.Job++ }, "look")
				if init != first || !status.OK() || said != "" {
					t.Fatalf("init %d, not %d; %v: %s", init, first, status, said)
				}
			}
			other, _, _ := pooled(t, p, func(s *task.Spec) { s.Owner = "other" }, "look")
			if other == first {
				t.Error("a job of another owner has the init")
			}
			if init, _, _ := pooled(t, p, asItIs, "look"); init != first {
				t.Errorf("init %d, not %d", init, first)
			}
			if init, _, _ := pooled(t, p, func(s *task.Spec) { s.Owner = "other" }, "look"); init != other {
				t.Errorf("init %d, not %d", init, other)
			}
			check.AwaitFor(t, patience, "end of the spare that is too many", func() bool { return len(p.Spares()) == 1 })
		})
	}
}

// An init does not grow with the number of its jobs.
func TestResetForLong(t *testing.T) {
	jobs := 60
	if inGuest {
		jobs = 12
	}
	for name, h := range hosts(t) {
		t.Run(name, func(t *testing.T) {
			h.User = func() int { return int(users.Add(1)) }
			p := pool(t, h)
			first := awaitSpare(t, p, 0)
			var early size
			for i := range jobs {
				if i == jobs/2 {
					early = sizeOf(t, first)
				}
				if init, status, said := pooled(t, p, asItIs, "look"); init != first || !status.OK() || said != "" {
					t.Fatalf("job %d: init %d, not %d; %v: %s", i, init, first, status, said)
				}
			}
			late := sizeOf(t, first)
			if late.files != early.files || late.memory > early.memory+2<<10 {
				t.Errorf("%+v after %d jobs, %+v after %d", early, jobs/2, late, jobs)
			}
		})
	}
}

// size is what a process has taken.
type size struct{ files, memory int } // descriptors, and KiB of memory

func sizeOf(t *testing.T, pid int) (s size) {
	t.Helper()
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if memory, is := strings.CutPrefix(line, "VmRSS:"); is {
			_, err = fmt.Sscan(memory, &s.memory)
		}
	}
	if err != nil || s.memory == 0 {
		t.Fatalf("memory of process %d: %v in %s", pid, err, text)
	}
	s.files = len(files)
	return s
}

// What a job leaves is gone for the next one, whose init may be the same.
func TestResetLeavesNothing(t *testing.T) {
	for name, h := range hosts(t) {
		t.Run(name, func(t *testing.T) {
			h.User = func() int { return int(users.Add(1)) }
			p := pool(t, h)
			awaitSpare(t, p, 0)
			for _, what := range []string{"process", "files", "key", "socket without a name"} {
				if what == "key" && h.UserNS {
					continue // the next job has the same keyrings
				}
				init, status, said := pooled(t, p, asItIs, "leave", what)
				if !status.OK() {
					t.Errorf("%s: %v: %s", what, status, said)
				}
				next, status, said := pooled(t, p, asItIs, "look")
				if next != init || !status.OK() || said != "" {
					t.Errorf("after %s: init %d, before %d; %v: %s", what, next, init, status, said)
				}
			}
		})
	}
}

// An init in whose namespaces a job has left something, or that a job has changed, has no further
// job.
func TestNoReset(t *testing.T) {
	for name, h := range hosts(t) {
		t.Run(name, func(t *testing.T) {
			h.User = func() int { return int(users.Add(1)) }
			p := pool(t, h)
			awaitSpare(t, p, 0)
			mapped := 0
			for _, what := range []string{"shared memory", "semaphores", "messages", "message queue", "connection", "a fault", "niceness", "limit", "CPU", "key"} {
				if what == "key" && !h.UserNS {
					continue // it is removed
				}
				init, status, said := pooled(t, p, asItIs, "leave", what)
				own := slices.Contains([]string{"niceness", "limit", "CPU"}, what)
				if own && !status.OK() && (strings.Contains(said, "not permitted") || strings.Contains(said, "no such process")) {
					continue // it may not
				}
				if own {
					mapped++
				}
				if !status.OK() && what != "a fault" {
					t.Errorf("%s: %v: %s", what, status, said)
				}
				next, status, said := pooled(t, p, asItIs, "look")
				if next == init && !(what == "CPU" && cpus() == 1) || !status.OK() || said != "" {
					t.Errorf("after %s: init %d, before %d; %v: %s", what, next, init, status, said)
				}
			}
			if wants := 0; h.UserNS && mapped == wants {
				t.Error("no rank could change its init, though it is the same user")
			}
		})
	}
}

// A node kernel that dies before it has dropped the link of a job that is over leaves it to the
// next one, which does not find the job.
func TestResetIsNotAdopted(t *testing.T) {
	h := host(t)
	p := pool(t, h)
	awaitSpare(t, p, 0)
	e := newEvents()
	c, err := p.New(t.Context(), spec(1, "look"), e)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := c.Kept("job")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(lend(t, c), c.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	e.await(t, "end", func() bool { return len(e.exits()) == 1 })
	if err := c.End(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", c.PID())); err != nil {
		t.Errorf("the init does not wait for another job: %v", err)
	}
	c.Detach()
	if _, _, err := task.Adopt(t.Context(), h, &kept); !errors.Is(err, io.EOF) {
		t.Errorf("the job was adopted: %v", err)
	}
	awaitEnd(t, c.PID())
}

// cpus returns on how many CPUs this process may run.
func cpus() int {
	var set unix.CPUSet
	_ = unix.SchedGetaffinity(0, &set)
	return set.Count()
}

// Jobs that have had more than ranks with output and input end with their inits, as do those that
// are ended before their ranks.
func TestNoResetOfSpecialJobs(t *testing.T) {
	for name, change := range map[string]func(*task.Spec){
		"terminal": func(s *task.Spec) { s.Ranks[0].Terminal = &task.Size{Rows: 25, Columns: 80} },
	} {
		t.Run(name, func(t *testing.T) {
			p := pool(t, host(t))
			awaitSpare(t, p, 0)
			init, status, said := pooled(t, p, change, "look")
			if !status.OK() {
				t.Errorf("%v: %s", status, said)
			}
			if next, _, _ := pooled(t, p, asItIs, "look"); next == init {
				t.Error("the next job has the same init")
			}
		})
	}
	t.Run("network", func(t *testing.T) {
		p := pool(t, host(t))
		awaitSpare(t, p, 0)
		s := spec(1, "look")
		e := newEvents()
		c, err := p.New(t.Context(), s, e)
		if err != nil {
			t.Fatal(err)
		}
		f, err := c.NetworkNamespace()
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		if err := errors.Join(lend(t, c), c.Start(t.Context()), c.End()); err != nil {
			t.Fatal(err)
		}
		c.Release()
		awaitEnd(t, c.PID())
	})
	t.Run("limit of processes", func(t *testing.T) {
		p := pool(t, host(t))
		awaitSpare(t, p, 0)
		for _, pids := range []int{1000, 2000} {
			limited := func(s *task.Spec) { s.Rlimits, s.Pids = true, pids }
			for range 2 {
				if _, status, said := pooled(t, p, limited, "look"); !status.OK() || said != "" {
					t.Errorf("%v: %s", status, said)
				}
			}
		}
	})
}
