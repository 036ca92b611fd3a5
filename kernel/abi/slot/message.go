package slot

import "margay/kernel/abi/wire"

// MaxMessage is the longest payload of a message in the message slot, in bytes: of any that a rank
// can send.
const MaxMessage = wire.MaxPayload

// MessageContext is what an extension in the message slot gets: struct margay_message. The system
// has written the source fields, so they are true. Behind Length, Data is zero. Extensions do not
// see the messages of the libraries, whose handlers are wire.MaxHandlers and more.
type MessageContext struct {
	Job        uint32
	SourceNode uint32
	SourceRank uint32
	TargetRank uint32
	Handler    uint32
	Length     uint32 // bytes of the payload in Data
	Args       [2]uint64
	Data       [MaxMessage]byte
}

// MessageSize is the size of MessageContext, in bytes.
const MessageSize = 40 + MaxMessage
