package task_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/gdb"
	"margay/kernel/abi/id"
	"margay/kernel/task"
)

// A played gdbserver does what a file beside it is named by.
const (
	playsAttached = "attached" // attaches, answers OK to each packet, and detaches at the end of its input
	playsCarrier  = "carrier"  // attaches, lets the rank go on at the first packet, and reports its end
	playsDeaf     = "deaf"     // attaches, and reads nothing; another process has its standard error
	playsLimited  = "limited"  // says what bounds it, and ends
)

// playServer is the test binary as gdbserver.
func playServer(args []string) int {
	runtime.LockOSThread() // this thread is the tracer
	plays := func(name string) bool {
		_, err := os.Stat("/proc/self/fd/3/" + name)
		return err == nil
	}
	if plays(playsLimited) {
		fmt.Fprintln(os.Stderr, limits())
		return 1
	}
	pid, err := strconv.Atoi(args[len(args)-1])
	if err == nil && (plays(playsAttached) || plays(playsCarrier) || plays(playsDeaf)) {
		err = attachTo(pid)
	} else {
		fmt.Fprintln(os.Stderr, strings.Join(args[:2], " "), "and no more")
		return 1
	}
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return 1
	case plays(playsDeaf):
		child := exec.Command("/proc/self/exe", "app", "sleep")
		child.Stderr = os.Stderr
		_ = child.Start()
		time.Sleep(time.Hour)
	case plays(playsCarrier):
		_, _ = os.Stdin.Read(make([]byte, 1))
		_ = unix.PtraceCont(pid, 0)
		var status unix.WaitStatus
		for !status.Exited() && !status.Signaled() {
			if _, err := unix.Wait4(pid, &status, 0, nil); err != nil {
				return 1
			}
			if status.Stopped() {
				_ = unix.PtraceCont(pid, int(status.StopSignal()))
			}
		}
		fmt.Printf("$W%02x#00", status.ExitStatus())
	default:
		in := bufio.NewReader(os.Stdin)
		for {
			if _, err := in.ReadSlice('#'); err != nil {
				_ = unix.PtraceDetach(pid)
				return 0
			}
			_, _ = io.CopyN(io.Discard, in, 2)
			fmt.Print("$OK#9a")
		}
	}
	return 0
}

// attachTo traces a process, and waits until it has stopped.
func attachTo(pid int) error {
	if err := unix.PtraceAttach(pid); err != nil {
		return err
	}
	var status unix.WaitStatus
	_, err := unix.Wait4(pid, &status, 0, nil)
	return err
}

// limits returns what bounds this process, as a line.
func limits() string {
	score, _ := os.ReadFile("/proc/self/oom_score_adj")
	group, _ := os.ReadFile("/proc/self/cgroup")
	var data unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_DATA, &data)
	var cpus unix.CPUSet
	_ = unix.SchedGetaffinity(0, &cpus)
	return fmt.Sprintf("score %s, data %d, cpus %d, group %s.", strings.TrimSpace(string(score)), data.Cur, cpus.Count(),
		strings.ReplaceAll(strings.TrimSpace(string(group)), "\n", " "))
}

// server returns the archive with a played gdbserver.
func server(t *testing.T, plays ...string) func(io.Writer) error {
	t.Helper()
	exe, err := application()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := []gdb.File{{Name: gdb.Server, Path: filepath.Join(dir, "server")}}
	if err := os.WriteFile(files[0].Path, exe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range plays {
		f := gdb.File{Name: name, Path: filepath.Join(dir, "plays-"+name)}
		if err := os.WriteFile(f.Path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return func(w io.Writer) error { return gdb.WriteFiles(w, files) }
}

// debug opens the stream of a debugger, and returns it with the answer.
func debug(t *testing.T, c *task.Container, rank id.Rank, send func(io.Writer) error) (net.Conn, string) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	own, far := os.NewFile(uintptr(fds[0]), "stream"), os.NewFile(uintptr(fds[1]), "stream")
	defer own.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err = c.Debug(ctx, rank, far)
	far.Close()
	if err != nil {
		t.Fatal(err)
	}
	stream, err := net.FileConn(own)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stream.Close() })
	if err := stream.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	go send(stream) // the answer may come before its end
	refusal, err := gdb.ReadAnswer(stream)
	if err != nil {
		t.Fatal(err)
	}
	return stream, refusal
}

// A gdbserver has the limits of its rank: its score, its cores, and the control group of the ranks
// or, without one, the resource limit that stands for it.
func TestDebugLimits(t *testing.T) {
	s := spec(1, "sleep")
	s.Memory, s.Rlimits = 1<<30, !inGuest
	s.Ranks[0].Cores = allowed(t)[:1]
	e := newEvents()
	c := start(t, s, e)
	_, refusal := debug(t, c, 0, server(t, playsLimited))
	data, group := uint64(s.Memory), ""
	if inGuest {
		e.await(t, "the rank", func() bool { return len(e.processes()) == 1 })
		data, group = unix.RLIM_INFINITY, "0::"+strings.TrimPrefix(filepath.Dir(e.processes()[0].Group), cgroups)+"."
	}
	want := fmt.Sprintf("score 500, data %d, cpus 1, group %s", data, group)
	if !strings.HasPrefix(refusal, want) {
		t.Errorf("%q, not %q", refusal, want)
	}
}
