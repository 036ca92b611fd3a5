package klog

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	for record, want := range map[string]Record{
		"12,339,5140900,-;NET: Registered; protocol family 10\n SUBSYSTEM=net\n DEVICE=n2\n": {339, 12, 5140900 * time.Microsecond, "NET: Registered; protocol family 10"},
		"6,0,0,-,caller=T1;\n":                                   {0, 6, 0, ""},
		"4,1,9223372036854775,c,later=fields;no line break":      {1, 4, 9223372036854775 * time.Microsecond, "no line break"},
		`4,1,2,-;\x1b[2J \xc3\xa4 \x5cx41 \x4 \xzz \n \x` + "\n": {1, 4, 2 * time.Microsecond, "\x1b[2J ä \\x41 \\x4 \\xzz \\n \\x"},
		"4294967295,18446744073709551615,2,-;x":                  {math.MaxUint64, math.MaxUint32, 2 * time.Microsecond, "x"},
	} {
		if got, err := Parse(record); err != nil || got != want {
			t.Errorf("%q: %+v, %v", record, got, err)
		}
	}
	for _, record := range []string{"", "no head", "x,1,1;text", "-1,1,1;text", "1,1;text", "1,,1;text", "1,-1,1,-;text", "1,1,-1;text", "1,1,9223372036854776;text", "4294967296,1,1;text"} {
		if r, err := Parse(record); err == nil {
			t.Errorf("%q was taken as %+v", record, r)
		}
	}
}

func TestPriority(t *testing.T) {
	for p, want := range map[Priority]string{0: "emergency kern", 12: "warning user", 30: "info daemon", 191: "debug local7", 99: "error facility 12", math.MaxUint32: "debug facility 536870911"} {
		if got := fmt.Sprint(p.Level(), " ", p.Facility()); got != want {
			t.Errorf("priority %d is %s, not %s", p, got, want)
		}
	}
}

func TestLevelNames(t *testing.T) {
	for level, want := range map[Level]string{0: "emergency", Warning: "warning", 7: "debug", 8: "level 8", -1: "level -1"} {
		if got := level.String(); got != want {
			t.Errorf("level %d is called %q, want %q", level, got, want)
		}
	}
	var names []string
	for _, l := range Levels() {
		names = append(names, l.Short())
	}
	if got := strings.Join(names, " "); got != "emerg alert crit err warn notice info debug" {
		t.Error(got)
	}
}

// A record that is read is as long as what was read at most, has a time, and, written again as
// Linux writes it, is the same record.
func FuzzParse(f *testing.F) {
	f.Add("6,1,2,-;text\n")
	f.Add(`12,339,5140900,c,caller=T1;a\x0ab` + "\n SUBSYSTEM=net\n")
	f.Fuzz(func(t *testing.T, record string) {
		r, err := Parse(record)
		if err != nil {
			return
		}
		if l := r.Priority.Level(); l < 0 || l > 7 || r.Time < 0 || len(r.Text) > len(record) || r.Priority.Facility() == "" {
			t.Fatalf("%q is %+v", record, r)
		}
		if again, err := Parse(asLinux(r)); err != nil || again != r {
			t.Fatalf("%+v becomes %+v, %v", r, again, err)
		}
	})
}

// asLinux writes a record as /dev/kmsg gives it.
func asLinux(r Record) string {
	var text strings.Builder
	for _, c := range []byte(r.Text) {
		if c < ' ' || c >= 127 || c == '\\' {
			fmt.Fprintf(&text, `\x%02x`, c)
		} else {
			text.WriteByte(c)
		}
	}
	return fmt.Sprintf("%d,%d,%d,-;%s\n", r.Priority, r.Sequence, r.Time.Microseconds(), text.String())
}
