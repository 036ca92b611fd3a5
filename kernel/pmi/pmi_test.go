package pmi

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"margay/internal/check"
	"margay/kernel/abi/id"
)

// say sends lines of one rank to the only node of a job, and returns the answers.
func say(j *Job, r id.Rank, lines ...string) (answers []string) {
	for _, line := range lines {
		for _, reply := range j.Line(0, r, []byte(line)).Replies {
			answers = append(answers, fmt.Sprintf("%d: %s", reply.Rank, reply.Line))
		}
	}
	return answers
}

// alone is a job with a number of ranks on one node.
func alone(ranks int) *Job {
	c := Config{Job: 7, Size: ranks, Places: 1, Mapping: "(vector,(0,1,2))"}
	for r := range ranks {
		c.Ranks = append(c.Ranks, id.Rank(r))
	}
	return New(c)
}

// The answers are those that MPICH expects, line by line. The answer to a wrong line is an error.
func TestLines(t *testing.T) {
	long := strings.Repeat("x", maxValue)
	for _, test := range []struct{ line, want string }{
		{"cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1"},
		{"cmd=init pmi_version=2 pmi_subversion=0", "cmd=response_to_init rc=-1 pmi_version=1 pmi_subversion=1 msg=version_1_is_spoken_here"},
		{"cmd=get_maxes", "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024"},
		{"cmd=get_appnum", "cmd=appnum rc=0 appnum=0"},
		{"cmd=get_my_kvsname", "cmd=my_kvsname rc=0 kvsname=job-7"},
		{"cmd=get_universe_size", "cmd=universe_size rc=0 size=2"},
		{"cmd=get kvsname=job-7 key=PMI_process_mapping", "cmd=get_result rc=0 msg=success value=(vector,(0,1,2))"},
		{"cmd=get kvsname=job-7 key=none", "cmd=get_result rc=-1 msg=unknown_key value=unknown"},
		{"cmd=get kvsname=job-8 key=PMI_process_mapping", "cmd=get_result rc=-1 msg=unknown_key_space value=unknown"},
		{"cmd=put kvsname=job-7 key=k value=a=b", "cmd=put_result rc=0 msg=success"},
		{"cmd=put kvsname=job-7 key=k value=c", "cmd=put_result rc=-1 msg=duplicate_key"},
		{"cmd=get kvsname=job-7 key=k", "cmd=get_result rc=0 msg=success value=a=b"},
		{"cmd=put kvsname=job-8 key=l value=c", "cmd=put_result rc=-1 msg=unknown_key_space"},
		{"cmd=put kvsname=job-7 value=c", "cmd=put_result rc=-1 msg=a_put_needs_a_key_and_a_value"},
		{"cmd=put kvsname=job-7 key=l", "cmd=put_result rc=-1 msg=a_put_needs_a_key_and_a_value"},
		{"cmd=put kvsname=job-7 key=l value=" + long, "cmd=put_result rc=-1 msg=the_key_is_longer_than_63_bytes_or_the_value_than_1023"},
		{"cmd=lookup_name service=s", "cmd=lookup_result info=error rc=-1 msg=the_name_is_not_published"},
		{"cmd=publish_name service=s port=p", "cmd=publish_result info=ok rc=0 msg=success"},
		{"cmd=publish_name service=s port=q", "cmd=publish_result info=error rc=-1 msg=the_name_is_taken_or_there_are_too_many"},
		{"cmd=lookup_name service=s", "cmd=lookup_result port=p info=ok rc=0 msg=success"},
		{"cmd=unpublish_name service=s", "cmd=unpublish_result info=ok rc=0 msg=success"},
		{"cmd=unpublish_name service=s", "cmd=unpublish_result info=error rc=-1 msg=the_name_is_not_published"},
		{"cmd=publish_name service=s", "cmd=publish_result info=error rc=-1 msg=a_name_or_port_is_missing_or_too_long"},
		{"cmd=spawn", "cmd=spawn_result rc=-1 msg=spawn_is_not_supported"},
		{"cmd=dance", "cmd=dance_result rc=-1 msg=unknown_command"},
		{"", "cmd=error rc=-1 msg=not_a_command_of_PMI_1:_it_is_empty"},
		{"garbage", "cmd=error rc=-1 msg=not_a_command_of_PMI_1:_\"garbage\"_is_not_a_pair_of_a_key_and_a_value"},
		{"a=b", "cmd=error rc=-1 msg=not_a_command_of_PMI_1:_it_begins_with_\"a_b\""},
		{"cmd=get\x00", "cmd=error rc=-1 msg=not_a_command_of_PMI_1:_byte_0x0"},
		{strings.Repeat("x", MaxLine), "cmd=error rc=-1 msg=not_a_command_of_PMI_1:_4096_bytes,_at_most_4095_are_allowed"},
	} {
		t.Run(test.line[:min(len(test.line), 40)], func(t *testing.T) {
			j := alone(2)
			switch {
			case strings.HasPrefix(test.want, "cmd=put_result rc=-1 msg=dup"), strings.HasPrefix(test.want, "cmd=get_result rc=0 msg=success value=a"):
				say(j, 0, "cmd=put kvsname=job-7 key=k value=a=b")
			case strings.Contains(test.want, "taken"), strings.Contains(test.want, "port=p"), strings.HasPrefix(test.want, "cmd=unpublish_result info=ok"):
				say(j, 0, "cmd=publish_name service=s port=p")
			}
			if got := say(j, 1, test.line); !slices.Equal(got, []string{"1: " + test.want}) {
				t.Errorf("%q", got)
			}
		})
	}
}

// A barrier ends for all ranks with the last that enters it. A rank that has ended or finalized
// makes it fail for the others.
func TestBarrier(t *testing.T) {
	j := alone(2)
	if got := say(j, 0, "cmd=barrier_in"); got != nil || !j.Owes(0) {
		t.Errorf("%q, owes %v", got, j.Owes(0))
	}
	if got := say(j, 1, "cmd=barrier_in"); !slices.Equal(got, []string{"0: cmd=barrier_out rc=0 msg=success", "1: cmd=barrier_out rc=0 msg=success"}) || j.Owes(0) {
		t.Errorf("%q", got)
	}
	say(j, 1, "cmd=finalize")
	if got := say(j, 1, "cmd=barrier_in"); !slices.Equal(got, []string{"1: cmd=barrier_in_result rc=-1 msg=after_finalize"}) {
		t.Errorf("%q", got)
	}
	if got := say(j, 0, "cmd=barrier_in"); !slices.Equal(got, []string{"0: cmd=barrier_out rc=-1 msg=rank_1_has_ended"}) {
		t.Errorf("%q", got)
	}
	j = alone(2)
	say(j, 0, "cmd=barrier_in")
	if a := j.Ended(0, 1); len(a.Replies) != 1 || a.Replies[0].Line != "cmd=barrier_out rc=-1 msg=rank_1_has_ended" {
		t.Errorf("%+v", a.Replies)
	}
	if a := j.Ended(0, 0); len(a.Replies) != 0 {
		t.Errorf("%+v", a.Replies)
	}
	if got := say(j, 0, "cmd=get_appnum"); got != nil {
		t.Errorf("an ended rank is answered: %q", got)
	}
}

// Spawn is refused once, after all of its lines; abort is not answered.
func TestSpawnAndAbort(t *testing.T) {
	j := alone(1)
	if got := say(j, 0, "mcmd=spawn", "nprocs=1", "execname=x", "cmd=get_appnum", "endcmd", "cmd=abort exitcode=259"); !slices.Equal(got, []string{"0: cmd=spawn_result rc=-1 msg=spawn_is_not_supported"}) {
		t.Errorf("%q", got)
	}
	if o := j.Outcome(0); !o.Aborted || o.Status != 3 || o.Used {
		t.Errorf("%+v", o)
	}
}

// What a rank has kept for it is bounded.
func TestPutsAreBounded(t *testing.T) {
	j := alone(1)
	value, puts := strings.Repeat("v", maxValue-1), 0
	for got := "0: cmd=put_result rc=0 msg=success"; got == "0: cmd=put_result rc=0 msg=success"; puts++ {
		got = say(j, 0, fmt.Sprintf("cmd=put kvsname=job-7 key=k%d value=%s", puts, value))[0]
	}
	if puts < maxPuts/(2*maxValue) || puts > maxPuts/maxValue+1 {
		t.Errorf("%d puts", puts)
	}
}

func TestMapping(t *testing.T) {
	var irregular []int
	for i := range 2000 {
		irregular = append(irregular, i, i)
		irregular = append(irregular, make([]int, i%3)...)
	}
	for _, test := range []struct {
		nodes []int
		want  string
	}{
		{nil, "(vector)"},
		{[]int{0, 0, 0}, "(vector,(0,1,3))"},
		{[]int{0, 0, 1, 1, 2}, "(vector,(0,2,2),(2,1,1))"},
		{[]int{0, 1, 0, 1}, "(vector,(0,2,1),(0,2,1))"},
		{irregular, ""},
	} {
		if got := Mapping(test.nodes); got != test.want {
			t.Errorf("%v: %q", test.nodes, got)
		}
	}
}

// histories is how many random histories a test plays, many under MARGAY_SOAK.
func histories() int {
	if os.Getenv("MARGAY_SOAK") != "" {
		return 20000
	}
	return 150
}

// flight is a message on its way.
type flight struct {
	from, to int
	data     []byte
}

// world is a job on several nodes, between which messages are lost, doubled and reordered.
type world struct {
	t      *testing.T
	random *rand.Rand
	now    time.Duration
	nodes  []*Job
	where  []int // by rank: its place
	air    []flight
	loss   float64

	// What the ranks have done, and what they must see.
	waits   []string          // by rank: what it waits for; empty: nothing
	answers []string          // by rank: its last answer
	put     map[string]string // by key: since the beginning
	visible map[string]string // the same, before the last complete barrier
	ended   []bool
}

func newWorld(t *testing.T, random *rand.Rand) *world {
	places := 1 + random.IntN(7)
	w := &world{t: t, random: random, loss: random.Float64() / 2, put: make(map[string]string), visible: make(map[string]string)}
	configs := make([]Config, places)
	for p := range places {
		configs[p] = Config{Job: 7, Place: p, Places: places}
	}
	for p := range places {
		for range 1 + random.IntN(3) {
			configs[p].Ranks = append(configs[p].Ranks, id.Rank(len(w.where)))
			w.where = append(w.where, p)
		}
	}
	for p := range places {
		configs[p].Size = len(w.where)
		w.nodes = append(w.nodes, New(configs[p]))
	}
	w.waits, w.answers, w.ended = make([]string, len(w.where)), make([]string, len(w.where)), make([]bool, len(w.where))
	return w
}

// do carries out the actions of a node.
func (w *world) do(place int, a Actions) {
	for _, r := range a.Replies {
		if w.where[r.Rank] != place || w.waits[r.Rank] == "" {
			w.t.Fatalf("rank %d of place %d got %q of place %d while it waits for %q", r.Rank, w.where[r.Rank], r.Line, place, w.waits[r.Rank])
		}
		w.answers[r.Rank], w.waits[r.Rank] = r.Line, ""
	}
	for _, m := range a.Messages {
		if len(m.Data) > MaxMessage {
			w.t.Fatalf("a message of %d bytes", len(m.Data))
		}
		w.air = append(w.air, flight{place, m.To, m.Data})
	}
}

// line sends a line of a rank.
func (w *world) line(r int, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.waits[r], w.answers[r] = text, ""
	w.do(w.where[r], w.nodes[w.where[r]].Line(w.now, id.Rank(r), []byte(text)))
}

// step lets something happen to the messages or the time.
func (w *world) step() {
	if len(w.air) == 0 || w.random.IntN(8) == 0 {
		w.now += time.Duration(w.random.Int64N(int64(time.Second)))
		for p, j := range w.nodes {
			w.do(p, j.Tick(w.now))
		}
		return
	}
	at := w.random.IntN(len(w.air))
	f := w.air[at]
	if w.random.Float64() > w.loss/2 { // otherwise it comes again
		w.air = slices.Delete(w.air, at, at+1)
	}
	if w.random.Float64() < w.loss {
		return
	}
	// A wrong message is dropped; none of ours may be wrong.
	a, err := w.nodes[f.to].Receive(w.now, f.from, f.data)
	if err != nil {
		w.t.Fatalf("from place %d to %d: %v", f.from, f.to, err)
	}
	w.do(f.to, a)
}

// until lets things happen until ok.
func (w *world) until(what string, ok func() bool) {
	for steps := 0; !ok(); steps++ {
		if steps > 1e6 {
			w.t.Fatalf("%s: nothing comes of it; waits %q", what, w.waits)
		}
		w.step()
	}
}

// A barrier brings all puts of all nodes to all, whatever happens to the messages. Ranks that end
// make it fail, and nothing hangs.
func TestModel(t *testing.T) {
	s := check.Seed(t)
	for history := range histories() {
		random := rand.New(rand.NewPCG(s, uint64(history)))
		w := newWorld(t, random)
		rounds := 1 + random.IntN(4)
		for round := range rounds {
			w.round(round, random.IntN(4) == 0 && round+1 == rounds)
		}
		if t.Failed() {
			t.Fatalf("history %d", history)
		}
	}
}

// round has all ranks put, wait in a barrier, and get everything. If some are to end, the barrier
// fails.
func (w *world) round(round int, end bool) {
	order := w.random.Perm(len(w.where))
	for _, r := range order {
		for n := range w.random.IntN(3) {
			key, value := fmt.Sprintf("k-%d-%d-%d", round, r, n), strings.Repeat("v", 1+w.random.IntN(maxValue-1))
			w.line(r, "cmd=put kvsname=job-7 key=%s value=%s", key, value)
			w.put[key] = value
			w.line(r, "cmd=get kvsname=job-7 key=%s", key)
			if want := "cmd=get_result rc=0 msg=success value=" + value; w.answers[r] != want {
				w.t.Fatalf("a rank does not see its own put: %q", w.answers[r])
			}
		}
		if w.random.IntN(3) == 0 {
			w.step()
		}
	}
	victim := -1
	if end {
		victim = order[w.random.IntN(len(order))]
	}
	for _, r := range order {
		if r == victim {
			w.ended[r] = true
			w.do(w.where[r], w.nodes[w.where[r]].Ended(w.now, id.Rank(r)))
			continue
		}
		w.line(r, "cmd=barrier_in")
	}
	w.until("barrier", func() bool {
		return !slices.ContainsFunc(w.waits, func(s string) bool { return s != "" })
	})
	w.visible = maps.Clone(w.put)
	for _, r := range order {
		if r == victim {
			continue
		}
		if ok := strings.HasPrefix(w.answers[r], "cmd=barrier_out rc=0"); ok == end {
			w.t.Fatalf("rank %d: %q, but some ended: %v", r, w.answers[r], end)
		}
		for key, value := range w.visible {
			w.line(r, "cmd=get kvsname=job-7 key=%s", key)
			if want := "cmd=get_result rc=0 msg=success value=" + value; w.answers[r] != want {
				w.t.Fatalf("rank %d, key %s: %q", r, key, w.answers[r])
			}
		}
	}
}

// Names are one for all nodes, and each operation is carried out once, whatever happens to the
// messages.
func TestNames(t *testing.T) {
	s := check.Seed(t)
	for history := range histories() {
		w := newWorld(t, rand.New(rand.NewPCG(s, uint64(history))))
		published := make(map[string]string)
		for n := range 30 {
			r, name := w.random.IntN(len(w.where)), fmt.Sprintf("s%d", w.random.IntN(3))
			port, known := published[name]
			want := "info=ok"
			switch w.random.IntN(3) {
			case 0:
				w.line(r, "cmd=publish_name service=%s port=p%d", name, n)
				if known {
					want = "info=error"
				} else {
					published[name] = fmt.Sprintf("p%d", n)
				}
			case 1:
				w.line(r, "cmd=lookup_name service=%s", name)
				if want = "port=" + port + " "; !known {
					want = "info=error"
				}
			case 2:
				w.line(r, "cmd=unpublish_name service=%s", name)
				if delete(published, name); !known {
					want = "info=error"
				}
			}
			w.until("name", func() bool { return w.waits[r] == "" })
			if !strings.Contains(w.answers[r], want) {
				t.Fatalf("history %d: %q, want %s", history, w.answers[r], want)
			}
		}
	}
}

// A fold of many parts arrives whole.
func TestManyParts(t *testing.T) {
	w := newWorld(t, rand.New(rand.NewPCG(check.Seed(t), 0)))
	for len(w.nodes) < 2 {
		w = newWorld(t, w.random)
	}
	value := strings.Repeat("v", maxValue-1)
	for n := range 150 {
		for r := range w.where {
			w.line(r, "cmd=put kvsname=job-7 key=k-%d-%d value=%s", r, n, value)
		}
	}
	for r := range w.where {
		w.line(r, "cmd=barrier_in")
	}
	w.until("barrier", func() bool {
		return !slices.ContainsFunc(w.waits, func(s string) bool { return s != "" })
	})
	for r := range w.where {
		w.line(r, "cmd=get kvsname=job-7 key=k-%d-149", (r+1)%len(w.where))
		if !strings.HasSuffix(w.answers[r], value) {
			t.Fatalf("%q", w.answers[r])
		}
	}
}

// No line makes a Job panic, or be answered more than once.
func FuzzLine(f *testing.F) {
	for _, line := range []string{
		"cmd=init pmi_version=1 pmi_subversion=1", "cmd=put kvsname=job-7 key=k value=v", "cmd=get kvsname=job-7 key=k", "mcmd=spawn", "endcmd",
		"cmd=publish_name service=s port=p", "cmd=lookup_name service=s", "cmd=abort exitcode=-1", "cmd=finalize", "cmd=barrier_in", "cmd=", "= =",
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		for _, c := range []Config{{Job: 7, Size: 2, Places: 1, Ranks: []id.Rank{0}}, {Job: 7, Size: 2, Place: 1, Places: 2, Ranks: []id.Rank{0}}} {
			j := New(c)
			a := j.Line(0, 0, line)
			if len(a.Replies) > 1 {
				t.Errorf("%+v", a.Replies)
			}
			for _, r := range a.Replies {
				if strings.ContainsAny(r.Line, "\n\x00") || len(r.Line) > 2*MaxLine {
					t.Errorf("%q", r.Line)
				}
			}
		}
	})
}

// No message from another node makes a Job panic or answer with what a line cannot have.
func FuzzReceive(f *testing.F) {
	whole := fold{waits: true, gone: noRank, pairs: []pair{{"k", "v"}}}
	for _, m := range []message{
		{kind: kindFold, number: 1, parts: 1, body: whole.encode()}, {kind: kindTable, number: 1, parts: 1, body: whole.encode()},
		{kind: kindFold, number: 1, parts: 2, body: whole.encode()}, {kind: kindFolded, number: 1}, {kind: kindTabled, number: 1},
		{kind: kindRequest, number: 1, name: "s", port: "p"}, {kind: kindAnswer, number: 1, ok: true, port: "p"},
	} {
		f.Add(m.encode())
		if got, err := decode(m.encode()); err != nil || fmt.Sprint(got.encode()) != fmt.Sprint(m.encode()) {
			f.Errorf("%+v: %+v, %v", m, got, err)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for place := range 2 {
			j := New(Config{Job: 7, Size: 3, Place: place, Places: 3, Ranks: []id.Rank{0, 1}})
			say(j, 0, "cmd=barrier_in")
			say(j, 1, "cmd=barrier_in")
			for range 2 {
				a, _ := j.Receive(0, 1-place, data)
				for _, r := range a.Replies {
					if strings.ContainsAny(r.Line, "\n\x00") {
						t.Errorf("%q", r.Line)
					}
				}
			}
			say(j, 1, "cmd=lookup_name service=s")
			if a, _ := j.Receive(0, 1-place, data); len(a.Replies) > 2 {
				t.Errorf("%+v", a.Replies)
			}
		}
	})
}
