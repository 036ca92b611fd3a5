package serve

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/permit"
	"margay/kernel/gate"
)

// named is a connection with the user that Linux would name.
type named struct {
	net.Conn
	peer control.Peer
}

// letsIn has a machine let in users 7001 and 7002 and administrator 7003, with a limit on what each
// user may have.
func letsIn(t *testing.T) func(*Config) {
	audit, err := permit.OpenAudit(filepath.Join(t.TempDir(), "audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { audit.Close() })
	return func(c *Config) {
		c.Audit = audit
		c.Access = permit.Policy{
			Users: permit.Members{{Name: "@lab", ID: 700, Group: true}}, Administrators: permit.Members{{Name: "carol", ID: 7003}}, Cores: 3, Jobs: 2,
		}
		c.Peer = func(conn net.Conn) (control.Peer, error) {
			if g, is := conn.(named); is {
				return g.peer, nil
			}
			return asOwner(conn)
		}
	}
}

// call opens a connection as a user; those from 7001 on are in the group that is let in.
func (m *machine) call(uid uint32, hello *control.Hello) (*playedClient, error) {
	m.t.Helper()
	peer := control.Peer{UID: uid}
	if uid >= 7001 {
		peer.GIDs = []uint32{100, 700}
	}
	near, far := net.Pipe()
	m.clients.Deliver(m.t, named{far, peer})
	c := &playedClient{m: m, conn: control.NewConn(near)}
	m.t.Cleanup(c.conn.Close)
	if _, err := c.conn.Greet(hello); err != nil {
		return nil, err
	}
	go c.conn.Serve(func(f *control.Frame) { c.add(f.Message()) })
	return c, nil
}

// as is call for a client that serve must accept.
func (m *machine) as(uid uint32) *playedClient {
	m.t.Helper()
	c, err := m.call(uid, &control.Hello{Role: control.Role_ROLE_CLIENT})
	if err != nil {
		m.t.Fatal(err)
	}
	return c
}

// isRefused expects that a request is refused, with this text in the reason.
func isRefused(t *testing.T, err error, why string) {
	t.Helper()
	if !errors.Is(err, &control.Failure{Code: control.Code_CODE_REFUSED}) || !strings.Contains(err.Error(), why) {
		t.Errorf("%v, not a refusal that says %s", err, why)
	}
}

// A user learns of another one's job only that it is there, and can do nothing to it. An
// administrator can. Every refusal is in the audit log.
func TestOtherUsers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2, letsIn(t))
		ann, bob, carol := m.as(7001), m.as(7002), m.as(7003)
		s := detachedSpec(1)
		s.User, s.Uid = "carol", 7003 // she is not
		s.Shared = []*control.SharedFolder{{Path: []byte("/shared")}}
		node := m.played[0]
		job := must[*control.RunReply](ann, &control.RunRequest{Spec: s, Exec: &control.Exec{Argv: [][]byte{[]byte("secret")}}}).Job
		node.tell(&control.Loaded{Job: job})
		if p := one[*control.Prepare](t, &node.recorder); p.Spec.Uid != 7001 || p.Spec.User != "user7001" || !p.Spec.Limited {
			t.Errorf("the job of user 7001 is that of %v", p.Spec)
		}
		node.answers = map[string]proto.Message{
			"TakeSamples":    &control.Samples{Nodes: []*control.NodeSample{{Ranks: []*control.RankSample{{Job: job, Core: 1, Pid: 9, Why: "secret", CpuNs: 5}}}}},
			"ListExtensions": &control.Extensions{Extensions: []*control.ExtensionState{{Job: job, Handle: 1}, {Handle: 2}}},
			"ExtensionLog":   &control.ExtensionNotes{Notes: []*control.ExtensionNote{{Job: job}, {Job: 0}}},
			"ReadStacks":     &control.Stacks{},
		}

		about := fmt.Sprintf("job %d is user7001's: only user7001 and the administrators of machine m may", job)
		denied := []proto.Message{
			&control.Kill{Job: job, Signal: 9, Rank: control.None}, &control.Attach{Job: job}, &control.Attach{Job: job, Output: true},
			&control.ReadStacks{Job: job}, &control.ReadEvents{Job: job}, &control.ReadFiles{Job: job}, &control.InsertExtension{Job: job},
			&control.RemoveExtension{Handle: 1}, &control.RemoveOutput{Jobs: []uint32{job}},
			&control.RunRequest{Spec: &control.JobSpec{Task: &control.Task{Array: job}}},
		}
		for _, request := range denied {
			_, err := bob.ask(request)
			isRefused(t, err, about)
		}
		bob.tell(&control.Signal{Job: job, Rank: control.None, Signal: 15}) // has no answer
		none[*control.Signal](t, &node.recorder, "a signal for another user's job")
		for _, request := range []proto.Message{&control.DrainNodes{Nodes: []uint32{0}}, &control.InsertExtension{}, &control.RemoveExtension{Handle: 2}, &control.ReadAudit{}, &control.ReadKernelLog{}} {
			_, err := bob.ask(request)
			isRefused(t, err, "only the owner and the administrators of machine m may")
		}
		_, err := m.call(7002, &control.Hello{Role: control.Role_ROLE_FILES, Job: job})
		isRefused(t, err, about)
		_, err = m.call(7002, &control.Hello{Role: control.Role_ROLE_DEBUG, Job: job})
		isRefused(t, err, about+" debug it")
		_, err = m.call(7003, &control.Hello{Role: control.Role_ROLE_HOLDER})
		isRefused(t, err, "the holder of machine m is a process of its owner")
		_, err = m.call(6000, &control.Hello{Role: control.Role_ROLE_CLIENT})
		isRefused(t, err, "does not let user6000 in")

		node.says(job, 1, 0, "secret\n")
		for who, knows := range map[*playedClient]bool{ann: true, bob: false, carol: true, m.client(): true} {
			if j := who.summary(job); j.Hidden == knows || (j.Command == "secret") != knows || j.Uid != 7001 || j.User != "user7001" || len(j.RankStates) != 1 {
				t.Errorf("the job is shown as %v", j)
			}
			place := &control.RankSample{Job: job, Core: 1}
			if ranks := must[*control.Samples](who, &control.TakeSamples{Node: 0}).Nodes[0].Ranks; len(ranks) != 1 || ranks[0].Core != 1 || proto.Equal(ranks[0], place) == knows {
				t.Errorf("the ranks have the samples %v", ranks)
			}
			node.answers["TakeSamples"] = proto.CloneOf(node.answers["TakeSamples"].(*control.Samples))
			if n := len(must[*control.Extensions](who, &control.ListExtensions{Node: 0}).Extensions); n != 1 && !knows || n != 2 && knows {
				t.Errorf("%d extensions are listed", n)
			}
			if n := len(must[*control.ExtensionNotes](who, &control.ExtensionLog{Node: 0}).Notes); n != 1 && !knows || n != 2 && knows {
				t.Errorf("%d notes of extensions are listed", n)
			}
		}
		must[*control.Done](carol, &control.Kill{Job: job, Signal: 12, Rank: control.None})
		if sent := one[*control.Signal](t, &node.recorder); sent.Signal != 12 {
			t.Errorf("the administrator's signal is %v", sent)
		}
		must[*control.NodesDrained](carol, &control.DrainNodes{Nodes: []uint32{1}, User: "ann"})
		if d := must[*control.Nodes](bob, &control.ListNodes{}).Nodes[1].Drain; d.GetUser() != "user7003" {
			t.Errorf("the node is drained: %v", d)
		}
		lines := must[*control.Audit](carol, &control.ReadAudit{}).Lines
		var got []string
		for _, l := range lines {
			got = append(got, fmt.Sprint(l.Uid, " ", l.Request, " ", l.Object))
		}
		want := "7002 Kill job 1, 7002 Attach job 1, 7002 Attach job 1, 7002 ReadStacks job 1, 7002 ReadEvents job 1, 7002 ReadFiles job 1, " +
			"7002 InsertExtension job 1, 7002 RemoveExtension job 1, 7002 RemoveOutput job 1, 7002 RunRequest job 1, 7002 Signal job 1, " +
			"7002 DrainNodes machine, 7002 InsertExtension machine, 7002 RemoveExtension machine, 7002 ReadAudit machine, 7002 ReadKernelLog machine, " +
			"7002 FileChunk job 1, 7002 DebugRank job 1, 7003 hold machine, 6000 connect machine"
		if strings.Join(got, ", ") != want {
			t.Errorf("the audit log has %s", strings.Join(got, ", "))
		}

		// It stays so when the job has ended, and after a restart of serve.
		node.exits(job, 2, 0, 3, 0)
		m.restart()
		for _, n := range m.played {
			n.connect()
		}
		ann, bob = m.as(7001), m.as(7002)
		_, err = bob.ask(&control.Attach{Job: job, Output: true})
		isRefused(t, err, about)
		if j := bob.summary(job); !j.Hidden || j.Command != "" || j.RankStates[0].Exit != nil {
			t.Errorf("the job that has ended is shown as %v", j)
		}
		if removed := must[*control.OutputRemoved](bob, &control.RemoveOutput{}); len(removed.Jobs) > 0 {
			t.Errorf("bob removes the output of jobs %v", removed.Jobs)
		}
		must[*control.Done](ann, &control.Attach{Job: job, Output: true})
		if _, err := bob.ask(&control.Kill{Job: 99}); !errors.Is(err, &control.Failure{Code: control.Code_CODE_NOT_FOUND}) {
			t.Errorf("a job that is not there: %v", err)
		}
	})
}

// A user has no more than users may have, and does not keep others from their cores. What the owner
// and administrators have has no limit.
func TestUserLimits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 3, letsIn(t)) // six cores; a user may have three, and two jobs
		ann, bob, carol := m.as(7001), m.as(7002), m.as(7003)
		waits := func(ranks uint32) *control.RunRequest {
			s := spec(ranks)
			s.WaitMs = -1
			return &control.RunRequest{Spec: s}
		}
		_, err := ann.ask(waits(4))
		isRefused(t, err, "it needs 4 cores, and a user of machine m may have 3 cores and 2 jobs at a time")
		first := ann.run(spec(2))
		if _, err := ann.ask(&control.RunRequest{Spec: spec(2)}); !errors.Is(err, &control.Failure{Code: control.Code_CODE_NO_ROOM}) || !strings.Contains(err.Error(), "user7001 has 1 job on 2 cores") {
			t.Errorf("four cores of one user: %v", err)
		}
		ann.run(spec(1))
		go ann.ask(waits(1))
		synctest.Wait()
		if w := must[*control.Jobs](bob, &control.ListJobs{}).Waiting; len(w) != 1 || !w[0].Hidden || !strings.HasPrefix(w[0].Why, "waiting until its user has less") {
			t.Errorf("in the queue is %v", w)
		}
		job := bob.run(waits(2).Spec) // behind ann's, which waits for her
		go carol.ask(waits(6))
		synctest.Wait()
		if jobs := must[*control.Jobs](carol, &control.ListJobs{}); len(jobs.Waiting) != 2 {
			t.Errorf("in the queue are %v", jobs.Waiting) // six cores are too many now, but not for her
		}
		carol.tell(&control.Withdraw{})
		if jobs := must[*control.Jobs](carol, &control.ListJobs{}); len(jobs.Waiting) != 1 {
			t.Errorf("in the queue are %v", jobs.Waiting)
		}
		m.played[0].exits(first, 1, 0, 0, 0)
		m.played[0].exits(first, 2, 1, 0, 0)
		ann.ackAll()
		synctest.Wait()
		if jobs := must[*control.Jobs](ann, &control.ListJobs{}); len(jobs.Waiting) != 0 {
			t.Errorf("still in the queue is %v; job %d is bob's", jobs.Waiting, job)
		}
	})
}

// A user cannot have all connections.
func TestUserConnections(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMachine(t, 1, letsIn(t))
		m.server.callers = gate.NewRoom(3, 2)
		first, _ := m.as(7001), m.as(7001)
		if _, err := m.call(7001, &control.Hello{Role: control.Role_ROLE_CLIENT}); !errors.Is(err, &control.Failure{Code: control.Code_CODE_NO_ROOM}) {
			t.Errorf("a third connection: %v", err)
		}
		m.as(7002)
		m.client() // the owner needs no room
		first.conn.Close()
		synctest.Wait()
		m.as(7001)
	})
}

// A user cannot have nodes asked any number of questions at a time.
func TestUserQuestions(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1, letsIn(t))
		node := m.played[0]
		node.mute["TakeSamples"] = true
		ann := m.as(7001)
		for range mostQuestions + 3 {
			ann.conn.Ask(&control.TakeSamples{Node: 0})
		}
		synctest.Wait()
		if n := len(take[*control.TakeSamples](&node.recorder)); n != mostQuestions {
			t.Errorf("a node is asked %d questions at a time", n)
		}
		must[*control.MachineStatus](m.as(7002), &control.Status{})
	})
}

// A large request of a user is carried out before its connection is read on.
func TestLargeQuestions(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1, letsIn(t))
		node := m.played[0]
		node.mute["InsertExtension"] = true
		ann := m.as(7001)
		job := ann.run(spec(1))
		for range 3 {
			ann.conn.Ask(&control.InsertExtension{Job: job, Node: control.None, Object: make([]byte, smallFrame)})
		}
		synctest.Wait()
		if n := len(take[*control.InsertExtension](&node.recorder)); n != 1 {
			t.Errorf("a node has %d large requests of a connection at a time", n)
		}
	})
}

// The store keeps what a user says about a job, so that has a bounded size. Nodes that are named a
// thousand times are named once.
func TestUserSpec(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2, letsIn(t))
		ann, node := m.as(7001), m.played[1]
		s := spec(1)
		s.Only, s.Without = slices.Repeat([]uint32{1}, mostSpec), slices.Repeat([]uint32{0}, mostSpec)
		ann.run(s)
		if p := one[*control.Prepare](t, &node.recorder); !slices.Equal(p.Spec.Only, []uint32{1}) || !slices.Equal(p.Spec.Without, []uint32{0}) {
			t.Errorf("the job has nodes %v without %v", p.Spec.Only, p.Spec.Without)
		}
		s = spec(1)
		s.Dir = make([]byte, mostSpec)
		_, err := ann.ask(&control.RunRequest{Spec: s})
		if !errors.Is(err, &control.Failure{Code: control.Code_CODE_BAD_REQUEST}) || !strings.Contains(err.Error(), "the description of the job has 64 KiB") {
			t.Errorf("a long description: %v", err)
		}
		m.client().run(s)
	})
}

// What takes little in a request and much in memory counts as much.
func TestSizeOf(t *testing.T) {
	if size := int(reflect.TypeFor[control.Part]().Size()) + 8; size > partSize { // and a pointer to it
		t.Errorf("a part takes %d bytes, not %d", size, partSize)
	}
	word := [][]byte{nil}
	m := &control.RunRequest{Exec: &control.Exec{Argv: word, Env: word, Contents: word, Parts: []*control.Part{{Argv: word, Env: word}}}}
	m.Spec = &control.JobSpec{Out: word, Shared: []*control.SharedFolder{{}}}
	if size := sizeOf(m) - proto.Size(m); size != 6*wordSize+2*partSize {
		t.Errorf("six words, a part and a shared folder take %d bytes more than in the request", size)
	}
}

// The requests of a user in the queue have a bounded size.
func TestQueuedSize(t *testing.T) {
	large := func(uid uint32, limited bool) *waiting {
		return &waiting{spec: &control.JobSpec{Uid: uid, User: "ann", Limited: limited}, size: mostQueuedSize/2 + 1}
	}
	s := &Server{queue: queue{large(1, true)}}
	if err := s.queueLimit(large(1, true)); !errors.Is(err, &control.Failure{Code: control.Code_CODE_NO_ROOM}) {
		t.Errorf("too large requests: %v", err)
	}
	for _, w := range []*waiting{large(2, true), large(1, false)} {
		if err := s.queueLimit(w); err != nil {
			t.Errorf("%v: %v", w.spec, err)
		}
	}
}

// The audit log has the machines that have shown tokens of nodes.
func TestNodeTokensAudited(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1, letsIn(t))
		h := m.playHolder(nil)
		h.tell(&control.TokenShown{Node: 3, Mac: "52:54:00:00:00:01"})
		h.tell(&control.TokenShown{Node: 3, Mac: "52:54:00:00:00:02", Refused: "it was used before"})
		want := []string{
			"(unknown): node token: the machine with the network card 52:54:00:00:00:01 becomes node3",
			"(unknown): node token: the machine with the network card 52:54:00:00:00:02 does not become node3: it was used before",
		}
		if got := m.audited(); !slices.Equal(got, want) {
			t.Errorf("the audit log has %q", got)
		}
	})
}
