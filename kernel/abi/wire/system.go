package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
)

// Handlers from MaxHandlers on belong to the libraries. An application can neither send to them nor
// set them, and no extension sees their messages, so they cannot collide with the application's.
const (
	HandlerCollective = MaxHandlers     // Call
	HandlerRemote     = MaxHandlers + 1 // Remote
	HandlerBarrier    = MaxHandlers + 2 // Note
	HandlerPiece      = MaxHandlers + 3 // Piece
)

// CollectiveWindow is how many chunks of collective operations a rank may have sent to another that
// the other has not returned. Each is at most MaxPayload bytes of data.
const CollectiveWindow = 16

// MostExchanging is the size of the largest job on one node whose ranks send small values to each
// other for an all-reduce, and not along a tree.
const MostExchanging = 8

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
	CallCredit    CallKind = 6 // Length: chunks that the sender has taken
	CallProbe     CallKind = 7 // is ignored; if the target has ended, it ends the job
)

var callNames = [...]string{CallBroadcast: "broadcast", CallReduce: "reduce", CallAllReduce: "all-reduce", CallGather: "gather",
	CallAllGather: "all-gather", CallCredit: "credit", CallProbe: "probe"}

func (k CallKind) String() string { return nameOf(callNames[:], uint8(k)) }

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

// MaxCallLength bounds the bytes of a collective operation.
const MaxCallLength = 1<<48 - 1

// Call identifies a collective operation. All ranks of a job make the same calls in the same order,
// so each chunk carries the call that it belongs to, and a rank that makes another one is found.
// The arguments of a chunk's message are
//
//	0 u64: number of the call in bits 0 to 31, counted from 1 and wrapping, root in bits 32 to 63
//	1 u64: bytes in bits 0 to 47, kind in 48 to 51, type in 52 to 55, operation in 56 to 59, 60 to 63 are 0
//
// The payload is data, 1 to MaxPayload bytes; a credit and a probe have none.
type Call struct {
	Number uint32
	Root   uint32
	Kind   CallKind
	Type   CallType
	Op     CallOp
	Length uint64 // bytes of a rank's data, 0 to MaxCallLength
}

// String describes the call for an error.
func (c Call) String() string {
	s := fmt.Sprintf("%s of %d bytes", c.Kind, c.Length)
	if c.Op != 0 {
		s += fmt.Sprintf(" by %s of %s", c.Op, c.Type)
	}
	if c.Kind != CallAllReduce && c.Kind != CallAllGather {
		s += fmt.Sprintf(" with root %d", c.Root)
	}
	return s
}

// Args returns the arguments of a chunk's message.
func (c Call) Args() [2]uint64 {
	return [2]uint64{uint64(c.Number) | uint64(c.Root)<<32, c.Length | uint64(c.Kind)<<48 | uint64(c.Type)<<52 | uint64(c.Op)<<56}
}

// ErrChunk reports a message of HandlerCollective that makes no sense.
var ErrChunk = errors.New("message of a collective operation makes no sense")

// ParseCall reads the arguments of a message of HandlerCollective with so much payload, in a job of
// size ranks. The sender may have written anything. The error wraps ErrChunk.
func ParseCall(args [2]uint64, payload, size int) (Call, error) {
	c := Call{
		Number: uint32(args[0]), Root: uint32(args[0] >> 32), Length: args[1] & MaxCallLength,
		Kind: CallKind(args[1] >> 48 & 15), Type: CallType(args[1] >> 52 & 15), Op: CallOp(args[1] >> 56 & 15),
	}
	data := c.Kind >= CallBroadcast && c.Kind <= CallAllGather
	switch {
	case c.Kind < CallBroadcast || c.Kind > CallProbe || c.Type > TypeFloat64 || c.Op > OpUser || args[1]>>60 != 0:
		return c, fmt.Errorf("%w: kind %d, type %d, operation %d", ErrChunk, c.Kind, c.Type, c.Op)
	case uint64(c.Root) >= uint64(size):
		return c, fmt.Errorf("%w: root %d of %d ranks", ErrChunk, c.Root, size)
	case data != (payload > 0) || payload > MaxPayload || data && c.Length == 0:
		return c, fmt.Errorf("%w: %s with %d bytes of payload", ErrChunk, c, payload)
	}
	return c, nil
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
