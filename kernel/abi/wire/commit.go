package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// CommitKind says what a message of HandlerCommit is (lib/commit).
type CommitKind uint8

// The kinds. The comments name the direction and the payload; most have none.
const (
	CommitAsk     CommitKind = 1 // to the leader: a turn is wanted
	CommitGrant   CommitKind = 2 // from the leader: the turn of that number
	CommitRelease CommitKind = 3 // to the leader: the turn is over
	CommitBegin   CommitKind = 4 // down the tree: the operation, a CommitOp
	CommitData    CommitKind = 5 // down the tree: the next 1 to MaxPayload bytes of a transfer
	CommitVote    CommitKind = 6 // up the tree: whether the subtree can carry the operation out
	CommitDecide  CommitKind = 7 // down the tree: CommitOK, carry it out; CommitAbandoned, forget it
	CommitDone    CommitKind = 8 // up the tree: the subtree has
)

// CommitStatus says whether an operation is possible at a rank.
type CommitStatus uint8

// The statuses.
const (
	CommitOK        CommitStatus = 0
	CommitNoWindow  CommitStatus = 1 // the rank has no such window
	CommitBeyond    CommitStatus = 2 // the bytes are not all in the window, or a u64 is not aligned
	CommitNoMemory  CommitStatus = 3 // the rank has no memory for the data
	CommitFreed     CommitStatus = 4 // the rank has freed the group
	CommitFalse     CommitStatus = 5 // the comparison is false
	CommitAbandoned CommitStatus = 6 // the caller has abandoned it
)

// Bounds of a Commit.
const (
	MaxCommitNumber = 1<<48 - 1
	NoPlace         = 1<<24 - 1 // a sender that does not know its place
)

// Commit is a message of an operation on all ranks of a group. Its arguments are
//
//	0 u64: group in bits 0 to 39; in bits 40 to 63 the place of the root, in CommitBegin, or of the rank where the operation is not
//	       possible, in CommitVote
//	1 u64: number of the operation's turn in bits 0 to 47, kind in 48 to 55, status in 56 to 63
type Commit struct {
	Group  GroupID
	Place  uint32
	Number uint64
	Kind   CommitKind
	Status CommitStatus
}

// Args returns the arguments of the message.
func (c Commit) Args() [2]uint64 {
	return [2]uint64{uint64(c.Group) | uint64(c.Place)<<40, c.Number | uint64(c.Kind)<<48 | uint64(c.Status)<<56}
}

// ErrCommit reports a message of HandlerCommit that makes no sense.
var ErrCommit = errors.New("message of an operation on a group makes no sense")

// ParseCommit reads the arguments of a message of HandlerCommit with so much payload. The sender
// may have written anything. The error wraps ErrCommit.
func ParseCommit(args [2]uint64, payload int) (Commit, error) {
	c := Commit{
		Group: GroupID(args[0] & (1<<40 - 1)), Place: uint32(args[0] >> 40),
		Number: args[1] & MaxCommitNumber, Kind: CommitKind(args[1] >> 48), Status: CommitStatus(args[1] >> 56),
	}
	least, most := 0, 0
	switch c.Kind {
	case CommitBegin:
		least, most = CommitOpSize, CommitOpSize
	case CommitData:
		least, most = 1, MaxPayload
	}
	if c.Kind < CommitAsk || c.Kind > CommitDone || c.Status > CommitAbandoned || payload < least || payload > most {
		return c, fmt.Errorf("%w: kind %d, status %d, %d bytes of payload", ErrCommit, c.Kind, c.Status, payload)
	}
	return c, nil
}

// Comparison is how COMPARE-AND-WRITE compares a word, as an unsigned number, with a value.
type Comparison uint8

// The comparisons. 0: none, the operation is a transfer.
const (
	Equal        Comparison = 1
	NotEqual     Comparison = 2
	Less         Comparison = 3
	LessEqual    Comparison = 4
	Greater      Comparison = 5
	GreaterEqual Comparison = 6
)

// Holds reports whether the comparison is true for a word and a value.
func (c Comparison) Holds(word, value uint64) bool {
	switch c {
	case Equal:
		return word == value
	case NotEqual:
		return word != value
	case Less:
		return word < value
	case LessEqual:
		return word <= value
	case Greater:
		return word > value
	case GreaterEqual:
		return word >= value
	}
	return false
}

// NoOffset says that a CommitOp counts no event, or writes no word.
const NoOffset = 1<<64 - 1

// CommitOp is an operation on a window of all ranks of a group. Its encoding is
//
//	0 u32 comparison, 4 u32 window, 8 u64 offset, 16 u64 bytes of a transfer or value that is compared, 24 u64 offset of the event
//	or of the word that is written, 32 u64 word
type CommitOp struct {
	Compare Comparison
	Window  uint8
	Offset  uint64 // of the data, or of the word that is compared
	Value   uint64 // bytes of a transfer; what the word is compared with
	Second  uint64 // offset of the event or of the word that is written; NoOffset: none
	Word    uint64 // that is written
}

// CommitOpSize is the number of bytes of an encoded CommitOp.
const CommitOpSize = 40

// Encode returns the encoding.
func (o CommitOp) Encode() []byte {
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, CommitOpSize), uint32(o.Compare))
	b = binary.LittleEndian.AppendUint32(b, uint32(o.Window))
	for _, v := range []uint64{o.Offset, o.Value, o.Second, o.Word} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

// ParseCommitOp reads an encoding of CommitOpSize bytes, which may have any content. The error
// wraps ErrCommit.
func ParseCommitOp(b []byte) (CommitOp, error) {
	compare, window := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	if compare > uint32(GreaterEqual) || window >= MaxWindows {
		return CommitOp{}, fmt.Errorf("%w: comparison %d, window %d", ErrCommit, compare, window)
	}
	word := func(at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
	return CommitOp{Comparison(compare), uint8(window), word(8), word(16), word(24), word(32)}, nil
}

// Length returns the bytes of a transfer, 0 for a comparison.
func (o *CommitOp) Length() uint64 {
	if o.Compare != 0 {
		return 0
	}
	return o.Value
}

// ReadsOnly reports whether the operation changes no window.
func (o *CommitOp) ReadsOnly() bool { return o.Compare != 0 && o.Second == NoOffset }

// Within returns CommitOK if the operation is within a window of so many bytes, and its words
// are aligned, and CommitBeyond if not.
func (o *CommitOp) Within(size int) CommitStatus {
	fits := func(offset, length uint64) bool { return offset <= uint64(size) && length <= uint64(size)-offset }
	first := fits(o.Offset, o.Value)
	if o.Compare != 0 {
		first = fits(o.Offset, 8) && o.Offset%8 == 0
	}
	if first && (o.Second == NoOffset || fits(o.Second, 8) && o.Second%8 == 0) {
		return CommitOK
	}
	return CommitBeyond
}
