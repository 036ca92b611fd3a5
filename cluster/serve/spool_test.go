package serve

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/kernel/task/journal"
)

// spooled returns the records in a job's spool, in short form.
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
		if e := frame.GetError(); e != nil {
			list = append(list, e.Text)
			continue
		}
		r := frame.GetRecord()
		list = append(list, fmt.Sprintf("%d.%d:%s", r.Node, r.Seq, r.Data))
	}
}

func output(node uint32, seq uint64, text string) *control.Record {
	return &control.Record{Job: 1, Node: node, Seq: seq, Stream: control.Stream_STREAM_STDOUT, Data: []byte(text)}
}

// A killed serve may have left a partial record. Whatever part of the file exists, the next serve
// appends after the last whole record.
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
		seen := make(map[uint32]uint64)
		s, err := openSpool(dir, 1, func(r *control.Record) { seen[r.Node] = r.Seq })
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

// Output beyond the limit is discarded, which is noted, but the ends of ranks are kept. That also
// holds after a restart.
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
	if s, err = openSpool(dir, 1, func(*control.Record) {}); err != nil {
		t.Fatal(err)
	}
	if s.limit = 10; s.missing() != "output beyond 0 MiB was not kept" {
		t.Errorf("after a restart: %q", s.missing())
	}
	if err := s.write(output(0, 5, "more")); err != nil {
		t.Fatal(err)
	}
	s.close()
	if list := spooled(t, dir); !slices.Equal(list, []string{"0.1:abc", "output beyond 0 MiB was not kept", "0.4:"}) {
		t.Errorf("the spool holds %v", list)
	}
}

// Output is not written through a symbolic link.
func TestSpoolIsLink(t *testing.T) {
	dir := t.TempDir()
	path := spoolPath(dir, 1)
	elsewhere := filepath.Join(dir, "elsewhere")
	err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(elsewhere, []byte("text"), 0o600), os.Symlink(elsewhere, path))
	if err != nil {
		t.Fatal(err)
	}
	if s, err := createSpool(dir, 1); err == nil {
		s.close()
		t.Error("it is opened")
	}
}

// A record that cannot be written completely leaves nothing behind that would hide the next one.
func TestSpoolIsFull(t *testing.T) {
	if ownDisk(t) {
		return
	}
	dir := t.TempDir()
	s, err := createSpool(dir, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if err := s.write(output(0, 1, "a")); err != nil {
		t.Fatal(err)
	}
	room := fullDisk(t, 1000)
	full := s.write(output(0, 2, strings.Repeat("x", 2000)))
	room()
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

// If the output of a detached job cannot be stored, the job ends with that reason, and margay logs
// and ps report it. No output is missing in the middle.
func TestDetachedOnFullDisk(t *testing.T) {
	onFullDisk(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		job := c.run(detachedSpec(2))
		n := m.played[0]
		n.says(job, 1, 0, "a\n")
		take[*control.Ack](&n.recorder)
		room := fullDisk(t, 1)
		n.says(job, 2, 0, "b\n")
		none[*control.Ack](t, &n.recorder, "a record that was not kept is acknowledged")
		room()
		n.says(job, 3, 0, "c\n")
		one[*control.Forget](t, &n.recorder)
		time.Sleep(time.Minute)
		const reason = "keep its output: the machine's disk is full: write "
		if s := c.summary(job); s.Phase != control.JobPhase_JOB_DONE || s.ExitCode != 125 || !strings.HasPrefix(s.Error, reason) || s.Missing != s.Error {
			t.Errorf("it is recorded as %v", s)
		}
		_, err := c.ask(&control.Attach{Job: job, Output: true})
		if err == nil || !strings.HasPrefix(err.Error(), "the output of job 1 is not complete: "+reason) || !strings.HasSuffix(err.Error(), "margay logs --remove removes kept output") {
			t.Errorf("margay logs ends with %v", err)
		}
		if r := take[*control.Record](&c.recorder); len(r) != 1 || string(r[0].Data) != "a\n" {
			t.Errorf("its output is %v", r)
		}
		if c.freeCores() != 2 {
			t.Errorf("%d cores are free", c.freeCores())
		}
	})
}

// Output beyond the limit does not end a job, and margay logs reports that there was more.
func TestDetachedBeyondLimit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		job := c.run(detachedSpec(1))
		m.server.mu.Lock()
		m.server.jobs[job].spool.limit = 10
		m.server.mu.Unlock()
		for seq := range uint64(3) {
			m.played[0].says(job, seq+1, 0, "more\n")
		}
		m.played[0].exits(job, 4, 0, 0, 0)
		const reason = "output beyond 0 MiB was not kept"
		if s := c.summary(job); s.Phase != control.JobPhase_JOB_DONE || s.ExitCode != 0 || s.Error != "" || s.Missing != reason {
			t.Errorf("it is recorded as %v", s)
		}
		if _, err := c.ask(&control.Attach{Job: job, Output: true}); err == nil || err.Error() != "the output of job 1 is not complete: "+reason {
			t.Errorf("margay logs ends with %v", err)
		}
	})
}

// The output of all detached jobs of a user is bounded, and removing some makes room.
func TestOutputsOfUser(t *testing.T) {
	o := newOutputs(100)
	dir := t.TempDir()
	keep := func(job, uid uint32, limited bool) (kept bool) {
		t.Helper()
		s, err := createSpool(dir, job)
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		o.watch(s, job, &control.JobSpec{Uid: uid, Limited: limited})
		for seq := range uint64(4) {
			if err := s.write(output(0, seq+1, strings.Repeat("x", 40))); err != nil {
				t.Fatal(err)
			}
		}
		return s.missing() == ""
	}
	for job, c := range []struct {
		uid           uint32
		limited, kept bool
	}{{1, true, false}, {1, true, false}, {2, true, false}, {1, false, true}} {
		if kept := keep(uint32(job), c.uid, c.limited); kept != c.kept {
			t.Errorf("output of job %d of user %d: all is kept: %v", job, c.uid, kept)
		}
	}
	if o.users[1] <= o.users[2] || o.users[2] < 100 || o.users[2] > 300 {
		t.Errorf("the users have %v bytes", o.users)
	}
	for job := range uint32(4) {
		o.removed(job)
		o.removed(job)
	}
	if len(o.users)+len(o.jobs) > 0 || o.full(1) != "" {
		t.Errorf("after all was removed, %v bytes of %v are left", o.users, o.jobs)
	}
}

// The kept output of a user, a running job's too, counts once after a restart, until it is removed.
func TestOutputsAfterRestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		job, running := c.detached(1000), c.run(detachedSpec(1))
		m.played[0].says(running, 1, 0, strings.Repeat("y", 500))
		m.restart()
		before := m.server.outputs.users[0]
		m.back(running, control.JobPhase_JOB_RUNNING, 0)
		removed := must[*control.OutputRemoved](m.client(), &control.RemoveOutput{Jobs: []uint32{job}})
		left := m.server.outputs.users[0]
		if info, err := os.Stat(spoolPath(m.config.Dir, running)); err != nil || left < 500 || left != info.Size() || before != removed.Bytes+left {
			t.Errorf("%d bytes count, and %d when %d are removed, %v", before, left, removed.Bytes, err)
		}
	})
}

// Output that is removed takes no room, even if it is being read.
func TestRemoveSpool(t *testing.T) {
	dir := t.TempDir()
	s, err := createSpool(dir, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if err := s.write(output(0, 1, "x")); err != nil {
		t.Fatal(err)
	}
	size, err := removeSpool(dir, 1)
	info, wrong := s.file.Stat()
	if err != nil || wrong != nil || size != s.size || info.Size() != 0 {
		t.Errorf("%d of %d bytes are removed, %v, and %v is left, %v", size, s.size, err, info, wrong)
	}
	if _, err := removeSpool(dir, 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("when there is none: %v", err)
	}
}

// detached runs a job of one rank to its end, and keeps this many bytes of its output.
func (c *playedClient) detached(bytes int) (job uint32) {
	c.m.t.Helper()
	job = c.run(detachedSpec(1))
	c.m.played[0].says(job, 1, 0, strings.Repeat("x", bytes))
	c.m.played[0].exits(job, 2, 0, 0, 0)
	c.ended()
	return job
}

// kept lists the files with kept output.
func (m *machine) kept() (names []string) {
	m.t.Helper()
	entries, err := os.ReadDir(filepath.Join(m.config.Dir, "output"))
	if err != nil {
		m.t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Kept output can be removed, for some jobs or for all ended jobs.
func TestRemoveOutput(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		for _, question := range []proto.Message{&control.Attach{Output: true}, &control.RemoveOutput{Jobs: []uint32{0}}} {
			if _, err := c.ask(question); err == nil || err.Error() != "there is no job 0" {
				t.Errorf("%v: %v", question, err)
			}
		}
		if removed := must[*control.OutputRemoved](c, new(control.RemoveOutput)); len(removed.Jobs) != 0 {
			t.Errorf("before there is any, that of %v is removed", removed)
		}
		for range 3 {
			c.detached(1000)
		}
		attached := c.run(spec(1))
		running := c.run(detachedSpec(1))
		removed := must[*control.OutputRemoved](c, &control.RemoveOutput{Jobs: []uint32{2}})
		if !slices.Equal(removed.Jobs, []uint32{2}) || removed.Bytes < 1000 || removed.Bytes > 1100 {
			t.Errorf("removed is %v", removed)
		}
		for question, want := range map[proto.Message]string{
			&control.Attach{Job: 2, Output: true}:                                           "the output of job 2 was removed before",
			&control.RemoveOutput{Jobs: []uint32{2}}:                                        "the output of job 2 was removed before",
			&control.RemoveOutput{Jobs: []uint32{99}}:                                       "there is no job 99",
			&control.RemoveOutput{Jobs: []uint32{attached}}:                                 fmt.Sprintf("job %d has not ended: margay kill --force %[1]d ends it", attached),
			&control.RemoveOutput{Jobs: []uint32{running, 1, attached, 99, 3, 99, running}}: fmt.Sprintf("job %d has not ended: margay kill --force %[1]d ends it\njob %d has not ended: margay kill --force %[2]d ends it\nthere is no job 99", running, attached),
		} {
			if _, err := c.ask(question); err == nil || err.Error() != want {
				t.Errorf("%v: %v instead of %s", question, err, want)
			}
		}
		must[*control.Done](c, &control.Kill{Job: attached, Force: true})
		c.ended()
		if _, err := c.ask(&control.RemoveOutput{Jobs: []uint32{attached}}); err == nil || !strings.Contains(err.Error(), "was not detached") {
			t.Errorf("what is not kept: %v", err)
		}
	})
}

// All kept output means the output of ended jobs. Removing it needs no disk space, and frees some.
func TestRemoveAllOutput(t *testing.T) {
	onFullDisk(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		c.detached(10)
		c.detached(10)
		running := c.run(detachedSpec(1))
		room := fullDisk(t, 1)
		removed := must[*control.OutputRemoved](c, new(control.RemoveOutput))
		room()
		if !slices.Equal(removed.Jobs, []uint32{1, 2}) || !slices.Equal(m.kept(), []string{fmt.Sprint("job-", running)}) {
			t.Errorf("that of %v is removed, and that of %v is kept", removed, m.kept())
		}
	})
}

// When the store forgets a job, the job's output is removed.
func TestForgottenOutput(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		m.server.remember = 2
		c := m.client()
		for range 3 {
			c.detached(10)
		}
		if jobs := m.kept(); !slices.Equal(jobs, []string{"job-2", "job-3"}) {
			t.Errorf("that of %v is kept", jobs)
		}
		if jobs := must[*control.Jobs](c, &control.ListJobs{All: true}).Jobs; len(jobs) != 2 || jobs[0].Job != 2 {
			t.Errorf("remembered are %v", jobs)
		}
	})
}

// A serve that finds more ended jobs than it remembers, forgets the first ones, and their output.
func TestTooManyJobs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		m.server.remember = keepEnded + 2
		c := m.client()
		for range keepEnded + 2 {
			c.detached(10)
		}
		m.restart()
		if jobs := must[*control.Jobs](m.client(), &control.ListJobs{All: true}).Jobs; len(jobs) != keepEnded || jobs[0].Job != 3 {
			t.Errorf("%d jobs are remembered, the first one is %v", len(jobs), jobs[0])
		}
		if kept := len(m.kept()); kept != keepEnded {
			t.Errorf("the output of %d jobs is kept", kept)
		}
	})
}

// A running job is not forgotten, however many jobs have ended since it started: the next serve
// must know it. When it has ended, it is remembered as long as any other.
func TestRunningJobIsNotForgotten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		m.server.remember = 2
		c := m.client()
		running := c.run(detachedSpec(1))
		for range 3 {
			c.detached(10)
		}
		m.restart()
		m.server.remember = 2
		m.back(running, control.JobPhase_JOB_RUNNING, 0)
		c = m.client()
		if s := c.summary(running); s.Phase != control.JobPhase_JOB_RUNNING {
			t.Errorf("after the restart it is %v", s)
		}
		remembered := func() (jobs []uint32) {
			for _, j := range must[*control.Jobs](c, &control.ListJobs{All: true}).Jobs {
				jobs = append(jobs, j.Job)
			}
			return jobs
		}
		must[*control.Done](c, &control.Kill{Job: running, Rank: control.None, Force: true})
		synctest.Wait()
		if jobs := remembered(); !slices.Equal(jobs, []uint32{running, 4}) {
			t.Errorf("after its end the jobs %v are remembered", jobs)
		}
		c.detached(10)
		c.detached(10)
		if jobs := remembered(); !slices.Equal(jobs, []uint32{5, 6}) {
			t.Errorf("after two others the jobs %v are remembered", jobs)
		}
	})
}

// A job that cannot be recorded is not created.
func TestCreateOnFullDisk(t *testing.T) {
	onFullDisk(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		room := fullDisk(t, 1)
		answer, err := c.ask(&control.RunRequest{Spec: spec(2)})
		room()
		if err == nil || !strings.Contains(err.Error(), "file too large; make room in ") {
			t.Errorf("it is answered with %v, %v", answer, err)
		}
		none[*control.Prepare](t, &m.played[0].recorder, "a node is to prepare it")
		if c.freeCores() != 2 || len(must[*control.Jobs](c, &control.ListJobs{All: true}).Jobs) != 0 {
			t.Errorf("something is left of it: %d cores are free", c.freeCores())
		}
	})
}

// A node keeps the end of a rank until it is recorded.
func TestEndOnFullDisk(t *testing.T) {
	onFullDisk(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		job := c.run(spec(2))
		n := m.played[0]
		room := fullDisk(t, 1)
		n.exits(job, 1, 0, 5, 0)
		c.ackAll()
		none[*control.Ack](t, &n.recorder, "the node is to forget an exit status that is not recorded")
		if s := c.summary(job); !strings.HasPrefix(s.Error, "its output waits until its state can be recorded: ") {
			t.Errorf("it is listed as %v", s)
		}
		room()
		time.Sleep(time.Second)
		if acks := take[*control.Ack](&n.recorder); len(acks) != 1 || acks[0].Seq != 1 {
			t.Errorf("then the node gets %v", acks)
		}
		room = fullDisk(t, 1)
		n.exits(job, 2, 1, 0, 0)
		c.ackAll()
		none[*control.Forget](t, &n.recorder, "the node is to forget a job whose end is not recorded")
		room()
		time.Sleep(time.Second)
		if state := c.ended(); state.ExitCode != 5 || state.Error != nil {
			t.Errorf("it ended as %v", state)
		}
		if s := c.summary(job); s.Phase != control.JobPhase_JOB_DONE || s.ExitCode != 5 || s.Error != "" {
			t.Errorf("it is listed as %v", s)
		}
	})
}

// While the end of a job cannot be recorded, its client knows what it waits for, and it does not
// wait forever: neither for ranks that have ended, nor for ranks that were asked to end, nor for
// ranks that block because their output cannot be forgotten.
func TestWaitOnFullDisk(t *testing.T) {
	if ownDisk(t) {
		return
	}
	for name, stop := range map[string]func(n *playedNode, job uint32){
		"all have ended": func(n *playedNode, job uint32) {
			n.exits(job, 1, 0, 0, 0)
			n.exits(job, 2, 1, 0, 0)
		},
		"one has failed": func(n *playedNode, job uint32) { n.exits(job, 1, 0, 5, 0) },
		"one has much to say": func(n *playedNode, job uint32) {
			n.exits(job, 1, 0, 0, 0)
			n.says(job, 2, 1, strings.Repeat("x", journal.Limit-1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := up(t, 1)
				c := m.client()
				job := c.run(spec(2))
				n := m.played[0]
				room := fullDisk(t, 1)
				stop(n, job)
				c.ackAll()
				time.Sleep(recordPause)
				said := one[*control.LogLine](t, &c.recorder)
				time.Sleep(119*time.Second - recordPause)
				none[*control.Forget](t, &n.recorder, "the job is ended early")
				none[*control.LogLine](t, &c.recorder, "its client is told again")
				time.Sleep(2 * time.Second)
				state, free, listed := c.ended(), c.freeCores(), c.summary(job)
				room()
				full := fmt.Sprintf("the machine's disk is full: write %s/state.db: file too large; make room in the file system of %[1]s: margay logs --remove removes kept output", m.config.Dir)
				if want := fmt.Sprintf("job %d waits until it can be recorded: %s", job, full); said.Text != want {
					t.Errorf("its client is told %q instead of %q", said.Text, want)
				}
				want := "its state could not be recorded for 2m0s: " + full
				if state.ExitCode != 125 || state.Error.GetText() != want || free != 2 || listed.Phase != control.JobPhase_JOB_DONE || listed.Error != want {
					t.Errorf("it ended as %v, is listed as %v, and %d cores are free", state, listed, free)
				}
				time.Sleep(time.Second)
				if s, err := m.server.store.jobState(job); err != nil || s.ExitCode != 125 || s.Error.GetText() != want {
					t.Errorf("it is recorded as %v, %v", s, err)
				}
			})
		})
	}
}

// A rank that computes may take as long as it needs, whether or not the disk is full.
func TestComputeOnFullDisk(t *testing.T) {
	onFullDisk(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		job := c.run(spec(2))
		n := m.played[0]
		room := fullDisk(t, 1)
		n.exits(job, 1, 0, 0, 0)
		c.ackAll()
		time.Sleep(10 * time.Minute)
		n.exits(job, 2, 1, 0, 0)
		c.ackAll()
		time.Sleep(time.Minute)
		none[*control.JobState](t, &c.recorder, "it has ended")
		room()
		time.Sleep(time.Second)
		if state := c.ended(); state.ExitCode != 0 || state.Error != nil {
			t.Errorf("it ended as %v", state)
		}
	})
}

// A client that returns to a job that waits for room is notified as well.
func TestAttachOnFullDisk(t *testing.T) {
	onFullDisk(t, func(t *testing.T) {
		m := up(t, 1)
		job := m.client().run(spec(2))
		m.restart()
		m.back(job, control.JobPhase_JOB_RUNNING, 0)
		room := fullDisk(t, 1)
		m.played[0].exits(job, 1, 0, 0, 0)
		c := m.attach(job)
		time.Sleep(recordPause)
		said := one[*control.LogLine](t, &c.recorder)
		room()
		if !strings.Contains(said.Text, "the machine's disk is full: ") {
			t.Errorf("it is told %q", said.Text)
		}
	})
}

// A job can be killed on a full disk. Its end is recorded when there is room.
func TestKillOnFullDisk(t *testing.T) {
	onFullDisk(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		job := c.run(spec(2))
		room := fullDisk(t, 1)
		must[*control.Done](c, &control.Kill{Job: job, Force: true})
		states, s := take[*control.JobState](&c.recorder), c.summary(job)
		room()
		if len(states) != 1 || states[0].ExitCode != 137 || s.Phase != control.JobPhase_JOB_DONE || s.ExitCode != 137 {
			t.Errorf("it ended as %v, and is listed as %v", states, s)
		}
		time.Sleep(time.Second)
		if s, err := m.server.store.jobState(job); err != nil || s.Phase != control.JobPhase_JOB_DONE || s.ExitCode != 137 {
			t.Errorf("it is recorded as %v, %v", s, err)
		}
	})
}

// A client that reads the output of a running job receives the reason why serve ends. If serve is
// only being restarted, the connection closes instead.
func TestReaderWhenServeEnds(t *testing.T) {
	cases := map[error]func(error) bool{
		context.Canceled:                    func(err error) bool { return errors.Is(err, control.ErrClosed) },
		errors.New("the machine goes down"): func(err error) bool { return err != nil && err.Error() == "the machine goes down" },
	}
	for cause, right := range cases {
		t.Run(cause.Error(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := up(t, 1)
				job := m.client().run(detachedSpec(1))
				reader := m.client()
				answered := make(chan error, 1)
				go func() {
					_, err := reader.ask(&control.Attach{Job: job, Output: true})
					answered <- err
				}()
				synctest.Wait()
				m.stop(cause)
				if err := <-answered; !right(err) {
					t.Errorf("it is answered with %v", err)
				}
			})
		})
	}
}
