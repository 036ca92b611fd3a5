package serve

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
)

// spooled returns the records that a job's spool holds, in short.
func spooled(t *testing.T, dir string) (list []string) {
	t.Helper()
	f, err := os.Open(spoolPath(dir, 1))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for {
		frame, err := control.ReadFrame(f)
		if err != nil {
			return list
		}
		r := frame.GetRecord()
		list = append(list, fmt.Sprintf("%d.%d:%s", r.Node, r.Seq, r.Data))
	}
}

func output(node uint32, seq uint64, text string) *control.Record {
	return &control.Record{Job: 1, Node: node, Seq: seq, Stream: control.Stream_STREAM_STDOUT, Data: []byte(text)}
}

// A serve that was killed may have left half a record behind. Whatever of the file is there, the next one goes on behind the
// last whole record.
func TestSpoolIsCut(t *testing.T) {
	dir := t.TempDir()
	s, err := createSpool(dir, 1)
	if err != nil {
		t.Fatal(err)
	}
	var ends []int64
	for _, r := range []*control.Record{output(0, 1, "a"), output(1, 1, "b"), output(0, 2, "c")} {
		if err := s.write(r); err != nil {
			t.Fatal(err)
		}
		info, err := s.file.Stat()
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, info.Size())
	}
	s.close()
	whole, err := os.ReadFile(spoolPath(dir, 1))
	if err != nil {
		t.Fatal(err)
	}
	all := []string{"0.1:a", "1.1:b", "0.2:c"}
	for length := range int64(len(whole) + 1) {
		if err := os.WriteFile(spoolPath(dir, 1), whole[:length], 0o600); err != nil {
			t.Fatal(err)
		}
		s, seen, err := openSpool(dir, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.write(output(2, 9, "z")); err != nil {
			t.Fatal(err)
		}
		s.close()
		n := 0
		for n < len(ends) && ends[n] <= length {
			n++
		}
		if list := spooled(t, dir); !slices.Equal(list, append(slices.Clone(all[:n]), "2.9:z")) {
			t.Errorf("%d of %d bytes became %v", length, len(whole), list)
		}
		want := []map[uint32]uint64{{}, {0: 1}, {0: 1, 1: 1}, {0: 2, 1: 1}}[n]
		if !maps.Equal(seen, want) {
			t.Errorf("in %d bytes %v was seen", length, seen)
		}
	}
}

// What is more than the limit is thrown away, but not how the ranks ended. That holds after a restart, too.
func TestSpoolLimit(t *testing.T) {
	dir := t.TempDir()
	s, err := createSpool(dir, 1)
	if err != nil {
		t.Fatal(err)
	}
	s.limit = 10
	for i, text := range []string{"abc", "more", "more"} {
		if err := s.write(output(0, uint64(i+1), text)); err != nil {
			t.Fatal(err)
		}
	}
	exit := output(0, 4, "")
	exit.Stream, exit.Exit = control.Stream_STREAM_EXIT, &control.ExitStatus{Code: 1}
	if err := s.write(exit); err != nil {
		t.Fatal(err)
	}
	s.close()
	if list := spooled(t, dir); !slices.Equal(list, []string{"0.1:abc", "0.4:"}) {
		t.Errorf("the spool holds %v", list)
	}
}

// A record that cannot be written whole leaves nothing behind that would hide the next one.
func TestSpoolIsFull(t *testing.T) {
	dir := t.TempDir()
	s, err := createSpool(dir, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	signal.Ignore(unix.SIGXFSZ)
	defer signal.Reset(unix.SIGXFSZ)
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	if err := s.write(output(0, 1, "a")); err != nil {
		t.Fatal(err)
	}
	// Only now: go test writes a file of its own whenever the test opens one.
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1000, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	full := s.write(output(0, 2, strings.Repeat("x", 2000)))
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(full, unix.EFBIG) {
		t.Errorf("a record that does not fit: %v", full)
	}
	if err := s.write(output(0, 3, "c")); err != nil {
		t.Fatal(err)
	}
	if list := spooled(t, dir); !slices.Equal(list, []string{"0.1:a", "0.3:c"}) {
		t.Errorf("the spool holds %v", list)
	}
}
