package wire

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Sizes of a channel, in bytes.
const (
	ChannelRing = 128 << 10
	ChannelSize = channelData + ChannelRing

	// MirrorSize is the size of a pair of mirrored channels: the one that the rank sends through,
	// then the one that it receives from.
	MirrorSize = 2 * ChannelSize

	// ChannelHeader is the size of a record in a channel without its payload.
	ChannelHeader = 24

	// ChannelPayload is the longest payload of a record in a channel. Sixteen such records fill the
	// ring.
	ChannelPayload = ChannelRing/16 - ChannelHeader
)

// Places in a channel, in bytes; words that different sides write are on different cache lines.
const (
	offClosed   = 0   // u32; written by the node kernel
	offShared   = 4   // u32: 1 if other mirrored channels use the rank's socket; written by the node kernel
	offBehind   = 8   // u64: as Area.Settled, for this channel alone; written by the node kernel if it is mirrored
	offSeal     = 16  // u64: see Seal; written by the node kernel
	offCount    = 64  // u64: messages; written by the producer
	offPosition = 72  // u64: the producer's position; written by the producer
	offTaken    = 128 // u64: the consumer's position; written by the consumer
	offBlocked  = 192 // u32: the producer waits for room; written by both
	channelData = 4096

	// Of a mirrored channel, where the producer is.
	offAcked = 256 // u64: position up to which the other end has the ring
	// Of a mirrored channel, where the consumer is.
	offArrived      = 384 // u64: position up to which the ring has arrived
	offAcknowledged = 448 // u64: position up to which the other end was sent that
	offJournal      = 1024
)

const channelMask = ChannelRing - 1

// Channel is the memory that carries messages from one rank to another of the same node, or a copy
// of it at one end.
type Channel struct {
	mem    []byte
	closed *atomic.Uint32
	count  *atomic.Uint64
}

// OpenChannel takes ChannelSize bytes of shared memory, zeroes when they are new.
func OpenChannel(mem []byte) (*Channel, error) {
	if len(mem) != ChannelSize {
		return nil, fmt.Errorf("wire: channel of %d bytes, it has %d", len(mem), ChannelSize)
	}
	c := &Channel{mem: mem}
	c.closed, c.count = (*atomic.Uint32)(c.at(offClosed)), (*atomic.Uint64)(c.at(offCount))
	return c, nil
}

func (c *Channel) at(offset int) unsafe.Pointer { return unsafe.Pointer(&c.mem[offset]) }

// Values of the word of Closed.
const (
	ChannelEnded  = 1 // the consumer has ended
	ChannelPaused = 2 // its node wants to see messages: only a mirrored channel
)

// Closed is the word by which the node kernel says that no message may take the channel.
func (c *Channel) Closed() *atomic.Uint32 { return c.closed }

// Shared is the word by which the node kernel says, at the end of a mirrored channel with the
// producer, that the rank has other mirrored channels, so that its socket must not be connected.
func (c *Channel) Shared() *atomic.Uint32 { return (*atomic.Uint32)(c.at(offShared)) }

// Seal is the word by which the node kernel says, at the end of a mirrored channel with the
// consumer, that only datagrams whose keys were changed by it (XOR) are for the rank: a program on
// the interface changes the keys of those that extensions have judged. 0: none are judged.
func (c *Channel) Seal() *atomic.Uint64 { return c.word(offSeal) }

// Count counts the messages. The producer writes it.
func (c *Channel) Count() *atomic.Uint64 { return c.count }

// Position is the producer's position, behind the last complete message.
func (c *Channel) Position() *atomic.Uint64 { return c.word(offPosition) }

// Acked is, at the end of a mirrored channel with the producer, the position up to which the other
// end has the ring. The rank writes it.
func (c *Channel) Acked() *atomic.Uint64 { return c.word(offAcked) }

// Arrived is, at the end of a mirrored channel with the consumer, the position up to which the ring
// has arrived. The rank writes it.
func (c *Channel) Arrived() *atomic.Uint64 { return c.word(offArrived) }

// Acknowledged is, at the end of a mirrored channel with the consumer, the position of Arrived that
// the other end was sent last. The rank or the node kernel writes it.
func (c *Channel) Acknowledged() *atomic.Uint64 { return c.word(offAcknowledged) }

// Journal is, at the end of a mirrored channel with the consumer, the memory for the journal of the
// producer's requests about the consumer's windows (package onesided). The rank and the node kernel
// write it.
func (c *Channel) Journal() []byte { return c.mem[offJournal:channelData:channelData] }

// Settled is the position of the send ring of a mirrored channel's producer before which all
// messages to its consumer are settled. The node kernel writes it.
func (c *Channel) Settled() *atomic.Uint64 { return c.word(offBehind) }

// Taken is the consumer's position, as far as the producer needs it.
func (c *Channel) Taken() *atomic.Uint64 { return c.word(offTaken) }

// Blocked is the word by which the producer says that it waits for room.
func (c *Channel) Blocked() *atomic.Uint32 { return (*atomic.Uint32)(c.at(offBlocked)) }

func (c *Channel) word(offset int) *atomic.Uint64 { return (*atomic.Uint64)(c.at(offset)) }

// Ring returns the bytes of the ring.
func (c *Channel) Ring() []byte { return c.mem[channelData:] }

// Length returns how many bytes the record at a place in the ring takes, a multiple of 8 that may
// be anything in the ring of a rank that has written nonsense.
func (c *Channel) Length(at int) int {
	if at >= ChannelRing {
		return ChannelRing
	}
	head := (*atomic.Uint64)(c.at(channelData + at)).Load()
	if uint16(head>>32) == kindPad {
		return ChannelRing - at
	}
	return channelLength(int(uint32(head) & (2*ChannelRing - 1)))
}

// Fill writes data at a position of the ring, where they do not reach beyond its end, as the
// producer at the other end has written them: the head behind them is 0.
func (c *Channel) Fill(position uint64, data []byte) {
	end := position + uint64(len(data))
	(*atomic.Uint64)(c.at(channelData + int(end&channelMask))).Store(0)
	copy(c.mem[channelData+int(position&channelMask):], data)
}

// OpenMirror takes MirrorSize bytes of shared memory, zeroes when they are new.
func OpenMirror(mem []byte) (out, in *Channel, err error) {
	if len(mem) != MirrorSize {
		return nil, nil, fmt.Errorf("wire: mirrored channels of %d bytes, they have %d", len(mem), MirrorSize)
	}
	if out, err = OpenChannel(mem[:ChannelSize:ChannelSize]); err != nil {
		return nil, nil, err
	}
	in, err = OpenChannel(mem[ChannelSize:])
	return out, in, err
}

// ends is what both ends of a channel know.
type ends struct {
	*Channel
	data     []byte // the ring
	taken    *atomic.Uint64
	blocked  *atomic.Uint32
	position uint64 // the own one
}

func (c *Channel) ends() ends {
	return ends{
		Channel: c, data: c.Ring(), taken: c.Taken(), blocked: c.Blocked(),
	}
}

// head is the head of the record at a place in the ring, a multiple of 8.
func (e *ends) head(at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&e.data[at])) }

// channelLength is the length of a record with so much payload.
func channelLength(payload int) int { return (ChannelHeader + payload + 7) &^ 7 }

// newHead returns the head of a record.
func newHead(kind, handler uint16, size int) uint64 {
	return uint64(handler)<<48 | uint64(kind)<<32 | uint64(uint32(size))
}

// ChannelProducer is the end of a channel that writes, from the channel's beginning. It is not safe
// for concurrent use.
type ChannelProducer struct {
	ends
	room  uint64 // the position up to which there was room when the consumer's was last read
	count uint64
}

// Producer returns the end that writes.
func (c *Channel) Producer() *ChannelProducer {
	return &ChannelProducer{ends: c.ends(), room: ChannelRing}
}

// Push writes a message and reports whether there was room. The error is ErrCorrupt or ErrTooLong.
func (p *ChannelProducer) Push(r *Record) (bool, error) {
	if len(r.Payload) > ChannelPayload {
		return false, ErrTooLong
	}
	length := channelLength(len(r.Payload))
	at, pad := int(p.position&channelMask), 0
	if at+length > ChannelRing {
		pad = ChannelRing - at
	}
	end := p.position + uint64(pad+length)
	if end+8 > p.room {
		if ok, err := p.look(end + 8); !ok {
			return false, err
		}
	}
	start := (at + pad) & channelMask
	b := p.data[start : start+length]
	binary.LittleEndian.PutUint64(b[8:], r.Args[0])
	binary.LittleEndian.PutUint64(b[16:], r.Args[1])
	copy(b[ChannelHeader:], r.Payload)
	p.head(int(end & channelMask)).Store(0)
	head := newHead(kindMessage, r.Handler, len(r.Payload))
	if pad > 0 {
		p.head(start).Store(head)
		head, start = newHead(kindPad, 0, 0), at
	}
	if !laterPiece(r) {
		p.count++
		p.Channel.count.Store(p.count)
	}
	p.position = end
	p.head(start).Swap(head) // a full barrier: the caller looks next whether the consumer sleeps
	p.Position().Store(end)
	return true, nil
}

// look reads the consumer's position and reports whether there is room up to a position.
func (p *ChannelProducer) look(end uint64) (bool, error) {
	taken := p.taken.Load()
	if taken > p.position || p.position-taken > ChannelRing {
		return false, fmt.Errorf("%w: the channel's consumer is beyond its producer", ErrCorrupt)
	}
	p.room = taken + ChannelRing
	return end <= p.room, nil
}

// Wait announces that the producer is going to wait for room for a message with so much payload. It
// reports whether there is none; otherwise waiting would be wrong.
func (p *ChannelProducer) Wait(payload int) (wait bool) {
	if p.blocked.Load() == 0 { // or the consumer has not looked since, and will
		p.blocked.Swap(1)
	}
	most := uint64(2*channelLength(payload) + 8) // with the largest pad that may come before it
	if ok, err := p.look(p.position + most); !ok && err == nil {
		return true
	}
	p.blocked.Store(0)
	return false
}

// Mark is the position of the producer for Record.After, 1 to 1<<16-1.
func (p *ChannelProducer) Mark() uint32 { return mark(p.position) }

// Parts of a mark: a position in units of 8 bytes modulo more than a channel holds, and a bit that
// is always set.
const (
	markMask  = 2*ChannelRing/8 - 1
	markValid = 1 << 15
)

func mark(position uint64) uint32 { return uint32(position/8)&markMask | markValid }

// ChannelConsumer is the end of a channel that reads, from the channel's beginning. It is not safe
// for concurrent use.
type ChannelConsumer struct {
	ends
	length   uint64 // of the record that Next has returned
	returned uint64 // position that the producer knows
}

// Consumer returns the end that reads.
func (c *Channel) Consumer() *ChannelConsumer { return &ChannelConsumer{ends: c.ends()} }

// Ready reports whether there is a message.
func (c *ChannelConsumer) Ready() bool { return c.head(int(c.position&channelMask)).Load() != 0 }

// Next returns the first message that is not done, and whether there is one. Its payload is in the
// channel, where its producer may write over it; it is valid until Done. Only Handler, Args and
// Payload are set. The error is ErrCorrupt.
func (c *ChannelConsumer) Next() (r Record, ok bool, err error) {
	at := int(c.position & channelMask)
	head := c.head(at).Load()
	if uint16(head>>32) == kindPad && at != 0 {
		c.position += uint64(ChannelRing - at)
		at = 0
		head = c.head(at).Load()
	}
	if head == 0 {
		return Record{}, false, nil
	}
	kind, size := uint16(head>>32), uint32(head)
	if kind != kindMessage || size > ChannelPayload || at+channelLength(int(size)) > ChannelRing {
		return Record{}, false, fmt.Errorf("%w: record of kind %d with %d bytes of payload at %d in a channel", ErrCorrupt, kind, size, at)
	}
	b := c.data[at : at+channelLength(int(size))]
	c.length = uint64(len(b))
	r.Handler = uint16(head >> 48)
	r.Args = [2]uint64{binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])}
	r.Payload = b[ChannelHeader : ChannelHeader+size : ChannelHeader+size]
	return r, true, nil
}

// Done gives back the room of the message that Next has returned. It reports whether the producer
// waits for room.
func (c *ChannelConsumer) Done() (wake bool) {
	c.position += c.length
	if c.position-c.returned < ChannelRing/4 {
		return false // later, so that the line moves rarely; the producer has three quarters
	}
	c.returned = c.position
	c.taken.Swap(c.position)
	return c.blocked.Load() != 0 && c.blocked.Swap(0) != 0
}

// Before reports whether messages that the producer had written at a mark, which may be anything,
// are not done.
func (c *ChannelConsumer) Before(after uint32) bool {
	ahead := (after - mark(c.position)) & markMask
	return after != 0 && ahead != 0 && ahead <= ChannelRing/8
}
