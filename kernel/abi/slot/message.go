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

// PacketContext is what an extension in the packet slot gets: struct margay_packet. Messages of the
// libraries are among them.
type PacketContext struct {
	Message  MessageContext
	FromNode uint32 // whose node kernel has sent it: not the source's if the message was forwarded
	Hops     uint32 // times that it was forwarded
}

// PacketSize is the size of PacketContext, in bytes.
const PacketSize = MessageSize + 8

// Bounds of what extensions send while they handle messages.
const (
	// MaxSends is how many messages the extensions of a node send for one message at most.
	MaxSends = 128

	// MaxCaused is how many messages a message of a rank causes at most, on all nodes: those that
	// were sent for it, those that were sent for these, and so on. What one message may still cause
	// is shared evenly among those that were sent for it, except those that are the last.
	MaxCaused = 1<<15 - 1

	// SendFuel is what a message costs that an extension sends, in instructions, besides one for
	// each byte of its payload.
	SendFuel = 500
)

// Send says where a message goes that an extension sends: struct margay_send.
type Send struct {
	Rank    uint32 // ignored in a reply
	Handler uint32
	Args    [2]uint64
	Last    uint64 // not 0: nothing is sent for this message
}

// Put says where the data of a put go that an extension starts: struct margay_put.
type Put struct {
	Rank   uint32 // whose window it is
	Window uint32 // its number
	Offset uint64 // bytes
}

// JobRank describes a rank: struct margay_job_rank.
type JobRank struct {
	Ranks uint32 // of the job
	Nodes uint32 // of the job
	Node  uint32 // place of the rank's node among the job's nodes, from 0
	Next  uint32 // the next rank on that node; NoRank: there is none
}

// JobNode describes a node of a job: struct margay_job_node.
type JobNode struct {
	Number uint32 // of the node in the machine
	First  uint32 // its lowest rank; NoRank: it has none
	Ranks  uint32 // number of its ranks
	Unused uint32
}

// NoRank stands for no rank.
const NoRank = 1<<32 - 1

// Senders of messages, as the service message_sender returns them.
const (
	FromRank      = 0
	FromExtension = 1
)
