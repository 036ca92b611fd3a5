package command

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"margay/cluster/power"
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
	late := errors.New("timed out")
	ctx, cancel := context.WithCancelCause(t.Context())
	path := script(t, "echo $$ >$(dirname $0)/pid; sleep 600\n")
	go func() {
		for ctx.Err() == nil { // when it runs
			if text, err := os.ReadFile(filepath.Join(filepath.Dir(path), "pid")); err == nil && len(text) > 0 {
				cancel(late)
			}
		}
	}()
	if err := (Program{Args: []string{path}, Node: "node7"}).Off(ctx); !errors.Is(err, late) {
		t.Errorf("a program that does not end: %v", err)
	}
}
