package apt

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"margay/internal/progress"
)

// Fetch downloads and unpacks packages and returns the directory that they were unpacked to, below
// the archive's. The description of the packages is for people.
func (a *Archive) Fetch(ctx context.Context, what string, packages []Package) (tree string, err error) {
	debs := filepath.Join(a.Dir, "debs")
	args := []string{"-q", "download", "--"}
	var size int64
	for _, p := range packages {
		args = append(args, p.Name+"="+p.Version)
		size += p.Size
	}
	stop := a.watch(debs, progress.Step{Text: "downloading " + what, Total: size})
	_, err = a.command(ctx, debs, "apt-get", args...)
	stop()
	if err != nil {
		return "", fmt.Errorf("download: %w", err)
	}
	tree = filepath.Join(a.Dir, "tree")
	unpacked, err := a.unpack(ctx, debs, tree)
	if err == nil && unpacked != len(packages) {
		err = fmt.Errorf("%d of %d packages arrived", unpacked, len(packages))
	}
	return tree, err
}

// unpack unpacks the package files in debs to tree and returns their number.
func (a *Archive) unpack(ctx context.Context, debs, tree string) (unpacked int, err error) {
	files, err := os.ReadDir(debs)
	for _, file := range files {
		if filepath.Ext(file.Name()) != ".deb" {
			continue
		}
		a.Progress.Report(progress.Step{Text: "unpacking " + file.Name()})
		if _, err := a.Run(ctx, debs, nil, "dpkg", "-x", file.Name(), tree); err != nil {
			return unpacked, fmt.Errorf("unpack: %w", err)
		}
		unpacked++
	}
	return unpacked, err
}

// watchEvery is the interval between progress reports of a download.
const watchEvery = 500 * time.Millisecond

// watch reports the bytes of step that have arrived in debs, until the returned function is called,
// which reports a last time.
func (a *Archive) watch(debs string, step progress.Step) (stop func()) {
	a.Progress.Report(step)
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for running := true; running; {
			select {
			case <-quit:
				running = false
			case <-time.After(watchEvery):
			}
			step.Done = min(treeSize(debs), step.Total)
			a.Progress.Report(step)
		}
	}()
	return func() { close(quit); <-ended }
}

// treeSize returns the bytes in the files below dir. Files that vanish during the walk do not
// count.
func treeSize(dir string) int64 {
	var sum int64
	filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err == nil {
				sum += info.Size()
			}
		}
		return nil
	})
	return sum
}
