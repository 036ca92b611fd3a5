package serve

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/cluster/trust"
	"margay/internal/check"
)

// listens has a machine of letsIn listen to other hosts, too.
func listens(t *testing.T) func(*Config) {
	users := letsIn(t)
	return func(c *Config) {
		users(c)
		c.Access.Users = append(c.Access.Users, c.Access.Administrators...)
		c.Access.Users[0].ID, c.Access.Users[0].Group = 7001, false // no user of the test is in the tables of this host
		c.Remote = check.NewPipes()
	}
}

// wire is a connection of another host.
type wire struct {
	net.Conn
	near   net.Conn
	mu     sync.Mutex
	sent   []byte // by its reader, the serve's side
	broken bool   // its end is a reset
}

func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = append(w.sent, b[:n]...)
	if err != nil && w.broken {
		err = unix.ECONNRESET
	}
	return n, err
}

// reach connects to the port for other hosts.
func (m *machine) reach() (near net.Conn, far *wire) {
	m.t.Helper()
	near, serves := net.Pipe()
	far = &wire{Conn: serves, near: near}
	m.config.Remote.(*check.Pipes).Deliver(m.t, far)
	m.t.Cleanup(func() { near.Close() })
	return near, far
}

// login connects with a token as margay does.
func (m *machine) login(text string, role control.Role) (*playedClient, *wire, error) {
	m.t.Helper()
	token, err := trust.ParseToken(text)
	if err != nil {
		m.t.Fatal(err)
	}
	near, far := m.reach()
	over := tls.Client(near, trust.ToServeOf(token.Machine))
	if err := over.HandshakeContext(m.t.Context()); err != nil {
		return nil, far, err
	}
	if _, err := over.Write(token.Opening()); err != nil {
		return nil, far, err
	}
	c := &playedClient{m: m, conn: control.NewConn(over)}
	m.t.Cleanup(c.conn.Close)
	if _, err := c.conn.Greet(&control.Hello{Role: role}); err != nil {
		return nil, far, err
	}
	go c.conn.Serve(func(f *control.Frame) { c.add(f.Message()) })
	return c, far, nil
}

// far is login for a client that serve must accept.
func (m *machine) far(text string) (*playedClient, *wire) {
	m.t.Helper()
	c, far, err := m.login(text, control.Role_ROLE_CLIENT)
	if err != nil {
		m.t.Fatal(err)
	}
	return c, far
}

// userToken has the owner create a token.
func (m *machine) userToken(request *control.CreateToken) string {
	m.t.Helper()
	if request.LifeNs == 0 {
		request.LifeNs = int64(time.Hour)
	}
	return must[*control.Token](m.client(), request).Text
}

// audited returns the lines of the audit log.
func (m *machine) audited() (lines []string) {
	for _, l := range must[*control.Audit](m.client(), &control.ReadAudit{}).Lines {
		lines = append(lines, l.User+": "+l.Request+": "+l.Object)
	}
	return lines
}

// A token makes a connection one of its user, whatever the user's side says, with at most the role
// of the token.
func TestToken(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2, listens(t))
		ann, _ := m.far(m.userToken(&control.CreateToken{Whom: "7001", Administrator: true}))
		carol, _ := m.far(m.userToken(&control.CreateToken{Whom: "7003"}))
		boss, _ := m.far(m.userToken(&control.CreateToken{Whom: "7003", Administrator: true}))
		mine := m.userToken(&control.CreateToken{User: "owner", Uid: 4321, Administrator: true})
		owner, _ := m.far(mine)
		s := detachedSpec(1)
		s.User, s.Uid = "carol", 7003
		job := ann.run(s)
		if got := ann.summary(job); got.Uid != 7001 || got.User != "user7001" {
			t.Errorf("the job is that of %v", got)
		}
		own := owner.run(detachedSpec(1))
		if got := owner.summary(own); got.Uid != 4321 || got.User != "owner" {
			t.Errorf("the job of the owner is that of %v", got)
		}
		for c, want := range map[*playedClient]string{ann: "user", carol: "user", boss: "administrator", owner: "administrator"} {
			if got := must[*control.MachineStatus](c, &control.Status{}); got.Role != want || got.Listen != "pipe" {
				t.Errorf("%v, not %s", got, want)
			}
		}
		_, err := carol.ask(&control.Kill{Job: job, Signal: 9, Rank: control.None})
		isRefused(t, err, "job 1 is user7001's: only user7001 and the administrators of machine m may signal it")
		_, err = boss.ask(&control.CreateToken{LifeNs: 1})
		isRefused(t, err, "tokens of machine m are created on its own host only")
		must[*control.Done](boss, &control.Kill{Job: job, Force: true, Rank: control.None})
		_, _, err = m.login(mine, control.Role_ROLE_HOLDER)
		isRefused(t, err, "the holder of machine m is a process of its owner")
		want := []string{"user7003: Kill: job 1", "user7003: CreateToken: machine", "owner: hold: machine"}
		if got := m.audited(); !slices.Equal(got, want) {
			t.Errorf("the audit log: %q", got)
		}
	})
}

// What a token cannot be.
func TestCreateToken(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1, listens(t))
		for _, c := range []struct {
			request *control.CreateToken
			why     string
		}{
			{&control.CreateToken{Whom: "7009", LifeNs: 1}, "machine m does not let user7009 in"},
			{&control.CreateToken{Whom: "no such user", LifeNs: 1}, `there is no user "no such user"`},
			{&control.CreateToken{Whom: "4294967295", LifeNs: 1}, "is not the number of a user"},
			{&control.CreateToken{}, "for more than no time"},
			{&control.CreateToken{LifeNs: -1}, "for more than no time"},
			{&control.CreateToken{LifeNs: int64(mostLife) + 1}, "366 days at most"},
		} {
			if _, err := m.client().ask(c.request); err == nil || !strings.Contains(err.Error(), c.why) {
				t.Errorf("%v: %v", c.request, err)
			}
		}
		for _, whom := range []string{"alice", "4321"} { // in a user namespace serve does not know the owner
			own := must[*control.Token](m.client(), &control.CreateToken{Whom: whom, User: "alice", Uid: 4321, LifeNs: 1})
			if !own.Owner || own.Uid != 4321 {
				t.Errorf("%v", own)
			}
		}
		_, err := m.as(7003).ask(&control.CreateToken{Whom: "0", LifeNs: 1})
		isRefused(t, err, "only an owner creates tokens of owners")
		_, err = m.as(7001).ask(&control.CreateToken{LifeNs: 1})
		isRefused(t, err, "only the owner and the administrators of machine m may create tokens of it")
		c := m.client()
		for range mostTokens - 2 {
			must[*control.Token](c, &control.CreateToken{LifeNs: 1})
		}
		if _, err := c.ask(&control.CreateToken{LifeNs: 1}); !errors.Is(err, &control.Failure{Code: control.Code_CODE_NO_ROOM}) {
			t.Errorf("one more: %v", err)
		}
		for _, token := range must[*control.Tokens](c, &control.ListTokens{}).Tokens {
			if token.Text != "" {
				t.Fatalf("a list has the text of %v", token)
			}
		}
	})
	bubble(t, func(t *testing.T) {
		_, err := up(t, 1).client().ask(&control.CreateToken{LifeNs: 1})
		isRefused(t, err, "machine m does not listen to other hosts (margay machine up --listen)")
	})
}

// A token that is wrong, revoked or expired, or whose user is not let in any more, admits nothing,
// and is in the audit log if its secret is right. Tokens survive a serve, and the store has no
// secret.
func TestBadTokens(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1, listens(t))
		text := m.userToken(&control.CreateToken{Whom: "7001"})
		short := m.userToken(&control.CreateToken{Whom: "7001", LifeNs: int64(time.Minute)})
		revoked := m.userToken(&control.CreateToken{Whom: "7001"})
		must[*control.Done](m.client(), &control.RevokeTokens{Tokens: []uint32{3}})
		if _, err := m.client().ask(&control.RevokeTokens{Tokens: []uint32{1, 3}}); !errors.Is(err, &control.Failure{Code: control.Code_CODE_NOT_FOUND}) {
			t.Errorf("it is revoked twice: %v", err)
		}
		wrong, _ := trust.ParseToken(text)
		if whole := m.stored(); bytes.Contains(whole, wrong.Secret[:]) || !bytes.Contains(whole, wrong.Secret.Hash()) {
			t.Error("the store has a secret, or lacks its hash")
		}
		wrong.Secret[7]++
		unknown := wrong
		unknown.Number = 99
		time.Sleep(time.Minute)
		for _, bad := range []string{short, revoked, wrong.String(), unknown.String()} {
			_, _, err := m.login(bad, control.Role_ROLE_CLIENT)
			isRefused(t, err, "the token is not valid")
		}
		m.config.Remote = check.NewPipes()
		m.restart()
		_, _, err := m.login(revoked, control.Role_ROLE_CLIENT)
		isRefused(t, err, "the token is not valid")
		m.far(text)
		m.config.Remote, m.config.Access.Users = check.NewPipes(), nil
		m.restart()
		_, _, err = m.login(text, control.Role_ROLE_CLIENT)
		isRefused(t, err, "the token is not valid")
		want := "user7001: connect: expired token 2, from pipe, user7001: connect: token 1 of a user that is not let in, from pipe"
		if got := strings.Join(m.audited(), ", "); got != want {
			t.Errorf("the audit log: %s", got)
		}
	})
}

// A token that is revoked or expires ends the connections that it has admitted, with their jobs.
func TestTokenEnds(t *testing.T) {
	for name, end := range map[string]func(m *machine){
		"revoked": func(m *machine) { must[*control.Done](m.client(), &control.RevokeTokens{Tokens: []uint32{1}}) },
		"expired": func(*machine) { time.Sleep(time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := up(t, 1, listens(t))
				c, _ := m.far(m.userToken(&control.CreateToken{Whom: "7001"}))
				other, _ := m.far(m.userToken(&control.CreateToken{Whom: "7001", LifeNs: int64(2 * time.Hour)}))
				job := c.run(spec(1))
				end(m)
				<-c.conn.Done()
				if err := c.conn.Err(); !errors.Is(err, &control.Failure{Code: control.Code_CODE_REFUSED}) || !strings.Contains(err.Error(), "token 1 ") {
					t.Errorf("its connection ends with %v", err)
				}
				c.conn.Close()
				m.played[0].exits(job, 1, 0, 0, 9)
				time.Sleep(3 * time.Second)
				if got := other.summary(job); got.Phase != control.JobPhase_JOB_DONE || !strings.Contains(got.Error, "its margay run is gone") {
					t.Errorf("its job: %v", got)
				}
			})
		})
	}
}

// The network breaks the connection of a client on another host. Its job waits for it, but not for
// ever, and no other user gets the job.
func TestAway(t *testing.T) {
	for name, reset := range map[string]bool{"reset": true, "closed": false} {
		t.Run(name, func(t *testing.T) { bubble(t, func(t *testing.T) { testAway(t, reset) }) })
	}
}

func testAway(t *testing.T, reset bool) {
	m := up(t, 2, listens(t))
	text := m.userToken(&control.CreateToken{Whom: "7001"})
	c, far := m.far(text)
	job, other := c.run(spec(1)), c.run(spec(1))
	far.cut(reset)
	m.played[0].says(job, 1, 0, "meanwhile\n")
	time.Sleep(20 * time.Second)
	stranger, _ := m.far(m.userToken(&control.CreateToken{Whom: "7003"}))
	_, err := stranger.ask(&control.Attach{Job: job})
	isRefused(t, err, "job 1 is user7001's")
	c, _ = m.far(text)
	if state := must[*control.JobState](c, &control.Attach{Job: job}); state.Phase != control.JobPhase_JOB_RUNNING {
		t.Errorf("the job is %v", state)
	}
	one[*control.Rewind](t, &m.played[0].recorder)
	m.played[0].says(job, 1, 0, "meanwhile\n") // again
	if r := c.ackAll(); len(r) != 1 || string(r[0].Data) != "meanwhile\n" {
		t.Errorf("the client gets %v", r)
	}
	time.Sleep(20 * time.Second)
	if got := c.summary(other); got.Phase == control.JobPhase_JOB_RUNNING {
		t.Errorf("the job that nobody has come back for: %v", got)
	}
	// It connects again before serve has noticed anything.
	again, _ := m.far(text)
	must[*control.JobState](again, &control.Attach{Job: job})
	<-c.conn.Done()
	m.played[0].exits(job, 2, 0, 0, 0)
	again.ackAll()
	if state := again.ended(); state.ExitCode != 0 {
		t.Errorf("it ended as %v", state)
	}
	// A client that ends on purpose says so.
	last := again.run(spec(1))
	again.conn.Close()
	time.Sleep(time.Second)
	m.played[0].exits(last, 1, 0, 0, 9)
	time.Sleep(3 * time.Second)
	if got := stranger.summary(last); got.Phase != control.JobPhase_JOB_DONE {
		t.Errorf("the job whose client has left: %v", got)
	}
}

// A client that connects again before serve has noticed the loss takes all of its jobs along, one
// after the other, but for one that is being launched: that one fails, and can be asked for again.
func TestTakeOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 3, listens(t))
		text := m.userToken(&control.CreateToken{Whom: "7003", Administrator: true}) // it may have three jobs
		c, _ := m.far(text)
		first, second := c.run(spec(1)), c.run(spec(1))
		must[*control.RunReply](c, &control.RunRequest{Spec: spec(1), Exec: new(control.Exec)})
		again, _ := m.far(text)
		must[*control.JobState](again, &control.Attach{Job: second + 1})
		time.Sleep(time.Second)
		m.server.mu.Lock()
		if j := m.server.jobs[second+1]; j != nil {
			t.Errorf("the job that was being launched is %v", j.phase)
		}
		m.server.mu.Unlock()
		for _, job := range []uint32{first, second} {
			if state := must[*control.JobState](again, &control.Attach{Job: job}); state.Phase != control.JobPhase_JOB_RUNNING {
				t.Errorf("job %d: %v", job, state)
			}
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		for _, job := range []uint32{first, second} {
			if got := again.summary(job); got.Phase != control.JobPhase_JOB_RUNNING {
				t.Errorf("later: %v", got)
			}
		}
	})
}

// Each loss of its client gives a job the whole time.
func TestLostTwice(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1, listens(t))
		text := m.userToken(&control.CreateToken{Whom: "7001"})
		c, far := m.far(text)
		job := c.run(spec(1))
		far.cut(true)
		time.Sleep(10 * time.Second)
		c, far = m.far(text)
		must[*control.JobState](c, &control.Attach{Job: job})
		time.Sleep(15 * time.Second)
		far.cut(true)
		time.Sleep(20 * time.Second)
		c, _ = m.far(text)
		if state := must[*control.JobState](c, &control.Attach{Job: job}); state.Phase != control.JobPhase_JOB_RUNNING {
			t.Errorf("it is %v", state)
		}
	})
}

// An allocation waits for its client only if that knows of it.
func TestAllocationAway(t *testing.T) {
	for _, known := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			m := up(t, 1, listens(t))
			c, far := m.far(m.userToken(&control.CreateToken{Whom: "7001"}))
			s := spec(1)
			s.Allocation = true
			reply := must[*control.RunReply](c, &control.RunRequest{Spec: s, Exec: new(control.Exec)})
			if known {
				c.tell(&control.FileChunk{Job: reply.Job, Last: true})
			}
			synctest.Wait()
			far.cut(true)
			time.Sleep(time.Second)
			if got := m.client().summary(reply.Job); (got.Phase == control.JobPhase_JOB_RUNNING) != known {
				t.Errorf("known: %v: %v", known, got)
			}
		})
	}
}

// A connection whose token has been revoked is not served, also until it has ended.
func TestRevokedIsNotServed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1, listens(t))
		c, _ := m.far(m.userToken(&control.CreateToken{Whom: "7001"}))
		job := m.as(7001).run(detachedSpec(1))
		m.server.mu.Lock()
		delete(m.server.tokens, 1)
		m.server.mu.Unlock()
		c.tell(&control.Kill{Job: job, Signal: 9, Rank: control.None})
		synctest.Wait()
		none[*control.Signal](t, &m.played[0].recorder, "the node gets it")
	})
}

// cut has the connection end as by a fault of the network: by a reset, or as if it was closed, but
// without a farewell.
func (w *wire) cut(reset bool) {
	w.mu.Lock()
	w.broken = reset
	w.mu.Unlock()
	w.near.Close()
	synctest.Wait()
}

// stored returns the file of the store.
func (m *machine) stored() []byte {
	synctest.Wait()
	text, err := os.ReadFile(filepath.Join(m.config.Dir, storeName))
	if err != nil {
		m.t.Fatal(err)
	}
	return text
}

// Strangers at the port for other hosts get no answer to anything, and keep users out for seconds
// only. The recorded session of a user admits nothing when it is sent again.
func TestStrangersFromOtherHosts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1, listens(t))
		text := m.userToken(&control.CreateToken{Whom: "7001"})
		_, far := m.far(text)
		far.mu.Lock()
		recorded := bytes.Clone(far.sent)
		far.mu.Unlock()
		hello := new(bytes.Buffer)
		near, record := net.Pipe()
		go tls.Client(near, trust.ToServeOf(m.config.Authority.Fingerprint())).HandshakeContext(t.Context())
		_, _ = io.CopyN(hello, record, 100)
		near.Close()
		for what, bytes := range map[string][]byte{
			"nothing": nil, "garbage": []byte(strings.Repeat("garbage ", 1000)), "half a handshake": hello.Bytes(), "a session of a user": recorded,
		} {
			c, _ := m.reach()
			answers := make(chan []byte, 1)
			go func() {
				got, _ := io.ReadAll(c)
				answers <- got
			}()
			_, _ = c.Write(bytes)
			if got := <-answers; len(got) > 4000 { // TLS answers every hello
				t.Errorf("%s gets %d bytes", what, len(got))
			}
		}
		m.server.mu.Lock()
		if n := len(m.server.remotes); n != 1 {
			t.Errorf("%d connections are admitted", n)
		}
		m.server.mu.Unlock()
		for what, opening := range map[string][]byte{"no token": nil, "half a token": make([]byte, 20), "a frame": make([]byte, 5000)} {
			c, _ := m.reach()
			over := tls.Client(c, trust.ToServeOf(m.config.Authority.Fingerprint()))
			go over.Write(opening)
			got, _ := io.ReadAll(over)
			if len(opening) < 36 && len(got) > 0 {
				t.Errorf("%s gets %q", what, got)
			}
		}
		stands := 0
		for range 3000 {
			c, _ := m.reach()
			synctest.Wait()
			c.SetReadDeadline(time.Now().Add(time.Nanosecond))
			if _, err := c.Read(make([]byte, 1)); err != io.EOF {
				stands++
			}
		}
		if stands > knockingEach {
			t.Errorf("%d connections of a stranger are open", stands)
		}
		if got := must[*control.MachineStatus](m.client(), &control.Status{}); got.Up != 1 { // users of this host notice nothing
			t.Errorf("%v", got)
		}
		time.Sleep(knockTimeout)
		m.far(text)
		if got := m.audited(); len(got) != 0 { // it is the users'
			t.Errorf("the audit log: %q", got)
		}
		other, err := trust.NewAuthority("m")
		if err != nil {
			t.Fatal(err)
		}
		token, _ := trust.ParseToken(text)
		token.Machine = other.Fingerprint()
		_, far, err = m.login(token.String(), control.Role_ROLE_CLIENT)
		if far.mu.Lock(); !errors.Is(err, trust.ErrOtherMachine) || bytes.Contains(far.sent, token.Secret[:]) {
			t.Errorf("the token of another machine: %v", err)
		}
		far.mu.Unlock()
	})
}
