package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"margay/kernel/abi/id"
)

// Kind says what an event is.
type Kind uint8

// The kinds of event. What the fields of an Event mean is said here for each; those that are not
// mentioned are zero.
const (
	Switch    Kind = 1 + iota // Core goes to Job and Rank, or becomes idle if Job is 0; Text: why
	Start                     // Rank has been started on Core
	End                       // Rank has ended; Took: how long it ran; Text: how it ended
	Sent                      // Rank sends to Peer, on node Node, Size bytes; Number: of the message from this node to that one
	Arrived                   // a message from Peer, on node Node, for Rank has come and was judged, What: verdict, in Took; Size, Number
	Delivered                 // a message from Peer for Rank had to wait for room in its ring, for Took
	Run                       // extension Number, called Text, ran for Took and answered What; Slot: where
	Fault                     // something went wrong with Job, or with its extension Number; Text: what
	Barrier                   // Rank was in barrier Number for Took
	Forwarded                 // a message that has come for Rank goes on to Peer, like one that is Sent
	Called                    // extension Number, called Text, ran for Took because extension Peer has called it, and answered What; Slot: its own
)

// kinds is how many there are, and the one that is none.
const kinds = Called + 1

// Event is something that happened on a node.
type Event struct {
	Time   id.Time // when it began
	Took   time.Duration
	Kind   Kind
	Slot   uint8  // place of a slot in slot.Table
	Core   uint16 // id.Core, in two bytes
	Job    id.Job
	Rank   id.Rank
	Peer   uint32 // rank, or the handle of an extension
	Node   id.Node
	Size   uint32 // bytes
	What   uint64
	Number uint64
	Text   string
}

// eventSize is the size of an Event in memory, in bytes.
const eventSize = 72

// fixed is the size of an encoded event without its text, in bytes: the fields in their order,
// little-endian, then the length of the text as a u16.
const fixed = 8 + 8 + 1 + 1 + 2 + 5*4 + 2*8 + 2

// maxText is how much of a text is kept when it is encoded, in bytes.
const maxText = 1024

// maxTime is later than any clock of a node shows; two of them can be added.
const maxTime id.Time = 1 << 61

// ErrEncoding reports bytes that are not events.
var ErrEncoding = errors.New("no events")

// Append appends the encoded event to b.
func (e *Event) Append(b []byte) []byte {
	text := e.Text[:min(len(e.Text), maxText)]
	b = binary.LittleEndian.AppendUint64(b, uint64(e.Time))
	b = binary.LittleEndian.AppendUint64(b, uint64(e.Took))
	b = append(b, byte(e.Kind), e.Slot)
	b = binary.LittleEndian.AppendUint16(b, e.Core)
	for _, v := range [...]uint32{uint32(e.Job), uint32(e.Rank), e.Peer, uint32(e.Node), e.Size} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	b = binary.LittleEndian.AppendUint64(b, e.What)
	b = binary.LittleEndian.AppendUint64(b, e.Number)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(text)))
	return append(b, text...)
}

// Parse reads encoded events, which may be anything.
func Parse(b []byte) ([]Event, error) {
	events := make([]Event, 0, len(b)/fixed)
	for len(b) > 0 {
		e, n, err := parse(b)
		if err != nil {
			return nil, err
		}
		events = append(events, e)
		b = b[n:]
	}
	return events, nil
}

func parse(b []byte) (e Event, n int, err error) {
	if len(b) < fixed {
		return e, 0, fmt.Errorf("%w: %d bytes at the end", ErrEncoding, len(b))
	}
	u32 := func(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
	u64 := func(at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
	e = Event{
		Time: id.Time(u64(0)), Took: time.Duration(u64(8)), Kind: Kind(b[16]), Slot: b[17], Core: binary.LittleEndian.Uint16(b[18:]),
		Job: id.Job(u32(20)), Rank: id.Rank(u32(24)), Peer: u32(28), Node: id.Node(u32(32)), Size: u32(36),
		What: u64(40), Number: u64(48),
	}
	n = fixed + int(binary.LittleEndian.Uint16(b[56:]))
	switch {
	case e.Kind == 0 || e.Kind >= kinds:
		return e, 0, fmt.Errorf("%w: there is no kind %d", ErrEncoding, e.Kind)
	case e.Took < 0 || e.Time > maxTime || id.Time(e.Took) > maxTime:
		return e, 0, fmt.Errorf("%w: time %d, took %d", ErrEncoding, int64(e.Time), e.Took)
	case n > len(b) || n > fixed+maxText:
		return e, 0, fmt.Errorf("%w: text of %d bytes", ErrEncoding, n-fixed)
	}
	e.Text = string(b[fixed:n])
	return e, n, nil
}
