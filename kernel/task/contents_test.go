//go:build !guest

package task_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"os"
	"slices"
	"testing"

	"margay/kernel/abi/archive"
)

// A file that a job has brought can be given to a later one, whose archive has only its digest.
func TestContents(t *testing.T) {
	exe, err := application()
	if err != nil {
		t.Fatal(err)
	}
	digest := archive.Digest(sha256.Sum256(exe))
	run := func(data []byte, files ...*os.File) *events {
		t.Helper()
		app := tar.Header{Name: "bin/app", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(data)), PAXRecords: map[string]string{archive.Content: digest.String()}}
		packed, err := pack(entry{app, data})
		if err != nil {
			t.Fatal(err)
		}
		e := newEvents()
		c := prepare(t, spec(2, "hello"), e)
		if err := c.Give("", slices.Repeat([]archive.Digest{digest}, len(files)), files); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := errors.Join(c.Unpack(ctx, bytes.NewReader(packed)), c.Start(ctx)); err != nil {
			t.Fatal(err)
		}
		e.await(t, "two exits", func() bool { return len(e.exits()) == 2 && e.exits()[0].Code == 7 })
		return e
	}
	e := run(exe)
	e.await(t, "the application's content", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.contents) == 1 && e.contents[0] == nil
	})
	held, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if _, err := held.Write(exe); err != nil {
		t.Fatal(err)
	}
	// More than one packet takes.
	e = run(nil, slices.Repeat([]*os.File{held}, 100)...)
	if e.mu.Lock(); len(e.contents) > 0 {
		t.Errorf("a content that the node had is passed on: %v", e.contents)
	}
	e.mu.Unlock()
}
