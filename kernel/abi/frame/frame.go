// Package frame is the layout of the frames in which two node kernels exchange the messages of a
// job, their credits, and the events of its barriers. It is a leaf. All numbers are little-endian.
//
// A frame begins with a header of HeaderSize bytes:
//
//	0  u8  kind
//	1  u8  zero[3]
//	4  u32 job
//	8  u64 key of the job, which only its nodes know
//
// Its body depends on the kind:
//
//	1 messages      16 u64 number of the first message among all from this node to that node,
//	                24 messages; without messages the frame asks for an acknowledgement (7)
//	2 credits       16 credits: what the sender of the frame has taken for its ranks
//	3 arrived       16 u64 barriers that the sender's whole subtree has entered
//	4 released      16 u64 barriers that are complete
//	5 joined        empty: some rank of the job uses messages
//	6 ended         16 u32 rank that has ended, 20 u32 zero, 24 u64 barriers that it had entered,
//	                32 u64 the lowest number of a barrier that is not completed on the boards
//	                (package wire) because its part is missing, 0 if it had none
//	7 acknowledged  16 u64 messages of the receiver's ranks that the sender has, and that have
//	                come to where it forwarded them
//	8 meeting       16 u32 rank of the sender, 20 u32 rank of the receiver, which have mirrored
//	                channels (package mirror), 24 u32 number of the first one's end, 28 u16 its UDP
//	                port, 30 u16 1 if the sender lacks the other end, else 0, 32 u64 key of its end,
//	                40 u64 UDP port of the sender for package onesided, 0 if it has none
//	9 path          16 u64 a number, odd if the sender allows mirrored channels to its ranks
//	10 path seen    16 u64 number of the last path frame that the sender of this one obeys
//	11 settle       16 u64 any: asks, behind messages, for the next
//	12 settled      16 u64 messages of the receiver's ranks that are in rings of their targets, or
//	                finished
//	13 last         16 u32 rank that has ended, 20 u32 rank of the receiver, 24 u64 bytes of the
//	                mirrored channel from the second to the first that have arrived
//	14 exchange     16 a message between two job inits of the job (package pmi)
//
// A message has MessageHeader bytes and its payload:
//
//	0  u32 source rank
//	4  u32 target rank
//	8  u16 handler
//	10 u16 bytes of payload, at most wire.MaxPayload
//	12 u16 times that it was forwarded, at most slot.MaxHops; bit 15 is set if an extension has sent it
//	14 u16 wire.Record.After; if it was forwarded, the messages that it may not cause any more
//	16 u64 first argument
//	24 u64 second argument
//	32 payload
//
// A credit has CreditSize bytes. It names a virtual channel of the receiver: the messages to one
// rank that were forwarded a number of times. It holds a running total, so that sending it twice
// changes nothing:
//
//	0  u32 target rank
//	4  u32 times forwarded, at most slot.MaxHops
//	8  u64 bytes taken
package frame

import (
	"encoding/binary"
	"fmt"
	"math"

	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/abi/wire"
)

// Kind says what a frame carries.
type Kind byte

// The kinds of frame.
const (
	Messages     Kind = 1
	Credits      Kind = 2
	Arrived      Kind = 3
	Released     Kind = 4
	Joined       Kind = 5
	Ended        Kind = 6
	Acknowledged Kind = 7
	Meet         Kind = 8
	Path         Kind = 9
	PathSeen     Kind = 10
	Settle       Kind = 11
	Settled      Kind = 12
	Last         Kind = 13
	Exchange     Kind = 14
)

// Sizes in bytes.
const (
	HeaderSize    = 16
	MessageHeader = 32
	CreditSize    = 16

	// MaxMessage is the size of the longest message.
	MaxMessage = MessageHeader + wire.MaxPayload
)

// byExtension is the bit of a message that an extension has sent.
const byExtension = 1 << 15

// Message is an active message between two nodes.
type Message struct {
	Source, Target id.Rank
	Handler        uint16
	Hops           uint8  // times that it was forwarded, at most slot.MaxHops
	Extension      bool   // an extension has sent it, for a message to Source
	After          uint16 // wire.Record.After; 0 if it was forwarded
	Used           uint16 // messages of slot.MaxCaused that it may not cause any more; 0 if it was not forwarded
	Args           [2]uint64
	Payload        []byte
}

// Cost returns the bytes that the message counts against its credits: its size in a frame.
func (m *Message) Cost() uint64 { return uint64(MessageHeader + len(m.Payload)) }

// Credit says how many bytes of messages of a virtual channel have been taken.
type Credit struct {
	Rank  id.Rank
	Hops  uint8
	Taken uint64
}

// Meeting describes the end of mirrored channels of a rank.
type Meeting struct {
	Source, Target id.Rank // the rank, and the other one
	Number         uint32  // of the end, in datagrams to it
	Key            uint64  // the same
	Port           uint16  // UDP port of the rank's socket
	Lacks          bool    // the sender does not know the other end
	Windows        uint16  // UDP port of the sender for package onesided; 0: it has none
}

// meetingSize is the size of a meeting in a frame, in bytes.
const meetingSize = 32

// AppendMeeting appends a meeting to a frame.
func AppendMeeting(b []byte, m Meeting) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(m.Source))
	b = binary.LittleEndian.AppendUint32(b, uint32(m.Target))
	b = binary.LittleEndian.AppendUint32(b, m.Number)
	b = binary.LittleEndian.AppendUint16(b, m.Port)
	lacks := uint16(0)
	if m.Lacks {
		lacks = 1
	}
	b = binary.LittleEndian.AppendUint16(b, lacks)
	b = binary.LittleEndian.AppendUint64(b, m.Key)
	return binary.LittleEndian.AppendUint64(b, uint64(m.Windows))
}

// parseMeeting reads a meeting.
func parseMeeting(b []byte) (m Meeting, err error) {
	if err := expect(b, meetingSize); err != nil {
		return m, err
	}
	lacks := binary.LittleEndian.Uint16(b[14:])
	windows := binary.LittleEndian.Uint64(b[24:])
	if lacks > 1 || windows > math.MaxUint16 {
		return m, fmt.Errorf("meeting with flags %#x, port %#x", lacks, windows)
	}
	return Meeting{
		Source: id.Rank(binary.LittleEndian.Uint32(b)), Target: id.Rank(binary.LittleEndian.Uint32(b[4:])), Number: binary.LittleEndian.Uint32(b[8:]),
		Port: binary.LittleEndian.Uint16(b[12:]), Lacks: lacks == 1, Key: binary.LittleEndian.Uint64(b[16:]), Windows: uint16(windows),
	}, nil
}

// Frame is a parsed frame. A Frame can be used for many frames, one after the other.
type Frame struct {
	Kind     Kind
	Job      id.Job
	Key      uint64
	Number   uint64 // of the first message, of messages, of barriers or of bytes
	Rank     id.Rank
	Other    id.Rank   // of Last: the rank that the frame concerns
	Bound    uint64    // of Ended
	Messages []Message // their payloads are parts of the parsed bytes
	Credits  []Credit
	Meeting  Meeting
	Data     []byte // of Exchange: a part of the parsed bytes
}

// New returns the beginning of a frame: a header and words behind it.
func New(kind Kind, job id.Job, key uint64, words ...uint64) []byte {
	b := make([]byte, HeaderSize, HeaderSize+8*len(words)+CreditSize)
	b[0] = byte(kind)
	binary.LittleEndian.PutUint32(b[4:], uint32(job))
	binary.LittleEndian.PutUint64(b[8:], key)
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// Number writes the number of the first message into a frame of messages.
func Number(b []byte, n uint64) { binary.LittleEndian.PutUint64(b[HeaderSize:], n) }

// KindOf returns the kind of an encoded frame of at least one byte.
func KindOf(b []byte) Kind { return Kind(b[0]) }

// AppendMessage appends a message with at most wire.MaxPayload bytes of payload to a frame.
func AppendMessage(b []byte, m *Message) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(m.Source))
	b = binary.LittleEndian.AppendUint32(b, uint32(m.Target))
	b = binary.LittleEndian.AppendUint16(b, m.Handler)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(m.Payload)))
	hops, last := uint16(m.Hops), m.After
	if m.Extension {
		hops |= byExtension
	}
	if m.Hops > 0 {
		last = m.Used
	}
	b = binary.LittleEndian.AppendUint16(b, hops)
	b = binary.LittleEndian.AppendUint16(b, last)
	b = binary.LittleEndian.AppendUint64(b, m.Args[0])
	b = binary.LittleEndian.AppendUint64(b, m.Args[1])
	return append(b, m.Payload...)
}

// AppendCredit appends a credit to a frame.
func AppendCredit(b []byte, c Credit) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(c.Rank))
	b = binary.LittleEndian.AppendUint32(b, uint32(c.Hops))
	return binary.LittleEndian.AppendUint64(b, c.Taken)
}

// Parse reads a frame, which may be any bytes, into f.
func (f *Frame) Parse(b []byte) (err error) {
	if len(b) < HeaderSize {
		return fmt.Errorf("%d bytes are too few for a header", len(b))
	}
	f.Kind, f.Job, f.Key = Kind(b[0]), id.Job(binary.LittleEndian.Uint32(b[4:])), binary.LittleEndian.Uint64(b[8:])
	f.Messages, f.Credits = f.Messages[:0], f.Credits[:0]
	body := b[HeaderSize:]
	switch f.Kind {
	case Joined:
		return expect(body, 0)
	case Arrived, Released, Acknowledged, Path, PathSeen, Settle, Settled:
		if err := expect(body, 8); err != nil {
			return err
		}
		f.Number = binary.LittleEndian.Uint64(body)
		return nil
	case Ended:
		if err := expect(body, 24); err != nil {
			return err
		}
		f.Rank, f.Number = id.Rank(binary.LittleEndian.Uint32(body)), binary.LittleEndian.Uint64(body[8:])
		f.Bound = binary.LittleEndian.Uint64(body[16:])
		return nil
	case Last:
		if err := expect(body, 16); err != nil {
			return err
		}
		f.Rank, f.Other = id.Rank(binary.LittleEndian.Uint32(body)), id.Rank(binary.LittleEndian.Uint32(body[4:]))
		f.Number = binary.LittleEndian.Uint64(body[8:])
		return nil
	case Meet:
		f.Meeting, err = parseMeeting(body)
		return err
	case Credits:
		return f.parseCredits(body)
	case Messages:
		return f.parseMessages(body)
	case Exchange:
		f.Data = body
		return nil
	}
	return fmt.Errorf("unknown kind %d", f.Kind)
}

func (f *Frame) parseCredits(body []byte) error {
	for ; len(body) >= CreditSize; body = body[CreditSize:] {
		hops, err := checkHops(binary.LittleEndian.Uint32(body[4:]))
		if err != nil {
			return err
		}
		f.Credits = append(f.Credits, Credit{
			Rank: id.Rank(binary.LittleEndian.Uint32(body)), Hops: hops, Taken: binary.LittleEndian.Uint64(body[8:]),
		})
	}
	return expect(body, 0)
}

func (f *Frame) parseMessages(body []byte) error {
	if len(body) < 8 {
		return fmt.Errorf("messages without a number")
	}
	f.Number = binary.LittleEndian.Uint64(body)
	for body = body[8:]; len(body) > 0; {
		if len(body) < MessageHeader {
			return fmt.Errorf("%d bytes at the end of a frame are too few for a message", len(body))
		}
		size := int(binary.LittleEndian.Uint16(body[10:]))
		if size > wire.MaxPayload || len(body) < MessageHeader+size {
			return fmt.Errorf("payload of %d bytes in a rest of %d", size, len(body))
		}
		flags, last := binary.LittleEndian.Uint16(body[12:]), binary.LittleEndian.Uint16(body[14:])
		hops, err := checkHops(uint32(flags &^ byExtension))
		if err != nil {
			return err
		}
		m := Message{
			Source:  id.Rank(binary.LittleEndian.Uint32(body)),
			Target:  id.Rank(binary.LittleEndian.Uint32(body[4:])),
			Handler: binary.LittleEndian.Uint16(body[8:]),
			Hops:    hops,
			Args:    [2]uint64{binary.LittleEndian.Uint64(body[16:]), binary.LittleEndian.Uint64(body[24:])},
			Payload: body[MessageHeader : MessageHeader+size],
		}
		m.Extension = flags&byExtension != 0
		switch {
		case hops == 0 && m.Extension, hops > 0 && last > slot.MaxCaused:
			return fmt.Errorf("message with flags %#x, %d", flags, last)
		case hops == 0:
			m.After = last
		default:
			m.Used = last
		}
		f.Messages = append(f.Messages, m)
		body = body[MessageHeader+size:]
	}
	return nil
}

// checkHops returns the number of times that a message was forwarded.
func checkHops(hops uint32) (uint8, error) {
	if hops > slot.MaxHops {
		return 0, fmt.Errorf("forwarded %d times, at most %d are allowed", hops, slot.MaxHops)
	}
	return uint8(hops), nil
}

func expect(body []byte, size int) error {
	if len(body) != size {
		return fmt.Errorf("body of %d bytes, %d expected", len(body), size)
	}
	return nil
}
