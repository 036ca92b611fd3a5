// Command suite is `make test`: it runs every test there is and sums up what came of them.
//
//	suite PACKAGE...
//
// The packages are those that are tested for arm64, too. What boots machines and guests, which waits a lot, runs beside what
// computes. The names of the tests that passed are written to bin/passed.txt, a package and a test in each line. With CI=true in
// the environment a skipped test is a failure. A test that docs/features.txt names and that did not run is one always.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"margay/tools/features/table"
	"margay/tools/suite/verdict"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), endings()...)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		os.Exit(1)
	}
}

// endings returns the signals that end a run. A go test is in a process group of its own, where no terminal signals it.
func endings() []os.Signal {
	ends := []os.Signal{os.Interrupt, syscall.SIGTERM}
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGQUIT} {
		if signal.Ignored(sig) {
			// Tests send these to what they start, which would ignore them if make was started so, as by nohup.
			signal.Notify(make(chan os.Signal, 1), sig)
		} else {
			ends = append(ends, sig)
		}
	}
	return ends
}

// step is one go test.
type step struct {
	name string
	dir  string   // where; empty: here
	env  []string // besides that of this process
	args []string // of go test -json
}

// These packages boot guests and machines, by the programs in bin: the race detector would not see these.
const (
	guests   = "margay/testsuite/guest"
	machines = "margay/testsuite/e2e"
)

// alone are tests that compute much with nothing beside them: random programs, simulated hours. The race detector would find nothing
// in them and make them ten times longer.
var alone = computing{
	"TestRegisters|TestCallsAgreesWithPortable|TestEmittedCode|TestConstantDivisors|TestProofsHold|TestWaitingSavesNothing|TestWeights|TestRandomNetwork|TestAllInterleavings|TestIncast",
	[]string{"./nimble/engine/direct", "./nimble/engine/subroutine", "./nimble/verify", "./ext/sched/weighted", "./kernel/fabric/reliable"},
}

// agree is one of them that takes as long as it is told: random programs on which the engines must agree. tools/soak gives it more.
var agree = computing{"TestAgreesWithPortable", []string{"./nimble/engine/direct", "./nimble/engine/subroutine"}}

const agreeTime = "MARGAY_AGREE=20s"

// computing names tests, with a | between them, and the packages that have them.
type computing struct {
	tests    string
	packages []string
}

// run returns the arguments of a go test of them alone, without the race detector.
func (c computing) run() []string {
	return append([]string{"-vet=off", "-count=1", "-timeout=15m", "-run=^(" + c.tests + ")$"}, c.packages...)
}

// plan returns what is to run. The lists run side by side, the steps of each one after the other, so that there are never many more
// processes that compute than a small host has processors. make check vets everything more strictly than go test would. What is tested
// with the race detector is not taken from an earlier run either: some of it starts programs that go test does not know.
func plan(packages, arm64 []string) [][]step {
	return [][]step{
		{
			// Without -count=1 go test would take the result of an earlier run when nothing that it knows of has changed: it does not
			// know what these tests run.
			{name: "guests", args: []string{"-vet=off", "-count=1", "-timeout=40m", guests}},
			{name: "machines", args: []string{"-vet=off", "-count=1", "-timeout=45m", machines}},
		},
		{
			{name: "race", args: append([]string{"-vet=off", "-race", "-count=1", "-timeout=30m", "-skip=^(" + alone.tests + "|" + agree.tests + ")$"}, packages...)},
			{name: "alone", args: alone.run()},
			{name: "agree", env: []string{agreeTime}, args: agree.run()},
			{name: "peers", dir: "tools/peers", args: []string{"-vet=off", "-race", "-timeout=15m", "./..."}},
			// Random proofs are arithmetic in Go, which knows no processor.
			{name: "arm64", env: []string{"GOARCH=arm64", "CGO_ENABLED=0"}, args: append([]string{"-vet=off", "-timeout=15m", "-skip=^(TestProofsHold|TestOperations)$", "-exec=qemu-aarch64-static"}, arm64...)},
		},
	}
}

func run(ctx context.Context, arm64 []string, out io.Writer) error {
	start := time.Now()
	packages, err := list(ctx)
	if err != nil {
		return err
	}
	suite := verdict.New(out)
	var lanes sync.WaitGroup
	for _, steps := range plan(packages, arm64) {
		lanes.Go(func() {
			for _, s := range steps {
				begin := time.Now()
				suite.Ended(s.name, s.run(ctx, suite, interruptDelay))
				fmt.Fprintf(out, "suite: %s took %v\n", s.name, time.Since(begin).Round(time.Second))
			}
		})
	}
	lanes.Wait()
	good := suite.Summary(out, os.Getenv("CI") == "true")
	if err := os.WriteFile(filepath.Join("bin", "passed.txt"), []byte(strings.Join(suite.Passed(), "\n")+"\n"), 0o644); err != nil {
		return fmt.Errorf("write the list of tests that passed: %w", err)
	}
	features, err := unproved(suite)
	if err != nil {
		return err
	}
	for _, line := range features {
		fmt.Fprintln(out, "suite:", line)
	}
	took := time.Since(start).Round(time.Second)
	switch {
	case ctx.Err() != nil:
		return errors.New("interrupted")
	case !good:
		return fmt.Errorf("not everything passed, after %v", took)
	case len(features) > 0:
		return fmt.Errorf("%d tests that docs/features.txt names did not run, after %v", len(features), took)
	}
	fmt.Fprintf(out, "suite: everything passed, after %v\n", took)
	return nil
}

// unproved returns what docs/features.txt claims and no test of this run has shown. A test that was skipped is in the summary.
func unproved(suite *verdict.Suite) ([]string, error) {
	text, err := os.ReadFile(filepath.Join("docs", "features.txt"))
	if err != nil {
		return nil, fmt.Errorf("read the table of features: %w", err)
	}
	features, err := table.Parse(string(text))
	if err != nil {
		return nil, fmt.Errorf("docs/features.txt: %w", err)
	}
	return features.Unproved(append(suite.Passed(), suite.Skipped()...)), nil
}

// list returns the packages of the module but for those of guests and machines.
func list(ctx context.Context) ([]string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "./...")
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	return slices.DeleteFunc(strings.Fields(string(text)), func(p string) bool { return p == guests || p == machines }), nil
}

// interruptDelay is how long tests have to end when they are interrupted.
const interruptDelay = 30 * time.Second

// run runs a step to its end. go test passes no signal on, and waits for its tests: so it has a process group of its own, all of
// which is interrupted with the context. What has not ended after delay is killed.
func (s step) run(ctx context.Context, suite *verdict.Suite, delay time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, s.args...)...)
	cmd.Dir, cmd.Env = s.dir, append(os.Environ(), s.env...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var end time.Time
	cmd.Cancel = func() error {
		end = time.Now().Add(delay)
		return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
	}
	cmd.WaitDelay = delay
	events, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("start go test: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start go test: %w", err)
	}
	suite.Read(s.name, events)
	err = cmd.Wait()
	if ctx.Err() != nil {
		group := -cmd.Process.Pid
		for syscall.Kill(group, 0) == nil && time.Now().Before(end) { // what tests have started may end after them
			time.Sleep(10 * time.Millisecond)
		}
		_ = syscall.Kill(group, syscall.SIGKILL) // mostly nothing is left of it
	}
	return err
}
