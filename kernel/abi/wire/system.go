package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
)

// Handlers from MaxHandlers on belong to the libraries. An application can neither send to them nor
// set them, and no extension sees their messages, so they cannot collide with the application's.
const (
	HandlerCollective = MaxHandlers     // Call
	HandlerRemote     = MaxHandlers + 1 // Remote
	HandlerBarrier    = MaxHandlers + 2 // Note
	HandlerPiece      = MaxHandlers + 3 // Piece
	HandlerCommit     = MaxHandlers + 4 // Commit
	HandlerStopped    = MaxHandlers + 5 // a message that an extension on the interface has stopped: the libraries ignore it
)

// CollectiveWindow is how many chunks of collective operations a rank may have sent to another that
// the other has not returned. Each is at most MaxPayload bytes of data.
const CollectiveWindow = 16

// MostSmall is the size of the largest group whose all-reduce of a value of at most MaxPayload
// bytes does not take a tree: on one node, and of two ranks, each rank sends its value to each
// other one; other ranks send it to the first one, which sends the result back.
const MostSmall = 8

// CallKind says what a message of HandlerCollective is: a chunk of a collective operation, or one
// of the last two.
type CallKind uint8

// The kinds.
const (
	CallBroadcast CallKind = 1
	CallReduce    CallKind = 2
	CallAllReduce CallKind = 3
	CallGather    CallKind = 4
	CallAllGather CallKind = 5
	CallAllToAll  CallKind = 6
	CallScan      CallKind = 7
	CallBarrier   CallKind = 8
	CallSplit     CallKind = 9  // an all-gather of what ranks want of a new group
	CallCredit    CallKind = 10 // Length: chunks that the sender has taken
	CallProbe     CallKind = 11 // asks where the target is (Where); if that has ended, it ends the job
	CallWhere     CallKind = 12 // the payload says where ranks are
)

var callNames = [...]string{CallBroadcast: "broadcast", CallReduce: "reduce", CallAllReduce: "all-reduce", CallGather: "gather",
	CallAllGather: "all-gather", CallAllToAll: "all-to-all", CallScan: "scan", CallBarrier: "barrier", CallSplit: "split", CallCredit: "credit",
	CallProbe: "probe", CallWhere: "whereabouts"}

func (k CallKind) String() string { return nameOf(callNames[:], uint8(k)) }

// Rooted reports whether one rank has a part of its own in an operation of that kind.
func (k CallKind) Rooted() bool { return k == CallBroadcast || k == CallReduce || k == CallGather }

// carriesData reports whether a message of the kind is a chunk of a call.
func (k CallKind) carriesData() bool { return k >= CallBroadcast && k <= CallSplit }

// CallType is the type of the elements of a reduction; 0: bytes.
type CallType uint8

// The types.
const (
	TypeInt32   CallType = 1
	TypeInt64   CallType = 2
	TypeUint32  CallType = 3
	TypeUint64  CallType = 4
	TypeFloat32 CallType = 5
	TypeFloat64 CallType = 6
)

var typeNames = [...]string{0: "bytes", TypeInt32: "int32", TypeInt64: "int64", TypeUint32: "uint32", TypeUint64: "uint64", TypeFloat32: "float32",
	TypeFloat64: "float64"}

func (t CallType) String() string { return nameOf(typeNames[:], uint8(t)) }

// CallOp is what a reduction does; 0: nothing.
type CallOp uint8

// The operations.
const (
	OpSum  CallOp = 1
	OpMin  CallOp = 2
	OpMax  CallOp = 3
	OpAnd  CallOp = 4 // bit by bit, as the next two; integers only
	OpOr   CallOp = 5
	OpXor  CallOp = 6
	OpUser CallOp = 7 // a function of the application
)

var opNames = [...]string{0: "none", OpSum: "sum", OpMin: "min", OpMax: "max", OpAnd: "and", OpOr: "or", OpXor: "xor", OpUser: "a function"}

func (o CallOp) String() string { return nameOf(opNames[:], uint8(o)) }

func nameOf(names []string, n uint8) string {
	if int(n) < len(names) && names[n] != "" {
		return names[n]
	}
	return fmt.Sprint("number ", n)
}

// Bounds of a Call.
const (
	MaxCallLength = 1<<40 - 1 // bytes of a collective operation
	MaxCallNumber = 1<<12 - 1
)

// MaxGroups is how many groups a rank can be in at a time, besides the group of all ranks.
const MaxGroups = 256

// GroupID is the number of a group of ranks. 0 is the group of all ranks of the job. Any other
// number is a rank of the group in bits 16 to 39, and in bits 0 to 15 a number, not 0, that this
// rank has drawn for it. So no rank is in two groups of one number.
type GroupID uint64

// NewGroupID returns the number of a group. rank is in it, and has drawn a number.
func NewGroupID(rank uint32, drawn uint16) GroupID { return GroupID(rank)<<16 | GroupID(drawn) }

// Call identifies a collective operation of a group of ranks. All of them make the same calls in
// the same order, so each chunk carries the call that it belongs to, and a rank that makes another
// one is found. The arguments of a chunk's message are
//
//	0 u64: group in bits 0 to 39, place of the root in the group in bits 40 to 63
//	1 u64: bytes in bits 0 to 39, number of the call in the group in 40 to 51, counted from 1 and wrapping, kind in 52 to 55, type
//	       in 56 to 59, operation in 60 to 63
//
// The payload is data, 1 to MaxPayload bytes; a credit and a probe have none. Group and
// Number of a probe name the call in which the sender awaits the target; one with Number 0 gets no
// answer.
type Call struct {
	Group  GroupID
	Root   uint32
	Number uint16
	Kind   CallKind
	Type   CallType
	Op     CallOp
	Length uint64 // bytes of a rank's data, 0 to MaxCallLength; of all-to-all, for each rank
}

// String describes the call for an error.
func (c Call) String() string {
	s := fmt.Sprintf("%s of %d bytes", c.Kind, c.Length)
	if c.Kind == CallBarrier || c.Kind == CallSplit {
		s = c.Kind.String()
	}
	if c.Op != 0 {
		s += fmt.Sprintf(" by %s of %s", c.Op, c.Type)
	}
	if c.Kind.Rooted() {
		s += fmt.Sprintf(" with root %d", c.Root)
	}
	return s
}

// Args returns the arguments of a chunk's message.
func (c Call) Args() [2]uint64 {
	return [2]uint64{uint64(c.Group) | uint64(c.Root)<<40, c.Length | uint64(c.Number)<<40 | uint64(c.Kind)<<52 | uint64(c.Type)<<56 | uint64(c.Op)<<60}
}

// ErrChunk reports a message of HandlerCollective that makes no sense.
var ErrChunk = errors.New("message of a collective operation makes no sense")

// callOf reads arguments, which may be anything.
func callOf(args [2]uint64) Call {
	return Call{
		Group: GroupID(args[0] & (1<<40 - 1)), Root: uint32(args[0] >> 40), Length: args[1] & MaxCallLength, Number: uint16(args[1] >> 40 & MaxCallNumber),
		Kind: CallKind(args[1] >> 52 & 15), Type: CallType(args[1] >> 56 & 15), Op: CallOp(args[1] >> 60),
	}
}

// ParseCall reads the arguments of a message of HandlerCollective with so much payload, in a job of
// size ranks. The sender may have written anything. The error wraps ErrChunk.
func ParseCall(args [2]uint64, payload, size int) (Call, error) {
	c := callOf(args)
	data := c.Kind.carriesData()
	switch {
	case c.Kind == CallWhere && payload > 0 && payload <= MaxPayload && c.Root == 0:
		return c, nil
	case c.Kind < CallBroadcast || c.Kind > CallProbe || c.Type > TypeFloat64 || c.Op > OpUser:
		return c, fmt.Errorf("%w: kind %d, type %d, operation %d", ErrChunk, c.Kind, c.Type, c.Op)
	case uint64(c.Root) >= uint64(size):
		return c, fmt.Errorf("%w: root %d of %d ranks", ErrChunk, c.Root, size)
	case data != (payload > 0) || payload > MaxPayload || data && c.Length == 0:
		return c, fmt.Errorf("%w: %s with %d bytes of payload", ErrChunk, c, payload)
	}
	return c, nil
}

// Where says in which call a rank is, for one that waits for it in vain: the two may differ. A rank
// sends it as the answer to a probe, of itself and of another rank whose call differs from its own,
// and of itself to a rank whose call it has found to differ. Number 0 stands for a barrier of the
// job (Note), which is not a call of a group.
type Where struct {
	Rank uint32
	Call Call
}

// whereSize is the number of bytes of a Where: 0 u32 rank, 4 u32 zero, 8 u64 and 16 u64 the
// arguments of the call.
const whereSize = 24

// maxWheres is how many a message has at most.
const maxWheres = 2

// String describes where the rank is, for an error.
func (w Where) String() string {
	if w.Call.Number == 0 {
		return fmt.Sprintf("rank %d is in a barrier of the job", w.Rank)
	}
	return fmt.Sprintf("rank %d is in call %d, %s", w.Rank, w.Call.Number, w.Call)
}

// WherePayload returns the payload of a message about some ranks, 1 or 2.
func WherePayload(ranks ...Where) (b []byte) {
	for _, w := range ranks {
		args := w.Call.Args()
		b = binary.LittleEndian.AppendUint64(b, uint64(w.Rank))
		b = binary.LittleEndian.AppendUint64(b, args[0])
		b = binary.LittleEndian.AppendUint64(b, args[1])
	}
	return b
}

// ParseWheres reads the payload of a message of CallWhere. The sender may have written anything;
// the caller checks ranks and groups. The error wraps ErrChunk.
func ParseWheres(b []byte) (ranks []Where, err error) {
	if len(b) == 0 || len(b)%whereSize != 0 || len(b) > maxWheres*whereSize {
		return nil, fmt.Errorf("%w: %d bytes say where ranks are", ErrChunk, len(b))
	}
	for ; len(b) > 0; b = b[whereSize:] {
		rank := binary.LittleEndian.Uint64(b)
		c := callOf([2]uint64{binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])})
		if rank > math.MaxInt32 || !c.Kind.carriesData() || c.Type > TypeFloat64 || c.Op > OpUser {
			return nil, fmt.Errorf("%w: rank %d in %s", ErrChunk, rank, c)
		}
		ranks = append(ranks, Where{uint32(rank), c})
	}
	return ranks, nil
}

// Windows are regions by which other ranks reach a rank's memory. A rank makes one by a request for
// the region of its name (WindowName); a job has at most MaxWindows for each rank, and as many
// regions on a node as any job. A rank of the same node maps it by the same request. One of another
// node sends a datagram to the target's node kernel (package onesided), or if it cannot, a message
// of HandlerRemote to the window's rank. The target's node kernel carries out the request in the
// memory, without that rank, and answers the datagram, or forwards the answer to the source, as a
// message of HandlerRemote from itself.
const MaxWindows = 256

// WindowName returns the name of the region that is a window of a rank.
func WindowName(window, rank int) string { return fmt.Sprintf("window/%d/%d", window, rank) }

// RemoteKind says what a message of HandlerRemote is.
type RemoteKind uint8

// The kinds. The comments name the payload.
const (
	RemotePut   RemoteKind = 1 // data
	RemoteGet   RemoteKind = 2 // nothing
	RemoteAdd   RemoteKind = 3 // u64 to add to the u64 at Offset; wakes the window's rank if it sleeps
	RemoteSwap  RemoteKind = 4 // u64 expected, u64 to be stored if it is there; wakes as RemoteAdd
	RemoteReply RemoteKind = 5 // the data of a get; the u64 that was there before an add or a swap; nothing for a put
)

// Atomic reports whether a request of the kind is an atomic access to a word.
func (k RemoteKind) Atomic() bool { return k == RemoteAdd || k == RemoteSwap }

// Access makes the atomic access of a request with such a payload, and returns the word that was
// there before.
func (k RemoteKind) Access(word *atomic.Uint64, payload []byte) (old uint64) {
	value := binary.LittleEndian.Uint64(payload)
	if k == RemoteAdd {
		return word.Add(value) - value
	}
	stored := binary.LittleEndian.Uint64(payload[8:])
	for {
		if old = word.Load(); old != value || word.CompareAndSwap(value, stored) {
			return old
		}
	}
}

// RemoteStatus says in an answer how a request went.
type RemoteStatus uint8

// The statuses.
const (
	RemoteOK       RemoteStatus = 0
	RemoteNoWindow RemoteStatus = 1 // the rank has no such window
	RemoteOutside  RemoteStatus = 2 // the bytes are not all in the window, or a u64 is not aligned
)

// Remote is a request or an answer about a window. The arguments of its message are
//
//	0 u64: token in bits 0 to 31, kind in 32 to 35, status in 36 to 39, window in 40 to 47, bytes in 48 to 63
//	1 u64: offset in the window, in bytes
type Remote struct {
	Token  uint32 // is returned in the answer
	Kind   RemoteKind
	Status RemoteStatus
	Window uint8
	Length uint16 // bytes of a get, 1 to MaxPayload; otherwise of the payload
	Offset uint64
}

// Args returns the arguments of the message.
func (r Remote) Args() [2]uint64 {
	return [2]uint64{uint64(r.Token) | uint64(r.Kind)<<32 | uint64(r.Status)<<36 | uint64(r.Window)<<40 | uint64(r.Length)<<48, r.Offset}
}

// ErrRemote reports a message of HandlerRemote that makes no sense.
var ErrRemote = errors.New("message about a window makes no sense")

// ParseRemote reads the arguments of a message of HandlerRemote with so much payload. The sender
// may have written anything. The error wraps ErrRemote.
func ParseRemote(args [2]uint64, payload int) (Remote, error) {
	r := Remote{
		Token: uint32(args[0]), Kind: RemoteKind(args[0] >> 32 & 15), Status: RemoteStatus(args[0] >> 36 & 15),
		Window: uint8(args[0] >> 40), Length: uint16(args[0] >> 48), Offset: args[1],
	}
	length := int(r.Length)
	sound := length == payload && length <= MaxPayload
	switch r.Kind {
	case RemotePut:
		sound = sound && length > 0
	case RemoteGet:
		sound = payload == 0 && length > 0 && length <= MaxPayload
	case RemoteAdd:
		sound = sound && length == 8
	case RemoteSwap:
		sound = sound && length == 16
	case RemoteReply:
	default:
		sound = false
	}
	if !sound || r.Status > RemoteOutside || r.Status != RemoteOK && (r.Kind != RemoteReply || length != 0) {
		return r, fmt.Errorf("%w: kind %d, status %d, %d bytes, %d of payload", ErrRemote, r.Kind, r.Status, length, payload)
	}
	return r, nil
}

// Within reports whether a request is within a window of so many bytes.
func (r Remote) Within(size int) bool {
	length := uint64(r.Length)
	if r.Kind.Atomic() {
		if length = 8; r.Offset%8 != 0 {
			return false
		}
	}
	return r.Offset <= uint64(size) && length <= uint64(size)-r.Offset
}
