package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"margay/tools/suite/verdict"
)

// Each package is in one step with the race detector or in none, and the long steps begin first.
func TestPlan(t *testing.T) {
	racy := []string{"margay/cluster/serve", "margay/initramfs", "margay/kernel", "margay/kernel/task", "margay/lib/c/ctest", "margay/tools/suite", "margay/toolshed"}
	var names, tested []string
	for _, s := range plan([]string{"margay/single"}, racy, []string{"margay/arm"}) {
		names = append(names, s.name)
		if slices.Contains(s.args, "-race") && s.dir == "" {
			for _, path := range racy {
				if slices.Contains(s.args, path) {
					tested = append(tested, path)
				}
			}
		}
	}
	slices.Sort(tested)
	if !slices.Equal(tested, racy) {
		t.Errorf("with the race detector it tests %q", tested)
	}
	if want := []string{"guests", "alone", "plain", "peers", "arm64", "machines", "race others", "race cluster", "race kernel", "race tools"}; !slices.Equal(names, want) {
		t.Errorf("its steps are %q", names)
	}
}

// waits is a package whose test writes its process ID to a file and waits for an interrupt. It
// records the interrupt in a file and ends, unless STUBBORN is set.
const waits = `package waits

import (
	"os"
	"os/signal"
	"strconv"
	"testing"
)

func TestWaits(t *testing.T) {
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	say := func(name, text string) {
		if err := os.WriteFile(name+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(name+".new", name); err != nil {
			t.Fatal(err)
		}
	}
	say("pid", strconv.Itoa(os.Getpid()))
	<-interrupted
	say("interrupted", "")
	if os.Getenv("STUBBORN") != "" {
		select {}
	}
}
`

// Interrupting a run ends its tests: go test alone would neither signal them nor end before them.
func TestInterrupt(t *testing.T) {
	cases := []struct {
		name  string
		env   []string
		delay time.Duration
	}{
		{"ends on the interrupt", nil, time.Minute},
		{"is killed", []string{"STUBBORN=1"}, 100 * time.Millisecond},
	}
	for _, k := range cases {
		t.Run(k.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range map[string]string{"go.mod": "module waits\n", "waits_test.go": waits} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			ctx, interrupt := context.WithCancel(t.Context())
			s := step{name: "waits", dir: dir, env: append(k.env, "GOWORK=off"), args: []string{"-vet=off", "-count=1", "."}}
			ended := make(chan error, 1)
			go func() {
				_, err := s.run(ctx, verdict.New(io.Discard), k.delay)
				ended <- err
			}()
			pid := read(t, filepath.Join(dir, "pid"))
			interrupt()
			if err := <-ended; err == nil {
				t.Error("an interrupted run returned no error")
			}
			if k.env == nil {
				read(t, filepath.Join(dir, "interrupted"))
			}
			end := time.Now().Add(time.Minute)
			for runs(pid) { // a killed process needs time to end
				if time.Now().After(end) {
					t.Fatalf("the test still runs in process %s", pid)
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
}

// read waits for a file and returns its content.
func read(t *testing.T, path string) string {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		text, err := os.ReadFile(path)
		if err == nil {
			return string(text)
		}
		if !errors.Is(err, os.ErrNotExist) || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// runs reports whether a process exists and is not a zombie, see proc(5).
func runs(pid string) bool {
	text, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	_, state, _ := strings.Cut(string(text), ") ")
	return err == nil && !strings.HasPrefix(state, "Z")
}
