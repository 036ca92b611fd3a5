// Command suite is `make test`: it runs all tests and prints a summary.
//
//	suite PACKAGE...
//
// The arguments are the packages that are tested for arm64, too. Tests that boot machines and
// guests mostly wait, so they run in parallel with the tests that compute. The tests that passed
// are listed in bin/passed.txt, a package and a test per line; bin/times.txt has the times of all
// tests, the longest first. With CI=true in the environment, a skipped test is a failure. A test
// that docs/features.txt names and that did not run is always a failure.
package main

import (
	"bytes"
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
	"margay/tools/suite/plain"
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
	exec string   // the emulator that runs the tests; empty: none
	args []string // of go test -json
}

// These packages boot guests and machines from the programs in bin, which the race detector does
// not see.
const (
	guests   = "margay/testsuite/guest"
	machines = "margay/testsuite/e2e"
)

// alone are long computations in a single goroutine, or in several that take turns: random
// programs, simulated hours, lists of thousands of jobs, killed writers of a history, models of
// requests and of collective operations, upcalls to a program in C. The race detector would find
// nothing in them and make them ten times slower.
var alone = computing{
	"TestRegisters|TestAgreesWithPortable|TestCallsAgreesWithPortable|TestEmittedCode|TestConstantDivisors|TestProofsHold|TestListOfManyJobs|TestStateOfLargeJob|TestTooManyJobs|TestDrainModel|TestLogModel|TestManyUpcalls|TestRequestModel|TestTreeModel",
	[]string{"./nimble/engine/direct", "./nimble/engine/subroutine", "./nimble/verify", "./cluster/serve", "./cluster/ledger", "./lib/c/ctest", "./kernel/abi/onesided", "./lib/collective"},
}

// computing names tests, separated by |, and their packages.
type computing struct {
	tests    string
	packages []string
}

// stripped leaves out what only debuggers read. A hundred programs of tests link a quarter faster.
const stripped = "-ldflags=-s -w"

// run returns the arguments of a go test that runs only these tests, without the race detector.
func (c computing) run() []string {
	return append([]string{"-vet=off", stripped, "-count=1", "-timeout=15m", "-run=^(" + c.tests + ")$"}, c.packages...)
}

// atOnce is how many steps run at the same time. A third would not leave guests and machines enough
// of two CPUs: their emulated kernels fail more often then.
const atOnce = 2

// plan returns the steps in the order in which they begin, each when an earlier one has ended. The
// packages in racy are tested with the race detector, those in single without. What computes comes
// first beside the guests, which mostly wait. The machines take longest and run beside the tests
// with the race detector, which are in parts, so that the last two steps end close together. Vet is
// off, because make check vets more strictly. Results with the race detector are not cached,
// because some tests start programs that go test does not know as inputs.
func plan(single, racy, arm64 []string) []step {
	// Like make check and make build, so that nothing is compiled twice.
	static, cgo := []string{"CGO_ENABLED=0"}, []string{"CGO_ENABLED=1"}
	steps := []step{
		// -count=1 disables the cache: go test does not know the programs that these tests start.
		{name: "guests", env: static, args: []string{"-vet=off", "-count=1", "-timeout=40m", guests}},
		{name: "alone", env: static, args: alone.run()},
		{name: "plain", env: static, args: append([]string{"-vet=off", stripped, "-count=1", "-timeout=15m"}, single...)},
		// Its packages begin no goroutine, and another step tests package bench, which does.
		{name: "peers", dir: "tools/peers", env: static, args: []string{"-vet=off", stripped, "-timeout=15m", "./..."}},
		// Random proofs, programs and histories and damaged files are computing in Go, the same on
		// every processor, and so is a compiler's output for BPF.
		{name: "arm64", env: append([]string{"GOARCH=arm64"}, static...), exec: "qemu-aarch64-static", args: append([]string{"-vet=off", stripped, "-short", "-timeout=15m", "-skip=^(TestProofsHold|TestOperations|TestDamagedObjects|TestAgreesWithPortable|TestModel|TestRequestModel|TestTranslation|TestRandomPrograms|TestProofsGivenUp|TestObjectsAreReproducible)$"}, arm64...)},
		{name: "machines", env: static, args: []string{"-vet=off", "-count=1", "-timeout=45m", machines}},
	}
	// A program with the race detector sleeps for a second at its end, so that a goroutine that is
	// left can show a race, and ranks are such programs, too. A tenth of a second is enough.
	raced := append([]string{"GORACE=atexit_sleep_ms=100"}, cgo...)
	for _, p := range parts(racy) {
		steps = append(steps, step{name: "race " + p.folder, env: raced, args: append([]string{"-vet=off", stripped, "-race", "-count=1", "-timeout=30m", "-skip=^(" + alone.tests + ")$"}, p.packages...)})
	}
	return steps
}

// part is the packages of a folder of the module, or of several.
type part struct {
	folder   string
	packages []string
}

// parts divides packages into parts that take similar times, the shortest last.
func parts(packages []string) []part {
	all := []part{{folder: "others"}, {folder: "cluster"}, {folder: "kernel"}, {folder: "tools"}}
	for _, path := range packages {
		folder, _, _ := strings.Cut(strings.TrimPrefix(path, "margay/"), "/")
		i := max(0, slices.IndexFunc(all, func(p part) bool { return p.folder == folder }))
		all[i].packages = append(all[i].packages, path)
	}
	return all
}

func run(ctx context.Context, arm64 []string, out io.Writer) error {
	start := time.Now()
	single, racy, err := list(ctx)
	if err != nil {
		return err
	}
	suite := verdict.New(out)
	steps := make(chan step)
	var lanes sync.WaitGroup
	for range atOnce {
		lanes.Go(func() {
			for s := range steps {
				s.timed(ctx, suite, out)
				if s.name == "machines" {
					if names := suite.Spoiled(s.name); len(names) > 0 {
						s.name, s.args = "machines again", append(s.args, "-run=^("+strings.Join(names, "|")+")$")
						s.timed(ctx, suite, out)
					}
				}
			}
		})
	}
	for _, s := range plan(single, racy, arm64) {
		steps <- s
	}
	close(steps)
	lanes.Wait()
	good := suite.Summary(out, os.Getenv("CI") == "true")
	for name, lines := range map[string][]string{"passed.txt": suite.Passed(), "times.txt": suite.Times()} {
		if err := os.WriteFile(filepath.Join("bin", name), []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			return fmt.Errorf("write a list of the tests: %w", err)
		}
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

// timed runs a step, and prints how long it took.
func (s step) timed(ctx context.Context, suite *verdict.Suite, out io.Writer) {
	begin := time.Now()
	used, err := s.run(ctx, suite, interruptDelay)
	suite.Ended(s.name, err)
	fmt.Fprintf(out, "suite: %s took %v, and %v of a processor\n", s.name, time.Since(begin).Round(time.Second), used.Round(time.Second))
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

// list returns the packages of the module with tests, apart from those that boot machines: those
// that are plain (see package plain), and the others.
func list(ctx context.Context) (single, racy []string, err error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-json="+plain.Fields, "./...")
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, nil, fmt.Errorf("go list: %w", err)
	}
	all, err := plain.Decode(bytes.NewReader(text))
	if err != nil {
		return nil, nil, err
	}
	if single, err = plain.Packages(all); err != nil {
		return nil, nil, err
	}
	for _, p := range all {
		path := p.ImportPath
		if len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 && path != guests && path != machines && !slices.Contains(single, path) {
			racy = append(racy, path)
		}
	}
	return single, racy, nil
}

// interruptDelay is the time that interrupted tests have to end.
const interruptDelay = 30 * time.Second

// run runs a step to its end. go test waits for its tests and forwards no signals, so it gets its
// own process group. When ctx ends, run interrupts the whole group, and after delay it kills the
// rest. It returns the processor time of the step, except of processes that outlive their
// parents, such as virtual nodes.
func (s step) run(ctx context.Context, suite *verdict.Suite, delay time.Duration) (used time.Duration, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	// Compilers and linkers that collect garbage less often take less processor time. The tests run
	// without this setting.
	command := strings.TrimSpace("env -u GOGC " + s.exec)
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json", "-exec=" + command}, s.args...)...)
	cmd.Dir, cmd.Env = s.dir, append(append(os.Environ(), "GOGC=400"), s.env...)
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
		return 0, fmt.Errorf("start go test: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start go test: %w", err)
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
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), err
}
