package machine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"margay/cluster/folder"
	"margay/cluster/serve"
	"margay/cluster/site"
	"margay/internal/check"
	"margay/kernel/abi/node"
)

// patience bounds every wait of these tests.
const patience = 20 * time.Second

// The test binary is also the holder of a machine, and the serve that a holder runs.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 {
		switch os.Args[1] {
		case plugged:
			if err := plugTwice(); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			os.Exit(0)
		case "hold":
			lock, err := Dir(os.Args[2]).lock()
			if err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			fmt.Println("held")
			time.Sleep(patience)
			lock.Close()
			os.Exit(0)
		case "interrupted":
			if err := interrupted(os.Args[2]); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
		case "serve":
			told := make(chan os.Signal, 1)
			signal.Notify(told, os.Interrupt)
			fmt.Println("a serve begins")
			if os.Args[2] == "badly" {
				os.Exit(3)
			}
			select {
			case <-told:
				fmt.Println("a serve has ended")
			case <-time.After(patience):
			}
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

// base makes a folder for machines.
func base(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "margay") // t.TempDir can be too long for a socket's name
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Setenv("MARGAY_DIR", dir)
	return dir
}

// created makes the folder of a machine without a holder.
func created(t *testing.T, name string) Dir {
	t.Helper()
	d, err := DirOf(name)
	if err != nil {
		t.Fatal(err)
	}
	claimed, err := claim(d, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	claimed.Close()
	return d
}

// hold starts a process that holds the machine. The test waits for its end.
func hold(t *testing.T, d Dir) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "hold", string(d))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	if line != "held\n" {
		t.Fatalf("the holder says %q", line)
	}
	return cmd
}

func TestNames(t *testing.T) {
	dir := base(t)
	for _, name := range []string{"", ".", "..", ".x", "a/b", "a b", "-x", "ä", strings.Repeat("x", 33), "a\n"} {
		if d, err := DirOf(name); err == nil {
			t.Errorf("%q is the machine %s", name, d)
		}
	}
	for _, name := range []string{"a", "A.b_c-9", strings.Repeat("x", 32)} {
		if d, err := DirOf(name); err != nil || d.Name() != name || filepath.Dir(string(d)) != dir {
			t.Errorf("%q is the machine %s, %v", name, d, err)
		}
	}
	t.Setenv("MARGAY_DIR", "/"+strings.Repeat("x", 100))
	if _, err := DirOf("a"); err == nil || !strings.Contains(err.Error(), "set MARGAY_DIR to a shorter path") {
		t.Errorf("too long a path: %v", err)
	}
	t.Setenv("MARGAY_DIR", "")
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/7")
	if dir, err := site.Base(); dir != "/run/user/7/margay" {
		t.Errorf("machines are in %s, %v", dir, err)
	}
	t.Setenv("XDG_RUNTIME_DIR", "")
	if dir, err := site.Base(); !strings.HasSuffix(dir, fmt.Sprint("/margay-", os.Getuid())) {
		t.Errorf("machines are in %s, %v", dir, err)
	}
}

// No other user may read a machine's folder, or have made it.
func TestPermissions(t *testing.T) {
	dir := base(t)
	d := created(t, "m")
	for _, part := range []string{"", "log", "ports", "nodes"} {
		info, err := os.Stat(d.file(part))
		if err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s has mode %v, %v", d.file(part), info.Mode(), err)
		}
	}
	if err := d.writeSpec(Spec{Secret: "secret"}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(d.specFile()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the spec has mode %v, %v", info.Mode(), err)
	}
	before := snapshot(t, dir)
	for _, mode := range []fs.FileMode{0o720, 0o702, 0o777} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"m", "another"} {
			if _, err := claim(Dir(filepath.Join(dir, name)), t.Logf); err == nil || !strings.Contains(err.Error(), "can be written by others") {
				t.Errorf("a folder of mode %v: %v", mode, err)
			}
		}
		if err := Down(t.Context(), d, t.Logf); err == nil || !strings.Contains(err.Error(), "can be written by others") {
			t.Errorf("a folder of mode %v: %v", mode, err)
		}
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if after := snapshot(t, dir); after != before {
		t.Errorf("%s became %s", before, after)
	}
}

func TestLock(t *testing.T) {
	base(t)
	d := created(t, "m")
	if pid, alive := d.Holder(); pid != 0 || alive {
		t.Errorf("before there is a holder, it is process %d, alive %v", pid, alive)
	}
	lock, err := d.lock()
	if err != nil {
		t.Fatal(err)
	}
	if pid, alive := d.Holder(); pid != os.Getpid() || !alive {
		t.Errorf("the holder is process %d, alive %v", pid, alive)
	}
	if _, err := d.lock(); !errors.Is(err, ErrLocked) {
		t.Errorf("a second holder: %v", err)
	}
	if _, err := claim(d, t.Logf); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), fmt.Sprintf("process %d holds it", os.Getpid())) {
		t.Errorf("the way is clear: %v", err)
	}
	if pid, alive := d.Holder(); pid != os.Getpid() || !alive {
		t.Errorf("then the holder is process %d, alive %v", pid, alive)
	}
	lock.Close()
	if pid, alive := d.Holder(); pid != os.Getpid() || alive {
		t.Errorf("afterwards the holder is process %d, alive %v", pid, alive)
	}
}

// A check whether a machine is held does not disturb a holder that starts.
func TestLookingIsNotHolding(t *testing.T) {
	base(t)
	d := created(t, "m")
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				d.Holder()
			}
		}
	}()
	for range 2000 {
		lock, err := d.lock()
		if err != nil {
			t.Error(err)
			break
		}
		lock.Close()
	}
	close(stop)
	<-stopped
}

// A lookup of a machine does not disturb the process that makes it. It finds a machine or none,
// never a foreign folder.
func TestLookWhileMaking(t *testing.T) {
	base(t)
	d, err := DirOf("m")
	if err != nil {
		t.Fatal(err)
	}
	var looking sync.WaitGroup
	defer looking.Wait()
	stop := make(chan struct{})
	defer close(stop)
	for range 2 {
		looking.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					d.BeingMade()
					var foreign *folder.ForeignError
					if _, err := d.ReadSpec(); !errors.Is(err, ErrNoMachine) || errors.As(err, &foreign) {
						t.Errorf("while the machine comes and goes: %v", err)
						return
					}
				}
			}
		})
	}
	for range check.Rounds(40, 1000) {
		claimed, err := claim(d, t.Logf)
		if err != nil {
			t.Fatal(err)
		}
		gone, err := (&ending{Dir: d, making: claimed, notice: t.Logf}).remove()
		if err := errors.Join(claimed.Close(), err); err != nil || !gone {
			t.Fatal(gone, err)
		}
	}
}

// A holder that was killed leaves no lock, and machine up removes its machine.
func TestStaleLock(t *testing.T) {
	base(t)
	d := created(t, "m")
	holder := hold(t, d)
	if pid, alive := d.Holder(); pid != holder.Process.Pid || !alive {
		t.Errorf("the holder is process %d, alive %v", pid, alive)
	}
	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	check.AwaitFor(t, patience, "end of the holder", func() bool { _, alive := d.Holder(); return !alive })
	told := ""
	claimed, err := claim(d, func(format string, args ...any) { told = fmt.Sprintf(format, args...) })
	if err != nil {
		t.Fatal(err)
	}
	if pid, alive := d.Holder(); pid != 0 || alive {
		t.Errorf("afterwards the holder is process %d, alive %v", pid, alive)
	}
	if _, err := claim(d, t.Logf); err == nil || !strings.Contains(err.Error(), "another margay machine up is making it") {
		t.Errorf("a second one that makes it: %v", err)
	}
	if err := Down(t.Context(), d, t.Logf); err == nil || !strings.Contains(err.Error(), "another margay machine up is making it") {
		t.Errorf("it is ended while it is made: %v", err)
	}
	if err := errors.Join(claimed.Close(), Down(t.Context(), d, t.Logf)); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("removing the remains of an earlier machine m, whose holder (process %d) was killed", holder.Process.Pid); told != want {
		t.Errorf("the user is told %q", told)
	}
	if _, err := os.Stat(string(d)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
	if claimed, err = claim(d, func(format string, args ...any) { t.Errorf(format, args...) }); err != nil {
		t.Errorf("where there is nothing: %v", err)
	}
	claimed.Close()
}

func TestDown(t *testing.T) {
	base(t)
	d := created(t, "m")
	hold(t, d)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := Down(ctx, d, t.Logf); err != nil {
		t.Fatal(err)
	}
	if err := Down(ctx, d, t.Logf); !errors.Is(err, ErrNoMachine) {
		t.Errorf("a machine that is gone: %v", err)
	}
	created(t, "m")
	if err := Down(ctx, d, t.Logf); err != nil {
		t.Errorf("a machine whose holder is gone: %v", err)
	}
	if _, err := os.Stat(string(d)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
}

// A holder that has not written its pid yet gets no signal, and neither does another process.
func TestDownOfNobody(t *testing.T) {
	base(t)
	d := created(t, "m")
	lock, err := d.lock()
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	for _, text := range []string{"", "-1\n", "garbage\n"} {
		if err := errors.Join(lock.Truncate(0), writeAt(lock, text)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*upPoll)
		if err := Down(ctx, d, t.Logf); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with %q in the lock file: %v", text, err)
		}
		cancel()
	}
}

func TestList(t *testing.T) {
	dir := base(t)
	created(t, "b")
	created(t, "a")
	for _, name := range []string{".hidden", "no name", "Documents"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := List()
	if err != nil || !slices.Equal(list, []Dir{Dir(filepath.Join(dir, "a")), Dir(filepath.Join(dir, "b"))}) {
		t.Errorf("machines %v, %v", list, err)
	}
	t.Setenv("MARGAY_DIR", filepath.Join(dir, "nothing"))
	if list, err := List(); err != nil || len(list) != 0 {
		t.Errorf("machines %v, %v", list, err)
	}
}

func TestSpecFile(t *testing.T) {
	base(t)
	d := created(t, "m")
	if _, err := d.ReadSpec(); !errors.Is(err, ErrNoMachine) {
		t.Errorf("no spec: %v", err)
	}
	want := Spec{Name: "m", Substrate: node.Virtual, Nodes: 3, Cores: 2, Profile: "isolated", MemoryMiB: 256, Accel: "tcg", MTU: 1500, Program: "/p", JobInit: "/j", Kernel: "/k",
		Image: "/i", Cmdline: "c", Lacks: []string{"l"}, Secret: "t", Timing: serve.Timing{Dead: 3 * time.Second, Kill: time.Millisecond}}
	if err := d.writeSpec(want); err != nil {
		t.Fatal(err)
	}
	got, err := d.ReadSpec()
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%+v became %+v, %v", want, got, err)
	}
	if err := os.WriteFile(d.specFile(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.ReadSpec(); err == nil || !strings.Contains(err.Error(), d.specFile()) {
		t.Errorf("garbage: %v", err)
	}
}

// The socket that an earlier serve left does not block the next one.
func TestStaleSocket(t *testing.T) {
	base(t)
	d := created(t, "m")
	old, err := net.Listen("unix", d.Socket())
	if err != nil {
		t.Fatal(err)
	}
	old.(*net.UnixListener).SetUnlinkOnClose(false)
	old.Close()
	l, err := listenClients(d.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if info, err := os.Stat(d.Socket()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket has mode %v, %v", info.Mode(), err)
	}
	if err := os.RemoveAll(string(d)); err != nil {
		t.Fatal(err)
	}
	if l, err := listenClients(d.Socket()); err == nil {
		l.Close()
		t.Error("it listens in a folder that is not there")
	}
}

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if lines := tail(path, 3); lines != nil {
		t.Errorf("of nothing: %q", lines)
	}
	for text, want := range map[string][]string{
		"":                                 nil,
		"a\nb\n":                           {"a", "b"},
		"a\nb\nc\nd":                       {"b", "c", "d"},
		strings.Repeat("x\n", 20<<10):      {"x", "x", "x"},
		strings.Repeat("y", 20<<10) + "\n": {strings.Repeat("y", 16<<10-1)},
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if lines := tail(path, 3); !slices.Equal(lines, want) {
			t.Errorf("of %d bytes: %d lines", len(text), len(lines))
		}
	}
}
