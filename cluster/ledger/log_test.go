package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/check"
)

// small is a history whose files have room for a few records.
func small(t testing.TB) *Log {
	l := New(filepath.Join(t.TempDir(), "history"), "m", MinSize)
	l.most = 8 << 10
	return l
}

// longest is how long lines of records become in the model test.
const longest = 2500

// record is a short record, with a command that makes it longer.
func record(number uint32, longer int) *Record {
	return &Record{Run: "r", Job: number, Command: strings.Repeat("x", longer)}
}

// jobs returns the numbers of all jobs, the oldest first.
func jobs(t testing.TB, l *Log) (numbers []uint32, gaps Gaps) {
	t.Helper()
	gaps, err := l.Newest(func(r *Record) bool {
		numbers = append(numbers, r.Job)
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(numbers)
	return numbers, gaps
}

func TestAppend(t *testing.T) {
	l := small(t)
	if got, gaps := jobs(t, l); len(got) != 0 || gaps != (Gaps{}) {
		t.Errorf("without a history: %v, %v", got, gaps)
	}
	lost := record(2, 0)
	lost.Lost = 3
	if err := errors.Join(l.Append(record(1, 0)), l.Append(lost, record(3, 0)), l.Append(record(2, 0)), l.Append()); err != nil {
		t.Fatal(err)
	}
	other := record(3, 0)
	other.Run = "of another machine"
	if err := l.Append(other); err != nil {
		t.Fatal(err)
	}
	if got, gaps := jobs(t, l); !slices.Equal(got, []uint32{1, 3, 2, 3}) || gaps != (Gaps{}) {
		t.Errorf("%v, %v; the last record of job 2 is that it counts", got, gaps)
	}
	first := 0
	if _, err := l.Newest(func(r *Record) bool { first++; return first < 2 }); err != nil || first != 2 {
		t.Errorf("%d records came, %v; two were wanted", first, err)
	}
	for path, want := range map[string]fs.FileMode{"": fs.ModeDir | 0o700, "jobs.jsonl": 0o600, "lock": 0o600} {
		if info, err := os.Stat(filepath.Join(l.dir, path)); err != nil || info.Mode() != want {
			t.Errorf("%q has mode %v, %v", path, info.Mode(), err)
		}
	}
}

// Lost records are counted on a disk without room for a byte, and the next record that is written
// has their number.
func TestLose(t *testing.T) {
	l := small(t)
	broken := *l
	broken.effects.write = func(*os.File, []byte, int64) (int, error) { return 0, unix.ENOSPC }
	want := func(step string, lost, pending uint64) {
		t.Helper()
		info, err := os.Stat(filepath.Join(l.dir, "lock"))
		if err != nil || uint64(info.Size()) != pending {
			t.Errorf("%s: the lock is %v, %v; %d are to be counted next", step, info, err, pending)
		}
		if _, gaps := jobs(t, l); gaps != (Gaps{Lost: lost}) {
			t.Errorf("%s: the gaps are %+v, not %d", step, gaps, lost)
		}
	}
	if err := errors.Join(broken.Lose(2), broken.Lose(3)); err != nil {
		t.Fatal(err)
	}
	want("lost", 5, 5)
	first := record(1, 0)
	first.Lost = 7
	if err := broken.Append(first); !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
	want("not written", 5, 5)
	if err := errors.Join(l.Append(first, record(2, 0)), l.Append(), l.Append(record(3, 0))); err != nil {
		t.Fatal(err)
	}
	want("written", 12, 0)
	if first.Lost != 7 {
		t.Errorf("the caller's record has %d now", first.Lost)
	}
	if err := errors.Join(l.Lose(1<<63), l.Lose(1<<63)); err != nil {
		t.Error(err)
	}
}

// killed is a writer that is killed at a random step.
type killed struct {
	*Log
	steps int // until then
	left  int // bytes of the write that are written
}

// run runs f until it has ended or the writer is killed, and reports whether it has ended.
func (k *killed) run(f func() error) (ended bool, err error) {
	l := *k.Log
	l.effects.write = func(f *os.File, data []byte, at int64) (int, error) {
		if k.steps--; k.steps < 0 {
			_, _ = f.WriteAt(data[:min(k.left, len(data))], at)
			runtime.Goexit() // closes its files, as the end of a process does, and does nothing else
		}
		return f.WriteAt(data, at)
	}
	l.effects.rename = func(from, to string) error {
		if k.steps--; k.steps < 0 {
			runtime.Goexit()
		}
		return os.Rename(from, to)
	}
	k.Log = &l
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = f()
		ended = true
	}()
	<-done
	return ended, err
}

// Random writers leave a history that has all appended records in order, or the newest when there
// are too many. Some writers are killed at a random byte or between two renames.
func TestLogModel(t *testing.T) {
	seed := check.Seed(t)
	rounds := 30
	if os.Getenv("MARGAY_SOAK") != "" {
		rounds = 3000
	}
	for round := range rounds {
		rng := rand.New(rand.NewPCG(seed, uint64(round)))
		l := small(t)
		var certain, all []uint32 // appended; appended, or their writer was killed
		for range 10 + rng.IntN(60) {
			var batch []*Record
			for range 1 + rng.IntN(4) {
				r := record(uint32(len(all)+1), rng.IntN(1500))
				if all = append(all, r.Job); len(line(t, r)) > longest {
					t.Fatalf("a record has %d bytes", len(line(t, r)))
				}
				batch = append(batch, r)
			}
			k := &killed{Log: l, steps: 100, left: rng.IntN(8000)}
			if rng.IntN(3) == 0 {
				k.steps = rng.IntN(6)
			}
			ended, err := k.run(func() error { return k.Append(batch...) })
			if err != nil {
				t.Fatalf("seed %d, round %d: %v", seed, round, err)
			}
			for _, r := range batch {
				if ended {
					certain = append(certain, r.Job)
				}
			}
			got, _ := jobs(t, l)
			compare(t, fmt.Sprintf("seed %d, round %d", seed, round), l, got, certain, all)
			if t.Failed() {
				return
			}
		}
	}
}

// compare compares the jobs of a history with those that were appended for certain, and with all
// that may be there. The oldest ones may be missing if the older files are full; one of these may
// be missing as well, if a writer was killed when it had replaced the oldest file.
func compare(t *testing.T, where string, l *Log, got, certain, all []uint32) {
	t.Helper()
	if !slices.IsSorted(got) || slices.ContainsFunc(got, func(n uint32) bool { return !slices.Contains(all, n) }) {
		t.Errorf("%s: it has %v of %v", where, got, all)
	}
	full := 0
	for number := 1; number < files; number++ {
		if info, err := os.Stat(file(l.dir, number)); err == nil && info.Size() > l.most-longest && info.Size() <= l.most {
			full++
		}
	}
	oldest := uint32(1)
	if full >= files-2 && len(got) > 0 {
		oldest = got[0]
	}
	for _, n := range certain {
		if n >= oldest && !slices.Contains(got, n) {
			t.Errorf("%s: job %d is missing in %v, and %d older files are full", where, n, got, full)
		}
	}
}

// Writers of several processes lose nothing of each other. Each has its own file for the lock, as
// processes have.
func TestWriters(t *testing.T) {
	l := small(t)
	l.most = 64 << 10
	l.effects.write = func(f *os.File, data []byte, at int64) (int, error) {
		time.Sleep(100 * time.Microsecond) // the others come in between if they can
		return f.WriteAt(data, at)
	}
	const writers, each = 4, 40
	var running sync.WaitGroup
	for w := range uint32(writers) {
		running.Go(func() {
			own := *l
			for i := range uint32(each) {
				if err := own.Append(record(w*each+i, 100)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	running.Wait()
	got, gaps := jobs(t, l)
	last := make(map[uint32]uint32)
	for _, n := range got {
		if w := n / each; n < last[w] {
			t.Errorf("job %d comes after job %d of the same writer", n, last[w])
		} else {
			last[w] = n
		}
	}
	if len(got) != writers*each || gaps != (Gaps{}) {
		t.Errorf("%d records, %v", len(got), gaps)
	}
}

// A write to a disk without room leaves nothing, and the next one that has room succeeds.
func TestAppendFullDisk(t *testing.T) {
	l := small(t)
	if err := l.Append(record(1, 0)); err != nil {
		t.Fatal(err)
	}
	full := *l
	full.effects.write = func(f *os.File, data []byte, at int64) (int, error) {
		n, _ := f.WriteAt(data[:len(data)/2], at)
		return n, unix.ENOSPC
	}
	if err := full.Append(record(2, 0)); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("without room: %v", err)
	}
	if err := l.Append(record(3, 0)); err != nil {
		t.Fatal(err)
	}
	if got, gaps := jobs(t, l); !slices.Equal(got, []uint32{1, 3}) || gaps != (Gaps{}) {
		t.Errorf("%v, %v", got, gaps)
	}
}

// Damage to a line costs that line.
func TestDamagedLine(t *testing.T) {
	l := small(t)
	if err := l.Append(record(1, 0), record(2, 0), record(3, 0)); err != nil {
		t.Fatal(err)
	}
	path := file(l.dir, 0)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text[len(text)/2] ^= 1
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, gaps := jobs(t, l); !slices.Equal(got, []uint32{1, 3}) || gaps != (Gaps{Damaged: 1}) {
		t.Errorf("%v, %v", got, gaps)
	}
}

// The ledger reads and writes nothing through a link, in a folder that others can write to, or in
// something other than a file.
func TestStrangeFiles(t *testing.T) {
	for name, prepare := range map[string]func(l *Log) error{
		"too many levels of symbolic links": func(l *Log) error { return os.Symlink("/etc/hostname", file(l.dir, 0)) },
		"can be written by others":          func(l *Log) error { return os.Chmod(l.dir, 0o777) },
		"not a regular file":                func(l *Log) error { return unix.Mkfifo(file(l.dir, 0), 0o600) },
	} {
		l := small(t)
		if err := errors.Join(l.Make(), prepare(l)); err != nil {
			t.Fatal(err)
		}
		if err := l.Append(record(1, 0)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("append: %v", err)
		}
		if _, err := l.Newest(func(*Record) bool { return true }); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("read: %v", err)
		}
	}
}

// The files of a history may be anything.
func FuzzNewest(f *testing.F) {
	good := line(f, example(1))
	f.Add(good, slices.Concat(line(f, example(2)), good[:20]))
	f.Add([]byte("\n\n"), []byte("x"))
	f.Fuzz(func(t *testing.T, newest, older []byte) {
		seen, records := 0, 0
		for _, data := range [][]byte{newest, older} {
			damaged, more := backwards(data, func(r *Record) bool { records++; return true })
			seen += damaged
			if !more {
				t.Fatal("it stopped")
			}
		}
		lines := strings.Count(string(newest), "\n") + strings.Count(string(older), "\n")
		if seen+records < lines || seen+records > lines+2 {
			t.Fatalf("%d lines are %d records and %d damaged ones", lines, records, seen)
		}
	})
}
