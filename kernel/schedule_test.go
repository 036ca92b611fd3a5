package kernel

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"margay/internal/rights"
	"margay/kernel/abi/archive"
	"margay/kernel/abi/id"
	"margay/kernel/abi/layout"
	"margay/kernel/abi/node"
	"margay/kernel/abi/slot"
	"margay/kernel/extension"
	"margay/kernel/extension/extensiontest"
	"margay/kernel/hardware"
	"margay/kernel/message"
	"margay/kernel/record"
	"margay/kernel/sched"
	"margay/kernel/task"
	"margay/nimble/engine/portable"
)

// This scheduler notes the calls that it receives.
type heard struct {
	words []string
	cores []sched.CoreInfo
}

func (h *heard) Cores() []sched.CoreInfo { return h.cores }
func (h *heard) Watch(sched.Watcher)     {}

func (h *heard) Add(t sched.Task) error {
	if _, err := t.Process.Stat(); err != nil {
		return err
	}
	untouched := ""
	if t.Untouched {
		untouched = ", untouched"
	}
	h.words = append(h.words, fmt.Sprintf("add %d.%d core %d%s cpu %d pid %d group %q", t.Job, t.Rank, t.Core, untouched, t.CPU, t.PID, t.Group))
	return nil
}

func (h *heard) Name() string { return "heard" }

// open returns the scheduler at once.
func (h *heard) open() (Scheduler, []string) { return h, nil }

func (h *heard) SetPolicies(core id.Core, policies []*sched.Policy) error {
	if len(policies) > 0 {
		h.words = append(h.words, fmt.Sprintf("policies of core %d: %d", core, len(policies)))
	}
	return nil
}

func (h *heard) Arrived(id sched.ID, waiting uint32) {
	h.words = append(h.words, fmt.Sprintf("%d for %d.%d", waiting, id.Job, id.Rank))
}

func (h *heard) Woken(id sched.ID) {
	h.words = append(h.words, fmt.Sprintf("woken %d.%d", id.Job, id.Rank))
}

func (h *heard) Remove(id sched.ID) {
	h.words = append(h.words, fmt.Sprintf("remove %d.%d", id.Job, id.Rank))
}

// node1 is node 1, with so many application cores and nothing else.
func node1(t *testing.T, cores int) (*Node, *heard) {
	h := new(heard)
	m, err := extension.NewManager(portable.New(), cores+1, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	n := &Node{
		extensions: m, config: Config{Boot: node.Config{Node: 1}, Scheduler: h.open, Log: t.Logf}, jobs: make(map[id.Job]*job),
		recorder: record.New(cores + 1), messages: message.NewEngine(message.Config{Log: t.Logf}),
	}
	for i := range cores + 1 {
		n.cores = append(n.cores, hardware.Core{ID: id.Core(i), CPU: id.CPU(10 + i)})
	}
	n.info.Cores = n.cores[1:]
	m.Watch(slot.Sched, n.reschedule)
	n.share()
	return n, h
}

// prepared is a job of the node, with one rank on each given core of this node, after one
// elsewhere.
func (n *Node) prepared(t testing.TB, number id.Job, cores ...id.Core) *job {
	places := []layout.Place{{Rank: 0, Node: 0, Core: 1}}
	for i, core := range cores {
		places = append(places, layout.Place{Rank: id.Rank(1 + i), Node: 1, Core: core})
	}
	j := n.newJob()
	j.spec = JobSpec{Job: number, Layout: laidOut(t, places...)}
	return j
}

// preparedWide is prepared for a job with one rank here, which has all the cores.
func (n *Node) preparedWide(t testing.TB, number id.Job, core id.Core, more ...id.Core) *job {
	j := n.newJob()
	j.spec = JobSpec{Job: number, Layout: laidOut(t, layout.Place{Rank: 0, Node: 0, Core: 1}, layout.Place{Rank: 1, Node: 1, Core: core, More: more})}
	return j
}

func TestClaim(t *testing.T) {
	n, _ := node1(t, 3)
	if err := n.claim(n.prepared(t, 7, 1, 1, 2)); err != nil {
		t.Fatal(err)
	}
	if err := n.claim(n.prepared(t, 8, 3, 2)); !errors.Is(err, ErrBusy) || err.Error() != "core 2: core is not free: job 7 has it" {
		t.Error(err)
	}
	if err := n.claim(n.prepared(t, 7, 3)); !errors.Is(err, ErrPhase) {
		t.Error(err)
	}
	if err := n.claim(n.prepared(t, 8, 3, 3, 3, 3, 3, 3, 3, 3, 3)); !errors.Is(err, ErrBusy) {
		t.Error(err)
	}
	if err := n.claim(n.prepared(t, 8, 3, 3, 3, 3, 3, 3, 3, 3)); err != nil {
		t.Error(err)
	}
}

// Memory is shared out by cores, not by ranks.
func TestMemoryShare(t *testing.T) {
	n, _ := node1(t, 4)
	n.info.Memory = 400 << 20
	for _, c := range []struct {
		cores []id.Core
		mib   int64
	}{{[]id.Core{1}, 100}, {[]id.Core{1, 1, 1}, 100}, {[]id.Core{1, 1, 2, 2}, 200}, {[]id.Core{1, 2, 3, 4}, 400}} {
		s, err := n.taskSpec(n.prepared(t, 7, c.cores...).spec)
		if err != nil || s.Memory != c.mib<<20 {
			t.Errorf("ranks on cores %v get %d MiB, %v", c.cores, s.Memory>>20, err)
		}
	}
}

// A rank with several cores may run on all of them. They belong to its job alone, and its share of
// the memory is theirs.
func TestCoresOfRank(t *testing.T) {
	n, _ := node1(t, 3)
	n.info.Memory = 300 << 20
	j := n.preparedWide(t, 7, 1, 2)
	s, err := n.taskSpec(j.spec)
	if err != nil {
		t.Fatal(err)
	}
	if want := []id.CPU{n.cores[1].CPU, n.cores[2].CPU}; len(s.Ranks) != 1 || !slices.Equal(s.Ranks[0].Cores, want) {
		t.Errorf("ranks %v may not run on %v", s.Ranks, want)
	}
	alone, err := n.taskSpec(n.prepared(t, 8, 1).spec)
	if err != nil || s.Memory != 2*alone.Memory {
		t.Errorf("two cores have %d bytes, one has %d, %v", s.Memory, alone.Memory, err)
	}
	if err := n.claim(j); err != nil {
		t.Fatal(err)
	}
	if err := n.claim(n.prepared(t, 9, 2)); !errors.Is(err, ErrBusy) {
		t.Errorf("another job gets its second core: %v", err)
	}
	if !n.wide(sched.ID{Job: 7, Rank: 1}) || n.wide(sched.ID{Job: 7, Rank: 0}) {
		t.Error("the scheduler is given a rank that shares no core, or not one that has a single one")
	}
	if _, err := n.taskSpec(n.preparedWide(t, 7, 1, 99).spec); err == nil || err.Error() != "there is no application core 99" {
		t.Errorf("a core that is none: %v", err)
	}
}

// No numbers that a client sends make a RAM disk without a bound.
func TestRAMDiskHasABound(t *testing.T) {
	n, _ := node1(t, 1)
	n.info.Memory = 400 << 20
	for _, c := range []struct {
		memory, files int64
		err           string
	}{
		{leastMemory, leastMemory / 4 * 3, ""},
		{0, 300 << 20, ""},
		{0, 300<<20 + 1, "the files need 301 MiB, the job's RAM disk has 300 MiB here"},
		{0, math.MaxInt64, "the files need 8796093022208 MiB, the job's RAM disk has 300 MiB here"},
		{0, -1, "files of -1 bytes"},
		{1, 0, "a memory of 1; a job's memory has at least 1 MiB"},
		{-1, 0, "a memory of -1;"},
		{math.MinInt64, 0, "a job's memory has at least 1 MiB"},
	} {
		spec := n.prepared(t, 7, 1).spec
		spec.Memory, spec.Files = c.memory, c.files
		s, err := n.taskSpec(spec)
		if c.err == "" && (err != nil || s.RAMDisk < c.files || s.RAMDisk <= 0) {
			t.Errorf("memory %d, files %d: RAM disk %d, %v", c.memory, c.files, s.RAMDisk, err)
		}
		if c.err != "" && (!errors.Is(err, ErrRoom) || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("memory %d, files %d: %v", c.memory, c.files, err)
		}
	}
}

// A job executes programs and libraries that are lent to it where they are, so they need no room in
// its RAM disk. Other users' jobs get none.
func TestLentFilesTakeNoRoom(t *testing.T) {
	n, _ := node1(t, 1)
	n.info.Memory = 400 << 20
	n.config.Boot.Lent = &node.Lender{User: 1000}
	folder := t.TempDir()
	there, none := archive.Digest{1}, archive.Digest{2}
	name := filepath.Join(folder, there.String())
	if err := errors.Join(os.WriteFile(name, nil, 0o500), os.Truncate(name, 200<<20-1)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		user    uint32
		files   int64
		lent    int
		fits    bool
		comment string
	}{
		{1000, 500 << 20, 1, true, "300 MiB beside the lent ones"},
		{1000, 500<<20 + 1, 1, false, "and a byte"},
		{1000, 1, 1, true, "less than is lent"},
		{1000, -1, 1, false, "a forged number"},
		{1001, 500 << 20, 0, false, "another user"},
	} {
		spec := n.prepared(t, 7, 1).spec
		spec.Files, spec.UserID, spec.Contents = c.files, c.user, []archive.Digest{none, there}
		lent := n.openLent(&spec, folder)
		_, err := n.taskSpec(spec)
		if len(lent.files) != c.lent || (err == nil) != c.fits {
			t.Errorf("%s: %d files are lent, %v", c.comment, len(lent.files), err)
		}
		rights.Close(lent.files)
	}
}

// begins starts ranks of a job as its init would, and returns their descriptors.
func (j *job) begins(t *testing.T, ranks ...id.Rank) (files []*os.File) {
	t.Helper()
	for _, rank := range ranks {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
		j.Started(task.RankProcess{Rank: rank, PID: 100 + int(rank), File: f, Group: fmt.Sprintf("/group/%d", rank)})
	}
	return files
}

// The scheduler gets each rank of an adopted job, and gives it back: the previous node kernel may
// have stopped it. It is notified once of the end of each, whatever the cause.
func TestScheduler(t *testing.T) {
	n, h := node1(t, 2)
	j := n.prepared(t, 7, 1, 1, 2)
	j.adopted = true
	files := j.begins(t, 1, 2, 3, 0, 4) // 0 is elsewhere, 4 nowhere
	h.expect(t, `add 7.1 core 1 cpu 11 pid 101 group "/group/1"`, "remove 7.1", `add 7.2 core 1 cpu 11 pid 102 group "/group/2"`,
		"remove 7.2", `add 7.3 core 2 cpu 12 pid 103 group "/group/3"`, "remove 7.3")
	j.leave(2)
	j.leave(2)
	j.leaveAll()
	j.leaveAll()
	h.expect(t, "remove 7.2", "remove 7.1", "remove 7.3")
	for rank, f := range files {
		if err := f.Close(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("descriptor %d is still open: %v", rank, err)
		}
	}
}

// The scheduler has the ranks of a job while there is an extension in its slot, and the ranks that
// share cores while turns are recorded.
func TestSchedulerIsNeeded(t *testing.T) {
	n, h := node1(t, 3)
	shared, alone := n.prepared(t, 7, 1, 1), n.prepared(t, 8, 2)
	for _, j := range []*job{shared, alone} {
		if err := n.claim(j); err != nil {
			t.Fatal(err)
		}
		j.extensions = n.extensions.Open(j.spec.Job, 1<<20)
		j.messageConfig()
		j.begins(t, 1)
		t.Cleanup(j.leaveAll)
	}
	brief := func(words ...string) {
		t.Helper()
		for i, word := range h.words {
			h.words[i], _, _ = strings.Cut(word, " cpu")
		}
		h.expectInAnyOrder(t, words...)
	}
	brief()
	object := extensiontest.Object(t, extensiontest.Program{Section: "sched", Name: "none", Code: []string{"mov r0, 255", "exit"}})
	x, err := alone.extensions.Insert(extension.Request{Object: object})
	if err != nil {
		t.Fatal(err)
	}
	brief("policies of core 2: 1", "add 8.1 core 2, untouched")
	if begins, err := n.recorder.Follow(1); err != nil || !begins {
		t.Fatal(begins, err)
	}
	brief("policies of core 2: 1", "add 7.1 core 1, untouched")
	shared.begins(t, 2) // at once
	brief("add 7.2 core 1")
	if err := n.RemoveExtension(x.Handle(), "a test"); err != nil {
		t.Fatal(err)
	}
	brief("remove 8.1")
	shared.arrived(1, 5)
	alone.arrived(1, 5)
	brief("5 for 7.1")
	n.recorder.Leave(1)
	brief("remove 7.1", "remove 7.2")
	shared.arrived(1, 5)
	brief()
}

// After a restart, a node kernel does not wait for its scheduler. Ranks run until it is there, even
// those that were left stopped. The scheduler is then given the remaining ranks, under the policies
// of that moment.
func TestScheduledLater(t *testing.T) {
	n, h := node1(t, 2)
	n.scheduler.Store(nil)
	n.shared.Store(false)
	n.info.Scheduler, n.booted = "", true
	answer := make(chan struct{})
	n.config.Scheduler = func() (Scheduler, []string) {
		<-answer
		return h, []string{"something"}
	}
	if err := n.Boot(); err != nil {
		t.Fatal(err)
	}
	j := n.prepared(t, 7, 1, 1, 2)
	j.extensions = n.extensions.Open(7, 1<<20)
	if err := n.claim(j); err != nil {
		t.Fatal(err)
	}
	start := func(rank id.Rank) (frozen string) {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		group := t.TempDir()
		frozen = filepath.Join(group, "cgroup.freeze")
		if err := os.WriteFile(frozen, []byte("1"), 0o600); err != nil {
			t.Fatal(err)
		}
		j.Started(task.RankProcess{Rank: rank, PID: os.Getpid(), File: f, Group: group})
		return frozen
	}
	t.Cleanup(j.leaveAll)
	for rank := id.Rank(1); rank <= 3; rank++ {
		if state, err := os.ReadFile(start(rank)); string(state) != "0" {
			t.Errorf("rank %d is stopped: %q, %v", rank, state, err)
		}
	}
	object := extensiontest.Object(t, extensiontest.Program{Section: "sched", Name: "none", Code: []string{"mov r0, 255", "exit"}})
	if _, err := j.extensions.Insert(extension.Request{Object: object}); err != nil {
		t.Fatal(err)
	}
	j.messageConfig()
	j.arrived(1, 5)
	j.leave(1)
	if x := n.Extensions(); len(x) != 1 || x[0].Waits != beingStarted {
		t.Errorf("extensions %+v", x)
	}
	if info := n.Info(); info.Scheduler != "" || len(info.Lacks) != 1 || !strings.HasSuffix(info.Lacks[0], beingStarted) {
		t.Errorf("the node is %+v", info)
	}
	s, err := n.Sample()
	for _, r := range s.Ranks {
		if why := map[id.Rank]string{2: starting, 3: alone}[r.Rank]; r.Why != why {
			t.Errorf("rank %d: %q, want %q", r.Rank, r.Why, why)
		}
	}
	if err != nil || len(s.Ranks) != 2 {
		t.Errorf("%+v, %v", s, err)
	}
	h.expect(t)

	close(answer)
	for end := time.Now().Add(time.Minute); n.opening(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the scheduler does not get the cores")
		}
	}
	for i, word := range h.words {
		h.words[i], _, _ = strings.Cut(word, " cpu")
	}
	h.expectInAnyOrder(t, "add 7.2 core 1", "add 7.3 core 2", "policies of core 1: 1", "policies of core 2: 1")
	j.arrived(2, 5)
	h.expect(t, "5 for 7.2")
	if x := n.Extensions(); x[0].Waits != "" {
		t.Errorf("extensions %+v", x)
	}
	if info := n.Info(); info.Scheduler != "heard" || !slices.Equal(info.Lacks, []string{"something"}) {
		t.Errorf("the node is %+v", info)
	}
}

// A scheduler that comes while turns are recorded gets each rank once, not as one that no enforcer
// has touched.
func TestSharedWhileRecording(t *testing.T) {
	n, h := node1(t, 1)
	n.scheduler.Store(nil)
	j := n.prepared(t, 7, 1, 1)
	if err := n.claim(j); err != nil {
		t.Fatal(err)
	}
	j.extensions = n.extensions.Open(7, 1<<20)
	j.messageConfig()
	j.begins(t, 1, 2)
	t.Cleanup(j.leaveAll)
	if begins, err := n.recorder.Follow(1); err != nil || !begins {
		t.Fatal(begins, err)
	}
	n.share()
	for i, word := range h.words {
		h.words[i], _, _ = strings.Cut(word, " cpu")
	}
	h.expect(t, "add 7.1 core 1", "add 7.2 core 1")
}

// Cores get the policies of the machine and of their job whenever those come and go. The scheduler
// is notified of messages only where they can matter.
func TestPolicies(t *testing.T) {
	n, h := node1(t, 3)
	one, other := n.prepared(t, 7, 1), n.prepared(t, 8, 2, 2)
	for _, j := range []*job{one, other} {
		if err := n.claim(j); err != nil {
			t.Fatal(err)
		}
		j.extensions = n.extensions.Open(j.spec.Job, 1<<20)
		j.messageConfig()
	}
	one.arrived(1, 5)
	other.woken(2)
	object := extensiontest.Object(t, extensiontest.Program{Section: "sched", Name: "none", Code: []string{"mov r0, 255", "exit"}})
	insert := func(job id.Job) id.Handle {
		handle, err := n.extensions.Set(job).Insert(extension.Request{Object: object})
		if err != nil {
			t.Fatal(err)
		}
		return handle.Handle()
	}
	handle := insert(7)
	one.arrived(1, 7)
	other.arrived(1, 6)
	h.expect(t, "policies of core 1: 1", "7 for 7.1")
	insert(extension.Machine)
	h.expectInAnyOrder(t, "policies of core 1: 2", "policies of core 2: 1")
	other.woken(2)
	h.expect(t, "woken 8.2")
	if err := n.RemoveExtension(handle, "a test"); err != nil {
		t.Fatal(err)
	}
	h.expect(t, "policies of core 1: 1")
	n.setPolicies(8, 2)
	h.expect(t, "policies of core 2: 1")
}

func (h *heard) expect(t *testing.T, words ...string) {
	t.Helper()
	if !slices.Equal(h.words, words) {
		t.Errorf("%q\nwant %q", h.words, words)
	}
	h.words = nil
}

func (h *heard) expectInAnyOrder(t *testing.T, words ...string) {
	t.Helper()
	slices.Sort(h.words)
	slices.Sort(words)
	h.expect(t, words...)
}
