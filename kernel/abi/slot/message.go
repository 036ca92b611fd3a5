package slot

import "margay/kernel/abi/wire"

// MaxMessage is how much of a message an extension in the message slot sees at most, in bytes.
const MaxMessage = wire.MaxPayload

// MessageContext is what an extension in the message slot gets: struct margay_message. The system
// has written the source fields, so they are true. Behind Length, Data is zero. Extensions do not
// see the messages of the libraries, whose handlers are wire.MaxHandlers and more.
//
// Of a message of more than wire.MaxPayload bytes, Data has the beginning. The verdict about it
// counts for the whole message.
type MessageContext struct {
	Job        uint32
	SourceNode uint32
	SourceRank uint32
	TargetRank uint32
	Handler    uint32
	Length     uint32 // bytes in Data
	Args       [2]uint64
	Data       [MaxMessage]byte
	Total      uint64 // bytes of the payload
}

// MessageSize is the size of MessageContext, in bytes.
const MessageSize = 48 + MaxMessage
