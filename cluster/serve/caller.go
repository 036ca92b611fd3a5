package serve

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"margay/cluster/control"
	"margay/cluster/permit"
	"margay/internal/printable"
)

// How many connections of users that the owner lets in may be open at a time: in all, and of one
// user. A job that shares files has one for each of its nodes.
const (
	userConns     = 2048
	userConnsEach = 512
)

// enterCaller returns the user at the other end of a client's connection. leave must be called when
// the connection has ended.
func (s *Server) enterCaller(peer control.Peer) (caller permit.Caller, leave func(), err error) {
	switch peer.UID {
	case s.config.Owner: // its name is never needed: what the owner says is taken as it is (sign)
		return permit.Caller{UID: peer.UID, Role: permit.Owner}, func() {}, nil
	case 0:
		return permit.Caller{Name: permit.NameOf(0), Role: permit.Owner}, func() {}, nil
	}
	caller = permit.Caller{UID: peer.UID, Name: permit.NameOf(peer.UID), Role: s.config.Access.Role(peer)}
	if caller.Role == permit.Stranger {
		s.refused(caller, "connect", "machine")
		return caller, nil, control.Failf(control.Code_CODE_REFUSED, "machine %s belongs to another user and does not let %s in (margay machine up --users)", s.config.Machine, caller.Name)
	}
	if err := s.enterRoom(caller); err != nil {
		return caller, nil, err
	}
	return caller, func() { s.leaveRoom(caller) }, nil
}

// enterRoom counts a connection of a user that is not the owner on this host, if there is room.
func (s *Server) enterRoom(c permit.Caller) error {
	if _, each, ok := s.callers.Enter(roomOf(c)); !ok {
		return control.Failf(control.Code_CODE_NO_ROOM, "%s has %d connections to machine %s, the most that a user may have", c.Name, each, s.config.Machine)
	}
	return nil
}

// leaveRoom ends what a successful enterRoom began.
func (s *Server) leaveRoom(c permit.Caller) { s.callers.Leave(roomOf(c)) }

// roomOf names the connections that are counted together.
func roomOf(c permit.Caller) string { return strconv.FormatUint(uint64(c.UID), 10) }

// mayHold admits the holder.
func (s *Server) mayHold(c permit.Caller) error {
	if c.Role == permit.Owner {
		return nil
	}
	s.refused(c, "hold", "machine")
	return control.Failf(control.Code_CODE_REFUSED, "the holder of machine %s is a process of its owner, and you are %s", s.config.Machine, c.Name)
}

// mayShare admits the client's side of a stream of shared files.
func (s *Server) mayShare(c permit.Caller, job uint32) error {
	if user, known := s.userOf(job); known && !c.Sees(user.UID) {
		return s.denied(c, c.DenyJob(s.config.Machine, "FileChunk", job, user))
	}
	return nil
}

// check returns an error unless the caller may make a request.
func (s *Server) check(c permit.Caller, m proto.Message) error {
	return s.denied(c, c.Check(s.config.Machine, m, s.userOf))
}

// denied returns an error of a check as its caller gets it. A denial goes to the audit log.
func (s *Server) denied(c permit.Caller, err error) error {
	var d *permit.Denial
	if !errors.As(err, &d) {
		return err
	}
	s.refused(c, d.Request, d.Object)
	return d.Failure()
}

// refused adds a refusal to the audit log.
func (s *Server) refused(c permit.Caller, request, object string) {
	if s.config.Audit == nil {
		return
	}
	if err := s.config.Audit.Add(time.Now(), c, request, object); err != nil {
		s.log.Printf("%v", err)
	}
}

// tokenShown adds a line about the token of a node to the audit log.
func (s *Server) tokenShown(m *control.TokenShown) {
	what := fmt.Sprintf("the machine with the network card %s becomes node%d", m.Mac, m.Node)
	if m.Refused != "" {
		what = fmt.Sprintf("the machine with the network card %s does not become node%d: %s", m.Mac, m.Node, m.Refused)
	}
	s.refused(permit.Unknown, "node token", printable.Line(what))
}

// userOf returns the user of a job, and whether there is such a job, ended ones included.
func (s *Server) userOf(job uint32) (user permit.JobUser, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.jobs[job]
	if j == nil {
		j = s.ended[job]
	}
	if j != nil {
		return permit.JobUser{UID: j.spec.Uid, Name: j.spec.User}, true
	}
	user, known, err := s.store.userOf(job)
	if err != nil {
		s.log.Printf("%v", err)
	}
	return user, known && err == nil
}

// sees reports whether a caller may know what a job does.
func (s *Server) sees(c permit.Caller, job uint32) bool {
	if c.Role >= permit.Administrator {
		return true
	}
	user, known := s.userOf(job)
	return known && c.Sees(user.UID)
}

// sign puts the caller's name to a request, whatever the request says. What the owner says is taken
// as it is: in the user namespace of a holder, serve does not know the owner's user id.
func (c *client) sign(m proto.Message) {
	request, isRun := m.(*control.RunRequest)
	if isRun && request.Spec != nil {
		request.Spec.Limited = c.caller.Role == permit.User
	}
	if c.caller.UID == c.server.config.Owner && c.caller.Token == 0 { // on another host, a user id means another user
		return
	}
	if isRun && request.Spec != nil {
		request.Spec.Uid, request.Spec.User = c.caller.UID, c.caller.Name
		if request.Spec.Launch != "" { // another user's launch must not get its cores
			request.Spec.Launch = fmt.Sprintf("%d/%s", c.caller.UID, request.Spec.Launch)
		}
	}
	order := m.ProtoReflect()
	if field := order.Descriptor().Fields().ByName("user"); field != nil {
		order.Set(field, protoreflect.ValueOfString(c.caller.Name))
	}
}

// veiled returns the part of a job's summary that other users may see: that there is the job, its
// user, its places and its state.
func veiled(m *control.JobSummary) *control.JobSummary {
	v := &control.JobSummary{
		Job: m.Job, User: m.User, Uid: m.Uid, Ranks: m.Ranks, Nodes: m.Nodes, Phase: m.Phase, StartNs: m.StartNs, EndNs: m.EndNs,
		ExitCode: m.ExitCode, FirstFailed: control.None, Detached: m.Detached, Stopped: m.Stopped, Task: m.Task, Hidden: true,
		Allocation: m.Allocation, Step: m.Step,
	}
	for _, r := range m.RankStates {
		v.RankStates = append(v.RankStates, &control.RankState{Rank: r.Rank, Node: r.Node, Core: r.Core, Ended: r.Ended})
	}
	return v
}

// ownJobs returns a function that reports whether a caller may know what a job does. Job 0, the
// machine itself, has no secrets. The function looks only once for the user of a job.
func (s *Server) ownJobs(c permit.Caller) func(job uint32) bool {
	known := map[uint32]bool{0: true}
	return func(job uint32) bool {
		own, is := known[job]
		if !is {
			own = s.sees(c, job)
			known[job] = own
		}
		return own
	}
}

// veilExtensions removes the extensions of other users' jobs from an answer.
func (s *Server) veilExtensions(list *control.Extensions, c permit.Caller) {
	if list == nil || c.Role >= permit.Administrator {
		return
	}
	own := s.ownJobs(c)
	list.Extensions = slices.DeleteFunc(list.Extensions, func(x *control.ExtensionState) bool { return !own(x.Job) })
}

// veilNotes removes notes about the extensions of other users' jobs from an answer.
func (s *Server) veilNotes(notes *control.ExtensionNotes, c permit.Caller) {
	if notes == nil || c.Role >= permit.Administrator {
		return
	}
	own := s.ownJobs(c)
	notes.Notes = slices.DeleteFunc(notes.Notes, func(n *control.ExtensionNote) bool { return !own(n.Job) })
}

// veilSamples removes what other users' ranks and extensions have done. It leaves the places of the
// ranks, because their cores are not free.
func (s *Server) veilSamples(samples *control.Samples, c permit.Caller) {
	if samples == nil || c.Role >= permit.Administrator {
		return
	}
	own := s.ownJobs(c)
	for _, n := range samples.Nodes {
		for i, r := range n.Ranks {
			if !own(r.Job) {
				n.Ranks[i] = &control.RankSample{Job: r.Job, Rank: r.Rank, Core: r.Core, More: r.More}
			}
		}
		n.Extensions = slices.DeleteFunc(n.Extensions, func(x *control.ExtensionState) bool { return !own(x.Job) })
	}
}

// removeExtensionFor is removeExtension, with a check of the caller. Nodes do not reuse handles, so
// the extension is still the same when it is removed.
func (s *Server) removeExtensionFor(m *control.RemoveExtension, c permit.Caller) error {
	if c.Role < permit.Administrator {
		list, err := s.listExtensions(&control.ListExtensions{Node: int32(m.Node)})
		if err != nil {
			return err
		}
		i := slices.IndexFunc(list.Extensions, func(x *control.ExtensionState) bool { return x.Node == m.Node && x.Handle == m.Handle })
		if i < 0 {
			return control.Failf(control.Code_CODE_NOT_FOUND, "there is no extension %d", m.Handle).At(m.Node)
		}
		if job := list.Extensions[i].Job; job == 0 {
			return s.denied(c, c.DenyMachine(s.config.Machine, "RemoveExtension"))
		} else if user, known := s.userOf(job); !known || !c.Sees(user.UID) {
			return s.denied(c, c.DenyJob(s.config.Machine, "RemoveExtension", job, user))
		}
	}
	return s.removeExtension(m)
}

// readAudit returns the refusals.
func (s *Server) readAudit() (*control.Audit, error) {
	if s.config.Audit == nil {
		return nil, control.Failf(control.Code_CODE_NOT_FOUND, "machine %s is its owner's alone (margay machine up --users), so it has no audit log", s.config.Machine)
	}
	entries, err := s.config.Audit.Read(time.Now())
	if err != nil {
		return nil, err
	}
	audit := new(control.Audit)
	for _, e := range entries {
		audit.Lines = append(audit.Lines, &control.AuditLine{
			TimeNs: e.Time.UnixNano(), Uid: e.UID, User: e.User, Request: e.Request, Object: e.Object, Omitted: e.Omitted,
		})
	}
	return audit, nil
}
