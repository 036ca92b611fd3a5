//go:build !guest

package schedext

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"margay/internal/check"
	"margay/kernel/sched"
)

// The constants of skeleton.c equal the constants of package sched and of this package.
func TestConstants(t *testing.T) {
	source, err := os.ReadFile("skeleton.c")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]uint64{
		"TURN": uint64(sched.Turn), "SHORTEST": uint64(sched.MinQuantum), "LONGEST": uint64(sched.MaxQuantum),
		"MAX_CPUS":   maxCPUs,
		"EVENT_HOLD": eventHold, "EVENT_FAULT": eventFault, "EVENT_RESCUE": eventRescue, "EVENT_EXIT": eventExit, "EVENT_SLOW": eventSlow,
		"EVENT_SWITCH": eventSwitch, "EVENT_LEFT": eventLeft, "EVENT_BORN": eventBorn,
	}
	defines, names := "", make(map[string]string)
	var events []string
	for _, define := range regexp.MustCompile(`(?m)^#define (\w+) .*$`).FindAllStringSubmatch(string(source), -1) {
		defines += define[0] + "\n"
		if strings.HasPrefix(define[1], "EVENT_") {
			events = append(events, define[1])
		}
	}
	for name := range want {
		names[name] = name
	}
	got := check.CValues(t, defines, names)
	for name, value := range want {
		if uint64(got[name]) != value {
			t.Errorf("%s is not %d in skeleton.c, but %d", name, value, got[name])
		}
	}
	if i := slices.IndexFunc(events, func(name string) bool { _, known := want[name]; return !known }); i >= 0 {
		t.Errorf("%s of skeleton.c is not known here", events[i])
	}
}
