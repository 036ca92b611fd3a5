package initramfs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"margay/internal/progress"
)

func cached(t *testing.T, s Spec, dir string) (string, Manifest) {
	t.Helper()
	path, m, err := Cached(context.Background(), s, dir)
	if err != nil {
		t.Fatal(err)
	}
	return path, m
}

func TestCached(t *testing.T) {
	s, dir := testSpec(t), filepath.Join(t.TempDir(), "images")
	want, manifest := build(t, s)
	compressed := 0
	s.Progress = func(step progress.Step) {
		if step.Text == "node image made" {
			compressed++
		}
	}
	for range 3 {
		path, m := cached(t, s, dir)
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) || !reflect.DeepEqual(m, manifest) {
			t.Errorf("%d bytes, %+v, %v", len(got), m, err)
		}
	}
	if compressed != 1 {
		t.Errorf("compressed %d times, want once", compressed)
	}
	first, _ := cached(t, s, dir)
	plain := s
	plain.Plain = true
	if path, m := cached(t, plain, dir); path == first || m.Compressed != manifest.Uncompressed {
		t.Errorf("a plain image at %s, %+v", path, m)
	}
	write(t, s.Init, append(programFile(), "changed"...))
	if second, _ := cached(t, s, dir); second == first {
		t.Error("another init program, the same image")
	}
	s.JobInit = write(t, filepath.Join(t.TempDir(), "jobinit"), programFile())
	third, _ := cached(t, s, dir)
	write(t, s.JobInit, append(programFile(), "changed"...))
	if fourth, _ := cached(t, s, dir); fourth == third {
		t.Error("another job init, the same image")
	}
}

// An image that does not match its manifest is built again.
func TestCachedRepairs(t *testing.T) {
	s, dir := testSpec(t), t.TempDir()
	want, _ := build(t, s)
	path, _ := cached(t, s, dir)
	manifest := strings.TrimSuffix(path, imageSuffix) + manifestSuffix
	for name, damage := range map[string]func() error{
		"cut off":     func() error { return os.Truncate(path, 100) },
		"no image":    func() error { return os.Remove(path) },
		"no manifest": func() error { return os.Remove(manifest) },
		"garbage":     func() error { return os.WriteFile(manifest, []byte("{"), 0o600) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		again, _ := cached(t, s, dir)
		if got, err := os.ReadFile(again); err != nil || again != path || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes at %s, %v", name, len(got), again, err)
		}
	}
}

func TestCachedPrunes(t *testing.T) {
	s, dir := testSpec(t), t.TempDir()
	stale := write(t, filepath.Join(dir, ".x.img.1"), nil)
	fresh := write(t, filepath.Join(dir, ".y.img.1"), nil)
	long := time.Now().Add(-2 * staleAfter)
	if err := os.Chtimes(stale, long, long); err != nil {
		t.Fatal(err)
	}
	var paths []string
	for i := range keepImages + 2 {
		s.Files = []File{{Path: "/n", Data: fmt.Append(nil, i)}}
		path, _ := cached(t, s, dir)
		// The first image is used again each time, which keeps it.
		if i > 0 {
			at := time.Now().Add(time.Duration(i-100) * time.Minute)
			if err := os.Chtimes(path, at, at); err != nil {
				t.Fatal(err)
			}
		}
		paths = append(paths, path)
	}
	kept := append([]string{paths[0]}, paths[len(paths)-keepImages+1:]...)
	for _, path := range paths {
		want := false
		for _, k := range kept {
			want = want || k == path
		}
		for _, suffix := range []string{imageSuffix, manifestSuffix} {
			_, err := os.Stat(strings.TrimSuffix(path, imageSuffix) + suffix)
			if (err == nil) != want {
				t.Errorf("%s: kept is %v, want %v", path, err == nil, want)
			}
		}
	}
	if _, err := os.Stat(stale); err == nil {
		t.Error("a dead build's file is still there")
	}
	if _, err := os.Stat(fresh); err != nil {
		t.Error("the file of a build that goes on was removed")
	}
}

func TestCachedConcurrently(t *testing.T) {
	s, dir := testSpec(t), t.TempDir()
	want, _ := build(t, s)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			path, _, err := Cached(context.Background(), s, dir)
			if err != nil {
				t.Error(err)
				return
			}
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
	group.Wait()
	if left, _ := os.ReadDir(dir); len(left) != 2 {
		t.Errorf("left in the cache: %v", left)
	}
}

func TestCachedErrors(t *testing.T) {
	s := testSpec(t)
	file := write(t, filepath.Join(t.TempDir(), "file"), nil)
	if _, _, err := Cached(context.Background(), s, file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("error %v", err)
	}
	if _, _, err := Cached(context.Background(), Spec{}, t.TempDir()); err == nil {
		t.Error("an empty specification was accepted")
	}
}
