// Package klog reads the log of a node's Linux kernel, because no user can log in to a node.
package klog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// device is where the kernel gives its log, a record for each read
// (Documentation/ABI/testing/dev-kmsg in Linux).
const device = "/dev/kmsg"

// Level is how urgent a record is: 0 is the most urgent (syslog(2)).
type Level int

// Warning is the least urgent level that Follow reports.
const Warning Level = 4

func (l Level) String() string {
	names := []string{"emergency", "alert", "critical", "error", "warning", "notice", "info", "debug"}
	if l < 0 || int(l) >= len(names) {
		return fmt.Sprintf("level %d", int(l))
	}
	return names[l]
}

// Bounds of the reports, so that a flood of kernel messages does not drown other output.
const (
	maxRecord = 8192
	perSecond = 50
)

// Follow reports the records of level Warning and more urgent ones, from the boot on, until ctx
// ends. It returns at once where the kernel's log cannot be read, which is so on hosted nodes.
func Follow(ctx context.Context, report func(level Level, text string)) error {
	f, err := os.OpenFile(device, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("klog: %w", err)
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
		level, text, err := parse(string(buf[:n]))
		if err != nil || level > Warning {
			continue
		}
		if time.Since(second) > time.Second {
			second, count = time.Now(), 0
		}
		if count++; count <= perSecond {
			report(level, text)
		}
	}
}

// parse reads a record: "PRIORITY,SEQUENCE,MICROSECONDS,FLAGS...;TEXT\n" and lines of properties.
func parse(record string) (Level, string, error) {
	head, text, ok := strings.Cut(record, ";")
	if !ok {
		return 0, "", fmt.Errorf("klog: record %.40q has no text", record)
	}
	priority, _, _ := strings.Cut(head, ",")
	n, err := strconv.ParseUint(priority, 10, 31)
	if err != nil {
		return 0, "", fmt.Errorf("klog: record %.40q has no priority", record)
	}
	text, _, _ = strings.Cut(text, "\n")
	return Level(n & 7), text, nil
}
