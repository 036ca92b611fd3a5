package machine

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"margay/cluster/folder"
)

// opened opens the log of serve as the holder does.
func opened(t *testing.T, d Dir) *os.File {
	t.Helper()
	f, err := folder.Open(d.Log("serve"), os.O_WRONLY|os.O_CREATE|os.O_APPEND)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// keptLog returns the text of the log of serve, the older file first.
func keptLog(t *testing.T, d Dir) string {
	t.Helper()
	log, old, err := d.OpenLog("serve")
	if err != nil {
		t.Fatal(err)
	}
	var text []byte
	for _, f := range []*os.File{old, log} {
		if f == nil {
			continue
		}
		part, err := io.ReadAll(f)
		if err != nil {
			t.Fatal(err)
		}
		if int64(len(part)) > testLog {
			t.Errorf("a part has %d bytes", len(part))
		}
		text = append(text, part...)
		f.Close()
	}
	return string(text)
}

// testLog is where the logs of tests are rotated.
const testLog = 1000

// A log is rotated before it is too long, also one that an earlier process began. The last lines
// are kept, in order, and so is what others write into the descriptors of the process.
func TestLogIsRotated(t *testing.T) {
	base(t)
	d := created(t, "m")
	stderr := opened(t, d)
	fmt.Fprint(stderr, strings.Repeat("x", testLog-10), "\n")
	stdout, err := unix.Dup(int(stderr.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	output := os.NewFile(uintptr(stdout), "stdout")
	defer output.Close()
	l, ok := BoundLog(d, "serve", output, stderr).(*boundLog)
	if !ok {
		t.Fatal("it is not bounded")
	}
	l.limit = testLog
	var want strings.Builder
	for n := range 300 {
		line := fmt.Sprintf("line %d\n", n)
		want.WriteString(line)
		if _, err := l.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []*os.File{output, stderr} { // such as a crash
		want.WriteString("said\n")
		fmt.Fprintln(f, "said")
	}
	if text := keptLog(t, d); len(text) < testLog/2 || !strings.HasSuffix("\n"+want.String(), "\n"+text) {
		t.Errorf("kept: %q", text)
	}
	if left, err := os.ReadDir(string(d) + "/log"); err != nil || len(left) != 2 {
		t.Errorf("files %v, %v", left, err)
	}
}

// A log that cannot be rotated loses no line.
func TestLogIsNotRotated(t *testing.T) {
	base(t)
	d := created(t, "m")
	stderr := opened(t, d)
	l := BoundLog(d, "serve", stderr, stderr).(*boundLog)
	l.limit = testLog
	if err := os.MkdirAll(d.Log("serve")+".new/full", 0o700); err != nil {
		t.Fatal(err)
	}
	for n := range 300 {
		fmt.Fprintf(l, "line %d\n", n)
	}
	text, err := os.ReadFile(d.Log("serve"))
	if err != nil || strings.Count(string(text), "\n") != 300 {
		t.Errorf("%d lines, %v", strings.Count(string(text), "\n"), err)
	}
	if err := os.RemoveAll(d.Log("serve") + ".new"); err != nil {
		t.Fatal(err)
	}
	for n := range 300 {
		fmt.Fprintf(l, "line %d\n", n)
	}
	if info, err := os.Stat(d.Log("serve")); err != nil || info.Size() > testLog {
		t.Errorf("it is not rotated later: %v, %v", info, err)
	}
}

// The standard error of a daemon that was started by hand is not the machine's.
func TestOtherLogIsNotRotated(t *testing.T) {
	base(t)
	d := created(t, "m")
	opened(t, d)
	other, err := os.Create(t.TempDir() + "/log")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if w := BoundLog(d, "serve", other, other); w != other {
		t.Errorf("it is a %T", w)
	}
}
