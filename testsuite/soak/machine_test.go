//go:build soak

package soak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"margay/internal/check"
)

// bin is where make build puts the programs.
var bin = func() string {
	dir, err := filepath.Abs("../../bin")
	if err != nil {
		panic(err)
	}
	return dir
}()

// random returns the random numbers of a round.
func random(t *testing.T) *rand.Rand { return rand.New(rand.NewPCG(check.Seed(t), 0)) }

// build compiles one of testsuite/programs into a folder and returns its path.
func build(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	cmd := exec.Command("go", "build", "-o", path, "margay/testsuite/programs/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, out)
	}
	return path
}

// machine is a machine of one test, in its own folder, apart from all other machines.
type machine struct {
	t     *testing.T
	dir   string // MARGAY_DIR
	state string // MARGAY_STATE
	ended bool   // the test has ended it
}

// up makes a machine that ends with the test. It takes flags of margay machine up.
func up(t *testing.T, flags ...string) *machine {
	t.Helper()
	if _, err := os.Stat(filepath.Join(bin, "margay")); err != nil {
		t.Fatalf("%v: make build makes it", err)
	}
	// Names of sockets must be short, so the folder has a short one.
	dir, err := os.MkdirTemp("/tmp", "mgs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	m := &machine{t: t, dir: dir, state: t.TempDir()}
	if r := m.margay(append([]string{"machine", "up"}, flags...)...); r.code != 0 {
		t.Fatalf("machine up: %v", r)
	}
	t.Cleanup(func() {
		m.logs()
		if r := m.margay("machine", "down"); r.code != 0 && !m.ended {
			t.Errorf("machine down: %v", r)
		}
	})
	return m
}

// commandTimeout bounds one margay command.
const commandTimeout = 5 * time.Minute

// result is the result of a command.
type result struct {
	stdout, stderr []byte
	code           int // -1: it was killed, or could not be started
}

func (r result) String() string {
	return fmt.Sprintf("status %d\n--- stdout, %d bytes\n%s\n--- stderr\n%s", r.code, len(r.stdout), r.stdout[max(0, len(r.stdout)-2048):], r.stderr)
}

// command returns a margay command on the machine, not started yet. It is killed after
// commandTimeout.
func (m *machine) command(args ...string) (cmd *exec.Cmd, cancel context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	return m.commandFor(ctx, args...), cancel
}

// commandFor returns a margay command on the machine, not started yet. It is killed when ctx ends.
func (m *machine) commandFor(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "margay"), args...)
	cmd.Env = append(os.Environ(), "MARGAY_DIR="+m.dir, "MARGAY_STATE="+m.state)
	return cmd
}

// margay runs a margay command on the machine to its end.
func (m *machine) margay(args ...string) result {
	m.t.Helper()
	cmd, cancel := m.command(args...)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	r := result{stdout: stdout.Bytes(), stderr: stderr.Bytes()}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		r.code = exit.ExitCode()
	case err != nil:
		m.t.Errorf("margay %q: %v", args, err)
		r.code = -1
	}
	return r
}

// logs prints the last lines of the machine's logs when its test has failed.
func (m *machine) logs() {
	if !m.t.Failed() {
		return
	}
	files, _ := filepath.Glob(filepath.Join(m.dir, "*", "log", "*"))
	for _, file := range files {
		text, _ := os.ReadFile(file)
		lines := strings.Split(string(text), "\n")
		m.t.Logf("%s:\n%s", file, strings.Join(lines[max(0, len(lines)-30):], "\n"))
	}
}
