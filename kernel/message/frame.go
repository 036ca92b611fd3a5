package message

import (
	"encoding/binary"
	"fmt"

	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/abi/wire"
	"margay/kernel/record"
)

// Kinds of frame. Every frame begins with
//
//	0 u8 kind, 1 zero[3], 4 u32 job, 8 u64 key of the job
//
// All numbers are little-endian.
const (
	kindMessages = 1 // 16 u64 number of the first message, then messages; without any it asks for kindCame
	kindWindow   = 2 // 16 grants: how far the sender of this frame has taken messages for its ranks
	kindArrived  = 3 // 16 u64 barriers that a child's subtree is through with
	kindReleased = 4 // 16 u64 barriers that are complete
	kindJoined   = 5 // some rank of the job uses messages
	kindEnded    = 6 // 16 u32 rank, 20 zero[4], 24 u64 barriers that it had entered
	kindCame     = 7 // 16 u64 messages of its receiver's ranks that the sender of this frame has, and that it has settled
)

const frameHeader = 16

// A message in a frame: 0 u32 source rank, 4 u32 target rank, 8 u16 handler, 10 u16 payload bytes, 12 u16 how often it was
// forwarded, 14 u16 wire.Record.After, which only the node that sends it reads, 16 u64 first argument, 24 u64 second argument, 32 payload.
const messageHeader = 32

// A grant in a frame: 0 u32 rank, 4 u32 how often the messages were forwarded, 8 u64 bytes taken.
const grantSize = 16

// packet is a message on its way.
type packet struct {
	source, target id.Rank
	handler        uint16
	hops           uint8  // times that it was forwarded, at most slot.MaxHops
	after          uint16 // of wire.Record
	args           [2]uint64
	payload        []byte
}

// cost is what a packet counts against a window, in bytes.
func (p packet) cost() uint64 { return uint64(messageHeader + len(p.payload)) }

// grant tells how many bytes of messages for a rank that were forwarded so often have been taken.
type grant struct {
	rank  id.Rank
	hops  uint8
	taken uint64
}

// frame is a parsed frame.
type frame struct {
	kind    byte
	job     id.Job
	key     uint64
	number  uint64 // first message, messages or barriers
	rank    id.Rank
	packets []packet // their payloads are parts of the frame
	grants  []grant
}

// newFrame begins a frame; words follow its header.
func newFrame(kind byte, job id.Job, key uint64, words ...uint64) []byte {
	b := make([]byte, frameHeader, frameHeader+8*len(words)+grantSize)
	b[0] = kind
	binary.LittleEndian.PutUint32(b[4:], uint32(job))
	binary.LittleEndian.PutUint64(b[8:], key)
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

func appendPacket(b []byte, p packet) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(p.source))
	b = binary.LittleEndian.AppendUint32(b, uint32(p.target))
	b = binary.LittleEndian.AppendUint16(b, p.handler)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(p.payload)))
	b = binary.LittleEndian.AppendUint16(b, uint16(p.hops))
	b = binary.LittleEndian.AppendUint16(b, p.after)
	b = binary.LittleEndian.AppendUint64(b, p.args[0])
	b = binary.LittleEndian.AppendUint64(b, p.args[1])
	return append(b, p.payload...)
}

func appendGrant(b []byte, g grant) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(g.rank))
	b = binary.LittleEndian.AppendUint32(b, uint32(g.hops))
	return binary.LittleEndian.AppendUint64(b, g.taken)
}

// parse reads a frame, which may be anything, into f.
func (f *frame) parse(b []byte) error {
	if len(b) < frameHeader {
		return fmt.Errorf("message: frame of %d bytes has no header", len(b))
	}
	f.kind, f.job, f.key = b[0], id.Job(binary.LittleEndian.Uint32(b[4:])), binary.LittleEndian.Uint64(b[8:])
	f.packets, f.grants = f.packets[:0], f.grants[:0]
	body := b[frameHeader:]
	switch f.kind {
	case kindJoined:
		return expect(body, 0)
	case kindArrived, kindReleased, kindCame:
		if err := expect(body, 8); err != nil {
			return err
		}
		f.number = binary.LittleEndian.Uint64(body)
		return nil
	case kindEnded:
		if err := expect(body, 16); err != nil {
			return err
		}
		f.rank, f.number = id.Rank(binary.LittleEndian.Uint32(body)), binary.LittleEndian.Uint64(body[8:])
		return nil
	case kindWindow:
		for ; len(body) >= grantSize; body = body[grantSize:] {
			hops, err := parseHops(binary.LittleEndian.Uint32(body[4:]))
			if err != nil {
				return err
			}
			f.grants = append(f.grants, grant{id.Rank(binary.LittleEndian.Uint32(body)), hops, binary.LittleEndian.Uint64(body[8:])})
		}
		return expect(body, 0)
	case kindMessages:
		return f.parseMessages(body)
	}
	return fmt.Errorf("message: frame of unknown kind %d", f.kind)
}

func (f *frame) parseMessages(body []byte) error {
	if len(body) < 8 {
		return fmt.Errorf("message: frame of messages has no number")
	}
	f.number = binary.LittleEndian.Uint64(body)
	for body = body[8:]; len(body) > 0; {
		if len(body) < messageHeader {
			return fmt.Errorf("message: %d bytes are no message", len(body))
		}
		size := int(binary.LittleEndian.Uint16(body[10:]))
		if size > wire.MaxPayload || len(body) < messageHeader+size {
			return fmt.Errorf("message: payload of %d bytes in a rest of %d", size, len(body))
		}
		hops, err := parseHops(uint32(binary.LittleEndian.Uint16(body[12:])))
		if err != nil {
			return err
		}
		f.packets = append(f.packets, packet{
			source:  id.Rank(binary.LittleEndian.Uint32(body)),
			target:  id.Rank(binary.LittleEndian.Uint32(body[4:])),
			handler: binary.LittleEndian.Uint16(body[8:]),
			hops:    hops,
			after:   binary.LittleEndian.Uint16(body[14:]),
			args:    [2]uint64{binary.LittleEndian.Uint64(body[16:]), binary.LittleEndian.Uint64(body[24:])},
			payload: body[messageHeader : messageHeader+size],
		})
		body = body[messageHeader+size:]
	}
	return nil
}

// parseHops checks how often a message was forwarded.
func parseHops(hops uint32) (uint8, error) {
	if hops > slot.MaxHops {
		return 0, fmt.Errorf("message: forwarded %d times, at most %d are allowed", hops, slot.MaxHops)
	}
	return uint8(hops), nil
}

func expect(body []byte, size int) error {
	if len(body) != size {
		return fmt.Errorf("message: %d bytes where %d belong", len(body), size)
	}
	return nil
}

// batch collects the messages for one node until they are sent.
type batch struct {
	frame  []byte // without its number, which is set when it is sent
	count  uint64
	events []record.Event // of its messages, in which their numbers count from the first
}

// maxBatch is the size at which a batch is sent, in bytes.
const maxBatch = 32 << 10

func newBatch(job id.Job, key uint64) *batch {
	return &batch{frame: append(make([]byte, 0, maxBatch+messageHeader+wire.MaxPayload), newFrame(kindMessages, job, key, 0)...)}
}

func (b *batch) add(p packet) {
	b.frame = appendPacket(b.frame, p)
	b.count++
}

func (b *batch) number(n uint64) { binary.LittleEndian.PutUint64(b.frame[frameHeader:], n) }
