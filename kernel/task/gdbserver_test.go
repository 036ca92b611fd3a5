package task_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
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
	return fmt.Sprintf("score %s, data %d, cpus %d, group %s", strings.TrimSpace(string(score)), data.Cur, cpus.Count(),
		strings.ReplaceAll(strings.TrimSpace(string(group)), "\n", " "))
}
