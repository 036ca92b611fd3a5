package peer

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fakeMPIExec is a command that takes the place of mpiexec.
func fakeMPIExec(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mpiexec")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// mpiexec gets the number of ranks and the program, after words of its own, and over TCP variables.
func TestMPIExec(t *testing.T) {
	t.Setenv("UCX_TLS", "")
	path := fakeMPIExec(t, `echo "$@" "$MPIR_CVAR_NOLOCAL" "$UCX_TLS" "$UCX_NET_DEVICES"`)
	for tcp, want := range map[bool]string{false: "-v -n 3 prog arg", true: "-v -n 3 prog arg 1 tcp,self lo"} {
		output, took, err := MPIExec{Words: []string{path, "-v"}, TCP: tcp}.Run(t.Context(), time.Hour, 3, []string{"prog", "arg"})
		if err != nil || strings.TrimSpace(output) != want || took <= 0 {
			t.Errorf("%q, %v, %v", output, took, err)
		}
	}
}

// A run that has not ended at the limit is ended, and its error says so. The end of the context is
// not taken for the limit.
func TestMPIExecLimit(t *testing.T) {
	path := fakeMPIExec(t, "exec sleep 3600")
	m := MPIExec{Words: []string{path}}
	if _, _, err := m.Run(t.Context(), time.Millisecond, 1, nil); err == nil || err.Error() != path+": it had not ended after 1ms" {
		t.Error(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if _, _, err := m.Run(ctx, time.Hour, 1, nil); err == nil || strings.Contains(err.Error(), "after") {
		t.Error(err)
	}
	path = fakeMPIExec(t, "echo no luck >&2; exit 3")
	if _, _, err := (MPIExec{Words: []string{path}}).Run(t.Context(), time.Hour, 1, nil); err == nil || !strings.HasSuffix(err.Error(), "exit status 3: no luck") {
		t.Error(err)
	}
}
