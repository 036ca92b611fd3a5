// Package klog reads the log of a node's Linux kernel, because no user can log in to a node.
//
// /dev/kmsg gives a record for each read, from a ring in which new records overwrite old ones
// (Documentation/ABI/testing/dev-kmsg in Linux). The records of a boot are numbered, so a reader
// that remembers the next number goes on where it was, and knows how many it has missed.
package klog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const device = "/dev/kmsg"

// maxRecord is more than a record takes, in bytes (CONSOLE_EXT_LOG_MAX in Linux).
const maxRecord = 8192

// perSecond bounds the reports of Follow, so that a flood of kernel messages does not drown other
// output.
const perSecond = 50

// open opens the log at its oldest record.
func open() (*os.File, error) {
	f, err := os.OpenFile(device, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("klog: %w", err)
	}
	return f, nil
}

// Follow reports the records of Linux itself of level Warning and more urgent ones, from the boot
// on, until ctx ends. It returns at once where the kernel's log cannot be read, which is so on
// hosted nodes.
func Follow(ctx context.Context, report func(level Level, text string)) error {
	f, err := open()
	if err != nil {
		return err
	}
	return follow(ctx, f, report)
}

// follow reports the records of f, one for each read, and finally closes it.
func follow(ctx context.Context, f *os.File, report func(level Level, text string)) error {
	stop := context.AfterFunc(ctx, func() { f.Close() })
	defer stop()
	defer f.Close()
	buf := make([]byte, maxRecord)
	second, count := time.Now(), 0
	for {
		n, err := f.Read(buf)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, unix.EPIPE):
			continue // records were overwritten before they were read
		case err != nil:
			return fmt.Errorf("klog: %w", err)
		}
		r, err := Parse(string(buf[:n]))
		if err != nil || r.Priority.Level() > Warning || r.Priority.Facility() != "kern" {
			continue
		}
		if time.Since(second) > time.Second {
			second, count = time.Now(), 0
		}
		if count++; count <= perSecond {
			report(r.Priority.Level(), r.Text)
		}
	}
}

// Query selects records of the log.
type Query struct {
	From uint64        // the sequence number of the first record
	Size int           // the end of a batch, in bytes: it is exceeded by less than one record
	Wait time.Duration // for a record, if there is none yet; in all
}

// Batch is the result of a query.
type Batch struct {
	Records []Record // in order; the numbers of overwritten records are missing
	More    bool     // there may be more already
}

// recordHead is about what a record takes besides its text, in bytes.
const recordHead = 32

// Read reads records. It reads all of the ring that is older than them, because the log cannot be
// entered at a number. It is safe for concurrent use: each call is a reader of its own.
func Read(ctx context.Context, q Query) (Batch, error) {
	f, err := open()
	if err != nil {
		return Batch{}, err
	}
	return read(ctx, f, q)
}

// read is Read of f, which it closes.
func read(ctx context.Context, f *os.File, q Query) (b Batch, err error) {
	stop := context.AfterFunc(ctx, func() { f.Close() })
	defer stop()
	defer f.Close()
	conn, err := f.SyscallConn()
	if err != nil {
		return Batch{}, fmt.Errorf("klog: %w", err)
	}
	buf := make([]byte, maxRecord)
	deadline := time.Now().Add(q.Wait)
	for size := 0; size < q.Size; {
		n, err := readRecord(f, conn, buf, deadline)
		switch {
		case ctx.Err() != nil:
			return Batch{}, context.Cause(ctx)
		case errors.Is(err, os.ErrDeadlineExceeded):
			return b, nil
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR): // after EPIPE, the oldest record is next
			continue
		case err != nil:
			return Batch{}, fmt.Errorf("klog: %w", err)
		}
		r, err := Parse(string(buf[:n]))
		if err != nil || r.Sequence < q.From { // a record that Linux does not describe is counted with the missing ones
			continue
		}
		b.Records, deadline = append(b.Records, r), time.Time{} // it has waited
		size += len(r.Text) + recordHead
	}
	b.More = true
	return b, nil
}

// readRecord reads a record, and waits for one until the deadline, which may have passed. Without
// one the error is os.ErrDeadlineExceeded.
func readRecord(f *os.File, conn syscall.RawConn, buf []byte, deadline time.Time) (n int, err error) {
	try := func(patient bool) (failure error) {
		err := conn.Read(func(fd uintptr) bool {
			n, failure = unix.Read(int(fd), buf)
			return failure != unix.EAGAIN || !patient
		})
		return cmp.Or(err, failure)
	}
	err = try(false)
	if err == unix.EAGAIN {
		if !time.Now().Before(deadline) {
			return 0, os.ErrDeadlineExceeded
		}
		err = cmp.Or(f.SetReadDeadline(deadline), try(true), f.SetReadDeadline(time.Time{}))
	}
	if err == nil && n == 0 {
		err = io.ErrUnexpectedEOF // the log has no end
	}
	return n, err
}
