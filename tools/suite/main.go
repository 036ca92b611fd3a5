// Command suite is `make test`: it runs all tests and prints a summary.
//
//	suite PACKAGE...
//
// The arguments are the packages that are tested for arm64, too. Tests that boot machines and
// guests mostly wait, so they run in parallel with the tests that compute. The tests that passed
// are listed in bin/passed.txt, a package and a test per line. With CI=true in the environment, a
// skipped test is a failure. A test that docs/features.txt names and that did not run is always a
// failure.
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

// endings returns the signals that end a run. Each go test has its own process group, so a terminal
// does not signal it.
func endings() []os.Signal {
	ends := []os.Signal{os.Interrupt, syscall.SIGTERM}
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGQUIT} {
		if signal.Ignored(sig) {
			// Children inherit ignored signals, for example from nohup, but tests send these
			// signals to their children. A handler resets them at exec.
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
	dir  string   // empty: the current one
	env  []string // added to the environment of this process
	args []string // of go test -json
}

// These packages boot guests and machines from the programs in bin, which the race detector does
// not see.
const (
	guests   = "margay/testsuite/guest"
	machines = "margay/testsuite/e2e"
)

// alone are long computations in a single goroutine: random programs, simulated hours, lists of
// thousands of jobs. The race detector would find nothing in them and make them ten times slower.
var alone = computing{
	"TestRegisters|TestCallsAgreesWithPortable|TestEmittedCode|TestConstantDivisors|TestProofsHold|TestWaitingSavesNothing|TestWeights|TestRandomNetwork|TestAllInterleavings|TestIncast|TestListOfManyJobs|TestStateOfLargeJob|TestDamagedObjects|TestDrainModel",
	[]string{"./nimble/engine/direct", "./nimble/engine/subroutine", "./nimble/object", "./nimble/verify", "./ext/sched/weighted", "./kernel/fabric/reliable", "./cluster/serve"},
}

// agree is one of them with a configurable duration: random programs on which the engines must
// agree. tools/soak gives it more time.
var agree = computing{"TestAgreesWithPortable", []string{"./nimble/engine/direct", "./nimble/engine/subroutine"}}

const agreeTime = "MARGAY_AGREE=10s"

// computing names tests, separated by |, and their packages.
type computing struct {
	tests    string
	packages []string
}

// sequential are packages whose tests read the whole tree in a single goroutine, where the race
// detector finds nothing and takes eight times as long.
var sequential = []string{"margay/testsuite/layout", "margay/tools/prose"}

// plain leaves out what only debuggers read. A hundred programs of tests link a quarter faster.
const plain = "-ldflags=-s -w"

// run returns the arguments of a go test that runs only these tests, without the race detector.
func (c computing) run() []string {
	return append([]string{"-vet=off", plain, "-count=1", "-timeout=15m", "-run=^(" + c.tests + ")$"}, c.packages...)
}

// plan returns lists of steps. The lists run in parallel and the steps of a list in order, so that
// a small host never has many more computing processes than CPUs. What computes comes first beside
// the guests, which mostly wait, and the machines run beside the tests with the race detector. Vet
// is off, because make check vets more strictly. Results with the race detector are not cached,
// because some tests start programs that go test does not know as inputs.
func plan(packages, arm64 []string) [][]step {
	// Like make check and make build, so that nothing is compiled twice.
	plainly, racy := []string{"CGO_ENABLED=0"}, []string{"CGO_ENABLED=1"}
	return [][]step{
		{
			{name: "alone", env: plainly, args: alone.run()},
			{name: "sequential", env: plainly, args: append([]string{"-vet=off", plain, "-count=1", "-timeout=5m"}, sequential...)},
			{name: "agree", env: append([]string{agreeTime}, plainly...), args: agree.run()},
			{name: "peers", dir: "tools/peers", env: racy, args: []string{"-vet=off", "-race", "-timeout=15m", "./..."}},
			// Random proofs and damaged files are computing in Go, the same on every processor.
			{name: "arm64", env: append([]string{"GOARCH=arm64"}, plainly...), args: append([]string{"-vet=off", plain, "-short", "-timeout=15m", "-skip=^(TestProofsHold|TestOperations|TestDamagedObjects)$", "-exec=qemu-aarch64-static"}, arm64...)},
			// -count=1 disables the cache: go test does not know the programs that these tests
			// start.
			{name: "machines", env: plainly, args: []string{"-vet=off", "-count=1", "-timeout=45m", machines}},
		},
		{
			{name: "guests", env: plainly, args: []string{"-vet=off", "-count=1", "-timeout=40m", guests}},
			{name: "race", env: racy, args: append([]string{"-vet=off", plain, "-race", "-count=1", "-timeout=30m", "-skip=^(" + alone.tests + "|" + agree.tests + ")$"}, packages...)},
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
		return fmt.Errorf("tests failed, after %v", took)
	case len(features) > 0:
		return fmt.Errorf("%d tests that docs/features.txt names did not run, after %v", len(features), took)
	}
	fmt.Fprintf(out, "suite: all tests passed, after %v\n", took)
	return nil
}

// unproved returns the claims of docs/features.txt whose tests did not run. A skipped test counts
// as run here: the summary lists it.
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

// list returns the packages of the module that are tested with the race detector.
func list(ctx context.Context) ([]string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "./...")
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	others := append([]string{guests, machines}, sequential...)
	return slices.DeleteFunc(strings.Fields(string(text)), func(p string) bool { return slices.Contains(others, p) }), nil
}

// interruptDelay is the time that interrupted tests have to end.
const interruptDelay = 30 * time.Second

// run runs a step to its end. go test waits for its tests and forwards no signals, so it gets its
// own process group. When ctx ends, run interrupts the whole group, and after delay it kills the
// rest.
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
		for syscall.Kill(group, 0) == nil && time.Now().Before(end) { // children of tests may outlive them
			time.Sleep(10 * time.Millisecond)
		}
		_ = syscall.Kill(group, syscall.SIGKILL) // usually the group is empty by now
	}
	return err
}
