package mixed

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestGuest(t *testing.T) {
	if os.Getuid() != 0 || os.Getppid() != 1 {
		t.Errorf("uid %d, parent %d, environment %v", os.Getuid(), os.Getppid(), os.Environ())
	}
	for path, kind := range map[string]int64{
		"/proc": unix.PROC_SUPER_MAGIC, "/sys": unix.SYSFS_MAGIC, "/sys/fs/cgroup": unix.CGROUP2_SUPER_MAGIC,
		"/dev/pts": unix.DEVPTS_SUPER_MAGIC, "/tmp": unix.TMPFS_MAGIC, "/run": unix.TMPFS_MAGIC,
	} {
		var s unix.Statfs_t
		if err := unix.Statfs(path, &s); err != nil || s.Type != kind {
			t.Errorf("%s is of type %#x, want %#x: %v", path, s.Type, kind, err)
		}
	}
}

func TestOutput(t *testing.T) {
	fmt.Println(strings.Repeat("long ", 1000))
	fmt.Println("\x01\x1b[31m\xff ünicode\r")
	fmt.Fprintln(os.Stderr, "to stderr")
	fmt.Print("no line end")
}

func TestMany(t *testing.T) {
	for i := range 700 {
		t.Log("line", i)
	}
	time.Sleep(20 * time.Millisecond) // more than the least time that test2json shows
}

func TestSub(t *testing.T) {
	t.Run("good/and well", func(t *testing.T) {})
	t.Run("bad", func(t *testing.T) { t.Error("this is bad") })
}

func TestSkipped(t *testing.T) { t.Skip("for no reason") }

func TestLeavesAProcess(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "-test.run=TestSleep")
	cmd.Env = append(os.Environ(), "SLEEP=1")
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

func TestSleep(t *testing.T) {
	if os.Getenv("SLEEP") != "" {
		fmt.Scanln() // from /dev/null
		for {
			unix.Pause() // it returns after a signal, and Go's runtime sends its own
		}
	}
}
