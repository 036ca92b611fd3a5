//go:build !guest

package task_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"margay/kernel/abi/archive"
	"margay/kernel/link"
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

func TestBackpressure(t *testing.T) {
	e := newEvents()
	c := start(t, spec(1, "flood"), e)
	time.Sleep(500 * time.Millisecond)
	records := e.all()
	held := 0
	for _, r := range records {
		held += len(r.Data)
	}
	if held > 1<<20 {
		t.Fatalf("%d bytes came without an acknowledgement", held)
	}
	for len(e.exits()) == 0 {
		if err := c.Ack(uint64(len(records))); err != nil {
			t.Fatal(err)
		}
		acked := len(records)
		e.await(t, "more output", func() bool { return len(e.all()) > acked })
		records = e.all()
	}
	lines := strings.Split(strings.TrimSuffix(e.text(0, task.Stdout), "\n"), "\n")
	for i, line := range lines {
		if line != fmt.Sprint("line ", i) {
			t.Fatalf("line %d is %q", i, line)
		}
	}
	if len(lines) != flooded {
		t.Fatalf("%d lines", len(lines))
	}
}

// Nothing that an archive says gets out of the job's root.
func TestArchiveStaysInside(t *testing.T) {
	outside := t.TempDir()
	file := tar.Header{Name: "out/file", Typeflag: tar.TypeReg, Mode: 0o644}
	up := strings.Repeat("../", 20) + outside
	for name, c := range map[string]struct {
		entries []entry
		refused bool
	}{
		"through a link":    {[]entry{{Header: tar.Header{Name: "out", Typeflag: tar.TypeSymlink, Linkname: outside}}, {Header: file}}, true},
		"through a way up":  {[]entry{{Header: tar.Header{Name: "out", Typeflag: tar.TypeSymlink, Linkname: up}}, {Header: file}}, true},
		"device":            {[]entry{{Header: tar.Header{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}}}, true},
		"hard link":         {[]entry{{Header: tar.Header{Name: "passwd", Typeflag: tar.TypeLink, Linkname: "etc/passwd"}}}, true},
		"name that goes up": {[]entry{{Header: tar.Header{Name: up + "/file", Typeflag: tar.TypeReg, Mode: 0o644}}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			archive, err := pack(c.entries...)
			if err != nil {
				t.Fatal(err)
			}
			job := prepare(t, spec(1, "hello"), newEvents())
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if err := job.Unpack(ctx, bytes.NewReader(archive)); (err != nil) != c.refused {
				t.Error(err)
			}
		})
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("outside: %v, %v", left, err)
	}
}

// An init ends on request, even if its link is held open and full of unread messages.
func TestEndUnread(t *testing.T) {
	s, e := spec(1, "flood"), newEvents()
	s.Ranks[0].Stdin = false // the init would wait for room to say what of it was taken
	c := start(t, s, e)
	e.await(t, "more output than the link holds", func() bool { return len(e.text(0, task.Stdout)) > 1<<19 })
	left := members(t, c)
	item, err := c.Kept("job/1")
	if err != nil {
		t.Fatal(err)
	}
	c.Detach()
	conn, err := link.NewConn(item.Files[0])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.Send(link.New(task.Rewind, nil)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond) // for the link to be full
	if err := conn.Send(link.New(task.Quit, nil)); err != nil {
		t.Fatal(err)
	}
	awaitNone(t, left)
}
