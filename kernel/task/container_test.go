package task_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"margay/kernel/abi/archive"
	"margay/kernel/abi/id"
	"margay/kernel/cgroup"
	"margay/kernel/keep"
	"margay/kernel/link"
	"margay/kernel/task"
	"margay/kernel/task/jobinit"
	"margay/kernel/task/outbox"
)

// The test binary is its own job init, and its own application: in a job it is /bin/app.
func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "jobinit":
			if err := jobinit.Main(os.Args[2:]...); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			return 0
		case "app":
			return app(os.Args[2:])
		case "--once":
			return playServer(os.Args[2:])
		}
	}
	var err error
	if scratch, err = os.MkdirTemp("", "task"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(scratch)
	defer func() { os.RemoveAll(uncoveredFolder) }()
	return m.Run()
}

// scratch is the folder of this run of the tests.
var scratch string

// application returns the program that is /bin/app in a job. A job has no libraries, so it is this
// test binary only where that is static; the one that the race detector watches is not.
var application = sync.OnceValues(func() ([]byte, error) {
	const self = "/proc/self/exe"
	f, err := elf.Open(self)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return os.ReadFile(self)
	}
	path := filepath.Join(scratch, "app")
	cmd := exec.Command("go", "test", "-c", "-ldflags=-s -w", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("make a static application: %w\n%s", err, out)
	}
	return os.ReadFile(path)
})

// events collects the events of a container. It is safe for concurrent use.
type events struct {
	mu       sync.Mutex
	changed  chan struct{} // closed at the next event
	records  []task.Record
	taken    map[id.Rank]uint64
	running  map[id.Rank]task.RankProcess
	contents []error // of files that the job has brought: nil for one with its digest
	gone     bool

	exchanged []string // messages of package pmi
}

func newEvents() *events {
	return &events{changed: make(chan struct{}), taken: make(map[id.Rank]uint64), running: make(map[id.Rank]task.RankProcess)}
}

// note records an event.
func (e *events) note(change func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change()
	close(e.changed)
	e.changed = make(chan struct{})
}

func (e *events) Record(r task.Record) {
	e.note(func() {
		if n := len(e.records); n == 0 || r.Seq > e.records[n-1].Seq { // otherwise a duplicate
			e.records = append(e.records, r)
		}
	})
}

func (e *events) Started(p task.RankProcess) { e.note(func() { e.running[p.Rank] = p }) }

func (e *events) Content(digest archive.Digest, f *os.File) {
	defer f.Close()
	data, err := io.ReadAll(f)
	if err == nil && sha256.Sum256(data) != digest {
		err = fmt.Errorf("%d bytes that are not %v", len(data), digest)
	}
	e.note(func() { e.contents = append(e.contents, err) })
}

func (e *events) InputTaken(rank id.Rank, position uint64) {
	e.note(func() { e.taken[rank] = position })
}

// Exchange implements task.Handler.
func (e *events) Exchange(place int, data []byte) {
	e.note(func() { e.exchanged = append(e.exchanged, string(data)) })
}

func (e *events) Gone() { e.note(func() { e.gone = true }) }

// patience bounds every wait for something that must happen.
const patience = 2 * time.Minute

// await waits until ok holds of the events.
func (e *events) await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for {
		e.mu.Lock()
		changed := e.changed
		e.mu.Unlock()
		if ok() {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("no %s within %v; have %d records, gone %v", what, patience, len(e.all()), e.isGone())
		}
	}
}

func (e *events) all() []task.Record {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.records)
}

func (e *events) isGone() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.gone
}

// processes returns the processes that the container has reported.
func (e *events) processes() map[id.Rank]task.RankProcess {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.running)
}

func (e *events) position(rank id.Rank) uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.taken[rank]
}

func (e *events) exits() map[id.Rank]task.Status {
	m := make(map[id.Rank]task.Status)
	for _, r := range e.all() {
		if r.Stream == task.Exit {
			m[r.Rank] = r.Status
		}
	}
	return m
}

func (e *events) text(rank id.Rank, stream task.Stream) string {
	var b strings.Builder
	for _, r := range e.all() {
		if r.Rank == rank && r.Stream == stream {
			b.Write(r.Data)
		}
	}
	return b.String()
}

func host(t *testing.T) task.Host {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The race detector is to end an init that has a race, and not to hold up the end of one that
	// has none.
	program := []string{"env", "GORACE=halt_on_error=1 atexit_sleep_ms=0", exe, "jobinit"}
	h := task.Host{JobInit: program, UserNS: os.Getuid() != 0, Log: t.Logf}
	if inGuest {
		h.JobInit = program[2:] // there is no env, and no race detector either
		if h.Cgroups, err = cgroup.Open(cgroups); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// cgroups is where control groups are in a guest.
const cgroups = "/sys/fs/cgroup"

func spec(ranks int, args ...string) task.Spec {
	s := task.Spec{
		Job: id.Job(os.Getpid()), Hostname: "node0", UID: 70001, GID: 70001, User: "tester",
		Exec:    task.Exec{Path: "/bin/app", Argv: append([]string{"app", "app"}, args...), Env: []string{"A=b"}, Dir: "/home/tester"},
		Umask:   0o27,
		RAMDisk: 64 << 20,
	}
	for i := range ranks {
		s.Ranks = append(s.Ranks, task.Rank{Rank: id.Rank(i), Env: []string{fmt.Sprintf("MARGAY_RANK=%d", i)}, Stdin: i == 0})
	}
	return s
}

// files is the archive of the application as /bin/app.
var files = sync.OnceValues(func() ([]byte, error) {
	exe, err := application()
	if err != nil {
		return nil, err
	}
	return pack(entry{tar.Header{Name: "bin/app", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(exe))}, exe})
})

// entry is one file of an archive.
type entry struct {
	tar.Header
	data []byte
}

// pack makes an archive as jobs get them.
func pack(entries ...entry) ([]byte, error) {
	var out bytes.Buffer
	zw, err := zstd.NewWriter(&out, zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return nil, err
	}
	tw := tar.NewWriter(zw)
	for _, e := range entries {
		if err := tw.WriteHeader(&e.Header); err != nil {
			return nil, err
		}
		if _, err := tw.Write(e.data); err != nil {
			return nil, err
		}
	}
	err = errors.Join(tw.Close(), zw.Close())
	return out.Bytes(), err
}

// prepare makes an empty place for a job.
func prepare(t *testing.T, s task.Spec, e *events) *task.Container {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	h := host(t)
	if s.Rlimits {
		h.Cgroups = nil
	}
	c, err := task.New(ctx, h, s, e)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.End(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// start brings a job up to its start. It brings the application, or its node has it.
func start(t *testing.T, s task.Spec, e *events) *task.Container {
	t.Helper()
	c := prepare(t, s, e)
	if err := provide(t, c); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := c.Start(ctx); err != nil {
		t.Fatal(err)
	}
	return c
}

// load gives a job its application.
func load(t *testing.T, c *task.Container) error {
	t.Helper()
	archive, err := files()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return c.Unpack(ctx, bytes.NewReader(archive))
}

func TestStatusAndOutput(t *testing.T) {
	e := newEvents()
	start(t, spec(2, "hello"), e)
	e.await(t, "two exits", func() bool { return len(e.exits()) == 2 })
	for rank, s := range e.exits() {
		if s.Code != 7 || s.Signal != 0 {
			t.Errorf("rank %d %v, want status 7", rank, s)
		}
		if out := e.text(rank, task.Stdout); !strings.HasPrefix(out, "hello from ") {
			t.Errorf("rank %d wrote %q", rank, out)
		}
		if out := e.text(rank, task.Stderr); out != "uid 70001\n" {
			t.Errorf("rank %d wrote %q to stderr", rank, out)
		}
	}
}

func TestInput(t *testing.T) {
	e := newEvents()
	c := start(t, spec(1, "cat"), e)
	if err := c.Input(0, 0, []byte("hello, "), false); err != nil {
		t.Fatal(err)
	}
	if err := c.Input(0, 3, []byte("lo, "), false); err != nil { // sent again
		t.Fatal(err)
	}
	if err := c.Input(0, 7, []byte("world\n"), true); err != nil {
		t.Fatal(err)
	}
	e.await(t, "exit", func() bool { return len(e.exits()) == 1 })
	if got := e.text(0, task.Stdout); got != "hello, world\n" {
		t.Errorf("cat wrote %q", got)
	}
	e.await(t, "input position", func() bool { return e.position(0) == 13 })
}

// A rank can open its streams by name.
func TestStreamsByName(t *testing.T) {
	for _, streams := range []string{"/dev/std", "/proc/self/fd/"} {
		e := newEvents()
		c := start(t, spec(1, "reopen", streams), e)
		if err := c.Input(0, 0, []byte("typed"), true); err != nil {
			t.Fatal(err)
		}
		e.await(t, "exit", func() bool { return len(e.exits()) == 1 })
		if out, errors := e.text(0, task.Stdout), e.text(0, task.Stderr); out != "typed" || errors != "typed" {
			t.Errorf("%s: it wrote %q and %q", streams, out, errors)
		}
	}
}

// An init outlives what signals ask for, and a rank gets their default action.
func TestSignalledInit(t *testing.T) {
	e := newEvents()
	c := start(t, spec(1, "sleep"), e)
	e.await(t, "output", func() bool { return e.text(0, task.Stdout) != "" })
	for _, sig := range []unix.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT} {
		if err := unix.Kill(c.PID(), sig); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Signal(0, unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	e.await(t, "exit", func() bool { return len(e.exits()) == 1 })
	if s := e.exits()[0]; s.Signal != unix.SIGHUP {
		t.Errorf("the rank %v", s)
	}
	if err := c.End(); err != nil {
		t.Fatal(err)
	}
}

func TestSignalAndEnd(t *testing.T) {
	e := newEvents()
	c := start(t, spec(2, "sleep"), e)
	e.await(t, "output", func() bool { return e.text(1, task.Stdout) != "" })
	if err := c.Signal(1, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	e.await(t, "exit", func() bool { return len(e.exits()) == 1 })
	if s := e.exits()[1]; s.Signal != unix.SIGTERM || s.ExitCode() != 143 {
		t.Errorf("rank 1 %v", s)
	}
	if err := c.End(); err != nil {
		t.Fatal(err)
	}
	e.await(t, "end", e.isGone)
}

// A job that has its files and was not started is found so by the next node kernel, which can start
// it.
func TestAdoptBeforeStart(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	adopt := func(c *task.Container, e *events) *task.Container {
		t.Helper()
		item, err := c.Kept("job/1")
		if err != nil {
			t.Fatal(err)
		}
		c.Detach()
		next, _, err := task.Adopt(ctx, host(t), &item)
		if err != nil {
			t.Fatal(err)
		}
		next.Follow(e)
		return next
	}
	c := adopt(prepare(t, spec(1, "cat"), newEvents()), newEvents())
	if c.Adopted().Loaded || c.Adopted().Started {
		t.Errorf("without its files it is %+v", c.Adopted())
	}
	if err := load(t, c); err != nil {
		t.Fatal(err)
	}
	e := newEvents()
	c = adopt(c, e)
	if !c.Adopted().Loaded || c.Adopted().Started {
		t.Errorf("with its files it is %+v", c.Adopted())
	}
	if err := c.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := c.Input(0, 0, []byte("text\n"), true); err != nil {
		t.Fatal(err)
	}
	e.await(t, "exit", func() bool { return len(e.exits()) == 1 })
	if got := e.text(0, task.Stdout); got != "text\n" {
		t.Errorf("it says %q", got)
	}
	c = adopt(c, newEvents())
	if !c.Adopted().Started {
		t.Errorf("after its start it is %+v", c.Adopted())
	}
	if err := c.End(); err != nil {
		t.Fatal(err)
	}
}

func TestAdopt(t *testing.T) {
	e := newEvents()
	c := start(t, spec(1, "cat"), e)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := c.Keep(keep.Item{Name: "thing", Words: []byte(`"words"`), Files: []*os.File{w}}); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if err := c.Input(0, 0, []byte("before\n"), false); err != nil {
		t.Fatal(err)
	}
	e.await(t, "output", func() bool { return e.text(0, task.Stdout) == "before\n" })

	// PID 1 keeps the link, the node kernel dies: here its end is passed over a link and closed.
	item, err := c.Kept("job/1")
	if err != nil {
		t.Fatal(err)
	}
	near, far, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	farConn, err := link.NewConn(far)
	if err != nil {
		t.Fatal(err)
	}
	defer farConn.Close()
	var pid1 keep.Store
	defer pid1.Close()
	if err := keep.Keep(near, item); err != nil {
		t.Fatal(err)
	}
	m, err := farConn.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if mine, err := pid1.Handle(m); !mine || err != nil {
		t.Fatal(mine, err)
	}
	item.Files[0].Close()
	c.Detach()

	if err := pid1.Replay(farConn); err != nil {
		t.Fatal(err)
	}
	if m, err = near.Recv(); err != nil {
		t.Fatal(err)
	}
	kept, _, err := keep.Replayed(m)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	e2 := newEvents()
	c2, items, err := task.Adopt(ctx, host(t), kept)
	if err != nil {
		t.Fatal(err)
	}
	c2.Follow(e2)
	if len(items) != 1 || items[0].Name != "thing" || string(items[0].Words) != `"words"` || len(items[0].Files) != 1 {
		t.Errorf("kept items %+v", items)
	}
	if c2.Spec().Hostname != "node0" {
		t.Errorf("adopted spec %+v", c2.Spec())
	}
	e2.await(t, "process", func() bool { return len(e2.processes()) == 1 })
	if before, after := e.processes()[0], e2.processes()[0]; after.PID != before.PID || after.Group != before.Group || after.Since != before.Since {
		t.Errorf("the process is %+v, it was %+v", after, before)
	}
	if err := c2.Input(0, 7, []byte("after\n"), true); err != nil {
		t.Fatal(err)
	}
	e2.await(t, "exit", func() bool { return len(e2.exits()) == 1 })
	if got := e2.text(0, task.Stdout); got != "before\nafter\n" {
		t.Errorf("unacknowledged and new output: %q", got)
	}
	if err := c2.End(); err != nil {
		t.Fatal(err)
	}
}

// An init that takes no messages is killed, with the reason, and no message waits for it. However
// many records are acknowledged at that time does not matter.
func TestStoppedInit(t *testing.T) {
	e := newEvents()
	c := start(t, spec(1, "sleep"), e)
	if err := unix.Kill(c.PID(), unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for range 1 << 17 {
		if err := c.Ack(0); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	for n := 0; err == nil && n < 1<<20; n++ {
		err = c.Rewind()
	}
	if !errors.Is(err, outbox.ErrFull) {
		t.Errorf("a message too many: %v", err)
	}
	e.await(t, "end of the init", e.isGone)
	if err := c.Why(); !errors.Is(err, outbox.ErrFull) || !errors.Is(err, task.ErrGone) {
		t.Errorf("the reason is %v", err)
	}
}
