//go:build guest

package klog

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// The log of Linux is read from its first record on, whole. Where it is read more slowly than it is
// written, the numbers of the records have one gap, and the reader goes on behind it. A record ends
// the waiting for it.
func TestRing(t *testing.T) {
	if err := os.WriteFile("/proc/sys/kernel/printk_devkmsg", []byte("on\n"), 0); err != nil { // else Linux drops most records of a process
		t.Fatal(err)
	}
	kernel, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer kernel.Close()
	write := func(format string, args ...any) {
		if _, err := fmt.Fprintf(kernel, format, args...); err != nil {
			t.Error(err)
		}
	}
	contiguous := func(b Batch, err error) (first, last Record) {
		t.Helper()
		if err != nil || len(b.Records) == 0 || b.More {
			t.Fatalf("%d records, more: %v, %v", len(b.Records), b.More, err)
		}
		for i, r := range b.Records {
			if r.Sequence != b.Records[0].Sequence+uint64(i) {
				t.Fatalf("behind record %d is record %d", b.Records[i-1].Sequence, r.Sequence)
			}
		}
		return b.Records[0], b.Records[len(b.Records)-1]
	}
	all := Query{Size: 1 << 30}
	first, end := contiguous(Read(t.Context(), all))
	if first.Sequence != 0 || !strings.HasPrefix(first.Text, "Linux version ") || first.Priority.Facility() != "kern" {
		t.Errorf("the first record is %+v", first)
	}
	slow, err := open()
	if err != nil {
		t.Fatal(err)
	}
	const flood = 5000
	for i := range flood { // a record without a line break is not given before the next one
		write("<15>flood %d %s\n", i, strings.Repeat("x", 800))
	}
	first, last := contiguous(read(t.Context(), slow, all))
	if first.Sequence <= end.Sequence || last.Sequence < end.Sequence+flood || !strings.HasPrefix(last.Text, fmt.Sprintf("flood %d x", flood-1)) {
		t.Errorf("from %d %.20q to %d %.20q, after %d", first.Sequence, first.Text, last.Sequence, last.Text, end.Sequence)
	}
	time.AfterFunc(50*time.Millisecond, func() { write("<28>ä \\ \x1b[2J\ttwo\nlines\n") })
	later, _ := contiguous(Read(t.Context(), Query{From: last.Sequence + 1, Size: 1 << 30, Wait: time.Minute}))
	if later.Sequence != last.Sequence+1 || later.Priority != 28 || later.Text != "ä \\ \x1b[2J\ttwo\nlines" || later.Time < last.Time {
		t.Errorf("the record of a writer is %+v", later)
	}
}
