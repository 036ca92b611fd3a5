package klog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParse(t *testing.T) {
	level, text, err := parse("12,339,5140900,-;NET: Registered; protocol family 10\n SUBSYSTEM=net\n")
	if err != nil || level != 4 || text != "NET: Registered; protocol family 10" || level.String() != "warning" {
		t.Errorf("%v %q %v", level, text, err)
	}
	for _, record := range []string{"", "no head", "x,1;text", "-1,1;text"} {
		if level, text, err := parse(record); err == nil {
			t.Errorf("%q was taken as %v %q", record, level, text)
		}
	}
}

func TestLevelNames(t *testing.T) {
	for level, want := range map[Level]string{0: "emergency", Warning: "warning", 7: "debug", 8: "level 8", -1: "level -1"} {
		if got := level.String(); got != want {
			t.Errorf("level %d is called %q, want %q", level, got, want)
		}
	}
}

// log plays the device: each write is a record.
func log(t *testing.T) (device, kernel *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	device, kernel = os.NewFile(uintptr(fds[0]), "device"), os.NewFile(uintptr(fds[1]), "kernel")
	t.Cleanup(func() { kernel.Close() })
	return device, kernel
}

// Urgent records are reported, the others and nonsense are not, and the end of the log is an error.
func TestFollow(t *testing.T) {
	device, kernel := log(t)
	for _, record := range []string{
		"4,1,2,-;a warning\n", "6,2,2,-;an information\n", "nonsense", "0,3,2,-;an emergency\n SUBSYSTEM=x\n", "15,4,2,-;of user space\n", "11,5,2,c;an error",
	} {
		if _, err := kernel.WriteString(record); err != nil {
			t.Fatal(err)
		}
	}
	kernel.Close()
	var got []string
	err := follow(t.Context(), device, func(level Level, text string) { got = append(got, fmt.Sprintf("%v: %s", level, text)) })
	if !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	if want := []string{"warning: a warning", "emergency: an emergency", "error: an error"}; !slices.Equal(got, want) {
		t.Errorf("reported were %q, want %q", got, want)
	}
	if err := device.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the device was left open: %v", err)
	}
}

// A flood of kernel messages is reported at fifty a second.
func TestFollowIsBounded(t *testing.T) {
	device, kernel := log(t)
	const flood = 4 * perSecond
	go func() {
		kernel.SetWriteDeadline(time.Now().Add(20 * time.Second))
		for range flood {
			kernel.WriteString("0,1,2,-;mad\n")
		}
		kernel.Close()
	}()
	started, count := time.Now(), 0
	if err := follow(t.Context(), device, func(Level, string) { count++ }); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	// At each end there may be a part of a second.
	if most := perSecond * (int(time.Since(started).Seconds()) + 1); count < perSecond || count > most {
		t.Errorf("%d records were reported, at most %d are allowed", count, most)
	}
}

func TestFollowEndsWithItsContext(t *testing.T) {
	device, kernel := log(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	done := make(chan error, 1)
	reported := make(chan string, 1)
	go func() { done <- follow(ctx, device, func(_ Level, text string) { reported <- text }) }()
	if _, err := kernel.WriteString("0,1,2,-;first\n"); err != nil {
		t.Fatal(err)
	}
	select {
	case text := <-reported:
		if text != "first" {
			t.Errorf("%q was reported", text)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("nothing was reported")
	}
	cancel(enough)
	select {
	case err := <-done:
		if err != enough {
			t.Errorf("at the end of its context: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it follows for ever")
	}
}

// Where the log cannot be read that is said, and where it can the end of the context ends it.
func TestFollowHere(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	done := make(chan error, 1)
	go func() { done <- Follow(ctx, func(Level, string) {}) }()
	select {
	case err := <-done:
		if err == nil {
			t.Error("it ended without a reason")
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it follows for ever")
	}
}

func FuzzParse(f *testing.F) {
	f.Add("6,1,2,-;text\n")
	f.Fuzz(func(t *testing.T, record string) {
		if level, _, err := parse(record); err == nil && (level < 0 || level > 7) {
			t.Fatalf("level %d", level)
		}
	})
}
