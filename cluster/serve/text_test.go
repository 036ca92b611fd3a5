package serve

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"margay/cluster/control"
	"margay/kernel/abi/id"
)

// lie is text from a node that tries to fool the reader of a terminal or of the log.
var lie = "\x1b[31mESC\x1b]0;pwned\x07\r\n\x1b[2Jnode0 fake\u202e" + strings.Repeat("x", 10_000)

// maxSaid bounds the effect of one lie on a line: serve names its sender.
const maxSaid = 2000

// lies fills all fields of a message with lies, and lists with several. Byte strings stay empty.
func lies[M proto.Message](m M) M {
	fill(m.ProtoReflect())
	return m
}

func fill(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		switch field := fields.Get(i); {
		case field.IsMap():
		case field.IsList() && field.Kind() == protoreflect.StringKind:
			for range 100 {
				m.Mutable(field).List().Append(protoreflect.ValueOfString(lie))
			}
		case field.IsList() && field.Kind() == protoreflect.MessageKind:
			fill(m.Mutable(field).List().AppendMutable().Message())
		case field.Kind() == protoreflect.StringKind:
			m.Set(field, protoreflect.ValueOfString(lie))
		case field.Kind() == protoreflect.MessageKind:
			fill(m.Mutable(field).Message())
		}
	}
}

// honest fails the test if a text can fool a reader.
func honest(t *testing.T, where, text string) {
	t.Helper()
	if len(text) > maxSaid {
		t.Errorf("%s: a text of %d bytes: %.200q", where, len(text), text)
	}
	if i := strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 || !utf8.ValidString(text) {
		t.Errorf("%s: %.200q", where, text)
	}
}

// allHonest is honest for all strings of a message.
func allHonest(t *testing.T, m protoreflect.Message) {
	t.Helper()
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		where := string(field.FullName())
		switch {
		case field.IsMap():
		case field.IsList() && field.Kind() == protoreflect.StringKind:
			if value.List().Len() == 100 {
				t.Errorf("%s: all texts of a long list", where)
			}
			for i := range value.List().Len() {
				honest(t, where, value.List().Get(i).String())
			}
		case field.IsList() && field.Kind() == protoreflect.MessageKind:
			for i := range value.List().Len() {
				allHonest(t, value.List().Get(i).Message())
			}
		case field.Kind() == protoreflect.StringKind:
			honest(t, where, value.String())
		case field.Kind() == protoreflect.MessageKind:
			allHonest(t, value.Message())
		}
		return true
	})
}

// liar registers a node that lies about itself.
func (m *machine) liar(number uint32) *playedNode {
	n := m.played[number]
	n.connect()
	info := lies(new(control.NodeInfo))
	info.Arch, info.Cores, info.Memory, info.AllCores = n.arch, n.cores, 64<<20, false
	n.tell(&control.Heartbeat{Number: 1, Info: info})
	register := n.register()
	register.Info, info.Address = info, register.Info.Address
	n.connectAs(register)
	return n
}

// A node that lies in every field that it can send does not reach a terminal or forge a line of the
// log, and no text gets too long.
func TestLies(t *testing.T) {
	failure := func() error { return lies(new(control.Error)).Err() }
	for _, refuses := range []bool{false, true} {
		t.Run(fmt.Sprintf("refuses=%v", refuses), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := newMachine(t, 1)
				c := m.client()
				n := m.liar(0)
				n.answers = map[string]proto.Message{
					"ListExtensions": lies(new(control.Extensions)), "InsertExtension": lies(new(control.Extensions)), "ExtensionLog": lies(new(control.ExtensionNotes)),
					"Noise": lies(new(control.NoiseReport)), "TakeSamples": lies(new(control.Samples)), "ReadEvents": lies(new(control.Events)),
					"ReadClock": lies(new(control.Clock)), "ReadKernelLog": lies(new(control.KernelLog)), "SetDuties": &control.DutiesSet{Info: lies(new(control.NodeInfo))},
					"Forget": &control.Forgotten{Unkept: &control.Unkept{Files: 7, Names: lies(new(control.Unkept)).Names}},
				}
				n.answers["SetDuties"].(*control.DutiesSet).Info.Cores = n.cores
				requests := []proto.Message{
					&control.ListNodes{}, &control.ListExtensions{Node: -1}, &control.ExtensionLog{Node: -1}, &control.Noise{DurationMs: 1, Node: -1},
					&control.TakeSamples{Node: -1}, &control.ReadEvents{}, &control.ReadClock{}, &control.ReadKernelLog{}, &control.InsertExtension{Node: -1, Name: "x"},
					&control.RemoveExtension{Handle: 1}, &control.RestartKernel{}, &control.ListNodes{}, &control.ListJobs{All: true},
				}
				job := c.run(spec(2))
				n.tell(lies(new(control.LogLine)))
				n.tell(&control.Record{Job: job, Seq: 1, Stream: control.Stream_STREAM_EXIT, Exit: lies(new(control.ExitStatus))})
				if refuses {
					for _, m := range append(requests, &control.Forget{}, &control.SetDuties{}) {
						n.refused[string(m.ProtoReflect().Descriptor().Name())] = failure()
					}
				}
				for _, request := range append(requests, &control.ListJobs{Job: job}) {
					answer, err := c.ask(request)
					if err != nil {
						honest(t, fmt.Sprintf("%T", request), err.Error())
					} else {
						allHonest(t, answer.ProtoReflect())
					}
				}
				n.tell(&control.JobFault{Job: job, Error: lies(new(control.Error))})
				time.Sleep(time.Minute)
				allHonest(t, must[*control.Jobs](c, &control.ListJobs{Job: job}).ProtoReflect())
				if refuses {
					delete(n.refused, "Forget")
					n.connect() // serve cut the connection because of that
				}
				n.refused["Prepare"] = failure()
				if _, err := c.ask(&control.RunRequest{Spec: spec(1)}); err == nil {
					t.Error("a refused job is accepted")
				} else {
					honest(t, "refusal of Prepare", err.Error())
				}
				delete(n.refused, "Prepare")
				reply := must[*control.RunReply](c, &control.RunRequest{Spec: spec(1)})
				n.tell(&control.Loaded{Job: reply.Job, Error: lies(new(control.Error))})
				if _, err := c.ask(&control.SetDuties{Node: -1}); err != nil {
					honest(t, "SetDuties", err.Error())
				}
				allHonest(t, must[*control.Nodes](c, &control.ListNodes{}).ProtoReflect())
				time.Sleep(time.Minute)
				c.mu.Lock()
				for _, got := range c.got {
					allHonest(t, got.ProtoReflect())
				}
				c.mu.Unlock()
				m.mu.Lock()
				defer m.mu.Unlock()
				for _, line := range m.log {
					honest(t, "the log", line)
				}
				if said := strings.Join(m.log, "\n"); !strings.Contains(said, "node0 fake") {
					t.Errorf("the log does not show what the node has said: %s", said)
				}
			})
		})
	}
}

// The last lines of a node's console are the node's own text, too, and the command line is the
// user's.
func TestLiesOnTheConsole(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMachine(t, 2, func(c *Config) {
			c.Console = func(id.Node, int) []string { return []string{lie, lie} }
		})
		m.played[0].connect()
		c := m.client()
		must[*control.RunReply](c, &control.RunRequest{Spec: spec(1), Exec: &control.Exec{Argv: [][]byte{[]byte("app\x1b[2J\n"), []byte("\xff")}}})
		time.Sleep(time.Hour)
		m.local(control.Role_ROLE_HOLDER).tell(&control.NodeExit{Node: 0, Reason: lie, Console: []string{lie, lie}})
		for number := range uint32(2) {
			state := c.node(number)
			lines := strings.Split(state.Reason, "\n    ")
			if len(lines) != 3 {
				t.Errorf("node%d is in state %.500v", number, state)
			}
			for _, line := range lines {
				honest(t, "reason", line)
			}
		}
		if jobs := must[*control.Jobs](c, &control.ListJobs{All: true}).Jobs; len(jobs) != 1 || jobs[0].Command != "app?[2J? ?" {
			t.Errorf("the job is %.500v", jobs)
		}
		if !m.logged("job 1: 1 rank of app?[2J? ? on 1 node") {
			t.Error("the log does not show the job")
		}
	})
}

// Text of a node that an earlier serve has recorded is as untrusted as text from the node.
func TestRecordedLies(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		n := m.server.nodes[0]
		n.info = lies(new(control.NodeInfo))
		if err := m.server.store.saveNode(n); err != nil {
			t.Fatal(err)
		}
		m.restart()
		list := must[*control.Nodes](m.client(), &control.ListNodes{})
		if list.Nodes[0].Info == nil {
			t.Errorf("nothing is known of the node: %v", list)
		}
		allHonest(t, list.ProtoReflect())
	})
}
