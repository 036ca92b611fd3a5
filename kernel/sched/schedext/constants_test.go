//go:build !guest

package schedext

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"margay/kernel/sched"
)

// The constants of skeleton.c equal the constants of package sched and of this package.
func TestConstants(t *testing.T) {
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("this test needs gcc")
	}
	source, err := os.ReadFile("skeleton.c")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]uint64{
		"TURN": uint64(sched.Turn), "SHORTEST": uint64(sched.MinQuantum), "LONGEST": uint64(sched.MaxQuantum),
		"MAX_CPUS":   maxCPUs,
		"EVENT_HOLD": eventHold, "EVENT_FAULT": eventFault, "EVENT_RESCUE": eventRescue, "EVENT_EXIT": eventExit, "EVENT_SLOW": eventSlow,
		"EVENT_SWITCH": eventSwitch, "EVENT_LEFT": eventLeft,
	}
	program := "#include <stdio.h>\n"
	var events []string
	for _, define := range regexp.MustCompile(`(?m)^#define (\w+) .*$`).FindAllStringSubmatch(string(source), -1) {
		program += define[0] + "\n"
		if strings.HasPrefix(define[1], "EVENT_") {
			events = append(events, define[1])
		}
	}
	program += "int main(void)\n{\n"
	for name := range want {
		program += fmt.Sprintf("\tprintf(\"%s %%llu\\n\", (unsigned long long)(%s));\n", name, name)
	}
	file := filepath.Join(t.TempDir(), "constants")
	if err := os.WriteFile(file+".c", []byte(program+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-o", file, file+".c").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	out, err := exec.Command(file).Output()
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range want {
		if line := fmt.Sprintf("%s %d\n", name, value); !strings.Contains(string(out), line) {
			t.Errorf("%s is not %d in skeleton.c:\n%s", name, value, out)
		}
	}
	if i := slices.IndexFunc(events, func(name string) bool { _, known := want[name]; return !known }); i >= 0 {
		t.Errorf("%s of skeleton.c is not known here", events[i])
	}
}
