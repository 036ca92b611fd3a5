// Package slot is the ABI between extensions and the node kernel or, in slot place, the machine's
// allocator: the places where an extension can be attached, what it gets there and what it may
// answer. One table declares them; the node kernel, the allocator, the documentation and the tests
// go by it. It is a leaf. The C side of it is kernel/abi/slot/margay_ext.h, which a test holds
// against the types here.
package slot

import (
	"fmt"
	"slices"
	"time"
)

// Name is the name of a slot. An object's section bears it.
type Name string

// The slots.
const (
	Boot      Name = "boot"
	Timer     Name = "timer"
	Interrupt Name = "interrupt"
	Sched     Name = "sched"
	Message   Name = "message"
	Packet    Name = "packet"
	Trap      Name = "trap"
	Fault     Name = "fault"
	Exit      Name = "exit"
	PlaceSlot Name = "place"
)

// MessageOnInterface is the section of a program for slot message that may also run on the
// interface of its node: see the notes of the slot.
const MessageOnInterface = "message/interface"

// OnInterface reports whether the section of a program for slot message allows that.
func OnInterface(section string) bool { return section == MessageOnInterface }

// Verdict is what an extension answers, its r0.
type Verdict uint64

// The verdicts of the message slot. The packet slot has CONSUME and DROP, too.
const (
	Deliver Verdict = 0 // queue the message for its target rank; the default
	Consume Verdict = 1 // it has been handled and goes no further
	Drop    Verdict = 2 // throw it away and count that
	Forward Verdict = 3 // send it on to the rank that is now in the context's TargetRank
	Upcall  Verdict = 4 // have its target rank handle it at once
)

// The verdicts of the slots boot, timer, fault and exit, and the default of the packet slot.
const (
	Go     Verdict = 0 // the node registers; the default
	Refuse Verdict = 1 // it does not, and is turned off

	Continue Verdict = 0 // the extension is run again after its interval; the default
	Stop     Verdict = 1 // it is not

	Pass Verdict = 0 // the end of the process, or the message, is what it would be without extensions; the default
	End  Verdict = 1 // the job has failed, and the rest of it is ended
)

// MaxHops is how often a message can be forwarded, where a message that an extension sends has been
// forwarded once more than the one that it was sent for. To forward a message once more, to a rank
// that the job does not have, or to the rank that it has come to, is a fault.
const MaxHops = 8

// Row declares a slot.
type Row struct {
	Name     Name
	What     string // when an extension there is run
	Owners   string // whose extensions it takes, and in which order they are asked
	Ready    bool   // implemented; the others are declared for later
	Serve    bool   // its extensions run in the machine's allocator; the others run on nodes
	Context  int    // size of the context, in bytes; it is readable and writable
	Notes    string // about the context and the verdicts, for people
	Out      string // the fields whose changes by an extension take effect; empty: none
	Choices  uint64 // answers below this are choices; 0: there are none
	Choice   string // what such an answer is
	Verdicts map[Verdict]string
	Default  Verdict  // the verdict without an extension, or after a fault
	Services []string // that an extension there may call; none of them needs trust
	Fuel     uint64   // budget of one run, in instructions
	Time     time.Duration
}

// Allows reports whether an extension in the slot may answer v.
func (r *Row) Allows(v Verdict) bool { return uint64(v) < r.Choices || r.Verdicts[v] != "" }

// Whose extensions a slot takes.
const (
	machineFirst = "the machine's first, then the job's, each in the order of insertion; the first verdict that is not the default counts"
	machineOnly  = "the machine's, in the order of insertion; the first verdict that is not the default counts"
	eachAlone    = "the machine's and every job's; each is run for itself"
	firstOfAll   = "the machine's, in the order of insertion; the first one that scores every candidate decides"
)

// plain are the services that touch nothing but the extension's own state.
var plain = []string{
	"map_lookup_elem", "map_update_elem", "map_delete_elem", "ktime_get_ns", "trace_printk", "get_prandom_u32", "get_smp_processor_id",
}

// frugal is plain without the service whose time depends on the size of a value: serve waits for
// the extensions in slot place with its tables locked.
var frugal = slices.DeleteFunc(slices.Clone(plain), func(name string) bool { return name == "map_update_elem" })

// sending are the services with which an extension handles a message.
var sending = []string{
	"extension_call", "message_send", "message_reply", "message_put", "message_change", "message_room", "message_sender",
	"job_rank", "job_node",
}

// Table declares all slots.
var Table = []Row{
	{
		Name: Boot, What: "once, before the node registers", Ready: true,
		Owners:   machineOnly,
		Context:  BootSize,
		Verdicts: map[Verdict]string{Go: "GO", Refuse: "REFUSE"},
		Default:  Go,
		Services: plain,
		Fuel:     1_000_000,
		Time:     time.Second,
	},
	{
		Name: Timer, What: "when it has been inserted, and then at intervals that it chooses", Ready: true,
		Owners:   eachAlone,
		Context:  TimerSize,
		Out:      "the interval",
		Verdicts: map[Verdict]string{Continue: "CONTINUE", Stop: "STOP"},
		Default:  Continue,
		Services: plain,
		Fuel:     100_000,
		Time:     20 * time.Millisecond,
	},
	{Name: Interrupt, What: "at an interrupt"},
	{
		Name: Sched, What: "when the next process of a shared core must be chosen", Ready: true,
		Owners:   machineFirst,
		Context:  SchedSize,
		Out:      "the quantum, the tasks to hold, and the data of tasks",
		Choices:  MaxTasks,
		Choice:   "an index",
		Verdicts: map[Verdict]string{Default: "DEFAULT"},
		Default:  Default,
		Services: plain,
		Fuel:     10_000,
		Time:     100 * time.Millisecond, // a node kernel that shares its CPUs may lose them for a while
	},
	{
		Name: Message, What: "when an active message arrives for a rank on this node", Ready: true,
		Notes: `A message of more than 1024 bytes arrives in pieces. An extension sees it once, when its beginning arrives: data has up to 1008
bytes of it, and total says how long it is. The verdict counts for the whole message, also for the pieces that follow. Such a
message can be forwarded once. UPCALL delivers it like DELIVER: it cannot interrupt its rank before it is whole.

A program in section message/interface may also run on the interface of its node, as described in slot packet: a job's on a machine
that was made with --offload, when it is two seconds old. It answers DELIVER, CONSUME or DROP. Messages of one rank to another stay in order while the path is the
same. Those to different ranks of a node have no order, and a message that was handled takes room in the channel to its rank until that
rank calls its library.
`,
		Owners:   machineFirst,
		Context:  MessageSize,
		Out:      "the target rank, with FORWARD; arguments and payload, after message_change",
		Verdicts: map[Verdict]string{Deliver: "DELIVER", Consume: "CONSUME", Drop: "DROP", Forward: "FORWARD", Upcall: "UPCALL"},
		Default:  Deliver,
		Services: append(sending, plain...),
		Fuel:     100_000,
		Time:     20 * time.Millisecond,
	},
	{
		Name: Packet, What: "when a message arrives from another node", Ready: true,
		Notes: `The node kernel asks these extensions when it has checked the frame, before it asks those in slot message and before the
message waits for a rank. Messages between ranks of the node do not pass, and stay as fast as they are without an extension.
Of a message of more than 1024 bytes an extension sees the beginning, as in slot message, and the verdict counts for all of it.

A message with a handler of 256 or more is the libraries' own: a part of a collective operation, an access to a window. An
extension sees it and can count it. Another verdict than PASS about it is a fault, because the ranks that wait for it would hang,
and it cannot be changed or answered. Messages about barriers, accesses to windows of other nodes, and answers to these, may come another way,
on which no extension sees them.

On a node with its own Linux and a trusted wire, an extension also runs on the node's interface, for messages that
ranks send each other past the node kernels. margay ext list then names the interface behind the engine. Until Linux
has verified the extension, and if Linux refuses it, lacks a service that it calls, or it takes longer than half a millisecond in more than
one of five runs, it runs in the node kernel only, and messages from other nodes pass that. So does one of a job unless the
machine was made with --offload, and then if it takes a third of a processor there, has a map that is a region, more than 8 maps or 16 functions, replaces elements of a map with more than 1 KiB in one of
these, or is the job's fifth on the interface. The result is the same, but on the interface
instructions are not counted and get_smp_processor_id is 0.

A message that was dropped or consumed returns its credit to the sender, and barriers do not wait for it.
`,
		Owners:   machineFirst,
		Context:  PacketSize,
		Out:      "arguments and payload, after message_change",
		Verdicts: map[Verdict]string{Pass: "PASS", Consume: "CONSUME", Drop: "DROP"},
		Default:  Pass,
		Services: append(sending, plain...),
		Fuel:     100_000,
		Time:     20 * time.Millisecond,
	},
	{Name: Trap, What: "when a process enters the kernel"},
	processEnds(Fault, "when a process has been ended by a fault of its own (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS, SIGABRT)"),
	processEnds(Exit, "when a process has ended, after slot fault"),
	{
		Name: PlaceSlot, What: "for each candidate node, when a job is given its cores", Ready: true,
		Notes: `These extensions run in margay serve and not on nodes. A candidate is a node that the job may use and that has room for a part of
it now. serve runs an extension once for each of them, in the order of their numbers, and places the job when all have a score:
the node with the lowest score is first, and of those with equal scores the one with the lowest number. At its turn a node takes
as many ranks as turn says, at most those that it has room for. The turns go round until every rank has a node. The turn comes in
as the whole room, which fills one node after the other, and must not become 0. With --ppn and -N the user has said how many
ranks a node gets, so the turn has no effect and the score decides alone. Ranks are numbered in the order of nodes, whatever the
order of turns was.

An extension chooses among nodes and cannot refuse one: a job starts exactly when it would start without extensions. Drained
nodes, nodes that -w and -x exclude, and nodes without free cores are not among the candidates. An extension that answers UNSCORED for a candidate
is not run for the others, and leaves the job to the next extension, finally to the default: lowest-numbered first. So does one
that makes a fault.

An extension may be run again for the same job, for example because a spare was missing. Its maps end with serve.
`,
		Serve:    true,
		Owners:   firstOfAll,
		Context:  PlaceSize,
		Out:      "the turn",
		Choices:  Scores,
		Choice:   "a score",
		Verdicts: map[Verdict]string{Unscored: "UNSCORED"},
		Default:  Unscored,
		Services: frugal,
		Fuel:     1_000,
		Time:     100 * time.Millisecond, // the fuel ends a run long before
	},
}

// processEnds is the row of a slot for the end of processes.
func processEnds(name Name, what string) Row {
	return Row{
		Name: name, What: what, Ready: true,
		Owners:   machineFirst,
		Context:  ExitSize,
		Verdicts: map[Verdict]string{Pass: "PASS", End: "END"},
		Default:  Pass,
		Services: plain,
		Fuel:     100_000,
		Time:     20 * time.Millisecond,
	}
}

// Find returns the row of a slot, or an error that lists the slots.
func Find(name Name) (Row, error) {
	var ready []Name
	for _, row := range Table {
		if row.Name == name && row.Ready {
			return row, nil
		}
		if row.Name == name {
			return Row{}, fmt.Errorf("slot %s takes no extensions yet", name)
		}
		if row.Ready {
			ready = append(ready, row.Name)
		}
	}
	return Row{}, fmt.Errorf("there is no slot %q; extensions can be put into %v", name, ready)
}

// Declared reports whether there is a slot of that name, be it one that takes no extensions yet.
func Declared(name Name) bool {
	return slices.ContainsFunc(Table, func(row Row) bool { return row.Name == name })
}

// FaultLimit is how many faults an extension may make before it is removed from its slot.
const FaultLimit = 16
