package command

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/power"
	"margay/cluster/power/powertest"
)

// script writes a program and returns its path.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "power")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// The program gets its own arguments, the action and the node.
func TestProgram(t *testing.T) {
	path := script(t, `echo "$*" >>$(dirname $0)/calls
case $2 in
on) echo on >$(dirname $0)/state;;
off) rm $(dirname $0)/state;;
status) cat $(dirname $0)/state 2>/dev/null || echo off;;
*) echo >&2 "reset is "; echo >&2 "not possible"; exit 3;;
esac
`)
	p := Program{Args: []string{path, "rack1"}, Node: "node7"}
	for _, step := range []struct {
		action power.Action
		want   power.State
	}{{power.Look, power.Off}, {power.SwitchOn, power.On}, {power.SwitchOff, power.Off}} {
		if state, err := power.Carry(t.Context(), p, step.action); err != nil || state != step.want {
			t.Errorf("%s: %v, %v", step.action, state, err)
		}
	}
	if err := p.Reset(t.Context()); err == nil || !strings.HasSuffix(err.Error(), "rack1 reset node7: exit status 3: not possible") {
		t.Errorf("reset: %v", err)
	}
	calls, err := os.ReadFile(filepath.Join(filepath.Dir(path), "calls"))
	want := "status status on status status off status reset"
	if got := strings.ReplaceAll(strings.ReplaceAll(string(calls), "rack1 ", ""), " node7\n", " "); err != nil || strings.TrimSpace(got) != want {
		t.Errorf("it was called for %q, not %q: %v", got, want, err)
	}
}

// Programs that print nonsense, are missing, or do not end.
func TestBadPrograms(t *testing.T) {
	for text, want := range map[string]string{
		"printf 'o\\033n'":                          `status node7 printed "o?n", not on or off`,
		"yes | head -c 200000":                      "not on or off",
		"sleep 3 & echo sideways":                   `printed "sideways"`, // what it leaves behind holds its output
		"yes nonsense | head -c 200000 >&2; exit 1": "exit status 1",
	} {
		if _, err := (Program{Args: []string{script(t, text+"\n")}, Node: "node7"}).Status(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := (Program{Args: []string{"/nonexistent/power"}, Node: "node7"}).On(t.Context()); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a program that is missing: %v", err)
	}
}

// A program that does not end is killed at the end of the context, with its children.
func TestKilled(t *testing.T) {
	path := script(t, "sleep 600 >$(dirname $0)/fifo & wait\n")
	fifo := filepath.Join(filepath.Dir(path), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	late := errors.New("timed out")
	ctx, cancel := context.WithCancelCause(t.Context())
	dead := make(chan error, 1)
	go func() {
		f, err := os.Open(fifo) // when the child has opened it
		cancel(late)
		if err == nil {
			_, err = io.ReadAll(f) // until the child has ended
			f.Close()
		}
		dead <- err
	}()
	if err := (Program{Args: []string{path}, Node: "node7"}).Off(ctx); !errors.Is(err, late) {
		t.Errorf("a program that does not end: %v", err)
	}
	select {
	case err := <-dead:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(powertest.Patience):
		t.Error("its child is alive")
	}
}
