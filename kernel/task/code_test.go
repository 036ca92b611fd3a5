//go:build !guest

package task_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/archive"
	"margay/kernel/task"
)

// Ranks cannot change a file with code, whether the job has brought it or the node had it. If the
// node has it mounted, the job executes the node's file and not a copy.
func TestCode(t *testing.T) {
	exe, err := application()
	if err != nil {
		t.Fatal(err)
	}
	digest := archive.Digest(sha256.Sum256(exe))
	mounted, other, empty := uncovered(t), uncovered(t), uncovered(t)
	held := writeFile(t, filepath.Join(mounted, digest.String()), exe)
	writeFile(t, filepath.Join(other, digest.String()), []byte("another file by that name"))
	run := func(data []byte, folder string, files ...*os.File) string {
		t.Helper()
		app := tar.Header{Name: "bin/app", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(data)),
			PAXRecords: map[string]string{archive.Content: digest.String(), archive.Code: "1"}}
		packed, err := pack(entry{app, data})
		if err != nil {
			t.Fatal(err)
		}
		e := newEvents()
		c := prepare(t, spec(1, "code"), e)
		for _, f := range files {
			if err := c.Give(folder, []archive.Digest{digest}, []*os.File{f}); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := errors.Join(c.Unpack(ctx, bytes.NewReader(packed)), c.Start(ctx)); err != nil {
			t.Fatal(err)
		}
		e.await(t, "its end", func() bool { return len(e.exits()) == 1 })
		return e.text(0, task.Stdout)
	}
	const refused = `chmod /bin/app: read-only file system
remove /bin/app: device or resource busy
rename /bin/app /bin/b: device or resource busy
`
	var st unix.Stat_t
	if err := unix.Fstat(int(held.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	inode := fmt.Sprintf("inode %d %d\n", st.Dev, st.Ino)
	for _, c := range []struct {
		name   string
		shared bool
		out    string
	}{
		{"brought", false, run(exe, mounted)},
		{"mounted", true, run(nil, mounted, held)},
		{"mounted nowhere", false, run(nil, "", held)},
		{"given up", false, run(nil, empty, held)},
		{"another file", false, run(nil, other, held)},
	} {
		rest, ok := strings.CutPrefix(c.out, refused)
		if !ok || !strings.HasPrefix(rest, "inode ") || (rest == inode) != c.shared {
			t.Errorf("%s: the rank says\n%sthe node's file is %s", c.name, c.out, inode)
		}
	}
}

// uncovered makes a folder which is not in /tmp, where job inits build the root of their job.
func uncovered(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/run", "margay-code")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func writeFile(t *testing.T, path string, data []byte) *os.File {
	t.Helper()
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
