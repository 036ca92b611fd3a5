package driver

import (
	"strings"
	"testing"
)

// Linux's line about a firmware file that is not there names the driver, the device and the file.
func TestLack(t *testing.T) {
	l, ok := ParseLack("e100 0000:00:02.0: Direct firmware load for e100/d102e_ucode.bin failed with error -2")
	if !ok || l != (Lack{"e100", "0000:00:02.0", "e100/d102e_ucode.bin"}) {
		t.Errorf("%+v, %v", l, ok)
	}
	for _, want := range []string{"e100/d102e_ucode.bin", "0000:00:02.0", "driver e100", "--card-firmware"} {
		if !strings.Contains(l.String(), want) {
			t.Errorf("%q is without %s", l, want)
		}
	}
	for _, line := range []string{
		"", "e100 0000:00:02.0: Direct firmware load for x failed with error -22", // it is there, and broken
		"e100: Direct firmware load for x failed with error -2",
		" 0: Direct firmware load for x failed with error -2",
		"a job says e100 0: Direct firmware load for x failed with error -2",
		"e100 0: Direct firmware load for  failed with error -2",
		"e100 0: Direct firmware load for x failed with error -2 and more",
	} {
		if l, ok := ParseLack(line); ok {
			t.Errorf("%q: %+v", line, l)
		}
	}
}
