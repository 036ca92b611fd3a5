// Package peer has the ways to exchange messages that Margay is compared with: MPICH, Open MPI, UDP
// and TCP.
//
// The programs that measure share their main part, programs/measure.c, with Margay's own. MPI's is
// compiled when it is needed, by each MPI that is installed; the program of sockets is built with
// Margay. Where the user may make network namespaces (root), the nodes of the peers are namespaces
// joined by a bridge, as Margay's hosted nodes are; otherwise they are processes that talk over
// loopback. Namespaces have no names and end with this process.
package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"margay/tools/margay/bench/fabric"
)

// stopDelay is how long a program that is stopped may take to end.
const stopDelay = 2 * time.Second

// command makes a command that ends with ctx, with this process, and by no signal of a terminal.
func command(ctx context.Context, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopDelay
	return cmd
}

// run runs a command and returns its standard output. Its error has the first line of the standard
// error.
func run(cmd *exec.Cmd) (string, error) {
	runtime.LockOSThread() // Pdeathsig is sent when the thread ends that has started the command
	defer runtime.UnlockOSThread()
	var out, failure bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &failure
	if err := cmd.Run(); err != nil {
		return "", failed(cmd, err, failure.String())
	}
	return out.String(), nil
}

// failed is the error of a command.
func failed(cmd *exec.Cmd, err error, text string) error {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "---") {
			return fmt.Errorf("%s: %w: %s", cmd.Args[0], err, line)
		}
	}
	return fmt.Errorf("%s: %w", cmd.Args[0], err)
}

// report runs a command and reads the report of rank 0 from its output.
func report(cmd *exec.Cmd) (*fabric.Report, error) {
	out, err := run(cmd)
	if err != nil {
		return nil, err
	}
	return fabric.ReadReport([]byte(out))
}

// measurement is the end of the command line of a program that measures.
func measurement(c fabric.Case, length time.Duration) []string {
	return []string{c.Operation, fmt.Sprint(c.Bytes), fmt.Sprint(length.Milliseconds())}
}

// needs finds programs. The error names the package of the first one that is missing.
func needs(packages string, programs ...string) error {
	for _, name := range programs {
		if _, err := exec.LookPath(name); errors.Is(err, exec.ErrNotFound) {
			return fmt.Errorf("%s is not installed (Debian packages %s)", name, packages)
		} else if err != nil {
			return err
		}
	}
	return nil
}
