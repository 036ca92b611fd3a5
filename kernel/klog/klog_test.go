package klog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

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
		"4,1,2,-;a warning\n", "6,2,2,-;an information\n", "nonsense", "0,3,2,-;an emergency\n SUBSYSTEM=x\n", "15,4,2,-;of user space\n", "11,5,2,-;an error of user space\n", "3,6,2,c;an error",
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

// From a sequence number on, up to a size, records come whole and in order. Where Linux has
// overwritten some, their numbers are missing. Without Wait a call ends with the records that there
// are.
func TestRead(t *testing.T) {
	records := []string{"6,5,1000000,-;five\n", "6,6,1000001,-;six\n SUBSYSTEM=x\n", "nonsense", `12,9,1000002,c,caller=T7;n\x0ane` + "\n", "6,10,1000003,-;ten\n"}
	for _, c := range []struct {
		query Query
		want  string
		more  bool
	}{
		{Query{Size: 1 << 20}, `5 "five", 6 "six", 9 "n\nne", 10 "ten"`, false},
		{Query{Size: 1 << 20, From: 6}, `6 "six", 9 "n\nne", 10 "ten"`, false},
		{Query{Size: 1 << 20, From: 7, Wait: time.Hour}, `9 "n\nne", 10 "ten"`, false},
		{Query{Size: 1 << 20, From: 11}, "", false},
		{Query{Size: 1 << 20, From: 11, Wait: time.Millisecond}, "", false},
		{Query{Size: 1}, `5 "five"`, true},
		{Query{Size: 2*recordHead + 4, From: 5}, `5 "five", 6 "six"`, true},
	} {
		device, kernel := log(t)
		for _, r := range records {
			if _, err := kernel.WriteString(r); err != nil {
				t.Fatal(err)
			}
		}
		b, err := read(t.Context(), device, c.query)
		if got := written(b.Records); err != nil || got != c.want || b.More != c.more {
			t.Errorf("%+v: %s, more: %v, %v", c.query, got, b.More, err)
		}
		if err := device.Close(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("the device was left open: %v", err)
		}
	}
}

func written(records []Record) string {
	var all []string
	for _, r := range records {
		all = append(all, fmt.Sprintf("%d %q", r.Sequence, r.Text))
	}
	return strings.Join(all, ", ")
}

// A record that comes later ends the waiting, and older ones do not.
func TestReadWaits(t *testing.T) {
	device, kernel := log(t)
	later := make(chan error, 1)
	go func() {
		_, err := kernel.WriteString("6,1,2,-;old\n")
		time.Sleep(10 * time.Millisecond)
		_, err2 := kernel.WriteString("6,2,2,-;new\n")
		later <- errors.Join(err, err2)
	}()
	b, err := read(t.Context(), device, Query{Size: 1 << 20, From: 2, Wait: time.Minute})
	if got := written(b.Records); err != nil || got != `2 "new"` || b.More {
		t.Errorf("%s, more: %v, %v", got, b.More, err)
	}
	if err := <-later; err != nil {
		t.Error(err)
	}
}

// Older records do not make the waiting longer.
func TestReadWaitsInAll(t *testing.T) {
	device, kernel := log(t)
	done, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for range 10_000 {
			select {
			case <-done:
				ended <- nil
				return
			case <-time.After(2 * time.Millisecond):
			}
			if _, err := kernel.WriteString("6,1,2,-;old\n"); err != nil {
				ended <- err
				return
			}
		}
		kernel.Close() // this ends read
		ended <- errors.New("older records make it wait")
	}()
	b, err := read(t.Context(), device, Query{Size: 1 << 20, From: 2, Wait: 50 * time.Millisecond})
	close(done)
	if err != nil || b.Records != nil || b.More {
		t.Errorf("%s, more: %v, %v", written(b.Records), b.More, err)
	}
	if err := <-ended; err != nil && !errors.Is(err, unix.EPIPE) { // read closes the device
		t.Error(err)
	}
}

func TestReadEnds(t *testing.T) {
	device, kernel := log(t)
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(10*time.Millisecond, func() { cancel(enough) })
	if b, err := read(ctx, device, Query{Size: 1 << 20, Wait: time.Hour}); err != enough || b.Records != nil {
		t.Errorf("at the end of its context: %v, %v", b, err)
	}
	kernel.Close()
	device, kernel = log(t)
	kernel.Close()
	if _, err := read(t.Context(), device, Query{Size: 1 << 20, Wait: time.Hour}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("at the end of the log: %v", err)
	}
}
