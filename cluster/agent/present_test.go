package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/internal/check"
)

// A node that lacks none of a job's contents takes the files that come with Prepare. Another one
// leaves them.
func TestFilesWithPrepare(t *testing.T) {
	digest := sha256.Sum256([]byte("a"))
	has, lacks := [][]byte{digest[:]}, [][]byte{digest[:], digest[:]}
	for name, c := range map[string]struct {
		contents [][]byte
		files    string
		fails    error
		loaded   bool
	}{
		"lacks none":           {has, "files", nil, true},
		"needs no contents":    {nil, "files", nil, true},
		"lacks one":            {lacks, "files", nil, false},
		"without files":        {has, "", nil, false},
		"cannot unpack them":   {has, "files", unix.ENOSPC, false},
		"need not unpack them": {lacks, "files", unix.ENOSPC, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServe(t)
			k := new(playedKernel)
			if c.fails != nil {
				k.load = func(context.Context, io.Reader) error { return c.fails }
			}
			s.run(k)
			answer, err := s.ask(s.next(), &control.Prepare{
				Job: 6, Spec: new(control.JobSpec), Exec: &control.Exec{Contents: c.contents}, Files: []byte(c.files),
				Layout: alone(3),
			})
			if name == "cannot unpack them" {
				if !errors.Is(err, &control.Failure{Code: control.Code_CODE_NO_ROOM}) {
					t.Errorf("%v, %v", answer, err)
				}
				return
			}
			m, ok := answer.(*control.Prepared)
			if err != nil || !ok || m.Loaded != c.loaded || m.PrepareNs <= 0 || (m.LoadNs > 0) != c.loaded {
				t.Fatalf("%v, %v", answer, err)
			}
			if want := map[bool]string{true: c.files}[c.loaded]; string(k.loaded) != want {
				t.Errorf("it has unpacked %q", k.loaded)
			}
		})
	}
}

// Nodes that have the files of a job pass files on to the nodes below them, and report nothing.
func TestCopyPastNodesWithFiles(t *testing.T) {
	nodes := grow(t, 7)
	p := &control.Prepare{Job: 1, Spec: new(control.JobSpec), Files: []byte("ahead")}
	p.Layout = alone(0)
	p.Layout.Runs = nil
	for i, b := range nodes {
		p.Layout.Runs = append(p.Layout.Runs, &control.LayoutRun{Node: uint32(i), Count: 1, Address: b.listener.Addr().String()})
	}
	digest := sha256.Sum256(nil)
	for i, b := range nodes {
		p.Exec = &control.Exec{Contents: [][]byte{digest[:]}}
		if i > 2 { // nodes below 0, 1 and 2
			p.Exec.Contents = append(p.Exec.Contents, digest[:])
		}
		if m, err := b.prepare(t.Context(), p); err != nil || m.Loaded != (i <= 2) {
			t.Fatal(m, err)
		}
	}
	files := randomBytes(1<<20 + 1)
	send(t, nodes[0], files, 256<<10)
	for i, b := range nodes {
		if i <= 2 {
			check.AwaitFor(t, patience, "end of the copy", func() bool { return b.copying(1) == nil })
			if told := all[*control.Loaded](&b.told); len(told) > 0 || string(b.kernel.loaded) != "ahead" {
				t.Errorf("node %d says %v, and has %d bytes", i, told, len(b.kernel.loaded))
			}
			continue
		}
		if m := first[*control.Loaded](t, &b.told); m.Error != nil || m.LoadNs <= 0 || !bytes.Equal(b.kernel.loaded, files) {
			t.Errorf("node %d says %v, and has %d bytes", i, m, len(b.kernel.loaded))
		}
	}
}

// The start of a job ends the wait for files that no node needs.
func TestStartEndsCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newMachine(t).agent(3, new(lines))
		a.node = new(playedKernel)
		near, far := net.Pipe()
		a.conn = control.NewConn(near)
		serve := control.NewConn(far)
		defer a.conn.Close()
		defer serve.Close()
		var told recorder
		go serve.Serve(func(f *control.Frame) { told.add(f.Message()) })
		p := &control.Prepare{Job: 1, Spec: new(control.JobSpec), Files: []byte("files")}
		if m, err := a.prepare(t.Context(), p); err != nil || !m.Loaded {
			t.Fatal(m, err)
		}
		if a.copying(1) == nil {
			t.Error("the node does not wait for files for the nodes below it")
		}
		if m, err := a.start(t.Context(), 1); err != nil || m == nil {
			t.Error(m, err)
		}
		time.Sleep(stall + 2*reasonGrace)
		synctest.Wait()
		if m := all[*control.Loaded](&told); len(m) > 0 || a.copying(1) != nil {
			t.Errorf("the node says %v", m)
		}
	})
}
