package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// deadline is when a test gives up.
const deadline = time.Minute

// of returns what opens data.
func of(data []byte) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
}

// gone opens nothing: the layer must be in the cache.
func gone() (io.ReadCloser, error) { return nil, errors.New("the image was read") }

func unbounded() *meter { return &meter{left: 1 << 40, progress: func(int64) {}} }

// get gets a layer, and closes it at the end of the test.
func get(t *testing.T, c *Cache, data []byte, open func() (io.ReadCloser, error)) *os.File {
	t.Helper()
	f, err := c.layer(t.Context(), digestOf(data), unbounded(), open)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if got, err := os.ReadFile(f.Name()); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	return f
}

// names lists a cache.
func names(t *testing.T, c *Cache) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func nameOf(data []byte) string {
	return strings.Replace(digestOf(data), ":", "-", 1) + layerEnding
}

// A layer is read from its image once, also if many want it at the same time, and replaces the
// longer rest that a killed process has left.
func TestCacheOnce(t *testing.T) {
	c := &Cache{Dir: t.TempDir(), Most: 1 << 20}
	data := []byte("layer")
	if err := os.WriteFile(filepath.Join(c.Dir, nameOf(data)+partEnding), make([]byte, 100), 0o600); err != nil {
		t.Fatal(err)
	}
	var lock sync.Mutex
	opened := 0
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			f, err := c.layer(t.Context(), digestOf(data), unbounded(), func() (io.ReadCloser, error) {
				lock.Lock()
				defer lock.Unlock()
				opened++
				return of(data)()
			})
			if err != nil {
				t.Error(err)
				return
			}
			f.Close()
		})
	}
	all.Wait()
	if opened != 1 {
		t.Errorf("it was read %d times", opened)
	}
	get(t, c, data, gone)
	if got := names(t, c); !slices.Equal(got, []string{nameOf(data)}) {
		t.Errorf("the cache has %q", got)
	}
}

// A file that was removed or replaced before it was locked does not count.
func TestCacheReplaced(t *testing.T) {
	name := filepath.Join(t.TempDir(), "layer")
	for _, then := range []func() error{
		func() error { return os.Remove(name) },
		func() error { return errors.Join(os.Rename(name, name+"2"), os.WriteFile(name, nil, 0o600)) },
	} {
		f, err := os.Create(name)
		if err := errors.Join(err, then()); err != nil {
			t.Fatal(err)
		}
		if err := lock(f, name, unix.LOCK_SH); err != errInUse {
			t.Error(err)
		}
		f.Close()
	}
}

// The layers that have not been used for the longest time go first, and none that is in use.
func TestCacheRoom(t *testing.T) {
	c := &Cache{Dir: t.TempDir(), Most: 40}
	layer := func(i int) []byte { return []byte(fmt.Sprintf("layer %4d", i)) } // 10 bytes
	used := get(t, c, layer(0), of(layer(0)))
	for i := 1; i <= 3; i++ {
		get(t, c, layer(i), of(layer(i))).Close()
	}
	for i := range 4 { // not by the clock, which may stand still
		at := time.Unix(int64(1000+i), 0)
		if err := os.Chtimes(filepath.Join(c.Dir, nameOf(layer(i))), at, at); err != nil {
			t.Fatal(err)
		}
	}
	get(t, c, layer(1), gone).Close() // now 2 is the oldest that no process uses
	left := filepath.Join(c.Dir, "sha256-old"+layerEnding+partEnding)
	if err := os.WriteFile(left, []byte("left behind"), 0o600); err != nil {
		t.Fatal(err)
	}
	get(t, c, layer(4), of(layer(4))).Close()
	want := []string{nameOf(layer(0)), nameOf(layer(1)), nameOf(layer(3)), nameOf(layer(4))}
	slices.Sort(want)
	if got := names(t, c); !slices.Equal(got, want) {
		t.Errorf("the cache has %q, not %q", got, want)
	}
	used.Close()
	large := bytes.Repeat([]byte("x"), 50)
	get(t, c, large, of(large))
	if got := names(t, c); !slices.Equal(got, []string{nameOf(large)}) {
		t.Errorf("the cache has %q", got)
	}
}

// Data with another digest are not kept, and neither is a layer beyond the bound.
func TestCacheRefuses(t *testing.T) {
	c := &Cache{Dir: t.TempDir(), Most: 1 << 30}
	bomb := make([]byte, 8<<20)
	for name, tt := range map[string]struct {
		digest string
		packed []byte
		want   string
	}{
		"other data":   {digestOf([]byte("a")), []byte("b"), "damaged or changed"},
		"gzip bomb":    {digestOf(bomb), gzipped(t, bomb), "more than 1 MiB; --root-limit"},
		"zstd bomb":    {digestOf(bomb), zstded(t, bomb), "more than 1 MiB; --root-limit"},
		"bad gzip":     {digestOf(nil), []byte(gzipMagic + "text"), ""},
		"bad zstd":     {digestOf(nil), []byte(zstdMagic + "text"), ""},
		"short header": {digestOf(nil), []byte(gzipMagic), ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := &meter{left: 1 << 20, most: 1 << 20, progress: func(int64) {}}
			if _, err := c.layer(t.Context(), tt.digest, m, of(tt.packed)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("the error is %v, not %q", err, tt.want)
			}
			if got := names(t, c); len(got) > 0 {
				t.Errorf("the cache has %q", got)
			}
		})
	}
	// The bound is one of all layers, also of those that are in the cache.
	layer := bytes.Repeat([]byte("x"), 600<<10)
	get(t, c, layer, of(layer))
	m := &meter{left: 1 << 20, most: 1 << 20, progress: func(int64) {}}
	if _, err := c.layer(t.Context(), digestOf(layer), m, gone); err != nil {
		t.Error(err)
	}
	if _, err := c.layer(t.Context(), digestOf(layer), m, gone); err == nil {
		t.Error("two layers of 600 KiB are within 1 MiB")
	}
}

// A context that ends ends both the unpacking and the wait for another process.
func TestCacheInterrupted(t *testing.T) {
	c := &Cache{Dir: t.TempDir(), Most: 1 << 20}
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	in, out := io.Pipe()
	ended := make(chan error)
	go func() {
		_, err := c.layer(ctx, digestOf(nil), unbounded(), func() (io.ReadCloser, error) { return in, nil })
		ended <- err
	}()
	if _, err := out.Write([]byte("part of it")); err != nil { // returns when it is read
		t.Fatal(err)
	}
	waits, waiting := context.WithCancelCause(t.Context())
	waiting(stop)
	if _, err := c.layer(waits, digestOf(nil), unbounded(), gone); !errors.Is(err, stop) {
		t.Errorf("waiting ends with %v", err)
	}
	cancel(stop)
	go out.Write([]byte("more")) // so that it is looked at
	if err := <-ended; !errors.Is(err, stop) {
		t.Errorf("unpacking ends with %v", err)
	}
	in.Close()
}

// fillEnv makes the test program a process that fills the cache in this folder from its standard
// input, and prints what it has done.
const fillEnv = "MARGAY_TEST_FILL"

var slow = bytes.Repeat([]byte("slow layer "), 1<<17)

func TestMain(m *testing.M) {
	if dir := os.Getenv(fillEnv); dir != "" {
		c := &Cache{Dir: dir, Most: 1 << 30}
		if _, err := c.layer(context.Background(), digestOf(slow), unbounded(), func() (io.ReadCloser, error) { return os.Stdin, nil }); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A process that is killed while it writes a layer leaves nothing that counts, and one that waits
// for it takes its place.
func TestCacheKilled(t *testing.T) {
	c := &Cache{Dir: t.TempDir(), Most: 1 << 30}
	filler := exec.Command("/proc/self/exe")
	filler.Env = append(os.Environ(), fillEnv+"="+c.Dir)
	in, err := filler.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := filler.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write(slow[:len(slow)/2]); err != nil { // more than a pipe holds
		t.Fatal(err)
	}
	part := filepath.Join(c.Dir, nameOf(slow)+partEnding)
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		if info, err := os.Stat(part); err == nil && info.Size() > 0 {
			break
		}
		if time.Since(begin) > deadline {
			t.Fatal("nothing is written")
		}
	}
	looked := make(chan struct{}, 1)
	m := unbounded()
	m.progress = func(int64) {
		select {
		case looked <- struct{}{}:
		default:
		}
	}
	type result struct {
		f   *os.File
		err error
	}
	got := make(chan result)
	go func() {
		f, err := c.layer(t.Context(), digestOf(slow), m, of(slow))
		got <- result{f, err}
	}()
	<-looked // it waits
	if err := filler.Process.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = filler.Wait() // with the error that it was killed
	r := <-got
	if r.err != nil {
		t.Fatal(r.err)
	}
	defer r.f.Close()
	if data, err := os.ReadFile(r.f.Name()); err != nil || !bytes.Equal(data, slow) {
		t.Errorf("%d bytes, %v", len(data), err)
	}
	if got := names(t, c); !slices.Equal(got, []string{nameOf(slow)}) {
		t.Errorf("the cache has %q", got)
	}
}
