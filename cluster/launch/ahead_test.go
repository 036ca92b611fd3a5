package launch

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"margay/cluster/control"
	"margay/kernel/abi/archive"
)

// entries are the names in an archive, each with the size of its data.
func entries(t *testing.T, packed []byte) (list []string) {
	t.Helper()
	var data io.Reader = bytes.NewReader(packed)
	if bytes.HasPrefix(packed, []byte(archive.Compressed)) {
		zr, err := zstd.NewReader(data)
		if err != nil {
			t.Fatal(err)
		}
		defer zr.Close()
		data = zr
	}
	in := tar.NewReader(data)
	for {
		h, err := in.Next()
		if err == io.EOF {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, fmt.Sprintf("%s %d", h.Name, h.Size))
	}
}

// The files that go along with a request are few and small, and come without the data of contents.
func TestAhead(t *testing.T) {
	dir := t.TempDir()
	name := func(base string) string { return filepath.Join(dir, base) }
	file := func(base string, size int, code bool) File {
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(i * i >> 3)
		}
		return File{Path: write(t, 0o600, string(data), dir, base), Mode: 0o600, Size: int64(size), Code: code}
	}
	program, small, data := file("program", 100<<10, true), file("small", 10, false), file("data", archive.MinSize, false)
	var many []File
	for i := range aheadFiles {
		many = append(many, file(fmt.Sprint("many", i), 1, false))
	}
	for title, c := range map[string]struct {
		list []File
		want []string // nil: nothing goes along
	}{
		"program":        {[]File{program, small, data}, []string{"program 0", "small 10", "data 0"}},
		"many files":     {append(many, small), nil},
		"not too many":   {many[1:], []string{"many1 1"}},
		"many bytes":     {[]File{program, file("sum", archive.MinSize-1, false), {Path: dir, Mode: os.ModeDir | 0o700}}, []string{"program 0"}},
		"large copies":   {[]File{program, file("large", aheadCopied+1, false)}, nil},
		"large programs": {[]File{file("larger", aheadCopied+1, true)}, []string{"larger 0"}},
	} {
		t.Run(title, func(t *testing.T) {
			f := &Files{List: c.list}
			f.Contents()
			packed, err := f.Ahead()
			if err != nil || (len(packed) == 0) != (c.want == nil) || len(packed) > control.FilesAhead {
				t.Fatalf("%d bytes, %v", len(packed), err)
			}
			if c.want == nil {
				return
			}
			got := entries(t, packed)
			for i, want := range c.want {
				if got[i] != strings.TrimPrefix(name(want), "/") {
					t.Errorf("entry %s, not %s", got[i], want)
				}
			}
		})
	}
	// A file that is too small to be looked up by its digest, and too large for the request.
	f := &Files{}
	for i := range control.FilesAhead/(archive.MinSize-1) + 1 {
		f.List = append(f.List, file(fmt.Sprint("part", i), archive.MinSize-1, false))
	}
	f.Contents()
	if packed, err := f.Ahead(); err != nil || packed != nil {
		t.Errorf("%d bytes, %v", len(packed), err)
	}
	// A file that is gone.
	f = &Files{List: []File{{Path: name("gone"), Mode: 0o600, Size: 5}}}
	if _, err := f.Ahead(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// When the nodes have all files, the client sends none, and says at once that it knows the job.
func TestNothingToSend(t *testing.T) {
	s := serveTo(t, func(c *talk) {
		m, f := expect[*control.RunRequest](c)
		if len(m.Files) == 0 {
			t.Error("no files go along")
		}
		c.Answer(f, &control.RunReply{Job: 5, Places: []*control.Place{{}}, Loaded: true}, nil)
		if chunk, _ := expect[*control.FileChunk](c); !chunk.Last || len(chunk.Data) > 0 {
			t.Errorf("the client sends %v", chunk)
		}
		_ = c.Send(&control.JobState{Job: 5, Phase: control.JobPhase_JOB_RUNNING, FirstFailed: control.None})
		c.done(ok())
	})
	l := newLauncher(t, s, 1)
	l.Status.Verbose = true
	if code, err := l.run(t); code != 0 || err != nil || !strings.Contains(l.status.String(), "job 5: its nodes have loaded all files\n") {
		t.Errorf("status %d, %v, the user is told %q", code, err, l.status.String())
	}
	for _, m := range s.messages() {
		if chunk, ok := m.(*control.FileChunk); ok && !chunk.Last {
			t.Errorf("the client sends %v", chunk)
		}
	}
}

// The durations from serve and from margay run come together. None is below zero.
func TestTiming(t *testing.T) {
	times := []*control.PhaseTime{
		{Phase: control.Phase_PHASE_QUEUE, TimeNs: 1}, {Phase: control.Phase_PHASE_PREPARE, TimeNs: 20, NodeNs: 10, Node: 3}, {Phase: control.Phase_PHASE_RUN, TimeNs: 300},
	}
	timing := NewTiming(time.Now())
	if got, ok := timing.Times(); ok {
		t.Errorf("before there is a job: %v", got)
	}
	s := serveTo(t, func(c *talk) {
		c.launched(1)
		state := ok()
		state.Times = times
		c.done(state)
	})
	l := newLauncher(t, s, 1)
	l.Timing = NewTiming(time.Now())
	if code, err := l.run(t); code != 0 || err != nil {
		t.Fatalf("status %d, %v", code, err)
	}
	got, ok := l.Timing.Times()
	if !ok || got.Job != 5 || got.SumNs > got.WallNs {
		t.Errorf("times %+v, %v", got, ok)
	}
	var names []string
	sum := int64(0)
	for _, p := range got.Phases {
		names = append(names, p.Phase)
		if sum += p.TimeNs; p.TimeNs < 0 || (p.Node != nil) != (p.Phase == "prepare") {
			t.Errorf("phase %+v", p)
		}
	}
	if list := strings.Join(names, " "); list != "collect connect queue prepare run messages" || sum != got.SumNs {
		t.Errorf("phases %s", list)
	}
	if p := got.Phases[3]; p.TimeNs != 20 || p.NodeNs != 10 || *p.Node != 3 {
		t.Errorf("prepare: %+v", p)
	}
	// serve's clock is faster than the clock of margay run.
	timing = NewTiming(time.Now())
	timing.enter(phaseMessages)
	timing.measured(5, []*control.PhaseTime{{Phase: control.Phase_PHASE_RUN, TimeNs: int64(time.Hour)}})
	timing.measured(5, nil) // of another serve, which has measured nothing
	if got, ok := timing.Times(); !ok || got.Phases[len(got.Phases)-1].TimeNs != 0 || got.Phases[2].TimeNs != int64(time.Hour) {
		t.Errorf("times %+v, %v", got, ok)
	}
}
