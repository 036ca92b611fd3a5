package wire

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
)

// ring is one end's view of a ring. The own position is kept here as well as in the area, and only
// the peer's is read from there, so that a peer can only harm itself.
//
// Each side writes its word before it reads the other's, so that neither misses the other's. These
// words are written by Swap: under the race detector, a Load may overtake a Store to memory outside
// Go's heap.
type ring struct {
	data            []byte // RingSize bytes of the area
	tail, head      *atomic.Uint64
	consumerWaiting *atomic.Uint32
	producerWaiting *atomic.Uint32
	position        uint64 // the own one: tail for a producer, head for a consumer
}

const ringMask = RingSize - 1

// Producer is the end of a ring that writes. It is not safe for concurrent use.
type Producer struct{ ring }

// Consumer is the end of a ring that reads. It is not safe for concurrent use.
type Consumer struct {
	ring
	next   uint64                          // position behind the last record read; position follows with Release
	last   uint64                          // next as it was before that record
	record [RecordHeader + MaxPayload]byte // copy of the last record read
}

// Push writes a record. It reports whether there was room; wake the peer if wake is true.
func (p *Producer) Push(r Record) (ok, wake bool, err error) {
	if len(r.Payload) > MaxPayload {
		return false, false, ErrTooLong
	}
	length := recordLength(len(r.Payload))
	used := p.position - p.head.Load()
	if used > RingSize {
		return false, false, fmt.Errorf("%w: head is beyond tail", ErrCorrupt)
	}
	at := int(p.position & ringMask)
	pad := 0
	if at+length > RingSize {
		pad = RingSize - at
	}
	if int(used)+pad+length > RingSize {
		return false, false, nil
	}
	if pad > 0 {
		binary.LittleEndian.PutUint32(p.data[at:], uint32(pad))
		binary.LittleEndian.PutUint16(p.data[at+4:], kindPad)
		at = 0
	}
	r.put(p.data[at : at+length])
	p.position += uint64(pad + length)
	p.tail.Swap(p.position)
	return true, p.consumerWaiting.Load() != 0, nil
}

// Position returns the end of the last record written.
func (p *Producer) Position() uint64 { return p.position }

// Claim takes the peer's announcement that it sleeps back, and reports whether there was one: the
// peer is then woken once, and not again for each record until it announces that it sleeps again.
func (p *Producer) Claim() bool { return p.consumerWaiting.Swap(0) != 0 }

// Empty reports whether the peer has taken everything.
func (p *Producer) Empty() bool { return p.head.Load() == p.position }

// Wait announces that the producer is going to sleep until there is room for a record with so much
// payload. It reports whether there is none; otherwise sleeping would be wrong.
func (p *Producer) Wait(payload int) (sleep bool) {
	p.producerWaiting.Swap(1)
	need := 2 * recordLength(payload) // with the largest pad that may come before it
	if used := p.position - p.head.Load(); used <= RingSize && int(used)+need <= RingSize {
		p.producerWaiting.Store(0)
		return false
	}
	return true
}

// Awake takes the announcement back.
func (p *Producer) Awake() { p.producerWaiting.Store(0) }

// Next reads the next record, which is valid until the next call. It reports whether there was one.
// The room that it takes is not free until Release.
func (c *Consumer) Next() (r Record, ok bool, err error) {
	c.last = c.next
	for {
		available := c.tail.Load() - c.next
		if available == 0 {
			return Record{}, false, nil
		}
		at := int(c.next & ringMask)
		if available < 8 || available > RingSize || at+8 > RingSize {
			return Record{}, false, fmt.Errorf("%w: %d bytes at %d", ErrCorrupt, available, at)
		}
		length := uint64(binary.LittleEndian.Uint32(c.data[at:]))
		if length < 8 || length%8 != 0 || length > available || int(length) > RingSize-at {
			return Record{}, false, fmt.Errorf("%w: record of %d bytes, %d available", ErrCorrupt, length, available)
		}
		// The peer may write while this side reads: everything is judged on a copy.
		n := copy(c.record[:], c.data[at:at+int(length)])
		r, pad, err := parse(c.record[:n])
		if err != nil {
			return Record{}, false, err
		}
		c.next += length
		if !pad {
			return r, true, nil
		}
	}
}

// Position returns the end of the last record whose room was returned.
func (c *Consumer) Position() uint64 { return c.position }

// Unread takes back the last call of Next: the record that it read is the next one again.
func (c *Consumer) Unread() { c.next = c.last }

// Release returns the room of all records read to the producer; wake the producer if wake is true.
func (c *Consumer) Release() (wake bool) {
	if c.position == c.next {
		return false
	}
	c.position = c.next
	c.head.Swap(c.position)
	return c.producerWaiting.Load() != 0
}

// Ready reports whether there is a record that was not read.
func (c *Consumer) Ready() bool { return c.tail.Load() != c.next }

// Wait announces that the consumer is going to sleep. It reports whether there is nothing to read;
// otherwise sleeping would be wrong.
func (c *Consumer) Wait() (sleep bool) {
	c.consumerWaiting.Swap(1)
	if c.tail.Load() != c.next {
		c.consumerWaiting.Store(0)
		return false
	}
	return true
}

// Awake takes the announcement back.
func (c *Consumer) Awake() { c.consumerWaiting.Store(0) }
