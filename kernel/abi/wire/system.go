package wire

import (
	"errors"
	"fmt"
)

// Handlers from MaxHandlers on belong to the libraries. An application can neither send to them nor
// set them, and no extension sees their messages, so they cannot collide with the application's.
const (
	HandlerCollective = MaxHandlers
)

// CollectiveWindow is how many chunks of collective operations a rank may have sent to another that
// the other has not returned. Each is at most MaxPayload bytes of data.
const CollectiveWindow = 16

// CallKind says what a message of HandlerCollective is: a chunk of a collective operation, or one of
// the last two.
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
