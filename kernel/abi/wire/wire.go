// Package wire is the interface between a rank and its node kernel: what lib/margay and lib/c speak
// on one side and the node kernel on the other. It is a leaf, and its layouts are stated in bytes
// because one side may be C.
//
// # Opening
//
// A rank inherits one end of an AF_UNIX SOCK_SEQPACKET socket as the descriptor that the
// environment variable MARGAY_FD names. It sends a Request with OpHello and its Version; the Reply
// brings five descriptors: the rank's area (shared memory), its ends of the doorbell and of the
// upcall doorbell, which are stream sockets, the board (shared memory) and its own peer doorbell,
// an eventfd. The process changes the area's joined word from 0 to 1; if it is 1, another process
// of the rank has used the rings, and what that one knew of them is lost, so this one must not.
// Later requests go the same way, one at a time. A side rings by sending a byte without
// waiting, and sleeps by reading; each has its own end, so neither can block the other.
//
// # The area
//
// It begins with a header page (Header), then comes a table of the nodes of all ranks, then three
// rings: the send ring, which the rank fills, the receive ring and the upcall ring, which the node
// kernel fills. All numbers are little-endian. The node kernel trusts nothing that a rank can
// write: it reads each number once, checks it, and works on copies.
//
// # Rings
//
// A ring is a power of two of bytes. Its positions count bytes since the beginning and never wrap;
// the producer owns the tail, the consumer owns the head. Records are multiples of 8 bytes, do not
// wrap around the ring's end (a Pad record fills the rest), and have the layout of Record. A side
// that is about to sleep sets its waiting word, checks the ring once more, and then reads its end
// of the doorbell; the other side, after moving its position, rings if the word is set.
//
// # Upcalls
//
// Messages in the upcall ring must be handled at once. Its consumer's waiting word is called armed:
// to be interrupted, the rank sets it and checks the ring once more. The node kernel, after moving
// the position, resets the word to 0 and, if it was set, sends a byte through the upcall doorbell.
// If it was not set and the rank sleeps, the node kernel rings. A rank that finds a record in the
// receive ring empties the upcall ring first, so it handles no message before an upcall that was
// sent earlier. A restarted node kernel always sends a byte.
//
// # Channels
//
// Two ranks of a node that speak have a channel: a ring that only those two map, made by the node
// kernel when the first message from the one to the other has passed through it. The area counts a
// rank's channels, in both directions; OpChannel fetches one by its index. The channel identifies
// the sender of a message, not the record. It is a header page and ChannelRing bytes of ring.
// Positions count bytes and never wrap; each side keeps its own and checks what the other wrote. A
// record is
//
//	0  u64 head: u32 size of the payload in bytes, u16 kind, u16 handler (from the lowest bits)
//	8  u64 first argument
//	16 u64 second argument
//	24 payload, filled up to a multiple of 8
//
// and does not wrap around the ring's end: a head of kind pad fills the rest. The consumer polls
// the head at its position, which is 0 while there is no record. The producer writes a record's
// body, sets the head behind the record to 0, and then writes the record's head; that head must be
// free, too. A payload has at most ChannelPayload bytes. The consumer gives room back by moving its
// position in the header page. A producer that waits for room sets the blocked word there, and then
// looks at the consumer's position once more.
//
// # Mirrored channels
//
// Two ranks of different nodes may have a pair of channels, one for each direction, in one file of
// MirrorSize bytes on each node: first the one that the rank sends through. Package mirror keeps
// the rings equal at both ends by datagrams, which the ranks send through a UDP socket that the
// node kernel has made. OpChannel fetches such a pair as well (Mirror). Words in the header pages
// let the node kernel send data and acknowledgements again for a rank that does not call its
// library. A mirrored channel is closed (1) when the other rank has ended, and paused (2) while the
// other node forbids channels.
//
// # Paths
//
// A message takes the channel to its target or passes the node kernel. It takes the channel if all
// of this holds when it is sent:
//
//   - the node kernel allows it (PathDirect in the area's path word, PathFar for a mirrored channel):
//     no extension, recording or scheduler wants to see messages, or extensions see them on the
//     interface;
//   - the node kernel has not closed or paused the channel;
//   - it is not a request about a window of another node, which the node kernels carry out;
//   - all messages to that rank that passed the node kernel are settled: the settled position of the
//     area, or of the mirrored channel, has reached the end of the last of them in the send ring. A
//     message is settled when it is in a ring of its target, or is finished; one that waits for room,
//     or is being forwarded, is not.
//
// So that no message overtakes an earlier one of the same pair,
//
//   - a message that passes the node kernel carries the mark of the channel (Record.After). The target
//     handles the channel's messages up to that mark first, and waits until they have arrived if the
//     channel is mirrored;
//   - a rank that finds a message in a channel handles everything that is in its upcall and receive
//     rings by then first. Messages of that source that were sent earlier are there.
//
// # Handlers of the libraries
//
// A message with a handler of MaxHandlers or more is between the libraries of two ranks, or a rank
// and a node kernel: Call for collective operations, Remote for accesses to windows, Note for
// barriers, Commit for operations on all ranks of a group. No extension decides about it. Piece is
// a part of a message of the application that is too long for a record; an extension sees the first
// one, as that message.
//
// # The board
//
// The ranks of a job on one node share a board, which the node kernel reads, too. Each has 128
// bytes:
//
//	0  u64 for barriers with an even number, 8 u64 for those with an odd number:
//	   the barrier's number times 4, + 1 if the rank is not quiet, + 2 if it has ended
//	16 u64 of the leader, local rank 0, alone: the number of the last barrier that its part is done
//	   of, times 4, + the Outcome
//	64 u32 the rank sleeps, or is about to
//
// A rank enters a barrier by writing its word. It is not quiet if
//
//   - the path word forbids it (PathMeet): an extension or a recording wants to see messages; or
//   - a message that it has sent through the node kernel is not settled; or
//   - it has sent a message to another node through the node kernels since the last barrier of the
//     node kernels.
//
// Before that it waits until its bytes in mirrored channels are acknowledged. So all messages of a
// quiet rank are in rings and channels that their targets poll.
//
// In a job with one node, the barrier is complete when the words of all ranks have its number or a
// higher one, if all were quiet. All ranks decide alike: a word with a higher number says that all
// were quiet, since otherwise its rank would still wait.
//
// In a job with several nodes that allows it (Header.Meets), the lowest
// rank of each node is its leader. When the words of all ranks of its node are there, it exchanges
// with the other leaders whether all were quiet, by messages for HandlerBarrier (Note). In round k,
// from 0, the leader at place p among n, in the order of ranks, sends the greatest Outcome that it
// knows to the leader at place p + 2^k modulo n, and waits for the note of the leader at place
// p - 2^k. After the first round with 2^(k+1) >= n all know the same. The leader writes the outcome
// on its board.
//
// A note also says whether all leaders that its sender knows about share CPUs with ranks of other
// nodes (PathStrewn). After a barrier in which all did, the next one climbs a tree (Parent): a
// leader waits for notes of round RoundUp + r of its children, where r is the round of Parent; then
// it sends one to its parent, waits for one of RoundDown + r of it, which has the outcome, and
// sends that to its children. So all leaders know alike which barriers climb.
//
// A Note takes the mirrored channel to its target if there is one, even a paused one, and passes
// the node kernels only while there is none; its order among other messages does not matter.
//
// If the outcome is that some rank was not quiet, all ranks enter a barrier of the node kernels
// (the area's entered word), which has the same meaning and waits for more. After several of these
// the boards are not tried for a while (Turns): all ranks count alike.
//
// A leader that stops waiting abandons the barrier: it sends what others still await of it with
// the outcome OutcomeAbandoned, with which the barrier fails at each rank that learns of it.
//
// When a rank has ended, the node kernel writes the word of the next barrier that it would have
// entered, as not quiet and ended. When a leader has ended, all node kernels bound the barriers on
// the boards (the area's bound word): its part of later ones is missing. In both cases the ranks
// that wait for it come to a barrier of the node kernels, which end the job.
//
// A rank that sleeps sets its word on the board and the waiting word of its receive ring, looks at
// everything once more, and waits for its doorbell and its peer doorbell. A rank that has written
// to a channel, made room in one whose producer is blocked, is the last to enter a barrier, or has
// written an outcome, rings the peer doorbell if it can change the word from 1 to 0.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Version is the version of this interface. A rank and its node kernel must have the same one.
const Version = 11

// Names in a rank's environment.
const (
	EnvFD   = "MARGAY_FD"   // descriptor of the socket to the node kernel
	EnvJob  = "MARGAY_JOB"  // number of the job
	EnvRank = "MARGAY_RANK" // of this process, 0..size-1
	EnvSize = "MARGAY_SIZE" // how many ranks the job has
	EnvNode = "MARGAY_NODE" // number of the node
)

// FD is the descriptor under which a rank inherits its socket.
const FD = 3

// MaxPayload is the longest payload of a message in a ring between a rank and its node kernel, in
// bytes. A longer message is sent in pieces (Piece).
const MaxPayload = 1024

// MaxMessage is the longest payload of an active message, in bytes.
const MaxMessage = 1 << 20

// MaxHandlers bounds the numbers of handlers: 0..MaxHandlers-1.
const MaxHandlers = 256

// Sizes and places in the area, in bytes.
const (
	HeaderSize = 4096
	RingSize   = 256 << 10

	magic = 0x5947524d // "MRGY"

	offMagic     = 0
	offVersion   = 4
	offJob       = 8
	offRank      = 12
	offSize      = 16
	offNode      = 20
	offLocalRank = 24
	offLocalSize = 28
	offNodes     = 32
	offTable     = 36 // offset of the table: the node of each rank, 4 bytes each
	offSend      = 40 // offset of the send ring
	offReceive   = 44 // offset of the receive ring
	offRingSize  = 48
	offUpcall    = 52 // offset of the upcall ring
	offMeets     = 56 // u32: 1 if barriers between nodes are tried on the boards

	offEntered  = 64  // barriers that the rank has entered; written by the rank
	offJoined   = 72  // u32: 1 when a process of the rank has joined; written by the rank
	offReleased = 128 // barriers that are complete; written by the node kernel

	// Written by the node kernel, seldom.
	offSettled  = 192 // position of the send ring: all messages before it are settled
	offPath     = 200 // u32: Path bits
	offChannels = 204 // u32: channels that the rank has
	offBound    = 208 // barriers with this number or a higher one are not completed on the boards; 0: all may be

	offSendControl    = 256
	offReceiveControl = 512
	offUpcallControl  = 768

	// In a ring's control block, each on a cache line of its own.
	offTail            = 0
	offHead            = 64
	offConsumerWaiting = 128
	offProducerWaiting = 192
)

// Header describes the place of a rank.
type Header struct {
	Job, Rank, Size      uint32
	Node                 uint32
	LocalRank, LocalSize uint32 // among the ranks of the job on this node
	Nodes                uint32 // nodes of the job
	Meets                bool   // barriers between nodes are tried on the boards
}

// AreaSize is the size of the area of a job with the given number of ranks, in bytes.
func AreaSize(ranks int) int { return ringsOffset(ranks) + 3*RingSize }

func ringsOffset(ranks int) int { return (HeaderSize + 4*ranks + 4095) &^ 4095 }

// Record is an active message in a ring.
//
//	0  u32 length of the record in bytes, a multiple of 8
//	4  u16 kind: 1 message, 2 pad
//	6  u16 handler
//	8  u32 peer: the target rank in the send ring, the source rank in the others
//	12 u32 node: 0 in the send ring, the source node in the others, + NodeExtension if an extension has
//	   sent it
//	16 u32 size of the payload in bytes
//	20 u32 after: how far the channel from its source to its target had been filled when it was sent (Mark), 0 if
//	   there was none
//	24 u64 first argument
//	32 u64 second argument
//	40 payload, filled up to a multiple of 8
type Record struct {
	Handler uint16
	Peer    uint32
	Node    uint32
	After   uint32
	Args    [2]uint64
	Payload []byte
}

// NodeExtension is the bit of Record.Node of a message that an extension has sent for one to the
// peer.
const NodeExtension = 1 << 31

// RecordHeader is the size of a record without its payload, in bytes.
const RecordHeader = 40

// Kinds of record.
const (
	kindMessage = 1
	kindPad     = 2
)

// recordLength is the length of a record with so much payload.
func recordLength(payload int) int { return (RecordHeader + payload + 7) &^ 7 }

// ErrCorrupt reports that a rank has written nonsense into its area.
var ErrCorrupt = errors.New("the area was written over")

// ErrTooLong reports a payload of more than MaxPayload bytes in one piece.
var ErrTooLong = fmt.Errorf("a message that is posted carries at most %d bytes", MaxPayload)

// put writes the record to b, which is as long as the record.
func (r Record) put(b []byte) {
	binary.LittleEndian.PutUint32(b[0:], uint32(len(b)))
	binary.LittleEndian.PutUint16(b[4:], kindMessage)
	binary.LittleEndian.PutUint16(b[6:], r.Handler)
	binary.LittleEndian.PutUint32(b[8:], r.Peer)
	binary.LittleEndian.PutUint32(b[12:], r.Node)
	binary.LittleEndian.PutUint32(b[16:], uint32(len(r.Payload)))
	binary.LittleEndian.PutUint32(b[20:], r.After)
	binary.LittleEndian.PutUint64(b[24:], r.Args[0])
	binary.LittleEndian.PutUint64(b[32:], r.Args[1])
	copy(b[RecordHeader:], r.Payload)
}

// parse reads the record in b, which is a private copy. The payload stays in b.
func parse(b []byte) (r Record, pad bool, err error) {
	kind := binary.LittleEndian.Uint16(b[4:])
	if kind == kindPad {
		return Record{}, true, nil
	}
	if kind != kindMessage || len(b) < RecordHeader {
		return Record{}, false, fmt.Errorf("%w: record of kind %d with %d bytes", ErrCorrupt, kind, len(b))
	}
	size := binary.LittleEndian.Uint32(b[16:])
	if size > MaxPayload || recordLength(int(size)) != len(b) {
		return Record{}, false, fmt.Errorf("%w: record of %d bytes with %d of payload", ErrCorrupt, len(b), size)
	}
	return Record{
		Handler: binary.LittleEndian.Uint16(b[6:]),
		Peer:    binary.LittleEndian.Uint32(b[8:]),
		Node:    binary.LittleEndian.Uint32(b[12:]),
		After:   binary.LittleEndian.Uint32(b[20:]),
		Args:    [2]uint64{binary.LittleEndian.Uint64(b[24:]), binary.LittleEndian.Uint64(b[32:])},
		Payload: b[RecordHeader : RecordHeader+size],
	}, false, nil
}
