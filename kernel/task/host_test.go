//go:build !guest

package task_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"margay/kernel/abi/archive"
	"margay/kernel/task"
)

// inGuest means that the tests have their own Linux kernel (testsuite/guest), and jobs their
// control groups.
const inGuest = false

// provide gives a job its application.
func provide(t *testing.T, c *task.Container) error {
	t.Helper()
	return load(t, c)
}

// Neither the bytes nor the number of files of a job are without bound, in its root and where its
// ranks share memory.
func TestRAMDisksAreBounded(t *testing.T) {
	exe, err := application()
	if err != nil {
		t.Fatal(err)
	}
	s := spec(1, "crowd", "/dev/shm", "/tmp")
	s.Memory, s.RAMDisk = 4<<20, int64(len(exe))+4<<20
	s.Env = append(s.Env, fmt.Sprint("MOST=", s.RAMDisk))
	e := newEvents()
	start(t, s, e)
	e.await(t, "end", func() bool { return len(e.exits()) == 1 })
	if got, want := e.text(0, task.Stdout), strings.Repeat("full: no space left on device\nno more files: no space left on device\n", 2); got != want {
		t.Errorf("%q, want %q; %q", got, want, e.text(0, task.Stderr))
	}
}

// Mounts are memory of Linux, so an archive cannot ask for any number of them.
func TestTooMuchCode(t *testing.T) {
	digest := archive.Digest(sha256.Sum256(nil))
	var entries []entry
	for i := range archive.MaxContents + 1 {
		entries = append(entries, entry{tar.Header{Name: fmt.Sprintf("lib/%d", i), Typeflag: tar.TypeReg, Mode: 0o755, Size: 1,
			PAXRecords: map[string]string{archive.Content: digest.String(), archive.Code: "1"}}, []byte("x")})
	}
	packed, err := pack(entries...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err = prepare(t, spec(1, "hello"), newEvents()).Unpack(ctx, bytes.NewReader(packed))
	if want := fmt.Sprintf("more than %d files with code", archive.MaxContents); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}
