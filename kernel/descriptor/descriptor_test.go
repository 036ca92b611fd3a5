package descriptor

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// inherited opens files as a process has them that it was started with.
func inherited(t *testing.T, count int) (fds []int) {
	t.Helper()
	for range count {
		fd, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		fds = append(fds, fd)
	}
	return fds
}

// leaked returns which of the descriptors a program has that this process starts. It is passed
// another one as its 3.
func leaked(t *testing.T, fds []int) (in []int) {
	t.Helper()
	passed, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer passed.Close()
	cmd := exec.Command("sh", "-c", `[ /proc/$$/fd/3 -ef /dev/null ] || exit 1; for fd; do [ ! -e /proc/$$/fd/$fd ] || echo $fd; done`, "sh")
	for _, fd := range fds {
		cmd.Args = append(cmd.Args, strconv.Itoa(fd))
	}
	cmd.ExtraFiles = []*os.File{passed}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, text := range strings.Fields(string(out)) {
		fd, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		in = append(in, fd)
	}
	return in
}

func TestCloseOnExec(t *testing.T) {
	for name, mark := range map[string]func(int) error{"by range": CloseOnExec, "one by one": walk} {
		t.Run(name, func(t *testing.T) {
			fds := inherited(t, 20)
			if in := leaked(t, fds); !slices.Equal(in, fds) {
				t.Fatalf("of %v the program has %v, want all", fds, in)
			}
			if err := mark(fds[10]); err != nil {
				t.Fatal(err)
			}
			if in := leaked(t, fds); !slices.Equal(in, fds[:10]) {
				t.Errorf("from %d on, of %v the program has %v", fds[10], fds, in)
			}
			if err := mark(3); err != nil {
				t.Fatal(err)
			}
			if in := leaked(t, fds); len(in) != 0 {
				t.Errorf("the program still has %v", in)
			}
			for _, fd := range fds {
				if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
					t.Errorf("descriptor %d is closed here: %v", fd, err)
				}
			}
		})
	}
}
