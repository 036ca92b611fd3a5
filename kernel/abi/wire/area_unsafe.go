package wire

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Area is a rank's shared memory as one of its two sides sees it.
type Area struct {
	mem []byte
}

// NewArea lays out the area in mem, which is AreaSize bytes of zeroes, page-aligned and shared.
// nodes holds the node of each rank.
func NewArea(mem []byte, h Header, nodes []uint32) (*Area, error) {
	if len(nodes) != int(h.Size) || len(mem) != AreaSize(len(nodes)) {
		return nil, fmt.Errorf("wire: area of %d bytes for %d ranks, table of %d", len(mem), h.Size, len(nodes))
	}
	put := func(at int, v uint32) { binary.LittleEndian.PutUint32(mem[at:], v) }
	rings := ringsOffset(len(nodes))
	put(offVersion, Version)
	put(offJob, h.Job)
	put(offRank, h.Rank)
	put(offSize, h.Size)
	put(offNode, h.Node)
	put(offLocalRank, h.LocalRank)
	put(offLocalSize, h.LocalSize)
	put(offNodes, h.Nodes)
	put(offTable, HeaderSize)
	put(offSend, uint32(rings))
	put(offReceive, uint32(rings+RingSize))
	put(offRingSize, RingSize)
	put(offUpcall, uint32(rings+2*RingSize))
	if h.Meets {
		put(offMeets, 1)
	}
	for i, node := range nodes {
		put(HeaderSize+4*i, node)
	}
	put(offMagic, magic)
	return &Area{mem}, nil
}

// OpenArea takes an area that NewArea has laid out, in this process or another, and checks its
// shape.
func OpenArea(mem []byte) (*Area, Header, error) {
	get := func(at int) uint32 { return binary.LittleEndian.Uint32(mem[at:]) }
	if len(mem) < HeaderSize || get(offMagic) != magic || get(offVersion) != Version || get(offRingSize) != RingSize {
		return nil, Header{}, fmt.Errorf("wire: this is not an area of version %d", Version)
	}
	h := Header{
		Job: get(offJob), Rank: get(offRank), Size: get(offSize), Node: get(offNode),
		LocalRank: get(offLocalRank), LocalSize: get(offLocalSize), Nodes: get(offNodes),
		Meets: get(offMeets) != 0,
	}
	if h.Size > uint32(len(mem)) || len(mem) != AreaSize(int(h.Size)) {
		return nil, Header{}, fmt.Errorf("wire: area of %d bytes for %d ranks", len(mem), h.Size)
	}
	return &Area{mem}, h, nil
}

// NodeOf returns the node of a rank of the job.
func (a *Area) NodeOf(rank uint32) uint32 {
	return binary.LittleEndian.Uint32(a.mem[HeaderSize+4*rank:])
}

// Entered counts the barriers that the rank has entered. The rank writes it.
func (a *Area) Entered() *atomic.Uint64 { return a.word64(offEntered) }

// Joined is 1 when a process of the rank has joined. The rank writes it.
func (a *Area) Joined() *atomic.Uint32 { return a.word32(offJoined) }

// Released counts the barriers that are complete. The node kernel writes it.
func (a *Area) Released() *atomic.Uint64 { return a.word64(offReleased) }

// Settled is the position of the send ring before which all messages are settled. The node kernel
// writes it.
func (a *Area) Settled() *atomic.Uint64 { return a.word64(offSettled) }

// Path holds the Path bits. The node kernel writes it.
func (a *Area) Path() *atomic.Uint32 { return a.word32(offPath) }

// Bound is, unless it is 0, the lowest number of a barrier that is not completed on the boards. The
// node kernel writes it, and never a higher one later.
func (a *Area) Bound() *atomic.Uint64 { return a.word64(offBound) }

// Channels counts the channels that the rank has. The node kernel writes it.
func (a *Area) Channels() *atomic.Uint32 { return a.word32(offChannels) }

// ReceiveWaiting is the word by which the rank says that it sleeps until something arrives or a
// barrier is complete.
func (a *Area) ReceiveWaiting() *atomic.Uint32 {
	return a.word32(offReceiveControl + offConsumerWaiting)
}

// Armed is the word by which the rank says that it wants to be interrupted when an upcall comes.
func (a *Area) Armed() *atomic.Uint32 { return a.word32(offUpcallControl + offConsumerWaiting) }

// SendWaiting is the word by which the node kernel says that it sleeps until something is sent or a
// barrier is entered.
func (a *Area) SendWaiting() *atomic.Uint32 { return a.word32(offSendControl + offConsumerWaiting) }

// SendProducer is the rank's end of the send ring.
func (a *Area) SendProducer() *Producer { return newProducer(a.ring(offSendControl, 0)) }

// SendConsumer is the node kernel's end of the send ring.
func (a *Area) SendConsumer() *Consumer { return newConsumer(a.ring(offSendControl, 0)) }

// ReceiveProducer is the node kernel's end of the receive ring.
func (a *Area) ReceiveProducer() *Producer { return newProducer(a.ring(offReceiveControl, RingSize)) }

// ReceiveConsumer is the rank's end of the receive ring.
func (a *Area) ReceiveConsumer() *Consumer { return newConsumer(a.ring(offReceiveControl, RingSize)) }

// UpcallProducer is the node kernel's end of the upcall ring.
func (a *Area) UpcallProducer() *Producer { return newProducer(a.ring(offUpcallControl, 2*RingSize)) }

// UpcallConsumer is the rank's end of the upcall ring.
func (a *Area) UpcallConsumer() *Consumer { return newConsumer(a.ring(offUpcallControl, 2*RingSize)) }

// newProducer goes on where the tail is. The peer may have written over that: a position within a
// record is none.
func newProducer(r ring) *Producer {
	p := &Producer{r}
	p.position = p.tail.Load() &^ 7
	return p
}

func newConsumer(r ring) *Consumer {
	c := &Consumer{ring: r}
	c.position = c.head.Load()
	c.next = c.position
	return c
}

func (a *Area) ring(control, offset int) ring {
	start := len(a.mem) - 3*RingSize + offset
	return ring{
		data:            a.mem[start : start+RingSize : start+RingSize],
		tail:            a.word64(control + offTail),
		head:            a.word64(control + offHead),
		consumerWaiting: a.word32(control + offConsumerWaiting),
		producerWaiting: a.word32(control + offProducerWaiting),
	}
}

func (a *Area) word64(at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&a.mem[at])) }
func (a *Area) word32(at int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&a.mem[at])) }
