package klog

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Record is a record of the log.
type Record struct {
	Sequence uint64 // the records of a boot are numbered from 0
	Priority Priority
	Time     time.Duration // since the boot, not negative
	Text     string        // any bytes: applications can have some of them written
}

// Priority is how urgent a record is and which part of the system it comes from (syslog(2)).
type Priority uint32

// Level returns how urgent the record is.
func (p Priority) Level() Level { return Level(p & 7) }

// facilities are the names of facilities, by their numbers (syslog(3)).
var facilities = []string{
	"kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp",
	16: "local0", 17: "local1", 18: "local2", 19: "local3", 20: "local4", 21: "local5", 22: "local6", 23: "local7",
}

// Facility names the part of the system.
func (p Priority) Facility() string {
	if f := int(p >> 3); f < len(facilities) && facilities[f] != "" {
		return facilities[f]
	}
	return fmt.Sprintf("facility %d", p>>3)
}

// Level is how urgent a record is: 0 is the most urgent (syslog(2)).
type Level int

// Warning is the least urgent level that Follow reports.
const Warning Level = 4

// levels are the names of levels, for sentences and as dmesg(1) has them.
var levels = []struct{ long, short string }{
	{"emergency", "emerg"}, {"alert", "alert"}, {"critical", "crit"}, {"error", "err"},
	{"warning", "warn"}, {"notice", "notice"}, {"info", "info"}, {"debug", "debug"},
}

func (l Level) String() string {
	if l < 0 || int(l) >= len(levels) {
		return fmt.Sprintf("level %d", int(l))
	}
	return levels[l].long
}

// Short is the name that dmesg(1) has for a level of a Priority.
func (l Level) Short() string { return levels[l].short }

// Levels returns all levels, the most urgent one first.
func Levels() []Level {
	all := make([]Level, len(levels))
	for i := range all {
		all[i] = Level(i)
	}
	return all
}

// Parse reads a record: "PRIORITY,SEQUENCE,MICROSECONDS,FLAGS...;TEXT\n" and lines of properties,
// which are dropped.
func Parse(record string) (r Record, err error) {
	head, text, ok := strings.Cut(record, ";")
	fields := strings.Split(head, ",")
	if !ok || len(fields) < 3 {
		return r, fmt.Errorf("klog: %.40q is not a record", record)
	}
	priority, err := strconv.ParseUint(fields[0], 10, 32)
	if err != nil {
		return r, fmt.Errorf("klog: record %.40q: priority: %w", record, err)
	}
	if r.Sequence, err = strconv.ParseUint(fields[1], 10, 64); err != nil {
		return r, fmt.Errorf("klog: record %.40q: sequence number: %w", record, err)
	}
	us, err := strconv.ParseUint(fields[2], 10, 63)
	if err != nil || us > math.MaxInt64/uint64(time.Microsecond) {
		return r, fmt.Errorf("klog: record %.40q: time in microseconds: %q", record, fields[2])
	}
	text, _, _ = strings.Cut(text, "\n")
	r.Priority, r.Time, r.Text = Priority(priority), time.Duration(us)*time.Microsecond, unescape(text)
	return r, nil
}

// unescape returns text without the escapes \xNN, in which Linux writes backslashes, control
// characters, and bytes that are not ASCII.
func unescape(text string) string {
	var plain strings.Builder
	for {
		before, after, found := strings.Cut(text, `\x`)
		plain.WriteString(before)
		if !found {
			return plain.String()
		}
		text = after
		if len(after) >= 2 {
			if b, err := strconv.ParseUint(after[:2], 16, 8); err == nil {
				plain.WriteByte(byte(b))
				text = after[2:]
				continue
			}
		}
		plain.WriteString(`\x`)
	}
}
