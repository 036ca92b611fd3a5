package margaytest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/tools/margay/root"
)

// As is the variable of the environment that makes the program of a test behave as margay.
const As = "MARGAY_TEST_AS_MARGAY"

// program is margay with all of its commands.
var program = root.Program("unknown")

// Main runs the tests of a package, or is margay where Shell or OnTerminal have started this
// program.
func Main(m *testing.M) {
	if os.Getenv(As) != "" {
		program.Main()
	}
	os.Exit(m.Run())
}

// Run carries out a command line of margay and returns its exit status.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return program.Run(ctx, args, stdin, stdout, stderr)
}

// Process is a margay, or a shell that starts some, that runs as a process of its own.
type Process struct {
	*exec.Cmd
	t        *testing.T
	Out, Err bytes.Buffer
}

// Shell makes a shell that has margay as $0.
func Shell(t *testing.T, script string) *Process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*Patience)
	t.Cleanup(cancel)
	p := &Process{Cmd: exec.CommandContext(ctx, "bash", "-c", script, self), t: t}
	p.Env = append(os.Environ(), As+"=1")
	p.Stdout, p.Stderr = &p.Out, &p.Err
	return p
}

// Begin starts it.
func (p *Process) Begin() *Process {
	p.t.Helper()
	if err := p.Start(); err != nil {
		p.t.Fatal(err)
	}
	return p
}

// Status waits for the end and returns the exit status.
func (p *Process) Status() int {
	p.t.Helper()
	if err := p.Wait(); p.ProcessState == nil {
		p.t.Fatal(err)
	}
	return p.ProcessState.ExitCode()
}

// Wants demands a status and texts that are in what a command wrote.
func Wants(t *testing.T, status, want int, text string, parts ...string) {
	t.Helper()
	if status != want {
		t.Errorf("status %d instead of %d: %s", status, want, text)
	}
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q does not have %q", text, part)
		}
	}
}

// Margay runs the command and returns its exit status and what it wrote.
func Margay(stdin string, args ...string) (status int, stdout, stderr string) {
	var out, errors bytes.Buffer
	status = program.Run(context.Background(), args, strings.NewReader(stdin), &out, &errors)
	return status, out.String(), errors.String()
}

// Full is a file on a disk that is full.
type Full struct{}

// ErrFull is what writing to it fails with.
var ErrFull = errors.New("the disk is full")

func (Full) Write([]byte) (int, error) { return 0, ErrFull }

// Signal sends it a signal.
func (p *Process) Signal(sig unix.Signal) {
	p.t.Helper()
	if err := p.Cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// Ends demands that the process dies of a signal, or else exits with a status.
func (p *Process) Ends(sig unix.Signal, dies bool, status int) {
	p.t.Helper()
	code := p.Status()
	if w := p.ProcessState.Sys().(syscall.WaitStatus); w.Signaled() != dies || dies && w.Signal() != sig || !dies && code != status {
		p.t.Errorf("%v instead of %v %t, status %d: %s", p.ProcessState, sig, dies, status, p.Err.String())
	}
}

// Compile makes a program of C source.
func Compile(t *testing.T, source, out string, args ...string) {
	t.Helper()
	cmd := exec.Command("gcc", append([]string{"-x", "c", "-o", out, "-"}, args...)...)
	cmd.Stdin = bytes.NewBufferString(source)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, text)
	}
}

// AwaitText waits until a text has another in it.
func AwaitText(t *testing.T, said func() string, text string) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !strings.Contains(said(), text); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it says %q", said())
		}
	}
}
