// Package permit decides what the users of a machine may ask its serve for.
//
// A machine consists of processes of one user, its owner. The owner may let others in. Users run
// jobs and control their own; administrators have the rights of the owner. All of them see the
// nodes and the existence of each job: its number, user, nodes and state. Its command, its output
// and its samples are visible to its user, the administrators and the owner.
//
// One table (requests) has the role that each request takes. Serve looks it up before it does
// anything for a client, so a request that the table lacks is refused. Refusals are kept in an
// Audit.
package permit

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"margay/cluster/control"
)

// Role is what a user is on a machine. A role has all rights of the lower ones.
type Role int

const (
	Stranger      Role = iota // may not connect
	User                      // runs jobs
	Administrator             // does what the owner does
	Owner                     // the user whose processes the machine is made of, or root
)

func (r Role) String() string { return [...]string{"stranger", "user", "administrator", "owner"}[r] }

// Caller is a user at the other end of a connection.
type Caller struct {
	UID   uint32
	Name  string // for people
	Role  Role
	Token uint32 // by which it is known on another host; 0: it is on this host, and Linux knows it
}

// Sees reports whether the caller may know what a user's job runs, writes and does.
func (c Caller) Sees(user uint32) bool {
	return c.Role >= Administrator || c.Role == User && c.UID == user
}

// rights are the callers that may make a request.
type rights int

const (
	everybody      rights = iota + 1 // users, too; the answer has only what the caller may know
	ofJob                            // users for their own jobs; without a job it is about the machine
	ofJobs                           // users for their own jobs; it names any number of them
	ofExtension                      // users for extensions of their own jobs: serve asks the node whose one is
	administrators                   // administrators and the owner
)

// request is the callers of a request, and its effect on its object: a job or the machine.
type request struct {
	needs rights
	does  string // after "may"
}

// requests has all requests of clients.
var requests = map[protoreflect.Name]request{
	"RunRequest":     {everybody, "add jobs to"},
	"Withdraw":       {everybody, "withdraw jobs from"},
	"ListNodes":      {everybody, "see"},
	"ListJobs":       {everybody, "see"},
	"Status":         {everybody, "see"},
	"Noise":          {everybody, "measure"},
	"Leave":          {everybody, "leave jobs of"},      // it concerns the connection of the client alone
	"EndAllocation":  {everybody, "end allocations of"}, // the same
	"ReadClock":      {everybody, "read the clocks of"},
	"TakeSamples":    {everybody, "see"},
	"ListExtensions": {everybody, "see"},
	"ExtensionLog":   {everybody, "see"},

	"Attach":          {ofJob, "attach to"},
	"FileChunk":       {ofJob, "send files to"},
	"Stdin":           {ofJob, "write to"},
	"Resize":          {ofJob, "change the terminal of"},
	"Ack":             {ofJob, "take the output of"},
	"Signal":          {ofJob, "signal"},
	"Kill":            {ofJob, "signal"},
	"ReadFiles":       {ofJob, "read the files of"},
	"FilesRead":       {ofJob, "read the files of"},
	"ReadStacks":      {ofJob, "read the stacks of"},
	"DebugRank":       {ofJob, "debug"}, // it is not sent as a frame
	"ReadEvents":      {ofJob, "record"},
	"InsertExtension": {ofJob, "extend"},
	"RemoveOutput":    {ofJobs, "remove the output of"},
	"RemoveExtension": {ofExtension, "remove extensions from"},

	"DrainNodes":    {administrators, "drain nodes of"},
	"ResumeNodes":   {administrators, "resume nodes of"},
	"EvictNodes":    {administrators, "evict nodes from"},
	"RebootNodes":   {administrators, "reboot nodes of"},
	"SwitchNodes":   {administrators, "switch nodes of"},
	"ApproveGuests": {administrators, "add nodes to"},
	"GrowMachine":   {administrators, "grow"},
	"ShrinkMachine": {administrators, "shrink"},
	"SetDuties":     {administrators, "change the cores of"},
	"RestartKernel": {administrators, "restart kernels of"},
	"UpdateNodes":   {administrators, "update nodes of"},
	"ReadUpdate":    {administrators, "update nodes of"},
	"ReadKernelLog": {administrators, "read the kernel logs of"}, // other users' processes are in them
	"ReadAudit":     {administrators, "read the audit log of"},
	"CreateToken":   {administrators, "create tokens of"},
	"ListTokens":    {administrators, "list the tokens of"},
	"RevokeTokens":  {administrators, "revoke tokens of"},
}

// JobUser is the user of a job.
type JobUser struct {
	UID  uint32
	Name string
}

// Jobs returns the user of a job, and whether there is such a job, ended ones included.
type Jobs func(job uint32) (JobUser, bool)

// Denial is a request that its caller may not make.
type Denial struct {
	Request string // as it is called in control.proto
	Object  string // what it is about
	text    string
}

func (d *Denial) Error() string { return d.text }

// Failure is the answer to the request.
func (d *Denial) Failure() *control.Failure {
	return control.Failf(control.Code_CODE_REFUSED, "%s", d.text)
}

// Check returns an error unless the caller may make a request to a machine: a *Denial, or a
// *control.Failure if the caller names a job that does not exist.
func (c Caller) Check(machine string, m proto.Message, jobs Jobs) error {
	if m == nil { // a frame without a message
		return control.Failf(control.Code_CODE_BAD_REQUEST, "serve does not know what to do with nothing from a client")
	}
	name := m.ProtoReflect().Descriptor().Name()
	r, known := requests[name]
	if run, ok := m.(*control.RunRequest); ok && c.Role == User {
		for _, other := range []uint32{run.GetSpec().GetTask().GetArray(), run.GetSpec().GetStep()} { // an array may outlive its first job
			if other == 0 {
				continue
			}
			if user, known := jobs(other); known && !c.Sees(user.UID) {
				return c.DenyJob(machine, string(name), other, user)
			}
		}
	}
	switch {
	case !known:
		return control.Failf(control.Code_CODE_BAD_REQUEST, "serve does not know what to do with %s from a client", name)
	case c.Token != 0 && name == "CreateToken": // a stolen token must not outlive its revocation
		return &Denial{string(name), "machine", fmt.Sprintf("tokens of machine %s are created on its own host only, and you are %s with token %d", machine, c.Name, c.Token)}
	case c.Role >= Administrator:
		return nil
	case c.Role == User && (r.needs == everybody || r.needs == ofExtension):
		return nil
	case c.Role == User && r.needs != administrators:
		if named := jobsOf(m); len(named) > 0 || r.needs == ofJobs {
			return c.checkJobs(machine, string(name), r, named, jobs)
		}
	}
	return c.DenyMachine(machine, string(name))
}

// jobsOf returns the jobs that a request names.
func jobsOf(m proto.Message) []uint32 {
	switch m := m.(type) {
	case interface{ GetJobs() []uint32 }:
		return slices.Compact(slices.Sorted(slices.Values(m.GetJobs())))
	case interface{ GetJob() uint32 }:
		if job := m.GetJob(); job != 0 {
			return []uint32{job}
		}
	}
	return nil
}

// checkJobs returns an error unless all jobs are the caller's.
func (c Caller) checkJobs(machine, name string, r request, named []uint32, jobs Jobs) error {
	for _, job := range named {
		user, known := jobs(job)
		if !known {
			return control.Failf(control.Code_CODE_NOT_FOUND, "there is no job %d", job)
		}
		if !c.Sees(user.UID) {
			return c.DenyJob(machine, name, job, user)
		}
	}
	return nil
}

// DenyJob denies a request about a job of another user.
func (c Caller) DenyJob(machine, name string, job uint32, user JobUser) *Denial {
	return &Denial{name, fmt.Sprint("job ", job), fmt.Sprintf("job %d is %s's: only %[2]s and the administrators of machine %s may %s it, and you are %s",
		job, user.Name, machine, does(name), c.Name)}
}

// DenyMachine denies a request about the machine.
func (c Caller) DenyMachine(machine, name string) *Denial {
	return &Denial{name, "machine", fmt.Sprintf("only the owner and the administrators of machine %s may %s it, and you are %s", machine, does(name), c.Name)}
}

// does returns the effect of a request. Messages that are not requests of clients have a general
// one.
func does(name string) string {
	if r, ok := requests[protoreflect.Name(name)]; ok {
		return r.does
	}
	return "ask so of"
}

// Policy is the users of a machine besides its owner. It is plain data. The zero value lets no
// other user in.
type Policy struct {
	Users          Members `json:"users,omitempty"`
	Administrators Members `json:"administrators,omitempty"`

	// Limits on what the jobs of one user may have at a time; 0: none. They do not hold for
	// administrators and the owner.
	Cores int `json:"cores,omitempty"`
	Jobs  int `json:"jobs,omitempty"`

	// Output bounds the kept output of all detached jobs of one user, in MiB; 0: any size. It holds
	// for no administrator and not for the owner.
	Output int `json:"output,omitempty"`
}

// DefaultOutput is the usual Policy.Output.
const DefaultOutput = 1024

// Open reports whether the policy lets any other user in.
func (p Policy) Open() bool { return len(p.Users)+len(p.Administrators) > 0 }

// Role returns the role of a user that is not the owner.
func (p Policy) Role(peer control.Peer) Role {
	switch {
	case p.Administrators.have(peer):
		return Administrator
	case p.Users.have(peer):
		return User
	}
	return Stranger
}

// Members are users and groups.
type Members []Member

// Member is a user, or all members of a group.
type Member struct {
	Name  string `json:"name"` // as it was given: groups begin with @
	ID    uint32 `json:"id"`
	Group bool   `json:"group,omitempty"`
}

func (m Members) have(peer control.Peer) bool {
	return slices.ContainsFunc(m, func(one Member) bool {
		if one.Group {
			return slices.Contains(peer.GIDs, one.ID)
		}
		return one.ID == peer.UID
	})
}
