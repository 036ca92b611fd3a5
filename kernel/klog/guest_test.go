//go:build guest

package klog

import (
	"fmt"
	"os"
	"slices"
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
	contiguous := func(b Batch, err error) []Record {
		t.Helper()
		if err != nil || len(b.Records) == 0 || b.More {
			t.Fatalf("%d records, more: %v, %v", len(b.Records), b.More, err)
		}
		for i, r := range b.Records {
			if r.Sequence != b.Records[0].Sequence+uint64(i) {
				t.Fatalf("behind record %d is record %d", b.Records[i-1].Sequence, r.Sequence)
			}
		}
		return b.Records
	}
	find := func(records []Record, prefix string) *Record {
		if i := slices.IndexFunc(records, func(r Record) bool { return strings.HasPrefix(r.Text, prefix) }); i >= 0 {
			return &records[i]
		}
		return nil
	}
	all := Query{Size: 1 << 30}
	boot := contiguous(Read(t.Context(), all))
	version := find(boot, "Linux version ")
	if boot[0].Sequence == 0 && (version == nil || version.Priority.Facility() != "kern") { // else it was overwritten
		t.Errorf("of %d records, the version of Linux is %+v", len(boot), version)
	}
	end := boot[len(boot)-1].Sequence
	slow, err := open()
	if err != nil {
		t.Fatal(err)
	}
	const flood = 5000
	for i := range flood { // a record without a line break is not given before the next one
		write("<15>flood %d %s\n", i, strings.Repeat("x", 800))
	}
	behind := contiguous(read(t.Context(), slow, all))
	first, last := behind[0], find(behind, fmt.Sprintf("flood %d x", flood-1))
	if first.Sequence <= end || last == nil || last.Sequence < end+flood {
		t.Errorf("from %d %.20q, to %+v, after %d", first.Sequence, first.Text, last, end)
	}
	time.AfterFunc(50*time.Millisecond, func() { write("<28>ä \\ \x1b[2J\ttwo\nlines\n") })
	var later *Record
	for before := behind[len(behind)-1]; later == nil; { // Linux may write others
		records := contiguous(Read(t.Context(), Query{From: before.Sequence + 1, Size: 1 << 30, Wait: time.Minute}))
		if r := records[0]; r.Sequence != before.Sequence+1 || r.Time < before.Time {
			t.Errorf("behind %+v is %+v", before, r)
		}
		later, before = find(records, "ä "), records[len(records)-1]
	}
	if later.Priority != 28 || later.Text != "ä \\ \x1b[2J\ttwo\nlines" {
		t.Errorf("the record of a writer is %+v", *later)
	}
}
