// Package guest runs tests inside a virtual machine, where they are root and have a Linux kernel to
// themselves.
//
// Run compiles the tests of packages, adds the binaries to a node image whose init is
// testsuite/programs/guestinit, boots it under emulation and reads the results from its console
// (package report). Show makes each test inside a subtest of a test outside. No test is skipped
// inside, and a test without a verdict has failed.
//
// A test that must not run elsewhere, because it would change the machine it runs on, is in a file
// with the build tag guest. Of most packages only such tests run in a guest: emulation costs
// several times as much as the run outside that the others have anyway.
package guest

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"margay/cluster/provision"
	"margay/cluster/provision/emulator"
	"margay/initramfs"
	"margay/kernel/usage"
	"margay/qemu"
	"margay/qemu/console"
	"margay/testsuite/guest/report"
)

// Spec describes the tests and the guest. Only Packages and Dir are required.
type Spec struct {
	Packages  []Package
	Programs  []string          // import paths of commands that tests start; a guest has them in report.Folder
	Dir       string            // a folder for binaries and the image
	Tags      string            // build tags besides guest, separated by commas; may be empty
	Pattern   string            // of the tests to run, as in go test -run; empty: all
	CPUs      int               // 0: 2, the second one isolated as on a node
	MemoryMiB int               // 0: 512
	Boot      initramfs.Profile // how the second CPU is isolated
	Told      func(format string, args ...any)
}

// Package is a package whose tests run. The last elements of the import paths in one Spec differ.
type Package struct {
	Path    string        // import path
	All     bool          // tests in files without the build tag guest run, too
	Timeout time.Duration // for its tests; 0: DefaultTimeout
	Profile bool          // make a coverage profile, without the children of tests
}

// binary is the name of the test binary.
func (p Package) binary() string { return path.Base(p.Path) + ".test" }

// DefaultTimeout bounds the tests of one package.
const DefaultTimeout = 8 * time.Minute

// bootTimeout bounds the boot and shutdown of a guest. overtime is added to the timeout of a test
// binary, which should fail by its own timeout first.
const (
	bootTimeout = 90 * time.Second
	overtime    = 10 * time.Second
)

// boots is the number of attempts for a guest that dies before it is up. Emulation is not perfect.
const boots = 2

// Result is the result of the tests of one package.
type Result struct {
	Package string
	Output  []byte // of the test binary, in the form that go tool test2json reads
	Ended   bool   // the test binary ended; otherwise it hung, or the guest died
	Exit    string // how it ended; empty if its exit status was 0 and it left no process behind
	Profile []byte // coverage profile, if it was written
}

// Run runs the tests of the packages in order in one guest. An error is an error of the guest, and
// Run then returns the results so far. Failed tests are not an error.
func Run(ctx context.Context, s Spec) ([]Result, error) {
	s.complete()
	found, err := provision.FindEmulator(ctx, emulator.Options{Arch: qemu.AMD64, Program: os.Getenv("QEMU"), Told: s.Told})
	if err != nil {
		return nil, err
	}
	s.Told("QEMU %v", found.Version())
	config, err := s.build(ctx)
	if err != nil {
		return nil, err
	}
	for boot := 1; ; boot++ {
		results, up, err := s.boot(ctx, found, config)
		if up || boot == boots || ctx.Err() != nil {
			return results, err
		}
		s.Told("the guest was not up, boot %d of %d: %v", boot, boots, err)
	}
}

func (s *Spec) complete() {
	s.Packages = slices.Clone(s.Packages)
	for i := range s.Packages {
		s.Packages[i].Timeout = cmp.Or(s.Packages[i].Timeout, DefaultTimeout)
	}
	if s.CPUs == 0 {
		s.CPUs = 2
	}
	if s.MemoryMiB == 0 {
		s.MemoryMiB = 512
	}
	if s.Told == nil {
		s.Told = func(string, ...any) {}
	}
}

// build makes the image of the guest.
func (s *Spec) build(ctx context.Context) (qemu.Config, error) {
	programs := append([]string{"margay/testsuite/programs/guestinit"}, s.Programs...)
	if err := goTool(ctx, append([]string{"build", "-trimpath", "-ldflags=-s -w", "-o", s.Dir + "/"}, programs...)...); err != nil {
		return qemu.Config{}, err
	}
	init := filepath.Join(s.Dir, "guestinit")
	image, err := provision.BuildImage(ctx, provision.ImageOptions{Program: init, Kernel: os.Getenv("KERNEL"), Plain: true})
	if err != nil {
		return qemu.Config{}, err
	}
	kernel, err := provision.DirectKernel(image.Kernel)
	if err != nil {
		return qemu.Config{}, err
	}
	files, err := s.tests(ctx)
	if err != nil {
		return qemu.Config{}, err
	}
	config := qemu.Config{
		Name: "test-guest", Kernel: kernel, Initrd: filepath.Join(s.Dir, "guest.img"),
		MemoryMiB: s.MemoryMiB, CPUs: s.CPUs,
		Console: console.Config{Path: filepath.Join(s.Dir, "console")},
	}
	// What Linux has to say would come between the pieces of an event, unless it is that all is
	// lost.
	config.Cmdline, err = initramfs.Cmdline(image.Kernel, s.Boot, s.CPUs, "loglevel=2", "panic_on_oops=1")
	if err != nil {
		return qemu.Config{}, err
	}
	return config, initramfs.WriteNodeImage(image.Path, files, config.Initrd)
}

// tests compiles the tests and writes the plan.
func (s *Spec) tests(ctx context.Context) ([]initramfs.File, error) {
	if err := s.compile(ctx); err != nil {
		return nil, err
	}
	module, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	root := filepath.Dir(string(module))
	var plan report.Plan
	var files []initramfs.File
	for _, program := range s.Programs {
		name := path.Base(program)
		files = append(files, initramfs.File{Path: path.Join(report.Folder, name), Mode: 0o755, Source: filepath.Join(s.Dir, name)})
	}
	for _, pkg := range s.Packages {
		name := pkg.binary()
		source := filepath.Join(s.Dir, name)
		if _, err := os.Stat(source); err != nil {
			return nil, fmt.Errorf("package %s has no tests: %w", pkg.Path, err)
		}
		binary := initramfs.File{Path: path.Join(report.Folder, name), Mode: 0o755, Source: source}
		pattern := s.Pattern
		if pattern == "" && !pkg.All {
			names, err := tagged(filepath.Join(root, strings.TrimPrefix(pkg.Path, "margay/")), s.Tags)
			if err != nil {
				return nil, fmt.Errorf("package %s: %w", pkg.Path, err)
			}
			pattern = "^(" + strings.Join(names, "|") + ")$"
		}
		run := report.Run{Argv: []string{
			binary.Path, "-test.v=test2json", "-test.paniconexit0", "-test.run=" + pattern, "-test.timeout=" + pkg.Timeout.String(),
		}, Env: passedOn()}
		if pkg.Profile {
			run.Profile = "/tmp/" + name + ".cover"
			run.Argv = append(run.Argv, "-test.coverprofile="+run.Profile)
		}
		plan.Runs = append(plan.Runs, run)
		files = append(files, binary)
	}
	text, err := json.Marshal(plan)
	return append(files, initramfs.File{Path: report.PlanPath, Data: text}), err
}

// passedOn returns the variables of this process that tests in the guest have, too: the seed of
// random tests (check.Seed), if there is one.
func passedOn() []string {
	if seed, is := os.LookupEnv("MARGAY_SEED"); is {
		return []string{"MARGAY_SEED=" + seed}
	}
	return nil
}

// compile compiles the tests side by side, those with coverage apart. What make check vets is not
// vetted again.
func (s *Spec) compile(ctx context.Context) error {
	for _, profile := range []bool{false, true} {
		args := []string{"test", "-c", "-vet=off", "-tags=guest," + s.Tags, "-cover=" + strconv.FormatBool(profile), "-ldflags=-s -w", "-o", s.Dir + "/"}
		before := len(args)
		for _, pkg := range s.Packages {
			if pkg.Profile == profile {
				args = append(args, pkg.Path)
			}
		}
		if len(args) == before {
			continue
		}
		if err := goTool(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// goTool runs the go command. What it builds is static, because a guest has no libraries.
func goTool(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+string(qemu.AMD64))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", args[0], err, out)
	}
	return nil
}

// boot boots the guest once. It also returns whether the guest was up.
func (s *Spec) boot(ctx context.Context, e *qemu.Emulator, config qemu.Config) ([]Result, bool, error) {
	limit := bootTimeout
	for _, pkg := range s.Packages {
		limit += pkg.Timeout + overtime
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the guest is not done after %v", limit))
	defer cancel()
	vm, err := e.Start(context.WithoutCancel(ctx), config)
	if err != nil {
		return nil, false, err
	}
	defer func() {
		_ = vm.Kill()
		<-vm.Done()
	}()
	c := newCollector(s)
	c.processor = func() time.Duration {
		spent, _ := usage.CPU(vm.PID()) // 0 when it has ended
		return spent
	}
	if err := c.follow(ctx, vm.Console()); err != nil {
		if exit := vm.Exit(); exit != nil {
			err = errors.Join(err, exit)
		}
		return c.results, c.up, fmt.Errorf("%w; the last lines of its console:\n%s", err, bytes.Join(c.noise, nil))
	}
	select {
	case <-vm.Done():
		return c.results, true, nil
	case <-ctx.Done():
		return c.results, true, fmt.Errorf("the guest does not turn off: %w", context.Cause(ctx))
	}
}

// collector turns the events of a guest into results.
type collector struct {
	told      func(format string, args ...any)
	processor func() time.Duration // what the guest has taken of the host's processors; may be nil
	reader    report.Reader
	up        bool
	started   time.Time     // start of the current run
	spent     time.Duration // of the host's processors, until then
	packed    [][]byte      // compressed profiles
	results   []Result
	noise     [][]byte // the last lines of the console that were not events
}

// maxNoise is the number of lines of noise that are kept.
const maxNoise = 100

func newCollector(s *Spec) *collector {
	c := &collector{told: s.Told, results: make([]Result, len(s.Packages)), packed: make([][]byte, len(s.Packages))}
	for i, pkg := range s.Packages {
		c.results[i].Package = pkg.Path
	}
	return c
}

// How a guest can end without the event Done.
var (
	errSilent = errors.New("the guest ended before it was done")
	errGaveUp = errors.New("the guest gave up")
)

// follow takes in the lines of a console until the guest is done.
func (c *collector) follow(ctx context.Context, log *console.Log) error {
	for from := uint64(0); ; {
		lines, next, err := log.Follow(ctx, from)
		if err == io.EOF {
			return errSilent
		}
		if err != nil {
			return err
		}
		if missed := next - uint64(len(lines)) - from; missed > 0 {
			return fmt.Errorf("%w: %d lines went by too fast", report.ErrDamaged, missed)
		}
		for _, line := range lines {
			if done, err := c.line(line); done || err != nil {
				return err
			}
		}
		from = next
	}
}

// line takes in one line. It returns true when it is the last that matters.
func (c *collector) line(line string) (done bool, err error) {
	e, err := c.reader.Read(line)
	if e == nil {
		c.noise = append(c.noise, []byte(line+"\n"))
		c.noise = c.noise[max(0, len(c.noise)-maxNoise):]
		return false, err
	}
	if e.Run < 0 || e.Run >= len(c.results) {
		return false, fmt.Errorf("%w: there is no run %d", report.ErrDamaged, e.Run)
	}
	r := &c.results[e.Run]
	switch e.Kind {
	case report.Up:
		c.up, c.started = true, time.Now()
		c.told("the guest is up, after %v of a processor", c.took())
	case report.Output:
		r.Output = append(r.Output, e.Data...)
	case report.Profile:
		c.packed[e.Run] = append(c.packed[e.Run], e.Data...)
	case report.Exit:
		r.Ended, r.Exit = true, e.Text
		c.told("%s took %v, and %v of a processor", r.Package, time.Since(c.started).Round(time.Millisecond), c.took())
		c.started = time.Now()
		if r.Profile, err = unpack(c.packed[e.Run]); err != nil {
			return false, fmt.Errorf("coverage profile of %s: %w", r.Package, err)
		}
	case report.Failed:
		return true, fmt.Errorf("%w: %s", errGaveUp, e.Text)
	case report.Done:
		return true, nil
	}
	return false, nil
}

// took returns what the guest has taken of the host's processors since the last call.
func (c *collector) took() time.Duration {
	if c.processor == nil {
		return 0
	}
	before := c.spent
	c.spent = c.processor()
	return (c.spent - before).Round(10 * time.Millisecond)
}

// maxProfile bounds an unpacked coverage profile, in bytes.
const maxProfile = 64 << 20

func unpack(packed []byte) ([]byte, error) {
	if len(packed) == 0 {
		return nil, nil
	}
	zr, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(zr, maxProfile))
}
