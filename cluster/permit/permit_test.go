package permit

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"margay/cluster/control"
)

// others are the messages that frames carry and that no client sends as a request: openings,
// answers, and what nodes, the holder and serve say.
var others = strings.Fields(`
	Hello Welcome Error Done
	Register Registered Heartbeat LogLine FirmwareLog Prepare Start Forget Loaded JobFault Rewind Finish Forgotten Prepared Started
	Record StdinTaken FileTaken RunReply JobState Nodes Jobs NoiseReport MachineStatus OutputRemoved NodesDrained
	Extensions ExtensionNotes Events Clock Samples Stacks KernelLog DutiesSet FilesPiece
	NodeExit NodeBoot NodeUp NodeStage NodePanic RebootNode SwitchNode NodesAdded NodesLeaving NodesEvicted RemoveNode Roster Audit Guests TokenShown Token Tokens
	Update StageImage ImageStaged KeepImage ImagePiece StartImage
`)

// Every message of the protocol is a request in the table, or known to be none.
func TestTableIsComplete(t *testing.T) {
	known := make(map[protoreflect.Name]bool)
	for _, name := range others {
		known[protoreflect.Name(name)] = true
	}
	bodies := new(control.Frame).ProtoReflect().Descriptor().Oneofs().ByName("body").Fields()
	for i := range bodies.Len() {
		name := bodies.Get(i).Message().Name()
		r, is := requests[name]
		if is == known[name] {
			t.Errorf("%s is in the table: %v; in the list of messages that are no requests: %v", name, is, known[name])
		}
		if is && (r.needs == 0 || r.does == "") {
			t.Errorf("the table does not say who may send %s, or what it does", name)
		}
		delete(known, name)
	}
	for name := range known {
		t.Errorf("there is no message %s", name)
	}
}

// job 1 is of user 1001, job 2 of user 1002.
func jobs(job uint32) (JobUser, bool) {
	users := map[uint32]JobUser{1: {1001, "ann"}, 2: {1002, "bob"}}
	u, known := users[job]
	return u, known
}

// about makes a request about a job, 0: about the machine.
func about(t *testing.T, name protoreflect.Name, job uint32) proto.Message {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName("margay.control." + name))
	if err != nil {
		t.Fatal(err)
	}
	m := kind.New()
	if field := m.Descriptor().Fields().ByName("job"); field != nil {
		m.Set(field, protoreflect.ValueOfUint32(job))
	}
	if field := m.Descriptor().Fields().ByName("jobs"); field != nil && job != 0 {
		m.Mutable(field).List().Append(protoreflect.ValueOfUint32(job))
	}
	return m.Interface()
}

// Each request by each role, about the caller's own job, another one, one that does not exist and
// the machine.
func TestRoles(t *testing.T) {
	const yes, no, none = "yes", "no", "none"
	// What users may: about their own job, another user's, no such job, and the machine.
	users := make(map[protoreflect.Name][4]string)
	for names, may := range map[string][4]string{
		"RunRequest Withdraw Leave EndAllocation ListNodes ListJobs Status Noise ReadClock TakeSamples ListExtensions ExtensionLog": {yes, yes, yes, yes},
		"RemoveExtension": {yes, yes, yes, yes}, // serve looks whose it is
		"Attach FileChunk Stdin Resize Ack Signal Kill ReadFiles FilesRead ReadStacks DebugRank ReadEvents InsertExtension": {yes, no, none, no},
		"RemoveOutput": {yes, no, none, yes},
		"DrainNodes ResumeNodes EvictNodes RebootNodes SwitchNodes ApproveGuests GrowMachine ShrinkMachine SetDuties RestartKernel UpdateNodes ReadUpdate ReadKernelLog ReadAudit CreateToken ListTokens RevokeTokens": {no, no, no, no},
	} {
		for _, name := range strings.Fields(names) {
			users[protoreflect.Name(name)] = may
		}
	}
	if len(users) != len(requests) {
		t.Errorf("%d requests are in this test, of %d", len(users), len(requests))
	}
	for name := range requests {
		for i, job := range []uint32{1, 2, 3, 0} {
			for role, want := range map[Role]string{Stranger: no, User: users[name][i], Administrator: yes, Owner: yes} {
				err := Caller{UID: 1001, Name: "ann", Role: role}.Check("lab", about(t, name, job), jobs)
				got := yes
				var d *Denial
				if errors.As(err, &d) {
					got = no
					if !errors.Is(d.Failure(), &control.Failure{Code: control.Code_CODE_REFUSED}) || d.Request != string(name) || d.Object == "" {
						t.Errorf("%s: %v, about %s", name, d.Failure(), d.Object)
					}
				} else if errors.Is(err, &control.Failure{Code: control.Code_CODE_NOT_FOUND}) {
					got = none
				} else if err != nil {
					t.Error(err)
				}
				if got != want {
					t.Errorf("%v: %s about job %d: %s, not %s", role, name, job, got, want)
				}
			}
		}
	}
}

// A job that a request names often is looked up once.
func TestRepeatedJobs(t *testing.T) {
	looked := 0
	jobs := func(uint32) (JobUser, bool) { looked++; return JobUser{UID: 7}, true }
	err := Caller{UID: 7, Role: User}.Check("m", &control.RemoveOutput{Jobs: []uint32{5, 3, 5, 5, 3}}, jobs)
	if err != nil || looked != 2 {
		t.Errorf("%v, after %d jobs", err, looked)
	}
}

// What a denial says.
func TestDenial(t *testing.T) {
	ann := Caller{UID: 1001, Name: "ann", Role: User}
	for want, m := range map[string]proto.Message{
		"job 2 is bob's: only bob and the administrators of machine lab may signal it, and you are ann": &control.Kill{Job: 2},
		"only the owner and the administrators of machine lab may extend it, and you are ann":           &control.InsertExtension{},
		"job 2 is bob's: only bob and the administrators of machine lab may add jobs to it, and you are ann": &control.RunRequest{
			Spec: &control.JobSpec{Task: &control.Task{Array: 2}},
		},
	} {
		if err := ann.Check("lab", m, jobs); err == nil || err.Error() != want {
			t.Errorf("%v\nnot %s", err, want)
		}
	}
	// A task of her own array, also when nothing is known of its first job any more.
	for _, array := range []uint32{0, 1, 9} {
		if err := ann.Check("lab", &control.RunRequest{Spec: &control.JobSpec{Task: &control.Task{Array: array}}}, jobs); err != nil {
			t.Error(err)
		}
	}
	remote := Caller{UID: 1003, Name: "carol", Role: Administrator, Token: 4}
	if err := remote.Check("lab", &control.CreateToken{}, jobs); err == nil || err.Error() != "tokens of machine lab are created on its own host only, and you are carol with token 4" {
		t.Error(err)
	}
	if err := remote.Check("lab", &control.RevokeTokens{}, jobs); err != nil {
		t.Error(err)
	}
	for _, m := range []proto.Message{new(control.NodeUp), nil} {
		if err := (Caller{Role: Owner}).Check("lab", m, jobs); !errors.Is(err, &control.Failure{Code: control.Code_CODE_BAD_REQUEST}) {
			t.Errorf("%T, which is not a request of a client: %v", m, err)
		}
	}
}

func TestPolicy(t *testing.T) {
	p := Policy{
		Users:          Members{{Name: "ann", ID: 1001}, {Name: "@lab", ID: 50, Group: true}},
		Administrators: Members{{Name: "carol", ID: 1003}, {Name: "@wheel", ID: 10, Group: true}},
	}
	for _, c := range []struct {
		peer control.Peer
		want Role
	}{
		{control.Peer{UID: 1001}, User},
		{control.Peer{UID: 1002}, Stranger},
		{control.Peer{UID: 1002, GIDs: []uint32{1001, 1003}}, Stranger}, // groups with the numbers of users
		{control.Peer{UID: 50}, Stranger},
		{control.Peer{UID: 1002, GIDs: []uint32{7, 50}}, User},
		{control.Peer{UID: 1003}, Administrator},
		{control.Peer{UID: 1001, GIDs: []uint32{50, 10}}, Administrator},
	} {
		if got := p.Role(c.peer); got != c.want {
			t.Errorf("%v is %v, not %v", c.peer, got, c.want)
		}
	}
	if (Policy{}).Open() || !p.Open() || (Policy{}).Role(control.Peer{}) != Stranger {
		t.Error("the policy without members lets somebody in")
	}
}

func TestSees(t *testing.T) {
	for c, want := range map[Caller]bool{
		{UID: 1, Role: User}: true, {UID: 2, Role: User}: false, {UID: 1, Role: Stranger}: false,
		{UID: 2, Role: Administrator}: true, {UID: 2, Role: Owner}: true,
	} {
		if c.Sees(1) != want {
			t.Errorf("%v sees a job of user 1: %v", c, !want)
		}
	}
}
